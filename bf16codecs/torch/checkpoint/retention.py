"""Which checkpoints of a folder are kept, and which one the next is a difference to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bf16codecs._arguments import as_integer
from bf16codecs._messages import one_line
from bf16codecs._paths import absolute
from bf16codecs._replace import WorkingFolder
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.convert.step_numbers import step_in
from bf16codecs.errors import BF16CodecsError, LeftoverWarning, StoreError
from bf16codecs.store.backend import StoreReader
from bf16codecs.store.bases import place_of
from bf16codecs.store.kinds import detect
from bf16codecs.store.opening import Opening, open_either

__all__ = ["Retention", "previous_of"]

# Reading one decodes all of its chain: as many as this come after one that is whole. Longer chains
# gain little: facts are in docs/experiments.md.
_LONGEST_CHAIN = 7


@dataclass(frozen=True)
class _Member:
    """A model store in the folder."""

    path: Path
    #: That its name tells; None of what no training job wrote, which is never removed.
    step: int | None
    #: Where its base is, if it has one that is local.
    base: Path | None


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

    def check_name(self, path: str) -> None:
        """Refuse a checkpoint whose name tells no step, if some are to be removed.

        Raises
        ------
        ValueError
            If it is one.
        """
        if self.keep_last is not None and step_in(Path(path).name) is None:
            raise ValueError(
                f"{path}: keep_last goes by the step that a name tells: name it like step-600.zarr"
            )

    def apply(self, target: Path, sync: bool) -> None:
        """Remove what is not kept, now that a checkpoint is there.

        What is a difference to something that is removed is rewritten before. What cannot be
        rewritten, or removed, is told by a warning, and stays.
        """
        if self.keep_last is None:
            return
        members = {member.path: member for member in _members(target.parent)}
        steps = sorted((m.step, m.path) for m in members.values() if m.step is not None)
        kept = {target, *(path for _, path in steps[-self.keep_last :])}
        if self.keep_every is not None:
            kept |= {path for step, path in steps if step % self.keep_every == 0}
        doomed = [path for _, path in reversed(steps) if path not in kept]
        for path in doomed:
            try:
                for member in members.values():
                    if member.base == path and member.path not in doomed:
                        ancestor = _ancestor(members, path, doomed)
                        rebase_store(member.path, ancestor, sync=sync)
                _remove(path, sync)
            except (BF16CodecsError, OSError) as e:
                text = f"{path}: not removed, as keep_last={self.keep_last} asks: {one_line(e)}"
                warnings.warn(text, LeftoverWarning, stacklevel=4)
                kept.add(path)


def _ancestor(members: dict[Path, _Member], path: Path, doomed: list[Path]) -> Path | None:
    """Return the base of a checkpoint, or of that, the first that stays; None if there is none."""
    member: _Member | None = members[path]
    for _ in members:
        if member is None or member.base is None:
            return None
        if member.base not in doomed:
            return member.base
        member = members.get(member.base)
    return None


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
    own = step_in(target.name)
    found = [
        member
        for member in _members(target.parent)
        if member.step is not None and member.path != target and (own is None or member.step < own)
    ]
    for member in sorted(found, key=lambda member: member.step or 0, reverse=True):
        try:
            with closing(open_either(member.path, Opening(chain=("",)))) as reader:
                return str(member.path) if _depth(reader) < _LONGEST_CHAIN else None
        except (BF16CodecsError, OSError) as e:
            text = f"{member.path}: not taken as the base of {target.name}: {one_line(e)}"
            warnings.warn(text, LeftoverWarning, stacklevel=3)
    return None


def _depth(reader: StoreReader) -> int:
    """Return how many models have to be read, beside this one."""
    base = reader.base
    return 0 if base is None else 1 + _depth(base)


def _members(folder: Path) -> Iterator[_Member]:
    """Yield the model stores in a folder, as far as they can be read."""
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
                step = step_in(path.name) if info.checkpoint is not None else None
                yield _Member(Path(os.path.realpath(path)), step, base)
        except (StoreError, OSError):
            continue  # what is no store, or another's, is left alone
