"""Changes stores, as damage or a stranger would."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


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


def edit_array(store: Path, path: str, change: Callable[[Any], object]) -> None:
    """Change what the root of a store of format 3 says of an array."""
    edit_json(
        store, "zarr.json", lambda root: change(root["consolidated_metadata"]["metadata"][path])
    )
