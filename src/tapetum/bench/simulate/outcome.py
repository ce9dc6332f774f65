"""What came of the requests of a trace, one record each, and the gaps between tokens, counted by size.

Owns what is kept: a request's times and how it ended. What the numbers mean is the report's business.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tapetum.bench.simulate.trace import Arrival
from tapetum.core.media import Rung
from tapetum.core.plan import TokenEvent

_STEP = math.log(1.002)  # gaps within a fifth of a percent count as one
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`reason` as in a finish_reason, or `refused` for a request that was not let in."""

    number: int
    arrival: Arrival
    reason: str
    end_s: float
    first_scheduled_s: float | None = None
    first_encode_s: float | None = None
    first_token_s: float | None = None
    num_tokens: int = 0
    num_preemptions: int = 0
    rung: Rung = "high"  # of its pictures
    error: str | None = None  # the code of what refused or ended it

    @property
    def is_answered(self) -> bool:
        return self.reason in ("stop", "length")

    @property
    def ttft_s(self) -> float:
        """Only of answered ones."""
        assert self.first_token_s is not None, "an answer has a first token"
        return self.first_token_s - self.arrival.at_s

    @property
    def itl_s(self) -> float:
        """Mean seconds between its tokens; 0 where there is one token."""
        assert self.first_token_s is not None, "an answer has a first token"
        gaps = self.num_tokens - 1
        return (self.end_s - self.first_token_s) / gaps if gaps else 0.0


class Gaps:
    """How often each time between two tokens was seen."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float, count: int = 1) -> None:
        self._counts[round(math.log(max(seconds, _LEAST_S)) / _STEP)] += count

    def quantile(self, share: float) -> float | None:
        left = share * self._counts.total()
        for size, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return math.exp(size * _STEP)
        return None


@dataclass(slots=True, eq=False)
class Answer:
    """One request on its way."""

    number: int
    arrival: Arrival
    rung: Rung
    first_token_s: float | None = None
    last_token_s: float = 0.0
    num_tokens: int = 0


class Watch:
    """Follows requests from their arrival to their only end, of which `keep` is told, in the order of ends."""

    def __init__(self, keep: Callable[[Outcome], None]) -> None:
        self.gaps: dict[str, Gaps] = defaultdict(Gaps)  # by the name of the shape
        self.live: dict[str, Answer] = {}
        self._keep = keep

    def begin(self, request_id: str, number: int, arrival: Arrival, rung: Rung = "high") -> None:
        assert request_id not in self.live, f"request {request_id} has begun already"
        self.live[request_id] = Answer(number, arrival, rung)

    def refuse(self, number: int, arrival: Arrival, code: str) -> None:
        """Not let in, when it came."""
        self._keep(Outcome(number=number, arrival=arrival, reason="refused", end_s=arrival.at_s, error=code))

    def tell(self, events: Sequence[TokenEvent], times: Sequence[float]) -> None:
        """News of a plan whose steps were over at `times`: each token of a row came with one of them."""
        runs: Counter[str] = Counter()
        for event in events:
            answer = self.live[event.request_id]
            if event.tokens:
                self._note_first(answer, times[0])
                runs[answer.arrival.shape.name] += 1
                answer.num_tokens += len(event.tokens)
                answer.last_token_s = times[-1]
            if event.finish_reason is not None:
                self._end(event, answer, times[-1])
        for name, count in runs.items():
            for before, after in pairwise(times):
                self.gaps[name].add(after - before, count)

    def _note_first(self, answer: Answer, now: float) -> None:
        if answer.first_token_s is None:
            answer.first_token_s = now
        else:
            self.gaps[answer.arrival.shape.name].add(now - answer.last_token_s)

    def _end(self, event: TokenEvent, answer: Answer, now: float) -> None:
        del self.live[event.request_id]
        assert event.finish_reason is not None, "an end has a reason"
        stats, came_s = event.stats, answer.arrival.at_s
        self._keep(
            Outcome(
                number=answer.number,
                arrival=answer.arrival,
                rung=answer.rung,
                reason=event.finish_reason,
                end_s=now,
                first_scheduled_s=None if stats is None else came_s + stats.queue_s,
                first_encode_s=None
                if stats is None or stats.vision_queue_s is None
                else came_s + stats.vision_queue_s,
                first_token_s=answer.first_token_s,
                num_tokens=answer.num_tokens,
                num_preemptions=0 if stats is None else stats.num_preemptions,
                error=None if event.error is None else event.error.code,
            )
        )
