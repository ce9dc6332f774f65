"""HTTP without a network: requests of a client in this process go straight into an ASGI application.

Unlike the transport that comes with the client, answers stream as they are made, and a client that closes a response
early, or is cancelled, ends the application's work as a closed connection would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import httpx2
from starlette.types import ASGIApp, Message

_log = logging.getLogger(__name__)


class AppTransport(httpx2.AsyncBaseTransport):
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(self._app, request, await request.aread())
        try:
            start = await exchange.next_message()
        except asyncio.CancelledError:
            await exchange.aclose()
            raise
        assert start is not None, "an application answers, with a failure at least"
        return httpx2.Response(start["status"], headers=list(start.get("headers", ())), stream=exchange)


class _Exchange(httpx2.AsyncByteStream):
    """One request and the body of its response."""

    def __init__(self, app: ASGIApp, request: httpx2.Request, body: bytes) -> None:
        self._body: bytes | None = body
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()  # None: the application is done
        self._task = asyncio.ensure_future(self._run(app, request))

    async def next_message(self) -> Message | None:
        return await self._messages.get()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.next_message()) is not None:
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, app: ASGIApp, request: httpx2.Request) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": None,
            "server": (request.url.host, request.url.port),
        }
        try:
            await app(scope, self._receive, self._messages.put)
        except Exception:  # the answer has told the client; as servers do, tell the log too
            _log.exception("%s %s failed", request.method, request.url.path)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is None:  # the client is there until it closes, which cancels the application
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
