"""The HTTP application: routes of all modules, keys, and errors as JSON. Nothing here computes."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tapetum.core.config import ServerConfig
from tapetum.core.errors import EngineError, TapetumError
from tapetum.engine.service import AsyncEngine
from tapetum.server import about, completions, debug, estimate, responses, socket, tokens, vlm
from tapetum.server.auth import RequireKey
from tapetum.server.chat import route as chat
from tapetum.server.errors import ErrorBody, ErrorDetail, error_type, tell
from tapetum.server.request_id import EchoRequestId
from tapetum.server.serving import Serving, json_response

_log = logging.getLogger(__name__)
_MODULES = (about, chat, completions, responses, vlm, estimate, tokens, socket, debug)  # with `routes(serving)` each


def build_app(engine: AsyncEngine, config: ServerConfig) -> ASGIApp:
    """The application; the caller starts and stops the engine."""
    serving = Serving(engine, config)
    app = Starlette(
        routes=[route for module in _MODULES for route in module.routes(serving)],
        exception_handlers={
            TapetumError: _tell_error,
            HTTPException: _tell_http_error,
            ClientDisconnect: _tell_nobody,
            Exception: _tell_failure,
        },
    )
    return EchoRequestId(RequireKey(app, config.api_keys) if config.api_keys else app)


def _tell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TapetumError)
    _log.info("%s %s: %d %s", request.method, request.url.path, error.http_status, error.code)
    return tell(error)


def _tell_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    body = ErrorBody(
        ErrorDetail(
            message=message,
            type=error_type(error.status_code),
            code="not_found" if error.status_code == 404 else None,
        )
    )
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


def _tell_nobody(request: Request, error: Exception) -> Response:
    """The client has left; the answer goes nowhere, its status is for whatever logs it."""
    return Response(status_code=499)


def _tell_failure(request: Request, error: Exception) -> Response:
    return tell(EngineError("the server failed; its log says more"))
