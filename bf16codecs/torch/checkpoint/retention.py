"""Which checkpoints of a series are kept, and which one the next is a difference to.

The members of a series are the checkpoints in one folder; models elsewhere may be their bases.
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
from bf16codecs.store.opening import Opening, open_either, own_attributes
from bf16codecs.store.reader import ModelReader

__all__ = ["Retention", "check_series", "previous_of", "release"]


@dataclass(frozen=True)
class _Member:
    """A model store in the folder of a series."""

    path: Path
    #: Its step in the series; None if it is not of the series, and is never removed.
    step: int | None
    #: The path or address of its base, if it has one.
    base: str | None
    #: Whether it is in the folder; if not, it is only a base of a member's base.
    is_beside: bool = True


#: By path.
_Members = dict[str, _Member]


class _Told(NamedTuple):
    """The attributes of a store."""

    is_model: bool
    is_checkpoint: bool
    base: str | None


# Of Zarr stores, by the identity of their root document: to read one takes milliseconds for each
# thousand tensors, and a run may keep a thousand checkpoints.
_told: dict[str, tuple[tuple[int, ...], _Told]] = {}


def _members_beside(target: Path) -> _Members:
    """Return the model stores beside a checkpoint, itself included.

    Raises BF16CodecsError or OSError if one does not tell its base, which may be any of the others.
    """
    own, found = series_of(target.name), {}
    for path in _neighbours(target):
        try:
            told = _told_by(path)
        except FileNotFoundError:
            if not path.exists():
                continue  # another process has removed it
            raise
        except BF16CodecsError as e:
            raise StoreError(
                f"{e}: it may be a difference to any checkpoint in its folder: move it elsewhere"
            ) from e
        if told.is_model:
            series = series_of(path.name) if told.is_checkpoint else None
            is_own = series is not None and own is not None and series[0] == own[0]
            step = series[1] if is_own and series is not None else None
            found[str(path)] = _Member(path, step, told.base)
    folder = os.path.dirname(os.path.realpath(target))
    for gone in [p for p in list(_told) if p not in found and os.path.dirname(p) == folder]:
        _told.pop(gone, None)  # which another thread may have done
    for member in list(found.values()):
        _follow(member.base, found)
    return found


def _follow(base: str | None, found: _Members) -> None:
    """Add the bases of a base elsewhere: one of them may be in this folder again."""
    while base is not None and base not in found and "://" not in base and os.path.lexists(base):
        told = _told_by(Path(base))
        found[base] = _Member(Path(base), None, told.base, is_beside=False)
        base = told.base


def _steps_before(target: Path) -> list[Path]:
    """Return the earlier checkpoints of a series, by their names, the last first."""
    own = series_of(target.name)
    if own is None:
        return []
    named = ((series_of(path.name), path) for path in _neighbours(target))
    before = [(found[1], path) for found, path in named if found and found[0] == own[0]]
    return [path for step, path in sorted(before, reverse=True) if step < own[1]]


def _is_checkpoint(path: Path) -> bool:
    """Return whether a training job wrote a store; raise StoreError for a folder that is no store.

    Raises BF16CodecsError or OSError if it does not tell.
    """
    told = _told_by(path)
    if not told.is_model and path.is_dir():
        raise StoreError("it is a folder without a store")
    return told.is_checkpoint


def _neighbours(target: Path) -> list[Path]:
    """Return the contents of a checkpoint's folder, without links and working folders."""
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
    """Return the path or address of a store's base, whatever the layout of its attributes."""
    base = said.get("base")
    if base is None:
        return None
    place = base.get("path") if isinstance(base, Mapping) else None
    if not isinstance(place, str):
        raise StoreError(f"{path}: its attributes do not tell which base it has")
    found = location_of(BaseReference(place, None, ()), str(path))
    return found if "://" in found else os.path.realpath(found)


# Reading one decodes all of its chain: as many as this come after one that is whole. With 8 in a
# chain, steps of a run took 1.9 bits a value instead of 10.5; with 16, 1.3 (docs/experiments.md).
_LONGEST_CHAIN = 7


@dataclass(frozen=True)
class Retention:
    """The numbers of checkpoints to keep: see `StoreWriter`."""

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
        """Tell whether a checkpoint stays when the next one is there."""
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
            # Differences before what they are differences to: what is left can be read.
            for path in sorted(doomed - needed, key=lambda p: -(members[p].step or 0)):
                _remove(members[path].path, sync)
        except (BF16CodecsError, OSError, ValueError) as e:
            asked = f"keep_last={self.keep_last}"
            _warn(f"{target.parent}: not all is removed that {asked} asks for", e)

    def _doomed(self, members: _Members, target: Path) -> set[str]:
        series = series_of(target.name)
        assert series is not None
        # Later ones are of a branch that this job has left, or of another job: they do not count.
        found = ((m.step, path) for path, m in members.items() if m.step is not None)
        steps = sorted((step, path) for step, path in found if step <= series[1])
        left, kept = self.keep_last or 0, set()
        for step, path in reversed(steps):
            if left > 0 or self._is_kept_for_ever(step):
                kept.add(path)
            if left > 0:
                left -= _is_readable(path)
        return {path for _, path in steps} - kept


def check_series(path: str, what: str) -> None:
    """Raise ValueError for a checkpoint whose name tells no step, which `what` needs."""
    if series_of(Path(path).name) is None:
        raise ValueError(
            f"{path}: {what} goes by the step that a name tells: name it like step-600.zarr"
        )


def release(target: Path, sync: bool) -> None:
    """Rewrite the differences to a checkpoint that is about to be replaced.

    Raises BF16CodecsError or OSError if that fails, or it is unknown what to rewrite.
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
        text = f"{path}: not rewritten, so that its base, {os.path.basename(member.base)}, stays"
        _warn(text, e)


def _ancestor(members: _Members, path: str, doomed: set[str]) -> str | None:
    """Return the first base of a checkpoint that stays; None if there is none."""
    return next((base for base in _chain(members, path) if base not in doomed), None)


def _chain(members: _Members, path: str) -> Iterator[str]:
    """Yield the base of a checkpoint, the base of that, and so on, as far as they are in here."""
    for _ in members:
        member = members.get(path)
        if member is None or member.base is None:
            return
        yield member.base
        path = member.base


def _remove(path: Path, durable: bool) -> None:
    """Remove a store; meanwhile, no part of it has its name."""
    working = WorkingFolder.make(path.parent, durable=durable)
    try:
        os.rename(path, working.new)
        if durable:
            # A loss of power must not give a part of it the name again.
            sync(path.parent)
    finally:
        left = working.close()
    if left is not None:
        raise left


def previous_of(path: str) -> str | None:
    """Return the base of a new checkpoint: the one of the step before.

    None if there is none, the chain would get too long, or, with a warning, none can be read.
    """
    target = Path(absolute(path))
    for place in _steps_before(target):
        try:
            if _is_checkpoint(place):
                with closing(open_either(place, Opening(chain=("",)))) as reader:
                    return str(place) if _depth(reader) < _LONGEST_CHAIN else None
        except (BF16CodecsError, OSError) as e:
            _warn(f"{place}: not taken as the base of {target.name}", e)
    return None


def _depth(reader: ModelReader) -> int:
    """Return how many bases have to be read."""
    base = reader.base
    return 0 if base is None else 1 + _depth(base)


def _may_go(path: str) -> bool:
    """Return whether a checkpoint opens and has only its own files; warn of a user's files."""
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
