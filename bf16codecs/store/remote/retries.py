"""Requests that are repeated after a connection has broken, or while a server is busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from bf16codecs._arrays.storage import AtMost, Range, Request, StoredChunk
from bf16codecs._base import interrupt
from bf16codecs._base.buffers import Bytes
from bf16codecs._base.messages import causes, named_errors

__all__ = ["RetriedChunk", "retried"]

# Seconds before a request is repeated; the last failure is an error. A server may ask for more.
_WAITS = 1, 4, 15, 30
_LONGEST_WAIT = 120
# Ranges that are requested together, and again together.
_AT_ONCE = 16
# Ranges are read together if what lies between them is cheaper than another request, up to a size.
_GAP_BYTES, _MOST_BYTES = 1 << 16, 1 << 22
# "Too many requests", and what gateways and servers answer for a while.
_PASSING = {408, 429, 500, 502, 503, 504}
# Errors of aiohttp about connections, which is not imported for this.
_BROKEN = {"ServerDisconnectedError", "ClientPayloadError", "ClientOSError", "ServerTimeoutError"}

T = TypeVar("T")


def retried(url: str, request: Callable[[], T], was_reached: bool = True) -> T:
    """Make a request to `url`, again after a while if it failed for a reason that may pass.

    A server that never was reached is not tried again, since the address may be wrong. Raises
    OSError, with the address, once the request has failed five times.
    """
    with named_errors(url, OSError):
        for seconds in _WAITS:
            try:
                return request()
            except Exception as e:
                asked = _seconds_to_wait(e, was_reached)
                if asked is None:
                    raise
            _wait(max(seconds, asked))
        return request()


def _seconds_to_wait(error: BaseException, was_reached: bool) -> float | None:
    """Return how many seconds the server asks to wait, by default 0; None if waiting is vain."""
    for cause in causes(error):
        reply: Any = getattr(cause, "response", cause)  # of httpx, and of aiohttp
        if _PASSING.intersection(getattr(reply, name, 0) for name in ("status", "status_code")):
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                return min(float(reply.headers["Retry-After"]), _LONGEST_WAIT)
            return 0
        is_broken = isinstance(cause, (ConnectionError, TimeoutError))
        if was_reached and (is_broken or type(cause).__name__ in _BROKEN):
            return 0
    return None


def _wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        interrupt.check()
        time.sleep(min(left, 0.1))


class RetriedChunk(StoredChunk):
    """A file at an address, whose ranges are requested again if a connection breaks."""

    def __init__(self, url: str, chunk: StoredChunk) -> None:
        self._url, self._chunk = url, chunk
        self.key, self.size = chunk.key, chunk.size

    def read(self, request: Request) -> Sequence[Bytes]:
        """Ask for all ranges, several at a time, and for near ones together."""
        if isinstance(request, AtMost):
            return retried(self._url, lambda: self._chunk.read(request))
        spans, numbers = _merged(request)
        groups = (spans[i : i + _AT_ONCE] for i in range(0, len(spans), _AT_ONCE))
        replies = (retried(self._url, partial(self._chunk.read, group)) for group in groups)
        read = [reply for group in replies for reply in group]
        return [
            read[number][start - spans[number][0] : stop - spans[number][0]]
            for (start, stop), number in zip(request, numbers, strict=True)
        ]

    def close(self) -> None:
        """Close connections."""
        self._chunk.close()


def _merged(ranges: Sequence[Range]) -> tuple[list[Range], list[int]]:
    """Return ranges that have all of these, near ones in one, and the number of that for each."""
    spans: list[Range] = []
    numbers = [0] * len(ranges)
    for i in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        start, stop = ranges[i]
        first, last = spans[-1] if spans else (0, -1)
        if spans and start - last <= _GAP_BYTES and stop - first <= _MOST_BYTES:
            spans[-1] = first, max(last, stop)
        else:
            spans.append((start, stop))
        numbers[i] = len(spans) - 1
    return spans, numbers
