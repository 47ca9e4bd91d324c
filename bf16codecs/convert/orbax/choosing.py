"""Which of the two a path is: a checkpoint to convert, or a store to restore one from."""

from __future__ import annotations

import os
from pathlib import Path

from bf16codecs._base.paths import absolute, given_path
from bf16codecs.convert.orbax.layout import MARKERS, is_orbax, parent_checkpoint
from bf16codecs.errors import StoreError
from bf16codecs.store.addresses import path_of
from bf16codecs.store.kinds import RESTORERS, Kind, detect, suffix_of
from bf16codecs.store.plan import header_path

__all__ = ["ADDRESS_ADVICE", "is_to_convert", "local_checkpoint"]

#: What to do about a checkpoint at an address.
ADDRESS_ADVICE = "Orbax checkpoints are not read from addresses: copy the checkpoint first"


def is_to_convert(src: str, dst: str) -> bool:
    """Tell whether a path is a checkpoint, of which a store is to be made, and not such a store.

    Parameters
    ----------
    src, dst
        A path or an address, and what is to be made of it.

    Raises
    ------
    StoreError
        If it is neither, or at an address, and a store is to be made.
    OSError
        If there is nothing there, or it cannot be read.
    """
    path = path_of(given_path(src, "source"))
    if path is None:
        if suffix_of(dst.rstrip("/"))[1] in (Kind.FOLDER, Kind.ZIP):
            raise StoreError(f"{src}: {ADDRESS_ADVICE}")
        return False
    if is_orbax(path):
        return True
    kind = detect(path)
    if kind not in (Kind.FOLDER, Kind.ZIP) or _is_part(Path(path), kind):
        raise StoreError(f"{src}: {_other(Path(path))}")
    return False


def local_checkpoint(src: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a checkpoint that a caller gives.

    Raises
    ------
    StoreError
        If it is an address, or no checkpoint.
    OSError
        If there is nothing there, or it cannot be read.
    """
    path = path_of(given_path(src, "source"))
    if path is None:
        raise StoreError(f"{os.fspath(src)}: {ADDRESS_ADVICE}")
    root = Path(absolute(path))
    os.stat(root)
    if root.is_dir() and not is_orbax(root):
        raise StoreError(f"{root}: {_other(root)}")
    return root


def _is_part(path: Path, kind: Kind | None) -> bool:
    """Tell whether a path is in a checkpoint, and no model: an array, or an item without any."""
    is_model = kind not in (None, Kind.FOLDER) or (path / header_path(0)).exists()
    return not is_model and parent_checkpoint(path) is not None


def _other(path: Path) -> str:
    """Say of what is no checkpoint what it is."""
    kind = detect(path)
    if _is_part(path, kind):
        checkpoint = parent_checkpoint(path)
        return f"no Orbax checkpoint, but a part of one, without a tree: name {checkpoint}"
    if kind is not None:
        command = RESTORERS.get(kind)
        does = "st2zarr makes stores of it" if command is None else f"{command} restores it"
        return f"no Orbax checkpoint, but {kind.value}: {does}"
    if not path.is_dir():
        return "no Orbax checkpoint, which is a folder, and no Zarr store of one"
    why = f"it has no {' or '.join(MARKERS)}" if any(path.iterdir()) else "it is empty"
    return f"no Orbax checkpoint, and no Zarr store of one: {why}"
