"""`/tokenize` and `/detokenize`: text and chats as the tokens the model reads, and back.

A prompt is tokenised as /v1/completions does: special tokens in it count, and what the tokenizer begins a text with is
added, unless `add_special_tokens` is false. The places of pictures in a chat are as long as their headers say; nothing
is decoded. All of it runs beside the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.core.errors import InvalidParameter
from tapetum.server.chat.translate import ChatQuestion, parse_question
from tapetum.server.parse import parsed
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected
from tapetum.server.token_names import token_name
from tapetum.text.template import MAX_PROMPT_CHARS
from tapetum.text.tokenizer import Tokenizer

T = TypeVar("T")
MAX_TOKENS = 4 * 1024**2  # to be written as text at once
_MAX_AT_A_TIME = 2  # a long text takes seconds, and answers need threads too


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """A text, or a chat request."""

    model: str | None = None
    prompt: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)] | None = None
    messages: Raw | UnsetType = UNSET
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @property
    def is_chat(self) -> bool:
        return isinstance(self.messages, Raw) and bytes(self.messages) != b"null"


class TokenizeAnswer(Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    tokens: Annotated[list[int], Meta(max_length=MAX_TOKENS)]
    model: str | None = None


class DetokenizeAnswer(Struct, frozen=True):
    prompt: str


_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


def routes(serving: Serving) -> list[Route]:
    engine = serving.engine
    turns = asyncio.Semaphore(_MAX_AT_A_TIME)

    async def aside(work: Callable[..., T], *arguments: object) -> T:
        async with turns:
            return await asyncio.to_thread(work, *arguments)

    async def tokenize(request: Request) -> Response:
        asked, chat = await read_as(request, _parse)
        serving.model_name(asked.model)
        if chat is None:
            token_ids = await aside(_text_tokens, engine.tokenizer, asked)
        else:
            tenant = tenant_of(request.scope, chat.asked.cache_salt)
            token_ids = await while_connected(request, _chat_tokens(serving, chat, tenant))
        return await aside(answer, token_ids, bool(asked.return_token_strs))

    def answer(token_ids: tuple[int, ...], has_names: bool) -> Response:
        names = [token_name(engine.tokenizer, token_id) for token_id in token_ids] if has_names else None
        return json_response(
            TokenizeAnswer(
                count=len(token_ids),
                max_model_len=engine.facts.max_model_len,
                tokens=token_ids,
                token_strs=names,
            )
        )

    async def detokenize(request: Request) -> Response:
        asked = await read_as(request, partial(parsed, _detokenize_decoder))
        serving.model_name(asked.model)
        return json_response(await aside(_written, engine.tokenizer, asked.tokens))

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def _parse(body: bytes) -> tuple[TokenizeRequest, ChatQuestion | None]:
    """What is asked, and the chat that is to be tokenised, if it is one."""
    asked = parsed(_tokenize_decoder, body)
    if asked.is_chat == (asked.prompt is not None):
        raise InvalidParameter(
            "the body has to hold either prompt or messages; send one of them", param="prompt"
        )
    return asked, parse_question(body) if asked.is_chat else None


def _text_tokens(tokenizer: Tokenizer, asked: TokenizeRequest) -> tuple[int, ...]:
    token_ids = tokenizer.encode(asked.prompt or "")
    is_whole = asked.add_special_tokens is False or token_ids[:1] == tokenizer.opening[:1]
    return token_ids if is_whole else tokenizer.opening + token_ids


async def _chat_tokens(serving: Serving, question: ChatQuestion, tenant: str) -> tuple[int, ...]:
    """The tokens of a chat, each picture as so many placeholders as it takes."""
    plan = await serving.engine.plan(question.chat, question.sampling, tenant=tenant)
    return plan.arrangement.token_ids(serving.engine.files.processor.media_tokens)


def _written(tokenizer: Tokenizer, token_ids: Sequence[int]) -> DetokenizeAnswer:
    for token_id in token_ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidParameter(
                f"tokens holds {token_id}, tokens are integers from 0 to {tokenizer.vocab_size - 1}",
                param="tokens",
            )
    return DetokenizeAnswer(tokenizer.decode(token_ids, skip_special=False))
