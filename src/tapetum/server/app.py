"""The HTTP server: routes, keys, and errors as JSON.

Owns the order of things for one request: read, validate, translate, submit, answer. Nothing here computes: prompts
are built on the engine's threads, and a client that leaves cancels its request wherever it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tapetum.core.config import ServerConfig
from tapetum.core.errors import EngineDead, EngineError, TapetumError
from tapetum.engine.service import AsyncEngine
from tapetum.server.chat import chat_input_of, priority_of, sampling_of
from tapetum.server.errors import (
    RETRY_AFTER_S,
    BodyTooLarge,
    ErrorBody,
    ErrorDetail,
    ModelNotFound,
    WrongKey,
    error_body,
    error_type,
)
from tapetum.server.metrics import CONTENT_TYPE, exposition
from tapetum.server.reply import Reply
from tapetum.server.schema import parse_chat
from tapetum.server.wire import EventStream, as_json, until_gone

MAX_BODY_BYTES = 256 * 1024**2
_log = logging.getLogger(__name__)
ANY_MODEL = "default"  # a name that always answers
T = TypeVar("T")


def build_app(engine: AsyncEngine, config: ServerConfig) -> ASGIApp:
    """The application; the caller starts and stops the engine."""
    api = Api(engine)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/v1/models/{name:path}", api.model),
            Route("/health", api.health),
            Route("/metrics", api.metrics),
        ],
        exception_handlers={
            TapetumError: _tell_error,
            HTTPException: _tell_http_error,
            ClientDisconnect: _tell_nobody,
            Exception: _tell_failure,
        },
    )
    return RequireKey(app, config.api_keys) if config.api_keys else app


class Api:
    """The routes of one engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        asked = parse_chat(await _read_body(request))
        model = self._model_name(asked.model)
        num_waiting = self._engine.num_waiting
        submission = self._engine.submit(
            chat_input_of(asked),
            sampling_of(asked),
            priority=priority_of(asked),
            timeout_s=asked.timeout_s,
            tenant=asked.cache_salt or "",
        )
        generation = await _while_connected(request, submission)
        reply = Reply(generation, asked, model=model, tokenizer=self._engine.tokenizer)
        if asked.stream:
            return EventStream(reply.events(num_waiting))
        return _json(await _while_connected(request, reply.whole()))

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._entry(name) for name in self._engine.model_names]})

    async def model(self, request: Request) -> Response:
        return _json(self._entry(self._model_name(request.path_params["name"])))

    async def health(self, request: Request) -> Response:
        facts = self._engine.facts  # raises while there is none to ask
        if not self._engine.is_healthy:
            raise EngineDead("the engine loop has ended or hangs; restart the server")
        return _json({"status": "ok", "model": self._engine.model_names[0], "device": facts.device})

    async def metrics(self, request: Request) -> Response:
        text = exposition(self._engine.metrics(), model_name=self._engine.model_names[0])
        return Response(text, media_type=CONTENT_TYPE)

    def _entry(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "tapetum",
            "max_model_len": self._engine.facts.max_model_len,
        }

    def _model_name(self, wanted: str | None) -> str:
        names = self._engine.model_names
        if wanted is None or wanted == ANY_MODEL:
            return names[0]
        if wanted not in names:
            raise ModelNotFound(
                f"model {wanted!r} is not served here; ask for {' or '.join(names)} or leave it out",
                param="model",
            )
        return wanted


class RequireKey:
    """Lets only clients with one of the keys at the API; health and metrics stay open for probes."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._is_known(scope):
            error = WrongKey("the API key is missing or wrong; send it as `Authorization: Bearer KEY`")
            await _tell_error(Request(scope), error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        """In the same time whatever the key: every digest is compared, and in full."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        matches = [hmac.compare_digest(_digest(key.strip()), digest) for digest in self._digests]
        return kind.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(
                f"the body has more than {MAX_BODY_BYTES} bytes, the limit; send smaller pictures"
            )
    return bytes(body)


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _json(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_json(value), status_code=status, headers=headers, media_type="application/json")


def _tell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TapetumError)
    _log.info("%s %s: %d %s", request.method, request.url.path, error.http_status, error.code)
    headers = {"retry-after": str(RETRY_AFTER_S)} if error.retryable else {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return _json(error_body(error), status=error.http_status, headers=headers)


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
    return _json(body, status=error.status_code, headers=dict(error.headers or {}))


def _tell_nobody(request: Request, error: Exception) -> Response:
    """The client has left; the answer goes nowhere, its status is for whatever logs it."""
    return Response(status_code=499)


def _tell_failure(request: Request, error: Exception) -> Response:
    return _json(error_body(EngineError("the server failed; its log says more")), status=500)
