"""Retention of checkpoints of a series, and the choice of the base of the next one.

A series are checkpoints in one folder; models elsewhere may be their bases.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bf16codecs._base.arguments import positive
from bf16codecs._base.messages import one_line
from bf16codecs._base.paths import absolute
from bf16codecs._files.publish import WORKING_PREFIX, WorkingFolder
from bf16codecs._files.sync import sync
from bf16codecs.convert.foreign import foreign_name
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.convert.runs.step_numbers import series_of
from bf16codecs.errors import BF16CodecsError, CheckpointWarning, StoreError
from bf16codecs.store.attributes import BaseReference
from bf16codecs.store.bases import location_of
from bf16codecs.store.kinds import detect
from bf16codecs.store.opening import Opening, model_attributes, open_either
from bf16codecs.store.reader import ModelReader

__all__ = ["Retention", "check_series", "previous_of", "release"]


@dataclass(frozen=True)
class _Member:
    """A model store in the folder of a series."""

    path: Path
    #: Its step in the series; None if it belongs to no or another series, and is never removed.
    step: int | None
    #: The path or address of its base, if it has one.
    base: str | None
    #: Whether it is in the folder; otherwise it is elsewhere, and a base of a member or its base.
    is_beside: bool = True


#: By path.
_Members = dict[str, _Member]


class _Attributes(NamedTuple):
    """The attributes of a store that retention needs."""

    is_model: bool
    is_checkpoint: bool
    base: str | None


# Zarr stores' attributes by path, each with the identity of the root document that they were read
# from: reading one takes milliseconds for each thousand tensors, and a run may keep a thousand
# checkpoints.
_known: dict[str, tuple[tuple[int, ...], _Attributes]] = {}


def _members_beside(target: Path) -> _Members:
    """Return the model stores in a checkpoint's folder, itself included.

    Raises BF16CodecsError or OSError if the base of one cannot be determined: it may be any member.
    """
    target_series, found = series_of(target.name), {}
    for path in _neighbours(target):
        try:
            attributes = _attributes_of(path)
        except FileNotFoundError:
            if not path.exists():
                continue  # another process has removed it
            raise
        except BF16CodecsError as e:
            raise StoreError(
                f"{e}: it may be a difference to any checkpoint in its folder: move it elsewhere"
            ) from e
        if attributes.is_model:
            series = series_of(path.name) if attributes.is_checkpoint else None
            is_same = series and target_series and series[0] == target_series[0]
            step = series[1] if series and is_same else None
            found[str(path)] = _Member(path, step, attributes.base)
    folder = os.path.dirname(os.path.realpath(target))
    for removed in [p for p in list(_known) if p not in found and os.path.dirname(p) == folder]:
        _known.pop(removed, None)  # another thread may have popped it
    for member in list(found.values()):
        _follow(member.base, found)
    return found


def _follow(base: str | None, found: _Members) -> None:
    """Add a base in another folder, and its bases: one of these may be in this folder again."""
    while base is not None and base not in found and "://" not in base and os.path.lexists(base):
        next_base = _attributes_of(Path(base)).base
        found[base] = _Member(Path(base), None, next_base, is_beside=False)
        base = next_base


def _steps_before(target: Path) -> list[Path]:
    """Return the earlier checkpoints of a series, by their names, the last first."""
    target_series = series_of(target.name)
    if target_series is None:
        return []
    pattern, target_step = target_series
    named = ((series_of(path.name), path) for path in _neighbours(target))
    steps = [(series[1], path) for series, path in named if series and series[0] == pattern]
    return [path for step, path in sorted(steps, reverse=True) if step < target_step]


def _is_checkpoint(path: Path) -> bool:
    """Tell whether a training job wrote a store.

    Raises StoreError for a folder that is no store, BF16CodecsError or OSError if the attributes
    cannot be read.
    """
    attributes = _attributes_of(path)
    if not attributes.is_model and path.is_dir():
        raise StoreError("it is a folder without a store")
    return attributes.is_checkpoint


def _neighbours(target: Path) -> list[Path]:
    """Return the contents of a checkpoint's folder, without links and working folders."""
    folder = Path(os.path.realpath(target)).parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [p for p in found if not p.name.startswith(WORKING_PREFIX) and not p.is_symlink()]


def _attributes_of(path: Path) -> _Attributes:
    try:
        status = os.stat(path / "zarr.json")
    except OSError:
        return _read_attributes(path)
    identity = status.st_ino, status.st_size, status.st_mtime_ns
    if _known.get(str(path), (None,))[0] != identity:
        _known[str(path)] = identity, _read_attributes(path)
    return _known[str(path)][1]


def _read_attributes(path: Path) -> _Attributes:
    document = model_attributes(path)
    return _Attributes(bool(document), "checkpoint" in document, _base_location(document, path))


def _base_location(document: Mapping[str, Any], path: Path) -> str | None:
    """Return the path or address of a store's base, whatever the layout of its attributes."""
    base = document.get("base")
    if base is None:
        return None
    reference = base.get("path") if isinstance(base, Mapping) else None
    if not isinstance(reference, str):
        raise StoreError(f"{path}: its attributes name a base without its path")
    location = location_of(BaseReference(reference, None, ()), str(path))
    return location if "://" in location else os.path.realpath(location)


# The most differences in a chain, after a checkpoint that is stored whole: reading the last one
# decodes them all. With 8 checkpoints in a chain, steps of a run took 1.9 bits per value instead of
# 10.5; with 16, 1.3 (docs/experiments.md).
_LONGEST_CHAIN = 7


@dataclass(frozen=True)
class Retention:
    """The checkpoints to keep, from the arguments of `StoreWriter`."""

    keep_last: int | None
    keep_every: int | None

    @classmethod
    def checked(cls, keep_last: int | None, keep_every: int | None) -> Retention:
        """Check the arguments; raise TypeError or ValueError if they make no sense."""
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            if value is not None:
                positive(name, value)
        if keep_every is not None and keep_last is None:
            raise ValueError("keep_every requires keep_last, whose removals it limits")
        return cls(keep_last, keep_every)

    def keeps_before(self, path: str) -> bool:
        """Tell whether a checkpoint stays once the next one exists."""
        series = series_of(Path(path).name)
        return self.keep_last != 1 or (series is not None and self._is_kept_for_ever(series[1]))

    def _is_kept_for_ever(self, step: int) -> bool:
        return self.keep_every is not None and step % self.keep_every == 0

    def apply(self, target: Path, sync: bool) -> None:
        """Remove the checkpoints that are not kept, now that another one exists.

        Rewrites differences to them, or else keeps their bases. Failures become warnings.
        """
        if self.keep_last is None:
            return
        try:
            members = _members_beside(target)
            doomed = set(filter(_may_go, self._doomed(members, target)))
            for path in sorted(members.keys() - doomed):
                if members[path].base in doomed and members[path].is_beside:
                    _rewrite(members, path, doomed, sync)
            needed = {base for path in members.keys() - doomed for base in _chain(members, path)}
            # Differences go before their bases: an interruption leaves only readable ones.
            for path in sorted(doomed - needed, key=lambda p: -(members[p].step or 0)):
                _remove(members[path].path, sync)
        except (BF16CodecsError, OSError, ValueError) as e:
            option = f"keep_last={self.keep_last}"
            _warn(f"{target.parent}: not all older checkpoints were removed, despite {option}", e)

    def _doomed(self, members: _Members, target: Path) -> set[str]:
        series = series_of(target.name)
        assert series is not None
        # Later ones do not count: they belong to a branch that this job has left, or another job.
        found = ((m.step, path) for path, m in members.items() if m.step is not None)
        steps = sorted((step, path) for step, path in found if step <= series[1])
        remaining, kept = self.keep_last or 0, set()
        for step, path in reversed(steps):
            if remaining > 0 or self._is_kept_for_ever(step):
                kept.add(path)
            if remaining > 0:
                remaining -= _is_readable(path)
        return {path for _, path in steps} - kept


def check_series(path: str, option: str) -> None:
    """Raise ValueError for a checkpoint without a step in its name, which an option needs."""
    if series_of(Path(path).name) is None:
        raise ValueError(
            f"{path}: {option} goes by the step in a checkpoint's name: name it like step-600.zarr"
        )


def release(target: Path, sync: bool) -> None:
    """Rewrite the differences to a checkpoint that is about to be replaced.

    Raises BF16CodecsError or OSError if that fails, or the checkpoints to rewrite are unknown.
    """
    path = os.path.realpath(target)
    members = _members_beside(target) if os.path.lexists(path) else {}
    for member in members.values():
        if member.base == path and member.is_beside:
            rebase_store(member.path, _ancestor(members, path, {path}), sync=sync)


def _rewrite(members: _Members, path: str, doomed: set[str], sync: bool) -> None:
    member = members[path]
    assert member.base is not None
    ancestor = _ancestor(members, member.base, doomed)
    try:
        rebase_store(path, ancestor, sync=sync)
        members[path] = replace(member, base=ancestor)
    except (BF16CodecsError, OSError) as e:
        base = os.path.basename(member.base)
        _warn(f"{path}: not rewritten, so that its base, {base}, stays", e)


def _ancestor(members: _Members, path: str, doomed: set[str]) -> str | None:
    """Return the first base of a checkpoint that stays, or None."""
    return next((base for base in _chain(members, path) if base not in doomed), None)


def _chain(members: _Members, path: str) -> Iterator[str]:
    """Yield the base of a checkpoint, its base, and so on, through the members."""
    for _ in members:
        member = members.get(path)
        if member is None or member.base is None:
            return
        yield member.base
        path = member.base


def _remove(path: Path, durable: bool) -> None:
    """Remove a store; no part of it is ever seen under its name."""
    working = WorkingFolder.make(path.parent, durable=durable)
    try:
        os.rename(path, working.new)
        if durable:
            # After a loss of power, a part of it must not have the name again.
            sync(path.parent)
    finally:
        error = working.close()
    if error is not None:
        raise error


def previous_of(path: str) -> str | None:
    """Return the base of a new checkpoint: the last earlier one of its series that can be read.

    None if no earlier one can, or the chain would get too long. Warns of each that cannot be read.
    """
    target = Path(absolute(path))
    for candidate in _steps_before(target):
        try:
            if _is_checkpoint(candidate):
                with closing(open_either(candidate, Opening(chain=("",)))) as reader:
                    return str(candidate) if _depth(reader) < _LONGEST_CHAIN else None
        except (BF16CodecsError, OSError) as e:
            _warn(f"{candidate}: not taken as the base of {target.name}", e)
    return None


def _depth(reader: ModelReader) -> int:
    """Count the bases in a reader's chain."""
    base = reader.base
    return 0 if base is None else 1 + _depth(base)


def _may_go(path: str) -> bool:
    """Tell whether a checkpoint opens and has no foreign files; warn of a user's files."""
    try:
        open_either(path, Opening(with_base=False)).close()
    except BF16CodecsError:
        return False
    kind = detect(path)
    foreign = "" if kind is None else foreign_name(Path(path), kind)
    if foreign:
        _warn(f"{path}: not removed: {foreign!r:.200} in it is not the store's: move it elsewhere")
    return not foreign


def _is_readable(path: str) -> bool:
    """Tell whether a store and its bases can be opened; warn about one that cannot."""
    try:
        open_either(path, Opening(chain=("",))).close()
        return True
    except (BF16CodecsError, OSError) as e:
        _warn(f"{path}: not counted among those to keep", e)
        return False


def _warn(text: str, error: Exception | None = None) -> None:
    text = text if error is None else f"{text}: {one_line(error)}"
    warnings.warn(text, CheckpointWarning, stacklevel=2)
