"""Files in a Zarr store that are not Zarr's: whoever replaces the store would lose them."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bf16codecs.store.kinds import ZARR_MARKERS, Kind

__all__ = ["foreign_name"]

# And what file managers of macOS leave everywhere.
_DOCUMENTS = ZARR_MARKERS | {".zattrs", ".DS_Store"}
# Of an array whose document is lost, too: it may be replaced.
_CHUNK = re.compile(r"(c[./]?)?\d+([./]\d+)*|c")


def foreign_name(path: Path, kind: Kind) -> str:
    """Return the first file in a store that Zarr did not put there; nothing if there is none.

    What is below an array is the array's.

    Parameters
    ----------
    path
        The store.
    kind
        What it is. Of a ZIP file, only members at the top are looked at, of an HDF5 file nothing.

    Raises
    ------
    OSError, zipfile.BadZipFile
        If it cannot be read.
    """
    if kind is Kind.FOLDER:
        return next(_foreign_files(path), "")
    if kind is Kind.ZIP:
        with zipfile.ZipFile(path) as archive:
            return _foreign_member(archive.namelist())
    return ""


def _foreign_files(store: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(store, onerror=_raise):
        here = Path(folder)
        if folder != str(store) and _is_array(here, files):
            folders.clear()
            continue
        folders.sort()
        others = (here / name for name in sorted(files) if not _is_zarrs(name))
        yield from (str(other.relative_to(store)) for other in others)


def _is_array(folder: Path, files: Iterable[str]) -> bool:
    if ".zarray" in files:
        return True
    if "zarr.json" not in files:
        return False
    try:
        document = json.loads((folder / "zarr.json").read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("node_type") == "array"


def _foreign_member(names: Iterable[str]) -> str:
    files = sorted(name for name in names if not name.endswith("/"))
    return next((name for name in files if "/" not in name and not _is_zarrs(name)), "")


def _is_zarrs(name: str) -> bool:
    return name in _DOCUMENTS or _CHUNK.fullmatch(name) is not None


def _raise(error: OSError) -> None:
    raise error
