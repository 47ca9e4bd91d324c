"""HTTP with servers that are not trusted: time-outs, bodies of a known size, one host.

fsspec reads replies whole, however long they are, inflates compressed ones, and follows every
redirect. aiohttp, which it uses, skips any number of interim replies (1xx), and waits as
long as a byte arrives now and then. The options of its sessions change that.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bf16codecs._arrays.storage import IGNORES_RANGES
from bf16codecs._base.arguments import for_caller
from bf16codecs._base.limits import CONNECT_SECONDS, LEAST_RATE, MAX_BODY_BYTES, READ_SECONDS
from bf16codecs._base.messages import causes, counted
from bf16codecs.errors import BF16CodecsError, LimitError, ServerError, StoreError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["failure_of", "is_gone", "is_past_end", "is_refused", "largest_body", "open_session"]

_limit: ContextVar[int | None] = ContextVar("limit", default=None)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")
# Statuses of a missing key, and of one that a server refuses without saying if it exists.
_GONE, _REFUSED, _PAST_END = (404, 410), (401, 403), 416
# How many bytes of a server's text about an error are read.
_ERROR_BYTES = 1 << 16


@contextmanager
def largest_body(nbytes: int) -> Iterator[None]:
    """Limit the size of replies to requests inside the block.

    With 0, only a key's size is asked for: if the server does not send it, fsspec reads the key.
    """
    token = _limit.set(nbytes)
    try:
        yield
    finally:
        _limit.reset(token)


def failure_of(missing: FileNotFoundError) -> BaseException | None:
    """Return why fsspec says that a file is missing; None if it is.

    When fsspec asks for a file's size, it reports every failure so: a server refuses, redirects or
    does not answer, or an option does not exist.
    """
    try:
        from aiohttp import ClientError
    except ImportError:  # without aiohttp, nothing was asked by HTTP
        return None
    cause = missing.__cause__
    known = ClientError, asyncio.TimeoutError, BF16CodecsError, TypeError
    return cause if isinstance(cause, known) and not is_gone(cause) else None


def is_gone(error: BaseException) -> bool:
    """Tell whether a server reports a key as missing."""
    return getattr(error, "status", None) in _GONE


def is_past_end(error: BaseException) -> bool:
    """Tell whether a web server has fewer bytes than a range begins behind."""
    return any(getattr(cause, "status", None) == _PAST_END for cause in causes(error))


def is_refused(error: BaseException) -> bool:
    """Tell whether a server refuses to say if a key exists.

    S3 answers 403 for a missing key if the reader may not list the bucket.
    """
    return any(
        isinstance(cause, PermissionError)  # of s3fs
        or getattr(cause, "status", None) in _REFUSED  # of aiohttp
        or type(cause).__name__ in ("PermissionDeniedError", "UnauthenticatedError")  # of obstore
        for cause in causes(error)
    )


async def open_session(other_hosts: bool = False, **options: Any) -> aiohttp.ClientSession:
    """Open a session with options of `aiohttp.ClientSession`, as fsspec's `get_client` does.

    Redirects to `other_hosts` are followed only if it is true. A `timeout` replaces the one here.
    """
    import aiohttp

    # A whole reply has no time limit: a chunk may be large, and a line slow.
    default = aiohttp.ClientTimeout(
        total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
    )
    timeout = options.pop("timeout", default)
    traces = list(options.pop("trace_configs", None) or [])
    if not other_hosts:
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_other_host)
        traces.append(trace)
    headers = {"Accept-Encoding": "identity", **(options.pop("headers", None) or {})}
    return aiohttp.ClientSession(
        **options,
        timeout=timeout,
        headers=headers,
        trace_configs=traces,
        response_class=_bounded_response(getattr(timeout, "sock_read", None) or None),
    )


async def _refuse_other_host(session: Any, context: Any, redirect: Any) -> None:
    """Raise if a server redirects its reader elsewhere: perhaps into a private network."""
    here = redirect.url
    headers = redirect.response.headers
    # Both are what aiohttp follows.
    there = here.join(type(here)(headers.get("Location") or headers.get("URI") or ""))
    is_upgrade = (here.scheme, there.scheme) == ("http", "https") and here.host == there.host
    if here.origin() != there.origin() and not is_upgrade:
        allowed = for_caller(
            "storage_options={'client_kwargs': {'other_hosts': True}}",
            """--storage-options '{"client_kwargs": {"other_hosts": true}}'""",
        )
        raise ServerError(
            f"redirected to another host, {there.origin()}; open that address if you trust it, or"
            f" allow all with {allowed}"
        )


class _Asked(NamedTuple):
    """The bytes that a request asks for."""

    #: The first byte; None where the last ones are asked for.
    start: int | None = 0
    #: The most bytes there can be; None for all from the first on.
    nbytes: int | None = None

    @classmethod
    def from_header(cls, text: str) -> Self:
        """Return what a header `Range` says, perhaps nothing."""
        match = _RANGE.fullmatch(text)
        if match is None:
            return cls()
        if not match[1]:
            return cls(None, int(match[2]))
        start = int(match[1])
        return cls(start, int(match[2]) - start + 1 if match[2] else None)

    def check(self, reply: aiohttp.ClientResponse) -> None:
        """Refuse a reply with other bytes, or with more than the limit."""
        limit = _limit.get()
        if self.nbytes is not None and limit is not None and self.nbytes > limit:
            raise LimitError(f"{self.nbytes} bytes to be read at once, more than {limit}")
        if not self.start:
            return
        if reply.status == 200:
            raise ServerError(f"asked for bytes from {self.start} on, got all: {IGNORES_RANGES}")
        sent = _CONTENT_RANGE.match(reply.headers.get("Content-Range", ""))
        if reply.status == 206 and sent and int(sent[1]) != self.start:
            raise ServerError(f"asked for bytes from {self.start} on, got those from {sent[1]} on")

    def too_many(self, limit: int) -> StoreError:
        """Return the error of a body that goes on behind `limit` bytes."""
        if self.nbytes is not None:
            return ServerError(f"asked for {counted(limit, 'byte')}, got more: {IGNORES_RANGES}")
        if not limit:
            return ServerError(
                "the server does not report its size: download it, or serve it otherwise"
            )
        return StoreError(f"asked for {counted(limit, 'byte')}, got more: it may have no end")


@functools.cache
def _bounded_response(patience: float | None) -> type[aiohttp.ClientResponse]:
    """Return the class of replies from servers that may be silent for so many seconds."""
    import aiohttp

    class BoundedResponse(aiohttp.ClientResponse):
        """A reply that begins in time, holds the requested bytes, and is read up to a limit."""

        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            """Wait for the status and the headers."""
            try:
                async with asyncio.timeout(patience):
                    await super().start(connection)
            except TimeoutError as e:
                if isinstance(e, aiohttp.ClientError):  # of silence, which aiohttp has noticed
                    raise
                text = f"Timeout: after {patience} s, no reply has begun"
                raise aiohttp.ServerTimeoutError(text) from None
            # Not where the body is read: fsspec reads some bodies of ZIP files by itself.
            self._asked = _Asked.from_header(self.request_info.headers.get("Range", ""))
            self._asked.check(self)
            if patience is not None:
                _watch(self.content, patience)
            return self

        async def read(self) -> bytes:
            """Read the body."""
            if self._body is None:
                try:
                    self._body = await self._read_bounded()
                except BaseException:
                    self.close()
                    raise
            return self._body

        async def _read_bounded(self) -> bytes:
            if self.ok and self.headers.get("Content-Encoding", "identity") != "identity":
                # A few bytes inflate to any number, and ranges of compressed bytes are of no use.
                raise ServerError("sent compressed, although that was not asked for")
            limits = self._asked.nbytes, _limit.get(), MAX_BODY_BYTES
            limit = next(n for n in limits if n is not None)
            size, parts = 0, []
            async for part in self.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > limit and self.ok:
                    raise self._asked.too_many(limit)
                if size > _ERROR_BYTES and not self.ok:
                    self.close()
                    break
            return b"".join(parts)

    return BoundedResponse


def _watch(body: aiohttp.StreamReader, patience: float) -> None:
    """Give up a body that arrives too slowly: a server may send single bytes for ever."""
    import aiohttp

    loop, least = asyncio.get_running_loop(), patience * LEAST_RATE

    def check(before: int) -> None:
        if body.is_eof() or body.exception() is not None:
            return
        if body.total_bytes - before >= least:
            loop.call_later(patience, check, body.total_bytes)
            return
        text = f"Timeout: for {patience} s, fewer than {LEAST_RATE} bytes a second have come"
        body.set_exception(aiohttp.ServerTimeoutError(text))

    check(-math.ceil(least))
