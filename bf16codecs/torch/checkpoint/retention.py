"""Retention of checkpoints of a series, its last one, and the base of the next one.

A series is the checkpoints in one folder; models elsewhere may be their bases.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bf16codecs._base.arguments import positive
from bf16codecs._base.messages import causes, few, one_line
from bf16codecs._base.paths import absolute, given_path
from bf16codecs.convert.new_store import Target, is_object_address
from bf16codecs.convert.runs.step_numbers import series_of
from bf16codecs.errors import BF16CodecsError, CheckpointWarning, StoreError
from bf16codecs.store.bases import chain_of, identity
from bf16codecs.store.kinds import canonical_address, path_of, plain_address
from bf16codecs.store.opening import Opening, open_either
from bf16codecs.torch.checkpoint.series_disks import SeriesDisk
from bf16codecs.torch.checkpoint.series_folders import Attributes, SeriesFolder

__all__ = [
    "Retention",
    "check_series",
    "folder_of",
    "latest_checkpoint",
    "previous_of",
    "release",
]


@dataclass(frozen=True)
class _Member:
    """A model store in the folder of a series."""

    location: str
    #: Its step in the series; None if it belongs to no or another series, and is never removed.
    step: int | None
    #: The path or address of its base, if it has one.
    base: str | None
    #: Whether it is in the folder; otherwise it is elsewhere, and a base of a member or its base.
    is_beside: bool = True


def folder_of(
    target: Target, options: Mapping[str, Any] | None = None, durable: bool = True
) -> SeriesFolder:
    """Return the folder that a checkpoint is in, or will be."""
    if isinstance(target, Path):
        return SeriesDisk(target, durable)
    # Imported only for addresses: zarr, obstore.
    from bf16codecs.torch.checkpoint.series_buckets import SeriesBucket

    return SeriesBucket(target, options)


#: By location.
_Members = dict[str, _Member]


def _name(location: str) -> str:
    return os.path.basename(location)


def _members_beside(folder: SeriesFolder) -> _Members:
    """Return the model stores in a checkpoint's folder, itself included.

    Raises BF16CodecsError or OSError if the base of one cannot be determined: it may be any member.
    """
    target_series, found = series_of(_name(folder.target)), {}
    locations = folder.locations()
    looked_at = folder.each(partial(_looked_at, folder), locations)
    for location, attributes in zip(locations, looked_at, strict=True):
        if attributes is not None and attributes.is_model:
            series = series_of(_name(location)) if attributes.is_checkpoint else None
            is_same = series and target_series and series[0] == target_series[0]
            step = series[1] if series and is_same else None
            found[location] = _Member(location, step, attributes.base)
    for member in list(found.values()):
        _follow(folder, member.base, found)
    return found


def _looked_at(folder: SeriesFolder, location: str) -> Attributes | None:
    """Return the attributes of something in a folder; None if another process has removed it."""
    try:
        return folder.attributes(location)
    except FileNotFoundError:
        if location in folder.locations():
            raise
        return None
    except BF16CodecsError as e:
        raise StoreError(
            f"{e}: it may be a difference to any checkpoint in its folder: move it elsewhere"
        ) from e


def _follow(folder: SeriesFolder, base: str | None, found: _Members) -> None:
    """Add a base in another folder, and its bases: one of these may be in this folder again."""
    while base is not None and base not in found and folder.may_look_at(base):
        next_base = folder.attributes(base).base
        found[base] = _Member(base, None, next_base, is_beside=False)
        base = next_base


def _steps_before(folder: SeriesFolder) -> list[str]:
    """Return the earlier checkpoints of a series, by their names, the last first."""
    target_series = series_of(_name(folder.target))
    if target_series is None:
        return []
    pattern, target_step = target_series
    steps = [(series[1], path) for series, path in _named(folder) if series[0] == pattern]
    return [path for step, path in sorted(steps, reverse=True) if step < target_step]


def _named(folder: SeriesFolder) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield the series and step, by the name, and the location of all that may be a checkpoint."""
    for location in folder.locations():
        series = series_of(_name(location))
        if series is not None:
            yield series, location


def _is_checkpoint(folder: SeriesFolder, location: str) -> bool:
    """Tell whether a training job wrote a store.

    Raises StoreError for a folder that is no store, BF16CodecsError or OSError if the attributes
    cannot be read.
    """
    attributes = folder.attributes(location)
    if not attributes.is_model and folder.has_lost_store(location):
        raise StoreError("it is a folder without a store")
    return attributes.is_checkpoint


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
        series = series_of(_name(path))
        return self.keep_last != 1 or (series is not None and self._is_kept_for_ever(series[1]))

    def _is_kept_for_ever(self, step: int) -> bool:
        return self.keep_every is not None and step % self.keep_every == 0

    def apply(self, folder: SeriesFolder) -> None:
        """Remove the checkpoints that are not kept, now that another one exists.

        Rewrites differences to them, or else keeps their bases. Failures become warnings.
        """
        if self.keep_last is None:
            return
        try:
            members = _members_beside(folder)
            doomed = {path for path in self._doomed(members, folder) if _may_go(folder, path)}
            for path in sorted(members.keys() - doomed):
                if members[path].base in doomed and members[path].is_beside:
                    _rewrite(folder, members, path, doomed)
            if doomed:
                # Once more: meanwhile, another job may have begun a difference to one of them.
                members = _members_beside(folder)
            needed = {base for path in members.keys() - doomed for base in _chain(members, path)}
            # Differences go before their bases: an interruption leaves only readable ones.
            for path in sorted(members.keys() & doomed, key=lambda p: -(members[p].step or 0)):
                if path not in needed and not _try(folder.remove, path, "not removed"):
                    needed |= set(_chain(members, path))
            for path in folder.leftovers():
                _try(folder.remove_leftovers, path, "what a dead job left there was not removed")
        except (BF16CodecsError, OSError, ValueError) as e:
            option, where = f"keep_last={self.keep_last}", os.path.dirname(folder.target)
            _warn(f"{where}: not all older checkpoints were removed, despite {option}", e)

    def _doomed(self, members: _Members, folder: SeriesFolder) -> set[str]:
        series = series_of(_name(folder.target))
        assert series is not None
        # Later ones do not count: they belong to a branch that this job has left, or another job.
        found = ((m.step, path) for path, m in members.items() if m.step is not None)
        steps = sorted((step, path) for step, path in found if step <= series[1])
        remaining, kept = self.keep_last or 0, set()
        for step, path in reversed(steps):
            if remaining > 0 or self._is_kept_for_ever(step):
                kept.add(path)
            if remaining > 0:
                remaining -= _is_readable(folder, path)
        return {path for _, path in steps} - kept


def _try(remove: Callable[[str], None], path: str, what: str) -> bool:
    """Remove something, or warn, since others must not wait for it; return whether it is gone."""
    try:
        remove(path)
        return True
    except (BF16CodecsError, OSError) as e:
        _warn(f"{path}: {what}", e)
        return False


def check_series(path: str, option: str) -> None:
    """Raise ValueError for a checkpoint without a step in its name, which an option needs."""
    if series_of(_name(path)) is None:
        raise ValueError(
            f"{path}: {option} goes by the step in a checkpoint's name: name it like step-600.zarr"
        )


def release(folder: SeriesFolder) -> None:
    """Rewrite the differences to a checkpoint that is about to be replaced.

    Raises BF16CodecsError or OSError if that fails, or the checkpoints to rewrite are unknown.
    """
    target = identity(folder.target)
    members = _members_beside(folder)
    for member in members.values():
        if member.base == target and member.is_beside:
            try:
                folder.rebase(member.location, _ancestor(members, target, {target}))
            except ValueError as e:  # of kinds that cannot be rewritten there
                raise StoreError(
                    f"{member.location}: is a difference to {target}, which is about to be"
                    f" replaced, and cannot be rewritten: {one_line(e)}"
                ) from e


def _rewrite(folder: SeriesFolder, members: _Members, path: str, doomed: set[str]) -> None:
    member = members[path]
    assert member.base is not None
    ancestor = _ancestor(members, member.base, doomed)
    try:
        folder.rebase(path, ancestor)
        members[path] = replace(member, base=ancestor)
    except (BF16CodecsError, OSError, ValueError) as e:  # of kinds that cannot be rewritten there
        _warn(f"{path}: not rewritten, so that its base, {_name(member.base)}, stays", e)


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


def previous_of(folder: SeriesFolder) -> str | None:
    """Return the base of a new checkpoint: the last earlier one of its series that can be read.

    None if no earlier one can, or the chain would get too long. Warns of each that cannot be read.
    """
    purpose = f"the base of {_name(folder.target)}"
    found = _last_readable(folder, _steps_before(folder), purpose)
    return found[0] if found is not None and found[1] < _LONGEST_CHAIN else None


def latest_checkpoint(
    folder: str | os.PathLike[str],
    series: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str | None:
    """Return the last checkpoint in a folder that can be opened, with its base.

    In a job of several processes, let one call it and tell the others: they might see others.

    Parameters
    ----------
    folder
        A folder on a disk or in an object store, which may be empty, or not exist yet.
    series
        The name of a checkpoint, there or not, of the series to look at: names of its checkpoints
        differ in the step alone. By default, the folder has one series.
    storage_options
        Options of the object store.

    Returns
    -------
    str or None
        The path or address of the one with the largest step, for `StoreReader`; None if there is
        none. A `bf16codecs.errors.CheckpointWarning` names each later one that is damaged.

    Raises
    ------
    ValueError
        If the folder has checkpoints of several series, and none is named.
    OSError
        If the folder cannot be listed, or a checkpoint cannot be read for now: a job must not go on
        from an older one then.

    Examples
    --------
    >>> from bf16codecs.torch.checkpoint import latest_checkpoint
    >>> latest_checkpoint("no/such/folder")
    """
    text = given_path(folder, "folder")
    if is_object_address(text):
        found = folder_of(
            f"{canonical_address(plain_address(text)).rstrip('/')}/any", storage_options
        )
    else:
        found = folder_of(Path(absolute(path_of(text) or text), "any"))
    wanted = None if series is None else series_of(_name(series))
    if series is not None and wanted is None:
        raise ValueError(f"{series!r:.200} has no step in its name, such as step-600.zarr")
    named = sorted(((s, path) for s, path in _named(found)), key=lambda each: each[0][1])
    of_series: dict[str, list[str]] = {}
    for (pattern, _), path in named:
        if wanted is None or pattern == wanted[0]:
            of_series.setdefault(pattern, []).append(path)
    purpose = "the last checkpoint"
    last = [_last_readable(found, reversed(paths), purpose, False) for paths in of_series.values()]
    readable = [each[0] for each in last if each is not None]
    if len(readable) > 1:
        names = few(sorted(map(_name, readable)), 3)
        example = f"series={_name(readable[0])!r}"
        raise ValueError(
            f"{text}: has several series of checkpoints, with {names}: name one, as by {example}"
        )
    return readable[0] if readable else None


def _last_readable(
    folder: SeriesFolder, paths: Iterable[str], purpose: str, may_skip: bool = True
) -> tuple[str, int] | None:
    """Return the first of some checkpoints that opens with its bases, and how many these are.

    Warns about each that does not, and so is not taken as `purpose`. Unless one may be skipped, it
    is an error if it cannot be read for now, as when a server refuses.
    """
    for path in paths:
        try:
            if _is_checkpoint(folder, path):
                with closing(open_either(path, Opening(folder.options, chain=("",)))) as reader:
                    return path, len(list(chain_of(reader.base)))
        except (BF16CodecsError, OSError) as e:
            if not may_skip and any(map(_is_for_now, causes(e))):
                raise
            _warn(f"{path}: not taken as {purpose}", e)
    return None


def _is_for_now(error: BaseException) -> bool:
    """Return whether an error may pass, as a server's refusal may: a missing file does not."""
    return isinstance(error, OSError) and not isinstance(
        error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)
    )


def _may_go(folder: SeriesFolder, path: str) -> bool:
    """Tell whether a checkpoint opens and has no foreign files; warn of a user's files."""
    try:
        open_either(path, Opening(folder.options, with_base=False)).close()
    except BF16CodecsError:
        return False
    foreign = folder.foreign_name(path)
    if foreign:
        _warn(f"{path}: not removed: {foreign!r:.200} in it is not the store's: move it elsewhere")
    return not foreign


def _is_readable(folder: SeriesFolder, path: str) -> bool:
    """Tell whether a store and its bases can be opened; warn about one that cannot."""
    try:
        open_either(path, Opening(folder.options, chain=("",))).close()
        return True
    except (BF16CodecsError, OSError) as e:
        _warn(f"{path}: not counted among those to keep", e)
        return False


def _warn(text: str, error: Exception | None = None) -> None:
    text = text if error is None else f"{text}: {one_line(error)}"
    warnings.warn(text, CheckpointWarning, stacklevel=2)
