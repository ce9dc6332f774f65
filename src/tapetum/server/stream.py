"""Bytes on the wire: JSON, server-sent events, and the stream that carries them.

Owns framing only; what goes into an event is decided by the replies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING_S = 15.0  # a silent stream says so often that it lives: proxies close quiet connections
_TURN_S = 0.002  # of the event loop, before others have theirs
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_encode = msgspec.json.Encoder().encode


def as_json(value: object) -> bytes:
    return _encode(value)


def as_event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(value) + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and pings while none do. A client that leaves closes the generator at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], *, ping_s: float = PING_S) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._ping_s = ping_s
        self._last_sent_s = 0.0  # on the event loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await anext(self._events)  # from here on the generator runs, and closing it ends the request
        self._last_sent_s = asyncio.get_running_loop().time()
        pump = asyncio.ensure_future(self._pump(first, send))
        others = (asyncio.ensure_future(self._ping(send)), asyncio.ensure_future(until_gone(receive)))
        try:
            await asyncio.wait((pump, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, *others):
                task.cancel()
            outcomes = await asyncio.gather(pump, *others, return_exceptions=True)
            await self._events.aclose()
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _pump(self, first: bytes, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send(send, first)
        until_s = time.monotonic() + _TURN_S
        async for event in self._events:
            await self._send(send, event)
            if time.monotonic() > until_s:  # neither of the two need ever have waited
                await asyncio.sleep(0)
                until_s = time.monotonic() + _TURN_S
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            left_s = self._last_sent_s + self._ping_s - clock()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self._send(send, PING)

    async def _send(self, send: Send, body: bytes) -> None:
        self._last_sent_s = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
