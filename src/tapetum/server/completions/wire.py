"""The records of OpenAI's completions API as they go over the wire. Fields left UNSET are not written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from tapetum.server.disclosure import Disclosure, Usage


class Logprobs(Struct, frozen=True, kw_only=True):
    """Four lists of equal length, one entry per token. `text_offset` counts characters from the start of `text`."""

    tokens: Sequence[str]
    token_logprobs: Sequence[float]
    top_logprobs: Sequence[Mapping[str, float]]
    text_offset: Sequence[int]


class Choice(Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """A whole answer or one chunk of it; both look alike."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: Sequence[Choice]
    usage: Usage | UnsetType = UNSET
    tapetum: Disclosure | UnsetType = UNSET
