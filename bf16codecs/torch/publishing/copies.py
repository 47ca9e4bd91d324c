"""Copies of what a process has published, against which it codes the next step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bf16codecs._arrays.array import ArrayReader
from bf16codecs._base.forks import make_lock
from bf16codecs.torch.checkpoint.planning import Bounds

__all__ = ["Copies", "Previous", "copies_of"]

#: A tensor and the bounds of a shard of it.
Key = tuple[str, Bounds]


class Copies:
    """The shards of a process at the last step that it has published to a run.

    `step` is the key of that step. Values are unsigned integers of the items' width.
    """

    def __init__(self) -> None:
        self.step: str | None = None
        self._values: dict[Key, NDArray[Any]] = {}

    def get(self, key: Key) -> NDArray[Any] | None:
        """Return the values of a shard, if there are any."""
        return self._values.get(key)

    def put(self, step: str, shards: Iterable[tuple[Key, NDArray[Any], bool]]) -> None:
        """Keep the values of shards at a step, each with whether its memory may be kept."""
        self.step = None  # until all are there
        old, self._values = self._values, {}
        for key, found, is_own in shards:
            memory = old.pop(key, None)
            if is_own:
                memory = found
            elif memory is None or memory.shape != found.shape or memory.dtype != found.dtype:
                memory = found.copy()
            else:
                np.copyto(memory, found)
            self._values[key] = memory
        self.step = step


class Previous:
    """The values of the step before: copies of them, or what is decoded from the run."""

    def __init__(self, copies: Copies | None, arrays: Mapping[str, ArrayReader]) -> None:
        self._copies, self._arrays = copies, arrays

    def box(self, key: Key, axes: Sequence[range]) -> NDArray[Any]:
        """Return a box of a shard's values; its axes count in the tensor."""
        name, bounds = key
        copy = None if self._copies is None else self._copies.get(key)
        if copy is not None:
            first = zip(axes, bounds.offsets, strict=True)
            return copy[tuple(slice(axis.start - at, axis.stop - at) for axis, at in first)]
        array = self._arrays[name]
        values = np.empty([len(axis) for axis in axes], array.dtype)
        array.read_box(axes, values)
        return values.view(f"u{array.dtype.itemsize}")


_lock = make_lock()
# By run. A process publishes to one, or for a while to an old and a new one.
_copies: OrderedDict[str, tuple[Copies, Any]] = OrderedDict()
_MOST_RUNS = 2


@contextmanager
def copies_of(run: str, is_kept: bool) -> Iterator[Copies | None]:
    """Yield this process's copies of what it has published to a run, to this thread alone.

    If none are to be kept, they are freed, and None is yielded.
    """
    with _lock:
        if is_kept:
            found, lock = _copies.setdefault(run, (Copies(), make_lock()))
            _copies.move_to_end(run)
            while len(_copies) > _MOST_RUNS:
                _copies.popitem(last=False)
        else:
            _copies.pop(run, None)
    if not is_kept:
        yield None
        return
    with lock:
        yield found
