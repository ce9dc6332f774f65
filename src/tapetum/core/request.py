"""One generation: what was asked (frozen), how far it is (mutable, written by the scheduler alone)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Literal, get_args

from tapetum.core.checks import MAX_SEED, MAX_TOKENS, plain, shown
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import EXACT, MediaKind, PagesSeen, Reuse, Span

FinishReason = Literal["stop", "length", "abort", "error"]
GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark", "tools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What an answer must look like; `text.grammar` says what each kind holds and whether it can be kept to."""

    kind: GrammarKind
    source: str = ""
    param: str = "grammar"  # the field of the request it came from, which an error names

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind) or not isinstance(self.source, str):
            raise InvalidParameter(
                f"grammar is of kind {shown(self.kind)} over {shown(self.source)}, "
                f"must be a string of one of {', '.join(get_args(GrammarKind))}",
                param="grammar",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. A field left `None` takes the model's `generation_config.json` default.

    temperature 0 is greedy. Penalties follow vLLM: repetition over prompt and output (never over placeholder
    tokens of pictures), presence and frequency over the output. `logprobs` is the number of alternatives.
    `logit_bias` is added to the scores of single tokens; before `min_tokens` of output no token ends the answer.
    `prediction` is a text that the answer will largely follow, such as the text layer of a page: where it does, the
    answer comes faster, and it never comes out otherwise.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None
    prediction: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_tokens(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParameter(
                f"ignore_eos is {shown(self.ignore_eos)}, must be true or false", param="ignore_eos"
            )
        for name, low, high in _RANGES:
            _check_range(name, getattr(self, name), low, high)
        object.__setattr__(self, "min_tokens", self.min_tokens or 0)
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        _check_grammar(self.grammar)
        if not isinstance(self.prediction, str):
            raise InvalidParameter(
                f"prediction is {shown(self.prediction)}, must be a string", param="prediction"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}; "
                "lower min_tokens or raise max_tokens",
                param="min_tokens",
            )

    def resolved(self, defaults: SamplingParams) -> SamplingParams:
        """The same choices with every `None` replaced from `defaults`, then from the neutral values."""
        updates: dict[str, object] = {}
        for item in fields(self):
            if getattr(self, item.name) is None:
                value = getattr(defaults, item.name)
                updates[item.name] = _NEUTRAL.get(item.name) if value is None else value
        return replace(self, **updates)  # type: ignore[arg-type]


MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 1024
MAX_BIASED_TOKENS = 1024
_NEUTRAL: dict[str, object] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", -1, MAX_TOKENS),
    ("top_p", 1e-9, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("seed", -MAX_SEED - 1, MAX_SEED),
    ("max_tokens", 1, MAX_TOKENS),
    ("min_tokens", 0, MAX_TOKENS),
    ("logprobs", 0, 20),
)
_MAX_BIAS = 100.0
_INTEGERS = frozenset(("top_k", "seed", "max_tokens", "min_tokens", "logprobs"))


def _stop_strings(given: object) -> tuple[str, ...]:
    strings = (given,) if isinstance(given, str) else () if given is None else given
    if not isinstance(strings, (tuple, list)) or not all(isinstance(text, str) and text for text in strings):
        raise InvalidParameter(
            f"stop is {shown(given)}, must be a string or a list of strings, none of them empty", param="stop"
        )
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidParameter(
            f"stop has {len(strings)} strings, limit {MAX_STOP_STRINGS}; send fewer", param="stop"
        )
    return tuple(strings)


def _stop_tokens(given: object) -> tuple[int, ...]:
    ids = () if given is None else given
    if not isinstance(ids, (tuple, list)) or not all(type(token_id) is int for token_id in ids):
        raise InvalidParameter(
            f"stop_token_ids is {shown(given)}, must be a list of integers", param="stop_token_ids"
        )
    if len(ids) > MAX_STOP_TOKENS:
        raise InvalidParameter(
            f"stop_token_ids has {len(ids)} tokens, limit {MAX_STOP_TOKENS}; send fewer",
            param="stop_token_ids",
        )
    return tuple(ids)


def _logit_bias(given: object) -> dict[int, float]:
    bias = {} if given is None else given
    if not isinstance(bias, Mapping) or not all(type(token_id) is int for token_id in bias):
        raise InvalidParameter(
            f"logit_bias is {shown(given)}, must be a mapping of token ids to numbers", param="logit_bias"
        )
    if len(bias) > MAX_BIASED_TOKENS:
        raise InvalidParameter(
            f"logit_bias has {len(bias)} tokens, limit {MAX_BIASED_TOKENS}; send fewer", param="logit_bias"
        )
    for token_id, value in bias.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not -_MAX_BIAS <= value <= _MAX_BIAS:  # also refuses NaN
            raise InvalidParameter(
                f"logit_bias of token {shown(token_id)} is {shown(value)}, "
                f"allowed are numbers from {-_MAX_BIAS:g} to {_MAX_BIAS:g}",
                param="logit_bias",
            )
    return {token_id: float(value) for token_id, value in bias.items()}


def _check_grammar(given: object) -> None:
    if given is not None and not isinstance(given, Grammar):
        raise InvalidParameter(f"grammar is {shown(given)}, must be a Grammar", param="grammar")


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if value is None:
        return
    kind = "an integer" if name in _INTEGERS else "a number"
    wanted = int if name in _INTEGERS else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise InvalidParameter(f"{name} is {shown(value)}, must be {kind}", param=name)
    if not low <= value <= high:  # also refuses NaN
        raise InvalidParameter(
            f"{name} is {shown(value)}, allowed are {plain(low)} to {plain(high)}", param=name
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """Token ids with placeholders, the pictures bound to them, and rotary positions.

    position_ids: integer array [3, T] (time, height, width); position_delta: what to add to an index past the
    prompt to get its position, `max position + 1 - T`.
    """

    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]
    position_ids: object
    position_delta: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """What one client asked for; never changes. `sampling` is resolved: no field that counts is None."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int  # resolved limit of output tokens
    stop_token_ids: frozenset[int]  # ends of sequence and the client's own stop tokens
    tenant: str = ""  # salt of every media and prefix key
    priority: int = 0  # lower is earlier, 0 = standard
    arrival_s: float = 0.0
    deadline_s: float | None = None  # absolute
    num_choices: int = 1  # answers to the prompt, this one among them
    is_sibling: bool = False  # another answer to the prompt of a request before it
    prediction: tuple[int, ...] = ()  # tokens of a text that the answer will largely follow
    reuse: Reuse = EXACT  # of what others computed, where that is lossy
    left_out: tuple[MediaKind, ...] = ()  # what did not come in time; the prompt says so in words
    pages: tuple[PagesSeen, ...] = ()  # of each document

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt.token_ids)


def new_request_id() -> str:
    """Unlike any other. Not a secret: a system call for randomness would let other threads in between."""
    return f"{random.getrandbits(128):032x}"


class Phase(Enum):
    WAITING = "waiting"  # not admitted, or preempted
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class RequestState:
    """Progress of one request. The scheduler is the only writer."""

    request: Request
    phase: Phase = Phase.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0  # already in KV
    num_cached_tokens: int = 0  # of those, found in the prefix tree at the first admission
    num_exact_tokens: int = MAX_TOKENS  # what is computed behind them rests on a link
    block_ids: tuple[int, ...] = ()
    num_preemptions: int = 0
    num_predicted_right: int = 0  # tokens of the prediction that were verified and came true
    num_predicted_wrong: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    vision_queue_s: float | None = None  # from arrival to the first encode for it
    encode_s: float = 0.0
    prefill_s: float = 0.0
    linked_spans: set[int] = field(default_factory=set)  # starts of those that were linked at any time
    media_sources: dict[bytes, str] = field(default_factory=dict)  # by media key, as in RequestStats

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt.token_ids) + len(self.output_token_ids)  # asked often

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens whose KV is not yet computed; 1 while decoding."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.request.prompt.token_ids, *self.output_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Where the time of a request went, in seconds; part of its first and last event."""

    queue_s: float = 0.0
    vision_queue_s: float | None = None  # None where nothing was encoded
    encode_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_predicted_right: int = 0  # tokens of the prediction that were verified and came true
    num_predicted_wrong: int = 0
    media_sources: tuple[str, ...] = ()  # one per span: prefix | device | host | disk | remote | miss
    are_linked: tuple[bool, ...] = ()  # one per span: whether it was taken over from another place
