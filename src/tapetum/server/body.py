"""Bodies that are too large or come too slowly are refused while they come.

Owns both limits. A body may take some seconds, and then as long as its bytes need at a very slow rate: who sends one
byte now and then holds nothing for long, who has a bad connection may still send a picture.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapetum.server.errors import BodyTimeout, BodyTooLarge

GRACE_S = 20.0
_LEAST_RATE = 16 * 1024  # bytes per second


class LimitBody:
    """Raises BodyTooLarge and BodyTimeout where the body is read."""

    def __init__(self, app: ASGIApp, max_bytes: int, *, grace_s: float = GRACE_S) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            declared = dict(scope["headers"]).get(b"content-length", b"0").lstrip(b"0")[:20]
            body = _Body(receive, self._max_bytes, self._grace_s, int(declared) if declared.isdigit() else 0)
            receive = body.receive
        await self._app(scope, receive, send)


class _Body:
    def __init__(self, receive: Receive, max_bytes: int, grace_s: float, declared: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._grace_s = grace_s
        self._num_bytes = 0
        self._started_s: float | None = None  # on the event loop's clock
        self._is_complete = False
        self._declared = declared

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        self._check(self._declared)  # a body that says it is too large is not read at all
        message = await self._next()
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._check(self._num_bytes)
            self._is_complete = not message.get("more_body", False)
        return message

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise BodyTooLarge(
                f"the body has {num_bytes} bytes or more, limit {self._max_bytes}; send smaller pictures, or ask "
                "the operator to raise --media-max-mb"
            )

    async def _next(self) -> Message:
        now = asyncio.get_running_loop().time()
        if self._started_s is None:
            self._started_s = now
        allowed_s = self._grace_s + self._num_bytes / _LEAST_RATE
        try:
            async with asyncio.timeout_at(self._started_s + allowed_s):
                return await self._receive()
        except TimeoutError:
            raise BodyTimeout(
                f"{self._num_bytes} bytes of the body came in {allowed_s:.0f} s, the limit; send it faster"
            ) from None
