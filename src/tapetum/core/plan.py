"""One step, written down: what the scheduler decided (BatchPlan) and what came of it (StepResult).

What is made anew for every row of every step is a named tuple: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tapetum.core.errors import TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.request import FinishReason, Request, RequestStats


class Row(NamedTuple):
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
class KnownPart:
    """A part of an item that is not encoded: its features are those of an equal part of features that are there."""

    number: int  # among the item's parts
    media_key: bytes  # of whose features; the item's own where it has the part twice
    runs: tuple[tuple[int, int], ...]  # where they lie in those, in the order of the part's own runs

    @property
    def num_tokens(self) -> int:
        return sum(end - start for start, end in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeJob:
    """One media item to encode before the rows of the same step run, from one share of its work to another.

    With the last share done its features are there, and stay until dropped. An encode that stands elsewhere than at
    `start` goes on from there; one that is lost, or whose start is 0, begins anew. The work is that of the parts that
    are not `known`.
    """

    item: MediaItem
    start: float = 0.0
    end: float = 1.0
    known: tuple[KnownPart, ...] = ()

    @property
    def share(self) -> float:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.start <= 0 and self.end >= 1

    @property
    def num_patches(self) -> int:
        """Of the item, without those of known parts."""
        segments = self.item.geometry.segments
        return self.item.geometry.num_patches - sum(segments[part.number] for part in self.known)

    @property
    def num_tokens(self) -> int:
        """The same of its visual tokens."""
        return self.item.geometry.num_tokens - sum(part.num_tokens for part in self.known)

    @property
    def squares(self) -> int:
        """The same of the squares of its attention segments."""
        segments = self.item.geometry.segments
        return self.item.geometry.squares - sum(segments[part.number] ** 2 for part in self.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Tokens of a picture whose keys and values are those that it had in another place, where that fits.

    Tokens `[start, end)` of the request get what lies in `source_ids`, with the keys turned by `shift` positions. The
    tokens `[first, start)` before them, the first of the picture, are computed by then: nothing is copied where they
    are further than `tolerance` from what the source has for them.
    """

    request_id: str
    first: int
    start: int
    end: int
    block_ids: tuple[int, ...]  # of the request
    source_ids: tuple[int, ...]
    source_first: int  # which slot of these blocks, counted through, token `first` has
    shift: int
    tolerance: float

    def fits(self, error: float) -> bool:
        return error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """KV blocks of one request that are copied to slots of host memory, or from there, one by one."""

    request_id: str
    block_ids: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payload:
    """What an array holds, in the memory of the host: its bytes in order, little-endian. Nobody changes them."""

    dtype: str  # float32 | bfloat16 | float16
    shape: tuple[int, ...]
    data: object = field(repr=False)  # a buffer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureArrival:
    """Features that were computed before, and need no encode."""

    key: bytes  # of the media item
    payload: Payload  # [visual tokens, hidden]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockArrival:
    """Keys and values that were computed before, one payload a block."""

    block_ids: tuple[int, ...]
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExport:
    """Blocks that are copied out, and the name of what each holds."""

    names: tuple[bytes, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step. Order of execution: exports, block_exports, block_arrivals, saves, loads, released, dropped_features,
    admitted, arrivals, encodes, rows, links.

    Exports and saves come before anything that drops or overwrites what they copy, a load of the same step among that;
    what arrives may be saved.
    """

    step: int
    rows: tuple[Row, ...] = ()
    encodes: tuple[EncodeJob, ...] = ()
    saves: tuple[Move, ...] = ()  # from the device to the host
    loads: tuple[Move, ...] = ()  # and back, of requests that were preempted
    admitted: tuple[Request, ...] = ()  # new to the executor; sent once, before their first row
    released: tuple[str, ...] = ()  # requests that ended; the executor forgets them
    dropped_features: tuple[bytes, ...] = ()  # media keys whose features leave the device
    drops_windows: bool = False  # all that the executor keeps of windows, for pictures that have them again
    exports: tuple[bytes, ...] = ()  # media keys whose features are copied out
    block_exports: tuple[BlockExport, ...] = ()
    arrivals: tuple[FeatureArrival, ...] = ()  # features that are on the device from this step on
    block_arrivals: tuple[BlockArrival, ...] = ()
    links: tuple[Link, ...] = ()  # behind rows that end where they start
    # of requests whose rows sample: the tokens that may come, one bit each
    masks: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        return bool(self.rows or self.encodes)

    @property
    def is_empty(self) -> bool:
        is_moving = self.saves or self.loads or self.exports or self.block_exports or self.block_arrivals
        is_dropping = self.dropped_features or self.drops_windows
        return not (self.has_work or is_moving or self.released or is_dropping or self.arrivals)


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
    # media keys -> the share of their encode's whole work that was spared, by windows that were encoded before
    spared: Mapping[bytes, float] = field(default_factory=dict)
    failed_features: Mapping[bytes, TapetumError] = field(default_factory=dict)  # media keys not encoded
    lost_moves: frozenset[str] = (
        frozenset()
    )  # requests of whose saves or loads nobody knows whether they are done
    # by media key; none of what was not there
    exported: Mapping[bytes, Payload] = field(default_factory=dict)
    exported_blocks: Mapping[bytes, Payload] = field(default_factory=dict)  # by name
    # by request: how far the tokens before a link are from those of its source; none of links that were not looked at
    links: Mapping[str, float] = field(default_factory=dict)
    # media keys of sampled near-duplicates -> how far their features are from those they stand beside
    drift: Mapping[bytes, float] = field(default_factory=dict)
    encode_s: float = 0.0
    forward_s: float = 0.0
    move_s: float = 0.0
    moved_bytes: int = 0


class TokenEvent(NamedTuple):
    """News of one request. Exactly one event of a request has a finish_reason, and it is the last."""

    request_id: str
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    error: TapetumError | None = None  # set when finish_reason is "error"
    stats: RequestStats | None = None  # with the first token and with the last event


class Executor(Protocol):
    """Carries out a plan on its devices. Executes plans strictly in the order of their steps."""

    def execute(self, plan: BatchPlan) -> StepResult: ...
