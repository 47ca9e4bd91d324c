"""Connections of browsers, with limits on their number and on unread answers.

uvicorn passes each part of an answer to asyncio, which keeps it until the client reads it, and only
then passes the next. A client may never read, or never finish its request, and connect repeatedly.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bf16codecs._base.messages import from_extra

with from_extra("view", "bf16codecs.view"):
    from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MOST_CONNECTIONS", "Connection"]

#: The most connections at a time. A browser opens six, and macOS allows a process 256 open files.
MOST_CONNECTIONS = 100
#: The most bytes of answers that wait for clients, over all connections. A picture has up to 21 MB.
MOST_WAITING = 64 << 20
#: A client that does not read a part of an answer within this time has stalled.
STALLED_SECONDS = 20
# Bytes of an answer that are passed to asyncio at a time.
_PART_BYTES = 1 << 18


class Connection(H11Protocol):
    """A connection that ends when its client stalls, or to make room for others.

    The client that has been passive for longest, neither sending a request nor reading, makes room.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application, self.app = self.app, self._answer
        self._is_answering = False
        #: When the client last sent a request or read.
        self._passive_since = self.loop.time()
        #: Bytes of the answer that were not yet passed to asyncio.
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request after the client has read the previous answer."""

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
        """Return connections whose clients neither wait for an answer nor read, longest first."""
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
