"""Finds the JSON documents of a store, and replaces them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import h5py
from numcodecs import Zstd

from bf16codecs.store.checkpoint import CHECKPOINT_PATH
from bf16codecs.store.layout import ATTRIBUTES_KEY
from store_fuzz_mutations import Content
from store_fuzz_truth import Seed, zip_contents

Documents = dict[str, tuple[bytes, Callable[[bytes], Mapping[str, Content]]]]

_NAMES = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata", ".index.json")


def documents(seed: Seed) -> Documents:
    """Return all JSON documents of a store: their texts, and functions that replace them."""
    if seed.is_hdf5:
        return _hdf5(seed.files[""])
    if seed.is_zip:
        contents = zip_contents(seed.files[""])
        return {
            name: (text, partial(_zip_with, seed.files[""], name))
            for name, text in contents.items()
            if name.endswith(_NAMES)
        }
    found: Documents = {}
    for path, raw in seed.files.items():
        if path.endswith(_NAMES):
            found[path] = raw, partial(_file, path)
        elif not seed.store.endswith(".zarr"):
            start = 8 + int.from_bytes(raw[:8], "little")
            found[path or "header"] = raw[8:start], partial(_header, path, raw[start:])
    return found


def _file(path: str, text: bytes) -> dict[str, Content]:
    return {path: text}


def _header(path: str, data: bytes, text: bytes) -> dict[str, Content]:
    return {path: len(text).to_bytes(8, "little") + text + data}


def _zip_with(raw: bytes, name: str, text: bytes) -> dict[str, Content]:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            content = text if member.filename == name else old.read(member)
            new.writestr(member.filename, content, member.compress_type)
    return {"": out.getvalue()}


def _hdf5(raw: bytes) -> Documents:
    found: Documents = {}

    def visit(path: str, item: Any) -> None:
        if ATTRIBUTES_KEY in item.attrs:
            text = item.attrs[ATTRIBUTES_KEY]
            found[path] = text.encode(), partial(_hdf5_with, raw, path)

    with h5py.File(io.BytesIO(raw)) as file:
        visit("/", file)
        file.visititems(visit)
    return found


def _hdf5_with(raw: bytes, path: str, text: bytes) -> dict[str, Content]:
    buffer = io.BytesIO(raw)
    with h5py.File(buffer, "r+") as file:
        if len(text) < 60_000:
            file[path].attrs[ATTRIBUTES_KEY] = text.decode()
        else:  # more than a dataset's header holds
            del file[path].attrs[ATTRIBUTES_KEY]
            kind = h5py.string_dtype()
            file[path].attrs.create(ATTRIBUTES_KEY, text.decode(), dtype=kind)
    return {"": buffer.getvalue()}


def stored_headers(seed: Seed) -> Documents:
    """Return the safetensors headers in a Zarr store in a folder; another gets valid checksums."""
    found: Documents = {}
    number = 0
    if seed.is_run:  # in a run, steps have it, and the store has none
        return found
    while f"{(path := f'safetensors/header/{number}')}/c.0" in seed.files:
        with_shards = sorted(seed.original.glob("*.safetensors")) or [seed.original]
        raw = with_shards[number].read_bytes()
        text = raw[8 : 8 + int.from_bytes(raw[:8], "little")]
        found[path] = text, partial(_stored_header, seed, number)
        number += 1
    return found


def stored_texts(seed: Seed) -> Documents:
    """Return the text of a checkpoint in a folder; another gets valid checksums."""
    if f"{CHECKPOINT_PATH}/c.0" not in seed.files:
        return {}
    with_zstd = seed.files[f"{CHECKPOINT_PATH}/c.0"]
    return {CHECKPOINT_PATH: (Zstd().decode(with_zstd), partial(_stored, seed, CHECKPOINT_PATH))}


def _stored_header(seed: Seed, number: int, text: bytes) -> dict[str, Content]:
    """Store another header, with valid checksums."""
    path = f"safetensors/header/{number}"
    changes = _stored(seed, path, text)
    root = json.loads(changes["zarr.json"])
    file = root["attributes"][ATTRIBUTES_KEY]["files"][number]
    file["size"] += len(text) - json.loads(seed.files[f"{path}/zarr.json"])["shape"][0]
    return {**changes, "zarr.json": json.dumps(root).encode()}


def _stored(seed: Seed, path: str, text: bytes) -> dict[str, bytes]:
    """Store another text as one chunk, in a store of format 3."""
    root = json.loads(seed.files["zarr.json"])
    own = json.loads(seed.files[f"{path}/zarr.json"])
    consolidated = root.get("consolidated_metadata", {}).get("metadata", {}).get(path)
    for document in filter(None, (own, consolidated)):
        document["shape"] = [len(text)]
        document["chunk_grid"]["configuration"]["chunk_shape"] = [max(1, len(text))]
    return {
        "zarr.json": json.dumps(root).encode(),
        f"{path}/zarr.json": json.dumps(own).encode(),
        f"{path}/c.0": Zstd(1, checksum=True).encode(text),
    }
