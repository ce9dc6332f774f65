"""WebSocket on a connection, as uvicorn speaks it, for clients that cannot be trusted.

Owns what uvicorn leaves open: that a handshake which is none is answered, that many small frames do not hold the event
loop up, and that nothing more is read of a client that takes nothing.
"""

from __future__ import annotations

import time
from asyncio import BaseTransport, Handle

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from tapetum.server.protocol import refusal
from tapetum.server.stall import Stall

_PIECE_BYTES = 512  # parsed first in a turn: at most a hundred frames; then twice as much each time
_TURN_S = 0.002  # of the event loop, before others have theirs
_MAX_FRAGMENTS = 2**16  # of a message; empty ones count for nothing in its size


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """`_unread` has come and is not parsed yet. While there is any, or the client takes nothing, no more is read."""

    _next_turn: Handle | None = None
    _is_lost = False
    _stall: Stall

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._unread = bytearray()
        self._stall = Stall(self.transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._unread.clear()
        self._stall.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.begin()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.end()
        self._settle()

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._unread += data
            self._read_on()
            return
        super().data_received(data)
        if not self.handshake_initiated:  # what the library has to say of it may be nothing
            said = b"".join(self.conn.data_to_send())
            self.transport.write(said or refusal(400, "the bytes are no handshake of a WebSocket"))
            self.transport.close()

    def keepalive_timeout(self) -> None:
        """What a client that is gone has not taken it never will; to wait for that would keep its requests running."""
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < _MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {_MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self.queue.empty():
            self.read_paused = False
            self._read_on()
        return message

    def _read_on(self) -> None:
        """Parse what has come until the application has a message to take, in turns with the rest of the loop."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        until_s = time.monotonic() + _TURN_S  # the loop's own clock stands still meanwhile
        size = _PIECE_BYTES
        while self._unread and not self.read_paused and time.monotonic() < until_s:
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            super().data_received(piece)
            size *= 2
        if self._unread and not self.read_paused:
            self._next_turn = self.loop.call_soon(self._read_on)
        self._settle()

    def _settle(self) -> None:
        """Read from the client, or do not."""
        if self._is_lost or self.transport.is_closing():
            return
        if self._unread or self.read_paused or not self.writable.is_set():
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
