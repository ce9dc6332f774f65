"""The id that a client gave its request comes back in the header `X-Request-Id`, also with a refusal.

It is never the engine's name of the request: two requests may come under one id.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAME = "x-request-id"
_ID = re.compile(r"[!-~]{1,128}")


class EchoRequestId:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(NAME, "") if scope["type"] == "http" else ""

        async def echo(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[NAME] = given
            await send(message)

        await self._app(scope, receive, echo if _ID.fullmatch(given) else send)
