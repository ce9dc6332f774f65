"""Errors on the wire: every fault becomes `{"error": {"message", "type", "param", "code"}}` with its HTTP status.

Owns the errors that only a server has. `type` is OpenAI's word for the class of a fault, `code` ours for the fault.
"""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from tapetum.core.errors import CapacityError, InvalidParameter, RequestError, TapetumError
from tapetum.core.logs import without_payload
from tapetum.server.stream import as_json


class ModelNotFound(RequestError):
    code = "model_not_found"
    http_status = 404


class WrongKey(RequestError):
    code = "invalid_api_key"
    http_status = 401


class BodyTooLarge(RequestError):
    code = "body_too_large"
    http_status = 413


class BodyTimeout(RequestError):
    code = "body_timeout"
    http_status = 408


class RateLimited(RequestError):
    """A key has asked as much as it may; `wait_s` until it may again."""

    code = "rate_limit_exceeded"
    http_status = 429
    retryable = True

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Draining(CapacityError):
    """The server is about to end."""


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
            message=_shortened(without_payload(error.message), 1000),
            type=error_type(error.http_status),
            param=None if error.param is None else _shortened(without_payload(error.param), 200),
            code=error.code,
        )
    )


def _shortened(text: str, limit: int) -> str:
    """The beginning and the end of a text: the value, and what to do about it."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} ... {text[-half:]}"


def let_go(error: BaseException | None) -> None:
    """Forget by what way an error that is told came. A body of megabytes may lie on it, and in a circle with the error
    itself through the future of a thread: only a collection would find it, long after many more.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def error_type(status: int) -> str:
    """The word that OpenAI's clients know for an HTTP status."""
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")


def tell(error: TapetumError, retry_after_s: float = 1.0) -> Response:
    """The response that tells an error. `retry_after_s` is said where coming back can help."""
    headers = {}
    if error.retryable:
        headers["retry-after"] = str(max(math.ceil(retry_after_s), 1))
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, (BodyTimeout, Draining)):
        headers["connection"] = "close"
    return Response(
        as_json(error_body(error)),
        status_code=error.http_status,
        headers=headers,
        media_type="application/json",
    )
