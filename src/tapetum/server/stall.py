"""A client that takes nothing of what it is sent is cut off after a while: it holds a connection and its buffers."""

from __future__ import annotations

import asyncio

STALL_S = 120.0


class Stall:
    """`begin` when the buffers of a connection are full, `end` when they have room again or it is lost."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._wait()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        before = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(STALL_S, self._look, before)

    def _look(self, before: int) -> None:
        if self._transport.get_write_buffer_size() >= before:
            self._transport.abort()
        else:
            self._wait()
