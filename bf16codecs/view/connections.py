"""Connections of browsers: limits on their number, and on answers that are not read.

uvicorn hands each part of an answer to asyncio, which keeps what the client does not read, and
waits for the client before the next part. A client may never read, or never finish its request, and
may come again and again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bf16codecs._base.messages import from_extra

with from_extra("view", "bf16codecs.view"):
    from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MOST_CONNECTIONS", "Connection"]

#: The most connections at a time. A browser has six, and a process of macOS 256 open files.
MOST_CONNECTIONS = 100
#: Bytes of answers that wait for their clients, of all connections. A picture has up to 21 MB.
MOST_WAITING = 64 << 20
#: A client that has not read a part of an answer in so many seconds reads nothing.
STALLED_SECONDS = 20
# Bytes of an answer that are handed to asyncio at a time.
_PART_BYTES = 1 << 18


class Connection(H11Protocol):
    """A connection that ends when its client stalls, or when others need the room.

    The room is that of the client that has been passive for longest: has not asked, or not read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application, self.app = self.app, self._answer
        self._is_answering = False
        #: When the client was last known to ask or to read.
        self._passive_since = self.loop.time()
        #: Bytes of the answer that were not handed to asyncio.
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, once the client has read the answer before it."""

        async def send_in_parts(message: Any) -> None:
            body = message.get("body", b"")
            self._waiting = len(body)
            if self._waiting > _PART_BYTES:
                self._make_room_for_answer()
            while self._waiting > _PART_BYTES:
                start = len(body) - self._waiting
                part = body[start : start + _PART_BYTES]
                await send({"type": message["type"], "body": part, "more_body": True})
                self._waiting -= len(part)
            await send({**message, "body": body[len(body) - self._waiting :]} if body else message)
            self._waiting = 0

        await self._is_writable.wait()
        self._is_answering = True
        try:
            await self._application(scope, receive, send_in_parts)
        finally:
            self._is_answering, self._waiting = False, 0
            self._passive_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for another connection."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            next(iter(self._passive_others()), self)._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for the client."""
        super().connection_lost(exc)
        self._end_stall()

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        super().pause_writing()
        self._is_writable.clear()
        self._passive_since = self.loop.time()
        self._timer = self.loop.call_later(STALLED_SECONDS, self._give_up)

    def resume_writing(self) -> None:
        """Go on: the client has read the waiting bytes."""
        super().resume_writing()
        self._end_stall()

    def _end_stall(self) -> None:
        self._is_writable.set()
        if self._timer is not None:
            self._timer.cancel()

    def _make_room_for_answer(self) -> None:
        excess = sum(each._waiting for each in self._all()) - MOST_WAITING
        for other in self._passive_others():
            if excess > 0 and other._waiting:
                excess -= other._waiting
                other._give_up()

    def _passive_others(self) -> list[Connection]:
        """Return those whose clients neither wait for an answer nor read one, longest first."""
        passive = (
            each
            for each in self._all()
            if each is not self and not (each._is_answering and each._is_writable.is_set())
        )
        return sorted(passive, key=lambda each: each._passive_since)

    def _all(self) -> list[Connection]:
        return [each for each in self.connections if isinstance(each, Connection)]

    def _give_up(self) -> None:
        """End the connection now, and drop the bytes that wait for its client."""
        self.connections.discard(self)
        self.transport.abort()
