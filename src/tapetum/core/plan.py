"""One step, written down: what the scheduler decided (BatchPlan) and what came of it (StepResult)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tapetum.core.errors import TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.request import FinishReason, Request, RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The share of one request in a step: tokens `[start, start + length)` of it go through the decoder.

    Prefill, chunked prefill and decode are the same thing. `block_ids` covers positions 0 .. start + length. The last
    tokens may be guesses: with those that come true, the row yields several tokens at once.
    """

    request_id: str
    start: int
    length: int
    block_ids: tuple[int, ...]
    has_sample: bool  # the last position yields a token
    guess: tuple[int, ...] = ()  # the row's last tokens, behind all that are known; only of rows that sample

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def num_samples(self) -> int:
        """How many of the last positions are sampled: the last known token and those of the guess."""
        return 1 + len(self.guess) if self.has_sample else 0

    @property
    def is_decode(self) -> bool:
        """One known token."""
        return self.length == 1 + len(self.guess)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeJob:
    """One media item to encode before the rows of the same step run, from one share of its work to another.

    With the last share done its features are there, and stay until dropped. An encode that stands elsewhere than at
    `start` goes on from there; one that is lost, or whose start is 0, begins anew.
    """

    item: MediaItem
    start: float = 0.0
    end: float = 1.0

    @property
    def share(self) -> float:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.start <= 0 and self.end >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """KV blocks of one request that are copied to slots of host memory, or from there, one by one."""

    request_id: str
    block_ids: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step. Order of execution: saves, loads, released, dropped_features, admitted, encodes, rows.

    Saves come before anything that overwrites their blocks, a load of the same step among that.
    """

    step: int
    rows: tuple[Row, ...] = ()
    encodes: tuple[EncodeJob, ...] = ()
    saves: tuple[Move, ...] = ()  # from the device to the host
    loads: tuple[Move, ...] = ()  # and back, of requests that were preempted
    admitted: tuple[Request, ...] = ()  # new to the executor; sent once, before their first row
    released: tuple[str, ...] = ()  # requests that ended; the executor forgets them
    dropped_features: tuple[bytes, ...] = ()  # media keys whose features leave the device
    # of requests whose rows sample: the tokens that may come, one bit each
    masks: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        return bool(self.rows or self.encodes)

    @property
    def is_empty(self) -> bool:
        return not (self.has_work or self.saves or self.loads or self.released or self.dropped_features)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """A token and, where asked for, its log-probability and the most likely alternatives."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step produced. A request is in `tokens` (its row sampled) or in `failed`, never in both.

    The key of an encode is in `encoded` or in `failed_features`.
    """

    step: int
    # one of each row that sampled, and as many more as came true of its guess
    tokens: Mapping[str, tuple[SampledToken, ...]] = field(default_factory=dict)
    failed: Mapping[str, TapetumError] = field(default_factory=dict)
    encoded: Mapping[bytes, float] = field(
        default_factory=dict
    )  # media keys -> the share of the work done so far
    failed_features: Mapping[bytes, TapetumError] = field(default_factory=dict)  # media keys not encoded
    lost_moves: frozenset[str] = (
        frozenset()
    )  # requests of whose saves or loads nobody knows whether they are done
    encode_s: float = 0.0
    forward_s: float = 0.0
    move_s: float = 0.0
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """News of one request. Exactly one event of a request has a finish_reason, and it is the last."""

    request_id: str
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    error: TapetumError | None = None  # set when finish_reason is "error"
    stats: RequestStats | None = None  # with the first token and with the last event


class Executor(Protocol):
    """Carries out a plan on its devices. Executes plans strictly in the order of their steps."""

    def execute(self, plan: BatchPlan) -> StepResult: ...
