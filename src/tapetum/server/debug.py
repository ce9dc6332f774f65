"""What the model gets, for tests and the curious; there only with `--enable-debug-endpoints`.

Owns how a prompt is told: its tokens, its spans, its parts in order, and the turns of its roles. The engine hears
nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.core.media import MediaKind, Span
from tapetum.core.request import Prompt
from tapetum.server.chat.translate import parse_question
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected
from tapetum.text.tokenizer import Tokenizer

ROLES = frozenset(("system", "developer", "user", "assistant", "model", "tool", "ipython", "observation"))


class SpanReport(Struct, frozen=True, kw_only=True):
    """A run of placeholder tokens. `key` is the media key in hexadecimal digits: equal for equal content alone."""

    start: int
    end: int
    kind: MediaKind
    key: str


class SegmentReport(Struct, frozen=True, kw_only=True):
    """A part of the prompt in the order of its tokens. `text` is of a text, `key` of a picture or clip."""

    start: int
    end: int
    kind: Literal["text"] | MediaKind
    text: str | None = None
    key: str | None = None


class Turn(Struct, frozen=True):
    """The tokens `[start, end)` from where a role begins to where the next one does."""

    role: str
    start: int
    end: int


class PromptReport(Struct, frozen=True, kw_only=True):
    token_ids: Sequence[int]
    text: str
    segments: Sequence[SegmentReport]
    spans: Sequence[SpanReport]
    turns: Sequence[Turn]


def routes(serving: Serving) -> list[Route]:
    """None unless the operator wants them."""
    if not serving.config.has_debug_endpoints:
        return []
    engine = serving.engine

    async def prompt(request: Request) -> Response:
        question = await read_as(request, parse_question)
        tenant = tenant_of(request.scope, question.asked.cache_salt)
        prompt = engine.prompt(question.chat, question.sampling, tenant=tenant)
        return json_response(report(await while_connected(request, prompt), engine.tokenizer))

    async def keys(request: Request) -> Response:
        return json_response({"keys": [key.hex() for key in await engine.media_keys()]})

    async def reset_caches(request: Request) -> Response:
        await engine.reset_caches()
        return json_response({"status": "ok"})

    return [
        Route("/debug/prompt", prompt, methods=["POST"]),
        Route("/debug/keys", keys),
        Route("/debug/reset_caches", reset_caches, methods=["POST"]),
    ]


def report(prompt: Prompt, tokenizer: Tokenizer) -> PromptReport:
    return PromptReport(
        token_ids=prompt.token_ids,
        text=tokenizer.decode(prompt.token_ids, skip_special=False),
        segments=list(_segments(prompt, tokenizer)),
        spans=[_span(span) for span in prompt.spans],
        turns=_turns(prompt.token_ids, tokenizer),
    )


def _span(span: Span) -> SpanReport:
    return SpanReport(start=span.start, end=span.end, kind=span.item.geometry.kind, key=span.key.hex())


def _segments(prompt: Prompt, tokenizer: Tokenizer) -> Iterator[SegmentReport]:
    end = 0
    for span in prompt.spans:
        yield from _text(prompt.token_ids, end, span.start, tokenizer)
        yield SegmentReport(start=span.start, end=span.end, kind=span.item.geometry.kind, key=span.key.hex())
        end = span.end
    yield from _text(prompt.token_ids, end, len(prompt.token_ids), tokenizer)


def _text(token_ids: Sequence[int], start: int, end: int, tokenizer: Tokenizer) -> Iterator[SegmentReport]:
    if start < end:
        text = tokenizer.decode(token_ids[start:end], skip_special=False)
        yield SegmentReport(start=start, end=end, kind="text", text=text)


def _turns(token_ids: Sequence[int], tokenizer: Tokenizer) -> list[Turn]:
    """A role begins at a special token of its name, or at one of a start with nothing but its name in the line.

    What a user types is no special token, so it begins none.
    """
    special = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
    places = [index for index, token_id in enumerate(token_ids) if token_id in special]
    begun: list[tuple[int, str]] = []
    for start, end in zip(places, [*places[1:], len(token_ids)], strict=True):
        role = special[token_ids[start]].strip("<|>[]/ ").lower()
        if "start" in role:  # <|im_start|>, <|start_header_id|>, <start_of_turn>
            words = tokenizer.decode(token_ids[start + 1 : min(end, start + _NAME_TOKENS)])
            role = words.split("\n")[0].strip()
        if role in ROLES:
            begun.append((start, role))
    ends = [start for start, _ in begun[1:]] + [len(token_ids)]
    return [Turn(role, start, end) for (start, role), end in zip(begun, ends, strict=True)]


_NAME_TOKENS = 16  # more than the name of a role and the end of its line take
