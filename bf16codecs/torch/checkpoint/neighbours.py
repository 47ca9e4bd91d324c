"""Finds other checkpoints of a series, and models based on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._files.publish import WORKING_PREFIX
from bf16codecs.convert.runs.step_numbers import series_of
from bf16codecs.errors import BF16CodecsError, StoreError
from bf16codecs.store.attributes import BaseReference
from bf16codecs.store.bases import place_of
from bf16codecs.store.opening import own_attributes

__all__ = ["Member", "Members", "is_checkpoint", "members_beside", "steps_before"]


@dataclass(frozen=True)
class Member:
    """A model store in the folder of a series."""

    path: Path
    #: In the series; None of what is of none, or another, which is never removed.
    step: int | None
    #: The path or address of its base, if it has one.
    base: str | None
    #: Whether it is in the folder; if not, it is only on the way to what is.
    is_beside: bool = True


#: By path.
Members = dict[str, Member]


class _Told(NamedTuple):
    """The attributes of a store."""

    is_model: bool
    is_checkpoint: bool
    base: str | None


# Of Zarr stores, by the identity of their root document: to read one takes milliseconds for each
# thousand tensors, and a run may keep a thousand checkpoints.
_told: dict[str, tuple[tuple[int, ...], _Told]] = {}


def members_beside(target: Path) -> Members:
    """Return the model stores beside a checkpoint, itself included.

    Raises
    ------
    BF16CodecsError, OSError
        If one does not tell whether it has a base: then it may be any of the others.
    """
    own, found = series_of(target.name), {}
    for path in _neighbours(target):
        try:
            told = _told_by(path)
        except FileNotFoundError:
            if not path.exists():
                continue  # somebody has removed it
            raise
        except BF16CodecsError as e:
            raise StoreError(
                f"{e}: it may be a difference to any checkpoint in its folder: move it elsewhere"
            ) from e
        if told.is_model:
            series = series_of(path.name) if told.is_checkpoint else None
            is_own = series is not None and own is not None and series[0] == own[0]
            step = series[1] if is_own and series is not None else None
            found[str(path)] = Member(path, step, told.base)
    folder = os.path.dirname(os.path.realpath(target))
    for gone in [p for p in list(_told) if p not in found and os.path.dirname(p) == folder]:
        _told.pop(gone, None)  # which another thread may have done
    for member in list(found.values()):
        _follow(member.base, found)
    return found


def _follow(base: str | None, found: Members) -> None:
    """Add what a base elsewhere has as its base, and so on: that may be in here again."""
    while base is not None and base not in found and "://" not in base and os.path.lexists(base):
        told = _told_by(Path(base))
        found[base] = Member(Path(base), None, told.base, is_beside=False)
        base = told.base


def steps_before(target: Path) -> list[Path]:
    """Return what by its name is of the series of a checkpoint, and before it: the last first."""
    own = series_of(target.name)
    if own is None:
        return []
    named = ((series_of(path.name), path) for path in _neighbours(target))
    before = [(found[1], path) for found, path in named if found and found[0] == own[0]]
    return [path for step, path in sorted(before, reverse=True) if step < own[1]]


def is_checkpoint(path: Path) -> bool:
    """Tell whether a training job wrote a store.

    Raises
    ------
    StoreError
        If it is a folder that is no store.
    BF16CodecsError, OSError
        If it does not tell.
    """
    told = _told_by(path)
    if not told.is_model and path.is_dir():
        raise StoreError("it is a folder without a store")
    return told.is_checkpoint


def _neighbours(target: Path) -> list[Path]:
    """Return what is in the folder of a checkpoint, without links, and what is being made there."""
    folder = Path(os.path.realpath(target)).parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [p for p in found if not p.name.startswith(WORKING_PREFIX) and not p.is_symlink()]


def _told_by(path: Path) -> _Told:
    try:
        status = os.stat(path / "zarr.json")
    except OSError:
        return _read(path)
    identity = status.st_ino, status.st_size, status.st_mtime_ns
    if _told.get(str(path), (None,))[0] != identity:
        _told[str(path)] = identity, _read(path)
    return _told[str(path)][1]


def _read(path: Path) -> _Told:
    said = own_attributes(path)
    return _Told(bool(said), "checkpoint" in said, _base_in(said, path))


def _base_in(said: Mapping[str, Any], path: Path) -> str | None:
    """Return the path or address of the base that a store says it has, of any layout."""
    base = said.get("base")
    if base is None:
        return None
    place = base.get("path") if isinstance(base, Mapping) else None
    if not isinstance(place, str):
        raise StoreError(f"{path}: its attributes do not tell which base it has")
    found = place_of(BaseReference(place, None, ()), str(path))
    return found if "://" in found else os.path.realpath(found)
