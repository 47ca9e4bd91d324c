"""HTTP as strangers' servers deserve it: time-outs, bodies of a known size, one host.

fsspec reads replies whole, however long they are, inflates what is sent compressed, and goes where
it is redirected. aiohttp, which it uses, lets its sessions be told otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from bf16codecs._arguments import for_caller
from bf16codecs._chunks.stored import IGNORES_RANGES
from bf16codecs._limits import CONNECT_SECONDS, MAX_BODY_BYTES, READ_SECONDS
from bf16codecs._messages import counted
from bf16codecs.errors import BF16CodecsError, ServerError, StoreError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["failure_of", "largest_body", "open_session"]

_limit: ContextVar[int] = ContextVar("limit", default=MAX_BODY_BYTES)
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
# What a server says about an error is read up to here.
_ERROR_BYTES = 1 << 16


@contextmanager
def largest_body(nbytes: int) -> Iterator[None]:
    """Let replies that are asked for whole, inside the block, have at most that many bytes."""
    token = _limit.set(nbytes)
    try:
        yield
    finally:
        _limit.reset(token)


def failure_of(missing: FileNotFoundError) -> BaseException | None:
    """Return why fsspec says that a file is missing; None if it is.

    fsspec says so of whatever fails when it asks for a file's size: a server that refuses, is not
    there or redirects, or an option that there is none of.
    """
    try:
        from aiohttp import ClientError, ClientResponseError
    except ImportError:  # nobody asked by HTTP
        return None
    cause = missing.__cause__
    if isinstance(cause, ClientResponseError) and cause.status in (404, 410):
        return None
    known = ClientError, asyncio.TimeoutError, BF16CodecsError, TypeError
    return cause if isinstance(cause, known) else None


async def open_session(other_hosts: bool = False, **options: Any) -> aiohttp.ClientSession:
    """Open a session, as fsspec's `get_client` does.

    Parameters
    ----------
    other_hosts
        Follow redirects to other hosts.
    options
        What `aiohttp.ClientSession` takes. A `timeout` replaces the one here.
    """
    import aiohttp

    # The time for all of a reply has no limit: a chunk may be large, and a line slow.
    timeout = aiohttp.ClientTimeout(
        total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
    )
    traces = list(options.pop("trace_configs", None) or [])
    if not other_hosts:
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_other_host)
        traces.append(trace)
    headers = {"Accept-Encoding": "identity", **(options.pop("headers", None) or {})}
    return aiohttp.ClientSession(
        **{"timeout": timeout, **options},
        headers=headers,
        trace_configs=traces,
        response_class=_bounded_response(),
    )


async def _refuse_other_host(session: Any, context: Any, redirect: Any) -> None:
    """Raise where a server sends its reader elsewhere: perhaps into the reader's own network."""
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


@functools.cache
def _bounded_response() -> type[aiohttp.ClientResponse]:
    import aiohttp

    class BoundedResponse(aiohttp.ClientResponse):
        """A reply that is read up to a limit."""

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
                # A few bytes inflate to any number, and ranges of them are of no use.
                raise ServerError("sent compressed, although that was not asked for")
            asked = _RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            limit = _limit.get() if asked is None else int(asked[2]) - int(asked[1]) + 1
            size, parts = 0, []
            async for part in self.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > limit and self.ok:
                    text = f"asked for {counted(limit, 'byte')}, got more: "
                    if asked is None:
                        raise StoreError(f"{text}it may have no end")
                    raise ServerError(f"{text}{IGNORES_RANGES}")
                if size > _ERROR_BYTES and not self.ok:
                    self.close()
                    break
            return b"".join(parts)

    return BoundedResponse
