"""Which checkpoints of a series are kept, and which one the next is a difference to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from bf16codecs._arguments import as_integer
from bf16codecs._messages import one_line
from bf16codecs._paths import absolute
from bf16codecs._replace import WorkingFolder
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.convert.step_numbers import series_of
from bf16codecs.errors import BF16CodecsError, CheckpointWarning
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.bases import place_of
from bf16codecs.store.kinds import detect
from bf16codecs.store.opening import Opening, open_either

__all__ = ["Retention", "check_series", "previous_of", "release"]

# Reading one decodes all of its chain: as many as this come after one that is whole. With 8 in a
# chain, steps of a run took 1.9 bits a value instead of 10.5; with 16, 1.3 (docs/experiments.md).
_LONGEST_CHAIN = 7


@dataclass(frozen=True)
class _Member:
    """A model store in the folder of a series."""

    path: Path
    #: In the series; None of what is of none, or another, which is never removed.
    step: int | None
    #: Where its base is, if it has one that is local.
    base: Path | None


_Members = dict[Path, _Member]


@dataclass(frozen=True)
class Retention:
    """How many checkpoints are kept: see `StoreWriter`."""

    keep_last: int | None
    keep_every: int | None

    @classmethod
    def checked(cls, keep_last: int | None, keep_every: int | None) -> Retention:
        """Check the arguments.

        Raises
        ------
        TypeError, ValueError
            If they make no sense.
        """
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            if value is not None and as_integer(name, value) < 1:
                raise ValueError(f"{name} must be positive, not {value}")
        if keep_every is not None and keep_last is None:
            raise ValueError("keep_every is for what keep_last would remove: say keep_last, too")
        return cls(keep_last, keep_every)

    def apply(self, target: Path, sync: bool) -> None:
        """Remove what is not kept, now that a checkpoint is there.

        What is a difference to something that is removed is rewritten before. What cannot be
        rewritten keeps its bases. Whatever fails is told by a warning: the checkpoint is there.
        """
        if self.keep_last is None:
            return
        try:
            members = _members(target)
            doomed = self._doomed(members, target)
            for member in [m for m in members.values() if m.path not in doomed]:
                if member.base in doomed:
                    _rewrite(members, member, doomed, sync)
            needed = {base for p in members.keys() - doomed for base in _chain(members, p)}
            # Differences before what they are differences to: what is left can be read.
            for path in sorted(doomed - needed, key=lambda p: -(members[p].step or 0)):
                _remove(path, sync)
        except (BF16CodecsError, OSError, ValueError) as e:
            asked = f"keep_last={self.keep_last}"
            _warn(f"{target.parent}: not all is removed that {asked} asks for", e)

    def _doomed(self, members: _Members, target: Path) -> set[Path]:
        own = members[Path(os.path.realpath(target))].step
        # Later ones are of a branch that this job has left, or of another: nobody asked for them.
        found = ((m.step, m.path) for m in members.values() if m.step is not None)
        steps = sorted((step, path) for step, path in found if own is not None and step <= own)
        kept = {path for _, path in steps[-(self.keep_last or 0) :]}
        if self.keep_every is not None:
            kept |= {path for step, path in steps if step % self.keep_every == 0}
        return {path for _, path in steps} - kept


def check_series(path: str, what: str) -> None:
    """Refuse a checkpoint whose name tells no step.

    Parameters
    ----------
    path
        The checkpoint.
    what
        What needs it.

    Raises
    ------
    ValueError
        If it is one.
    """
    if series_of(Path(path).name) is None:
        raise ValueError(
            f"{path}: {what} goes by the step that a name tells: name it like step-600.zarr"
        )


def release(target: Path, sync: bool) -> None:
    """Rewrite what is a difference to a checkpoint that is about to be replaced.

    Raises
    ------
    bf16codecs.errors.BF16CodecsError, OSError
        If something cannot be rewritten.
    """
    path = Path(os.path.realpath(target))
    members = _members(target) if os.path.lexists(path) else {}
    for member in members.values():
        if member.base == path:
            rebase_store(member.path, _ancestor(members, path, {path}), sync=sync)


def _rewrite(members: _Members, member: _Member, doomed: set[Path], sync: bool) -> None:
    assert member.base is not None
    ancestor = _ancestor(members, member.base, doomed)
    try:
        rebase_store(member.path, ancestor, sync=sync)
        members[member.path] = replace(member, base=ancestor)
    except (BF16CodecsError, OSError) as e:
        _warn(f"{member.path}: not rewritten, so that its base, {member.base.name}, stays", e)


def _ancestor(members: _Members, path: Path, doomed: set[Path]) -> Path | None:
    """Return the first base of a checkpoint that stays; None if there is none."""
    return next((base for base in _chain(members, path) if base not in doomed), None)


def _chain(members: _Members, path: Path) -> Iterator[Path]:
    """Yield the base of a checkpoint, the base of that, and so on, as far as they are in here."""
    for _ in members:
        member = members.get(path)
        if member is None or member.base is None:
            return
        yield member.base
        path = member.base


def _remove(path: Path, sync: bool) -> None:
    """Remove a store; while it lasts, nobody finds a part of it under its name."""
    working = WorkingFolder.make(path.parent, durable=sync)
    try:
        os.rename(path, working.new)
    finally:
        left = working.close()
    if left is not None:
        raise left


def previous_of(path: str) -> str | None:
    """Return the checkpoint that a new one can be a difference to: that of the step before.

    None if there is none, if none can be read, of which a warning tells, or if the chain of bases
    would get too long.
    """
    target = Path(absolute(path))
    own = series_of(target.name)
    found = [m for m in _members(target).values() if m.step is not None and own is not None]
    before = [m for m in found if own is not None and (m.step or 0) < own[1]]
    for member in sorted(before, key=lambda member: member.step or 0, reverse=True):
        try:
            with closing(open_either(member.path, Opening(chain=("",)))) as reader:
                return str(member.path) if _depth(reader) < _LONGEST_CHAIN else None
        except (BF16CodecsError, OSError) as e:
            _warn(f"{member.path}: not taken as the base of {target.name}", e)
    return None


def _depth(reader: StoreReader) -> int:
    """Return how many models have to be read, beside this one."""
    base = reader.base
    return 0 if base is None else 1 + _depth(base)


def _members(target: Path) -> _Members:
    """Return the model stores beside a checkpoint, as far as they can be read."""
    folder, own = Path(os.path.realpath(target)).parent, series_of(target.name)
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name[0] == "." or path.is_symlink():
            continue
        try:
            if detect(path) is None:
                continue
            with closing(open_either(path, Opening(with_base=False))) as reader:
                info, base = reader.info, None
                if info.base is not None:
                    place = place_of(info.base, str(path))
                    base = None if "://" in place else Path(os.path.realpath(place))
        except (BF16CodecsError, OSError):
            continue  # what is no store, or cannot be read, is left alone
        series = series_of(path.name) if info.checkpoint is not None else None
        is_own = series is not None and own is not None and series[0] == own[0]
        found[path] = _Member(path, series[1] if is_own and series is not None else None, base)
    return found


def _warn(text: str, error: Exception) -> None:
    warnings.warn(f"{text}: {one_line(error)}", CheckpointWarning, stacklevel=4)
