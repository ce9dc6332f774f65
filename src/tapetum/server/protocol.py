"""HTTP/1.1 on a connection, as uvicorn speaks it, for clients that cannot be trusted.

Owns what uvicorn leaves open: how large a request's head may be and how long it may take, what is done with the rest
of a body that was refused, who sends a request before the last is answered, who takes nothing, and that even bytes
which are no HTTP are answered in JSON.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tapetum.server.errors import ErrorBody, ErrorDetail, error_type
from tapetum.server.stall import Stall
from tapetum.server.stream import as_json

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 30.0  # from the first byte, or from the connection
_LINGER_S = 30.0  # for the rest of a body that nobody reads


class GuardedProtocol(HttpToolsProtocol):
    """`_deadline` runs while the client owes something: a head, or the end of a body that was answered before it.

    A client that does not wait for its answer (pipelining) gets that one, and then has to connect again. To hold its
    next request uvicorn would stop to read, and so not see it leave.
    """

    _deadline: asyncio.TimerHandle | None = None
    _num_head_bytes = 0
    _is_in_head = True
    _is_ahead = False  # the client has begun another request before the last was answered
    _stall: Stall

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stall = Stall(transport, self.loop)
        self._expect_within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._stall.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.end()

    def data_received(self, data: bytes) -> None:
        if self._is_ahead:
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        if not (was_in_head and self._is_in_head) or self._is_ahead:
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the head of the request has more than {MAX_HEAD_BYTES} bytes, the limit")

    def handle_websocket_upgrade(self) -> None:
        if not self._is_ahead:
            super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        self._is_ahead = self.cycle is not None and not self.cycle.response_complete
        super().on_message_begin()
        if self._is_ahead:
            self.cycle.keep_alive = False
            return
        self._is_in_head = True
        self._num_head_bytes = 0
        self._expect_within(HEAD_S)

    def on_headers_complete(self) -> None:
        if self._is_ahead:
            return
        self._is_in_head = False
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_ahead:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_ahead:
            return
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._expect_within(_LINGER_S)

    def send_400_response(self, msg: str) -> None:
        if not self._is_ahead:
            self._refuse(400, "the bytes are no HTTP request")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what never became a request, and close."""
        self.transport.write(refusal(status, message))
        self.transport.close()

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def refusal(status: int, message: str) -> bytes:
    """The answer to what never became a request, after which the connection closes."""
    body = as_json(ErrorBody(ErrorDetail(message=message, type=error_type(status), code="invalid_http")))
    head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body
