"""Streams and events of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bf16codecs.cuda.nvidia import call, core, driver, named_errors

__all__ = ["Current", "Event", "ForeignStream", "Stream"]


#: Returns a context manager that makes a device the calling thread's current one.
Current = Callable[[], AbstractContextManager[None]]


class ForeignStream:
    """A stream of another library, at address `handle`; 0, 1 and 2 are CUDA's default streams."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class Event:
    """A point in a stream, reached when all earlier work of the stream is done.

    It is cuda-core's `event`; `current` makes the stream's device the current one.
    """

    def __init__(self, event: Any, current: Current) -> None:
        self.event, self._current = event, current

    def synchronize(self) -> None:
        """Wait until the stream reaches the event."""
        with self._current(), named_errors("the GPU's work"):
            self.event.sync()

    @property
    def is_past(self) -> bool:
        """Whether the stream has reached the event."""
        with self._current(), named_errors("the GPU's work"):
            return bool(self.event.is_done)

    def seconds_since(self, earlier: Event) -> float:
        """Return GPU seconds since `earlier`; raise DeviceError unless both are timed and past."""
        with self._current(), named_errors("the time between two events"):
            return 1e-3 * float(self.event - earlier.event)


class Stream:
    """A stream: a queue of work for a GPU.

    All methods but `synchronize` are asynchronous, except copies of host memory that is not pinned.
    It is cuda-core's `stream`; `current` makes its device the current one.
    """

    def __init__(self, stream: Any, current: Current) -> None:
        self.stream = stream
        self.handle = int(stream.handle)
        self._current = current

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy `nbytes`, which may be 0, between addresses of the GPU or of the host."""
        if nbytes:
            with self._current():
                call(driver.cuMemcpyAsync, to, source, nbytes, self.handle)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Set `nbytes`, which may be 0, of the GPU's memory to a value of 0 to 255."""
        if nbytes:
            with self._current():
                call(driver.cuMemsetD8Async, address, value, nbytes, self.handle)

    def record(self, timed: bool = False) -> Event:
        """Record an event behind all work; `timed` records its time, for `Event.seconds_since`."""
        with self._current(), named_errors("an event"):
            options = core.EventOptions(timing_enabled=True) if timed else None
            return Event(self.stream.record(options=options), self._current)

    def synchronize(self) -> None:
        """Wait for all work of this stream.

        Raises DeviceError if this or earlier work failed: the GPU is lost for the process then.
        """
        with self._current(), named_errors("the GPU's work"):
            self.stream.sync()
