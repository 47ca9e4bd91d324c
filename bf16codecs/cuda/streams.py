"""Streams: what a GPU does in order, and how far it is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from bf16codecs.cuda._driver import call, core, driver, named_errors

__all__ = ["Current", "Event", "ForeignStream", "Stream"]


class Current(Protocol):
    """Makes a device the current one of the calling thread inside a block of code."""

    def __call__(self) -> AbstractContextManager[None]:
        """Return what the block begins with."""
        ...


class ForeignStream:
    """A stream of another library, by its address.

    Parameters
    ----------
    handle
        The address, as an integer; 0, 1 and 2 are those of CUDA's default streams.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class Event:
    """A point in a stream: it is done when all is that the stream was given before.

    Parameters
    ----------
    event
        cuda-core's.
    current
        Makes the stream's device the current one.
    """

    def __init__(self, event: Any, current: Current) -> None:
        self.event, self._current = event, current

    def synchronize(self) -> None:
        """Return when the stream has come that far."""
        with self._current(), named_errors("the GPU's work"):
            self.event.sync()

    def seconds_since(self, earlier: Event) -> float:
        """Return how much later the stream came here than to another event, by the GPU's clock.

        Parameters
        ----------
        earlier
            The other event. Both are done, and were recorded with `timed`.

        Raises
        ------
        DeviceError
            If one has no time, or is not done yet.
        """
        with self._current(), named_errors("the time between two events"):
            return 1e-3 * float(self.event - earlier.event)


class Stream:
    """A stream: work that a GPU does in order.

    Every method but `synchronize` returns before it is done, except where memory is the host's and
    not pinned.

    Parameters
    ----------
    stream
        cuda-core's.
    current
        Makes the stream's device the current one.
    """

    def __init__(self, stream: Any, current: Current) -> None:
        self.stream = stream
        self.handle = int(stream.handle)
        self._current = current

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy between addresses, of the GPU or of the host.

        Parameters
        ----------
        to, source
            Addresses.
        nbytes
            How much; 0 does nothing.
        """
        if nbytes:
            with self._current():
                call(driver.cuMemcpyAsync, to, source, nbytes, self.handle)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Set all bytes of the GPU's memory to one value.

        Parameters
        ----------
        address
            On the GPU.
        value
            0 to 255.
        nbytes
            How much; 0 does nothing.
        """
        if nbytes:
            with self._current():
                call(driver.cuMemsetD8Async, address, value, nbytes, self.handle)

    def record(self, timed: bool = False) -> Event:
        """Return an event that is done when all is that this stream has been given.

        Parameters
        ----------
        timed
            Whether it keeps the time, for `Event.seconds_since`.
        """
        with self._current(), named_errors("an event"):
            options = core.EventOptions(timing_enabled=True) if timed else None
            return Event(self.stream.record(options=options), self._current)

    def synchronize(self) -> None:
        """Return when all is done that this stream has been given.

        Raises
        ------
        DeviceError
            If that has failed, or something before it on the same GPU, which is lost for the
            process then.
        """
        with self._current(), named_errors("the GPU's work"):
            self.stream.sync()
