"""Errors on the wire: every fault becomes `{"error": {"message", "type", "param", "code"}}` with its HTTP status.

Owns the errors that only a server has. `type` is OpenAI's word for the class of a fault, `code` ours for the fault.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tapetum.core.errors import InvalidParameter, RequestError, TapetumError
from tapetum.server.stream import as_json

RETRY_AFTER_S = 1


class ModelNotFound(RequestError):
    code = "model_not_found"
    http_status = 404


class WrongKey(RequestError):
    code = "invalid_api_key"
    http_status = 401


class BodyTooLarge(RequestError):
    code = "body_too_large"
    http_status = 413


class NotSupported(InvalidParameter):
    code = "unsupported_parameter"


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


def error_body(error: TapetumError) -> ErrorBody:
    """The body that tells an error. What a client sent comes back in it only in part, however long it was."""
    return ErrorBody(
        ErrorDetail(
            message=_shortened(error.message, 1000),
            type=error_type(error.http_status),
            param=None if error.param is None else _shortened(error.param, 200),
            code=error.code,
        )
    )


def _shortened(text: str, limit: int) -> str:
    """The beginning and the end of a text: the value, and what to do about it."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} ... {text[-half:]}"


def error_type(status: int) -> str:
    """The word that OpenAI's clients know for an HTTP status."""
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")


def tell(error: TapetumError) -> Response:
    """The response that tells an error."""
    headers = {"retry-after": str(RETRY_AFTER_S)} if error.retryable else {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(
        as_json(error_body(error)),
        status_code=error.http_status,
        headers=headers,
        media_type="application/json",
    )
