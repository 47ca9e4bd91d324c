"""The folder of a series of checkpoints on a disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bf16codecs._files.publish import WORKING_PREFIX, WorkingFolder
from bf16codecs._files.sync import sync
from bf16codecs.convert.foreign import foreign_name
from bf16codecs.convert.rebasing import rebase_store
from bf16codecs.store.kinds import detect
from bf16codecs.store.opening import model_attributes
from bf16codecs.torch.checkpoint.series_folders import Attributes, attributes_in, forget_others

__all__ = ["SeriesDisk"]

Result = TypeVar("Result")

# Attributes by path, each with the identity of the root document that they were read from: reading
# one takes milliseconds for each thousand tensors, and a run may keep a thousand checkpoints.
_known: dict[str, tuple[tuple[int, ...], Attributes]] = {}


class SeriesDisk:
    """A folder on a disk; `durable` removals survive a loss of power."""

    options: Mapping[str, Any] | None = None

    def __init__(self, target: Path, durable: bool) -> None:
        self.target, self._durable = os.path.realpath(target), durable

    def each(self, work: Callable[[str], Result], locations: Iterable[str]) -> list[Result]:
        """Call a function for each of some paths."""
        return list(map(work, locations))

    def may_look_at(self, location: str) -> bool:
        """Return whether a path exists; what is at addresses is not looked at."""
        return "://" not in location and os.path.lexists(location)

    def locations(self) -> list[str]:
        """Return the paths of all that is in the folder."""
        folder = Path(self.target).parent
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        ours = (p for p in found if not p.name.startswith(WORKING_PREFIX) and not p.is_symlink())
        paths = [str(path) for path in ours]
        forget_others(_known, str(folder), paths)
        return paths

    def attributes(self, location: str) -> Attributes:
        """Return the attributes of a model store."""
        path = Path(location)
        try:
            status = os.stat(path / "zarr.json")
        except OSError:
            return attributes_in(model_attributes(path), location)
        identity = status.st_ino, status.st_size, status.st_mtime_ns
        if _known.get(location, (None,))[0] != identity:
            _known[location] = identity, attributes_in(model_attributes(path), location)
        return _known[location][1]

    def has_lost_store(self, location: str) -> bool:
        """Return whether a path is a folder, which is no model."""
        return os.path.isdir(location)

    def foreign_name(self, location: str) -> str:
        """Return the name of a user's file in a store; "" if there is none."""
        kind = detect(location)
        return "" if kind is None else foreign_name(Path(location), kind)

    def rebase(self, location: str, onto: str | None) -> None:
        """Rewrite a store on another base, or on none."""
        rebase_store(location, onto, sync=self._durable)

    def remove(self, location: str) -> None:
        """Remove a store; no part of it is ever seen under its name."""
        path = Path(location)
        working = WorkingFolder.make(path.parent, durable=self._durable)
        try:
            os.rename(path, working.new)
            if self._durable:
                # After a loss of power, a part of it must not have the name again.
                sync(path.parent)
        finally:
            error = working.close()
        if error is not None:
            raise error

    def leftovers(self) -> list[str]:
        """Return nothing: whatever writes into the folder removes what is left."""
        return []

    def remove_leftovers(self, location: str) -> None:
        """Do nothing."""
