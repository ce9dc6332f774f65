"""One request on its way: its state, its place in the order, and which pictures it still needs on the device.

Pinned are always the next spans in line, without gaps: a request that holds features can use them without further
ones and then lets go, so requests that wait for feature memory never wait in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tapetum.cache.visual import VisualCache
from tapetum.core.checks import MAX_TOKENS
from tapetum.core.media import Span
from tapetum.core.request import RequestState, RequestStats
from tapetum.sched.queue import Rank
from tapetum.sched.speculate import Speculation

_SOURCE_ORDER = ("prefix", "device", "host", "disk", "remote", "miss")  # the one that took most work is told


@dataclass(slots=True, eq=False)
class Progress:
    state: RequestState
    rank: Rank
    account: str = ""  # whose turn it takes
    request_id: str = field(init=False)
    ends: Collection[int] = field(init=False)  # the tokens with which the answer ends
    seat: Rank = field(init=False)  # the rank among those that run, from the first time on
    is_decoding: bool = False  # it runs, and the only token to compute is the one sampled last (seats.py)
    encode_s: float = 0.0  # predicted when it came, should nothing of it be cached
    prefill_s: float = 0.0
    added_s: float = 0.0
    predicted_s: float = 0.0  # from then to its first token
    had_encode: bool = False  # something to encode, as it came
    due_s: float = 0.0  # pictures are encoded and prefills go on in this order
    is_urgent: bool = False  # its prefill goes before encodes
    is_known: bool = False  # the executor has the request
    num_passed: int = 0  # spans whose tokens are all computed
    num_pinned: int = 0  # of the spans after those, from the first
    speculation: Speculation | None = None  # from the first token on, where the request may have guesses

    def __post_init__(self) -> None:
        request = self.state.request  # what follows is asked for in every step
        self.request_id = request.request_id
        self.ends = request.sampling.stop_token_ids if request.sampling.ignore_eos else request.stop_token_ids
        self.seat = self.rank

    @property
    def is_text(self) -> bool:
        """Without media."""
        return not self.state.request.prompt.spans

    @property
    def work_s(self) -> float:
        return self.encode_s + self.prefill_s

    @property
    def lacks_one_token(self) -> bool:
        """The only token to compute is the one sampled last."""
        return bool(self.state.output_token_ids) and self.state.num_remaining_tokens == 1

    @property
    def num_tokens_left(self) -> int:
        """Of the answer, by its limit."""
        return self.state.request.max_tokens - len(self.state.output_token_ids)

    def spans_ahead(self) -> Iterator[tuple[Span, bool]]:
        """Spans not passed yet, in order, and whether their features are pinned."""
        spans = self.state.request.prompt.spans
        for index in range(self.num_passed, len(spans)):
            yield spans[index], index < self.num_passed + self.num_pinned

    def relies_on(self, media_key: bytes) -> bool:
        """Whether it has reserved these features instead of bringing what they are encoded from."""
        return any(
            span.key == media_key and span.item.is_reserved for span in self.state.request.prompt.spans
        )

    def begin(self, num_matched: int) -> None:
        """Admitted with so many tokens found in the prefix tree."""
        self.state.num_computed_tokens = num_matched
        for span in self.state.request.prompt.spans:
            if span.end > num_matched:
                break
            self.num_passed += 1
            self._note_source(span, "prefix")

    def pin(self, span: Span, visual: VisualCache, source: str) -> None:
        """`span` is the first of `spans_ahead` that is not pinned; its features are resident or on their way."""
        visual.pin(visual.key_of(span.item), self.request_id)
        self.num_pinned += 1
        self._note_source(span, source)

    def advance(self, end: int, visual: VisualCache) -> None:
        """Tokens up to `end` are computed: let go of the pictures passed."""
        self.state.num_computed_tokens = end
        spans = self.state.request.prompt.spans
        while self.num_passed < len(spans) and spans[self.num_passed].end <= end:
            visual.unpin(visual.key_of(spans[self.num_passed].item), self.request_id)
            self.num_passed += 1
            self.num_pinned -= 1

    def note_encode(self, seconds: float, began_s: float) -> None:
        """A step encoded something that this request waited for."""
        state = self.state
        state.encode_s += seconds
        if state.vision_queue_s is None:
            state.vision_queue_s = max(0.0, began_s - state.request.arrival_s)

    def stop(self, visual: VisualCache) -> None:
        """Let go of all pictures and forget what is computed."""
        spans = self.state.request.prompt.spans
        for span in spans[self.num_passed : self.num_passed + self.num_pinned]:
            visual.unpin(visual.key_of(span.item), self.request_id)
        self.num_passed = self.num_pinned = 0
        self.state.num_computed_tokens = 0
        self.state.num_exact_tokens = MAX_TOKENS

    def _note_source(self, span: Span, source: str) -> None:
        known = self.state.media_sources.get(span.key, source)
        self.state.media_sources[span.key] = max(known, source, key=_SOURCE_ORDER.index)


def stats_of(state: RequestState, now: float) -> RequestStats:
    """Where the time went so far. A request that never ran or never spoke has spent all of it waiting for that."""
    request, arrival = state.request, state.request.arrival_s
    first_scheduled = now if state.first_scheduled_s is None else state.first_scheduled_s
    return RequestStats(
        queue_s=first_scheduled - arrival,
        vision_queue_s=state.vision_queue_s,
        encode_s=state.encode_s,
        prefill_s=state.prefill_s,
        ttft_s=0.0 if state.first_token_s is None else state.first_token_s - arrival,
        e2e_s=now - arrival,
        num_cached_tokens=state.num_cached_tokens,
        num_preemptions=state.num_preemptions,
        num_predicted_right=state.num_predicted_right,
        num_predicted_wrong=state.num_predicted_wrong,
        media_sources=tuple(state.media_sources.get(span.key, "miss") for span in request.prompt.spans),
        are_linked=tuple(span.start in state.linked_spans for span in request.prompt.spans),
    )
