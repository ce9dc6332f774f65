"""The answer as it goes over the wire: the records of OpenAI's chat API.

Owns shapes only; what goes into them is decided in reply. Fields left UNSET are not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from tapetum.server.disclosure import Disclosure, Usage


class TokenChoice(Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: Sequence[int]


class TokenLogprob(TokenChoice, frozen=True, kw_only=True):
    top_logprobs: Sequence[TokenChoice]


class Logprobs(Struct, frozen=True):
    content: Sequence[TokenLogprob]


class CalledFunction(Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class Call(Struct, frozen=True, kw_only=True):
    """A call of a function, or a piece of one: the first piece has the name, all have a part of the arguments."""

    index: int | UnsetType = UNSET  # of a piece: which call it is of
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CalledFunction


class AnswerMessage(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Sequence[Call] | UnsetType = UNSET


class Choice(Struct, frozen=True, kw_only=True):
    index: int = 0
    message: AnswerMessage | UnsetType = UNSET  # of a whole answer
    delta: AnswerMessage | UnsetType = UNSET  # of a chunk
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """A whole answer or one chunk of it, by `object`."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: Sequence[Choice]
    usage: Usage | UnsetType = UNSET
    tapetum: Disclosure | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
