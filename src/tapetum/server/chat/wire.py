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


class AnswerMessage(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


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
