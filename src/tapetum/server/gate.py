"""What every connection passes before it comes to a route, from the outside in.

Its line in the log, the origins of web pages, keys, whether there is room, the limits of bodies. Owns the order.
"""

from __future__ import annotations

from contextlib import ExitStack

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tapetum.core.errors import TapetumError
from tapetum.server.auth import OPEN, RequireKey, accounts_of
from tapetum.server.body import LimitBody
from tapetum.server.logs import LogRequests
from tapetum.server.serving import Serving

# Routes that put work on the engine: refused before their body is read while the queue is too long.
_ANSWERS = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/vlm"}


def guarded(app: ASGIApp, serving: Serving) -> ASGIApp:
    """The application behind its gate. Raises ConfigError for a key file that is none."""
    config = serving.config
    app = LimitBody(app, config.max_body_bytes)
    app = _Admit(app, serving)
    accounts = accounts_of(config)
    if accounts:
        app = RequireKey(app, accounts, serving)
    if config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )
    return LogRequests(app, serving.engine.count_rejection)


class _Admit:
    """Takes a request in or refuses it. A WebSocket comes in at any time: its requests are admitted one by one."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self._app = app
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        try:
            if scope["type"] == "websocket":
                self._serving.refuse_late()
                places = ExitStack()
            else:
                places = self._serving.admit(scope, is_answer=scope["path"] in _ANSWERS)
        except TapetumError as error:
            await self._serving.tell(scope, error)(scope, receive, send)
            return
        with places:
            await self._app(scope, receive, send)
