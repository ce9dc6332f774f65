"""The completion request as clients send it, and its validation.

Owns the fields that only completions have. A prompt is looked into by prompts.py; ranges of sampling values are
SamplingParams' business.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tapetum.core.request import SamplingParams
from tapetum.server.chat.sampling import SamplingFields, sampling_params
from tapetum.server.chat.unserved import refuse, refuse_unserved
from tapetum.server.errors import NotSupported
from tapetum.server.parse import parsed

DEFAULT_MAX_TOKENS = 16  # as OpenAI's


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[object]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None

    best_of: object = None

    prompt_embeds: object = None
    suffix: object = None


# Known fields that are not served, with the values that ask for nothing.
_UNSERVED: dict[str, tuple[object, ...]] = {"prompt_embeds": (), "suffix": ("",)}
_decoder = msgspec.json.Decoder(CompletionRequest)


def parse_completion(body: bytes) -> CompletionRequest:
    """Validate a request body; raises RequestError and its children."""
    asked = parsed(_decoder, body)
    refuse_unserved(asked, but=("best_of", "echo"))
    refuse(asked, _UNSERVED)
    if asked.best_of is not None and asked.best_of != asked.num_choices:
        raise NotSupported(
            f"best_of is not n, which is {asked.num_choices}, and choosing among answers is not supported; "
            "leave it out",
            param="best_of",
        )
    if asked.echo and asked.logprobs is not None:
        raise NotSupported(
            "echo with logprobs wants those of the prompt, which are not computed; leave one of them out",
            param="echo",
        )
    return asked


def sampling_of(asked: CompletionRequest) -> SamplingParams:
    return sampling_params(
        asked,
        max_tokens=DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens,
        logprobs=asked.logprobs,
    )
