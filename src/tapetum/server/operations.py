"""What the API consists of, as data: one entry per route and method, from which its document is written.

A new route is one entry here. Owns the words and the examples; shapes are the records that the routes read and write.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tapetum.engine.estimate import Estimate
from tapetum.server.about import Health, ModelCard, Models, Version
from tapetum.server.chat.schema import ChatRequest
from tapetum.server.chat.wire import ChatAnswer
from tapetum.server.completions.schema import CompletionRequest
from tapetum.server.completions.wire import Completion
from tapetum.server.props import Props
from tapetum.server.responses.schema import ResponsesRequest
from tapetum.server.responses.wire import Event
from tapetum.server.responses.wire import Response as ResponsesAnswer
from tapetum.server.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from tapetum.server.vlm import VlmAnswer, VlmRequest

JSON = "application/json"
# What may be wrong with any request that has a body, and with any that asks for a model.
_BODY_ERRORS = (400, 401, 404, 408, 413, 429, 500, 503)
_QUESTION_ERRORS = (401, 429, 503)
_PROBE_ERRORS = (503,)
_HELLO: dict[str, object] = {
    "messages": [{"role": "user", "content": "What is a tapetum?"}],
    "max_tokens": 20,
}

_PICTURE = (  # 28 x 28, white
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABwAAAAcAQAAAABaduI5AAAAFElEQVR42mP8z8DwkYmBgYFh4AkAGmgCKKMUpJsAAAAASUVORK5CYII="
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`answer` is a record or the media type of something else; `event` what a stream consists of, and whether it
    `has_done`, the mark of its end.
    """

    method: str = "post"
    path: str
    summary: str
    request: type | None = None
    answer: type | str
    event: type | None = None
    has_done: bool = True
    errors: tuple[int, ...] = _BODY_ERRORS
    example: dict[str, object] = field(default_factory=dict)


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        summary="Answer messages of text, pictures and clips; OpenAI's chat API.",
        request=ChatRequest,
        answer=ChatAnswer,
        event=ChatAnswer,
        example=_HELLO,
    ),
    Operation(
        path="/v1/completions",
        summary="Go on with a text; OpenAI's older API.",
        request=CompletionRequest,
        answer=Completion,
        event=Completion,
        example={"prompt": "A tapetum is", "max_tokens": 20},
    ),
    Operation(
        path="/v1/responses",
        summary="Answer a text or a conversation; OpenAI's Responses API. Nothing is stored.",
        request=ResponsesRequest,
        answer=ResponsesAnswer,
        event=Event,
        has_done=False,
        example={"input": "What is a tapetum?", "max_output_tokens": 20},
    ),
    Operation(
        path="/v1/vlm",
        summary="One picture, one question, one text.",
        request=VlmRequest,
        answer=VlmAnswer,
        example={"image_url": _PICTURE, "prompt": "Which colour is it?", "max_tokens": 20},
    ),
    Operation(
        path="/v1/estimate",
        summary="What a chat request would cost, without running it.",
        request=ChatRequest,
        answer=Estimate,
        example=_HELLO,
    ),
    Operation(
        path="/tokenize",
        summary="The tokens of a text, or of a chat request.",
        request=TokenizeRequest,
        answer=TokenizeAnswer,
        example={"prompt": "What is a tapetum?"},
    ),
    Operation(
        path="/detokenize",
        summary="The text of tokens.",
        request=DetokenizeRequest,
        answer=DetokenizeAnswer,
        example={"tokens": [40, 41, 42]},
    ),
    Operation(
        method="get",
        path="/v1/models",
        summary="The names that the server answers to.",
        answer=Models,
        errors=_QUESTION_ERRORS,
    ),
    Operation(
        method="get",
        path="/v1/models/{name}",
        summary="One of them.",
        answer=ModelCard,
        errors=(*_QUESTION_ERRORS, 404),
    ),
    Operation(
        method="get",
        path="/props",
        summary="What the server takes and how much of it.",
        answer=Props,
        errors=_QUESTION_ERRORS,
    ),
    Operation(method="get", path="/version", summary="The version of Tapetum.", answer=Version, errors=()),
    Operation(
        method="get",
        path="/health",
        summary="200 while the engine lives, be it idle or busy; 503 while it loads or when it has ended.",
        answer=Health,
        errors=_PROBE_ERRORS,
    ),
    Operation(
        method="get",
        path="/ready",
        summary="200 while a request that came now would be answered.",
        answer=Health,
        errors=_PROBE_ERRORS,
    ),
    Operation(
        method="get",
        path="/metrics",
        summary="Numbers for Prometheus.",
        answer="text/plain; version=0.0.4; charset=utf-8",
        errors=_PROBE_ERRORS,
    ),
    Operation(method="get", path="/openapi.json", summary="This document.", answer=JSON, errors=()),
    Operation(
        method="get",
        path="/docs",
        summary="This document as a page.",
        answer="text/html; charset=utf-8",
        errors=(),
    ),
)
