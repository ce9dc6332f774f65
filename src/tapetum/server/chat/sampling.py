"""How tokens are chosen, as clients say it; the fields that chat and completions have in common.

Owns names and types; ranges are SamplingParams' business.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tapetum.core.media import Reuse
from tapetum.core.priority import CLASSES
from tapetum.core.request import SamplingParams
from tapetum.engine.timely import MAX_PRIORITY, MAX_TIMEOUT_S, OnVisionTimeout
from tapetum.server.chat.formats import FormatFields, grammar_of

MAX_CHOICES = 128
MAX_SALT = 1024  # characters; it is part of every key
PriorityClass = Literal["interactive", "standard", "economy", "background"]
Priority = PriorityClass | Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # not served: usage comes once, at the end


class ReuseFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Which lossy kinds of reuse a request takes; a name that is misspelt would be one that is ignored."""

    near_duplicate: bool = False
    position_independent: bool = False


class SamplingFields(FormatFields, frozen=True, kw_only=True):
    """What OpenAI's APIs share, then what goes beyond them."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT)] | None = None
    priority: Priority | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    on_vision_timeout: OnVisionTimeout | None = None
    reuse: ReuseFields | None = None
    # goes into a header of the answer
    request_id: Annotated[str, Meta(pattern=r"^[!-~]{1,128}\Z")] | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def has_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def reuse_of(fields: SamplingFields) -> Reuse:
    wanted = fields.reuse or ReuseFields()
    return Reuse(near_duplicate=wanted.near_duplicate, position_independent=wanted.position_independent)


def sampling_params(
    fields: SamplingFields, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The engine's words; what the APIs say each in their own way comes beside the fields."""
    return SamplingParams(
        temperature=fields.temperature,
        top_k=fields.top_k,
        top_p=fields.top_p,
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=fields.seed,
        stop=fields.stop or (),
        stop_token_ids=fields.stop_token_ids or (),
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens or 0,
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
        logit_bias=fields.logit_bias or {},
        grammar=grammar_of(fields),
    )


def priority_number(priority: Priority | None) -> int:
    """Lower is earlier."""
    return CLASSES[priority] if isinstance(priority, str) else priority or 0
