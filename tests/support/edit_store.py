"""Changes the metadata of stores, as damage or a stranger would."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_json(store: Path, key: str, change: Callable[[Any], object]) -> None:
    """Change a metadata document of a folder or a ZIP file."""
    if store.is_dir():
        document = json.loads((store / key).read_text())
        change(document)
        (store / key).write_text(json.dumps(document))
        return
    with zipfile.ZipFile(store) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    document = json.loads(members[key])
    change(document)
    members[key] = json.dumps(document).encode()
    with zipfile.ZipFile(store, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def edit_array(store: Path, path: str, change: Callable[[Any], object]) -> None:
    """Change what the root of a store of format 3 says of an array."""
    edit_json(
        store, "zarr.json", lambda root: change(root["consolidated_metadata"]["metadata"][path])
    )
