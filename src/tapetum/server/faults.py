"""What goes wrong while a request is answered, told as JSON with its status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tapetum.core.errors import EngineError, TapetumError
from tapetum.server.errors import ErrorBody, ErrorDetail, error_type, let_go
from tapetum.server.logs import record_of
from tapetum.server.serving import Serving, json_response

Teller = Callable[[Request, Exception], Awaitable[Response]]


def tellers(serving: Serving) -> dict[type[Exception], Teller]:
    """Who tells which exception."""

    async def tell_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, TapetumError)
        let_go(error)
        return serving.tell(request.scope, error)

    async def tell_failure(request: Request, error: Exception) -> Response:
        return serving.tell(request.scope, EngineError("the server failed; its log says more"))

    return {
        TapetumError: tell_error,
        HTTPException: _tell_http_error,
        ClientDisconnect: _tell_nobody,
        Exception: tell_failure,
    }


async def _tell_http_error(request: Request, error: Exception) -> Response:
    """No such route, or not by this method."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "invalid_request"
    record_of(request.scope).error = code
    message = f"{request.method} {request.url.path[:200]}: {error.detail.lower()}; /docs shows what there is"
    body = ErrorBody(ErrorDetail(message=message, type=error_type(error.status_code), code=code))
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


async def _tell_nobody(request: Request, error: Exception) -> Response:
    """The client has left; the answer goes nowhere, its status is for the log."""
    return Response(status_code=499)
