"""Changes stores, as damage or a stranger would."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py


def zip_members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def zip_folder(folder: Path, path: Path, method: int) -> Path:
    """Pack a folder into a ZIP file, with a member for each folder in it, as zip programs do."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder))
    return path


def edit_json(store: Path, key: str, change: Callable[[Any], object]) -> None:
    """Change a metadata document of a folder or a ZIP file."""
    if store.is_dir():
        document = json.loads((store / key).read_text())
        change(document)
        (store / key).write_text(json.dumps(document))
        return
    members = zip_members(store)
    document = json.loads(members[key])
    change(document)
    write_zip(store, {**members, key: json.dumps(document).encode()})


def edit_attributes(store: Path, change: Callable[[Any], object]) -> None:
    """Change the attributes that this package gives a store, in HDF5 or Zarr format 3."""
    if store.suffix != ".h5":
        edit_json(store, "zarr.json", lambda root: change(root["attributes"]["bf16codecs"]))
        return
    with h5py.File(store, "r+") as file:
        attributes = json.loads(file.attrs["bf16codecs"])
        change(attributes)
        file.attrs["bf16codecs"] = json.dumps(attributes)


def edit_array(store: Path, path: str, change: Callable[[Any], object]) -> None:
    """Change what the root of a store of format 3 says of an array."""
    edit_json(
        store, "zarr.json", lambda root: change(root["consolidated_metadata"]["metadata"][path])
    )


def claim_shape(store: Path, shape: list[int], chunk_shape: list[int]) -> None:
    """Give the tensor "w" another shape, also in the header, or else nothing would be read."""
    size = 2 * math.prod(shape)
    header = json.dumps({"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}})
    (store / "safetensors/header/0/c.0").write_text(header)

    def change(root: dict[str, Any]) -> None:
        arrays = root["consolidated_metadata"]["metadata"]
        arrays["w"].update(shape=shape, dimension_names=None)
        arrays["w"]["chunk_grid"]["configuration"]["chunk_shape"] = chunk_shape
        node = arrays["safetensors/header/0"]
        node.update(shape=[len(header)], dimension_names=None, codecs=[{"name": "bytes"}])
        node["chunk_grid"]["configuration"]["chunk_shape"] = [len(header)]
        root["attributes"]["bf16codecs"]["files"][0]["size"] = 8 + len(header) + size

    edit_json(store, "zarr.json", change)
