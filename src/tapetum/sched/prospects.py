"""When requests would end by what the scheduler has to do, and who can no longer end in time.

Owns nothing but what it learns of requests (promise.py); it reads the roster, the caches and the cost model. A request
with a deadline is checked when it comes, before it is admitted, and before every step that encodes or prefills for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from tapetum.cache.ledger import Ledger
from tapetum.core.config import ScheduleConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import DeadlineOutOfReach, DeadlinePassed, TapetumError
from tapetum.core.media import Span
from tapetum.core.plan import TokenEvent
from tapetum.core.request import Request, RequestState
from tapetum.core.stats import Backlog
from tapetum.sched.budget import limit_beside_decodes, max_running, step_budget
from tapetum.sched.due import patience_of
from tapetum.sched.progress import Progress
from tapetum.sched.promise import Load, Prospect, check_in_time, prospect_of
from tapetum.sched.queued import Sum
from tapetum.sched.roster import Roster
from tapetum.sched.settle import Encodes
from tapetum.sched.swap import Swap

_SURE = 0.8  # of what is predicted: a request that runs is given up where even so much is too much
_NUM_NEXT = 8  # requests that wait and are looked at before they may be admitted


@dataclass(frozen=True, slots=True)
class _Left:
    """What is left to encode and prefill of each request that runs; a picture of several counts once."""

    prefills: tuple[Progress, ...]
    parts: tuple[Sum, ...]


class Prospects:
    def __init__(
        self,
        config: ScheduleConfig,
        roster: Roster,
        ledger: Ledger,
        encodes: Encodes,
        swap: Swap,
        cost: CostModel,
    ) -> None:
        self._config = config
        self._roster = roster
        self._ledger = ledger
        self._encodes = encodes
        self._swap = swap
        self._cost = cost
        self._max_running = max_running(config, ledger.block_size)
        self._ends_s: float | None = None  # the step that is carried out, as predicted
        self._left: _Left | None = None  # as of this step, should somebody have asked

    def check(self, request: Request, now: float) -> Prospect:
        """What is predicted of a request that comes now; raises where that is past its deadline."""
        prospect = self._of(request, 0, now)
        if request.deadline_s is None:
            return prospect
        left_s = request.deadline_s - now
        try:
            check_in_time(left_s, prospect)
        except (DeadlineOutOfReach, DeadlinePassed):
            prospect = self._of(request, self._ledger.num_found(RequestState(request)), now)
            self._check_again(left_s, prospect)
        return prospect

    def _check_again(self, left_s: float, prospect: Prospect) -> None:
        try:
            check_in_time(left_s, prospect)
        except DeadlineOutOfReach:
            if prospect.first_token_s + prospect.decode_s <= left_s:
                self._roster.promises.observe_refusal(has_media=prospect.encode_s > 0)
            raise

    def _of(self, request: Request, num_found: int, now: float) -> Prospect:
        """With so many tokens found in the prefix tree."""
        length = request.num_prompt_tokens - num_found
        return self.prospect(
            request.priority,
            now=now,
            encode_s=self._encode_s(request.prompt.spans, set(), num_found),
            prefill_s=self._cost.step_seconds(0, 0, length, chunk_context(num_found, length)),
            min_tokens=_least_tokens(request),
            max_tokens=request.max_tokens,
        )

    def prospect(
        self,
        priority: int,
        *,
        now: float,
        encode_s: float,
        prefill_s: float,
        min_tokens: int = 1,
        max_tokens: int = 1,
    ) -> Prospect:
        """Of a request that comes now with so much to do. May be asked from another thread."""
        promises = self._roster.promises
        prospect = prospect_of(
            self._load(priority, now, encode_s, prefill_s),
            encode_s=encode_s,
            prefill_s=prefill_s,
            num_tokens=promises.answer_tokens(min_tokens, max_tokens),
        )
        if not self._roster.num_live:
            return replace(prospect, within_s=prospect.alone_s)
        return replace(prospect, within_s=promises.seconds(prospect, has_media=encode_s > 0))

    @property
    def backlog(self) -> Backlog:
        """What is left to do before all that is here decodes. May be asked from another thread."""
        left = self._roster.queued.total()
        for part in self._parts_left().parts:
            left.add(part)
        return Backlog(
            num_waiting=len(self._roster.waiting), encode_s=left.encode_s, prefill_s=left.prefill_s
        )

    def end_hopeless(self, now: float) -> list[TokenEvent]:
        """End every request whose next stages cannot be over before its deadline."""
        roster = self._roster
        if not roster.num_deadlines:
            return []
        candidates = [*roster.prefills(), *islice(roster.waiting, _NUM_NEXT)]
        return [
            roster.end(progress, "error", now, error=error)
            for progress in candidates
            if (error := self._hopeless(progress, now)) is not None
        ]

    def _hopeless(self, progress: Progress, now: float) -> TapetumError | None:
        deadline_s = progress.state.request.deadline_s
        if deadline_s is None:
            return None
        left_s = deadline_s - now
        least_s = self._least_s(progress, progress.state.num_computed_tokens)
        if least_s > left_s and not progress.state.block_ids:  # what it would find was not counted
            num_there, move_s = self._swap.outlook(progress.state, self._ledger.num_found(progress.state))
            least_s = self._least_s(progress, num_there) + _SURE * move_s
        if least_s <= left_s:
            return None
        return DeadlinePassed(
            f"request needs {least_s:.3f} s more at least, its timeout_s leaves {left_s:.3f} s; "
            "raise timeout_s or send less at a time",
            param="timeout_s",
        )

    def _least_s(self, progress: Progress, num_computed: int) -> float:
        """What is left to do for the request itself, with the whole engine for it."""
        state = progress.state
        length = state.num_tokens - num_computed
        num_decodes = max(0, _least_tokens(state.request) - len(state.output_token_ids) - 1)
        return _SURE * (
            self._encode_s(state.request.prompt.spans, set(), num_computed)
            + self._cost.step_seconds(0, 0, length, chunk_context(num_computed, length))
            + num_decodes * self._cost.step_seconds(1, state.num_tokens)
        )

    def _load(self, priority: int, now: float, encode_s: float, prefill_s: float) -> Load:
        """Prefills go on as they are due, so text passes those of pictures that came before it."""
        patience_s, has_encode = patience_of(priority, encode_s + prefill_s), encode_s > 0
        ahead = self._roster.queued.ahead(priority, has_media=has_encode)
        pending = self._roster.queued.total()
        num_next = 0  # who decode before this request does
        left = self._parts_left()
        for progress, part in zip(left.prefills, left.parts, strict=True):
            pending.add(part)
            if has_encode:
                ahead.add(part)
            elif progress.due_s <= now + patience_s:
                ahead.prefill_s += part.prefill_s
                num_next += not part.encode_s
        decodes = tuple(self._roster.running.decodes)
        num_decodes = len(decodes)
        context = sum(progress.state.num_computed_tokens for progress in decodes) + num_decodes
        decode_s = self._cost.step_seconds(num_decodes, context) if num_decodes > 0 else 0.0
        next_decode_s = self._cost.step_seconds(num_decodes + num_next, context) if decodes else 0.0
        own_decode_s = self._cost.step_seconds(num_decodes + num_next + 1, context)
        limit_s = max(self._limit_s(decode_s), own_decode_s)
        return Load(
            ahead_s=ahead.seconds,
            flight_s=self._flight_s(now, decode_s),
            pending_s=pending.seconds,
            stay_s=self._stay_s(ahead.count),
            decode_s=own_decode_s,
            alone_s=self._cost.step_seconds(1, 0),
            limit_s=limit_s,
            rest_s=limit_s - next_decode_s,
            patience_s=patience_s if pending.encode_s > 0 and not has_encode else inf,
        )

    def begin(self, now: float, seconds: float) -> None:
        """A step is carried out that should take so long."""
        self._ends_s = now + seconds
        self._left = None

    def end(self) -> None:
        """No step is carried out."""
        self._ends_s = None
        self._left = None

    def _flight_s(self, now: float, decode_s: float) -> float:
        """What is left of the step that is carried out when somebody comes; one that should be over is one of
        decodes, which others follow."""
        if self._ends_s is None:
            return 0.0
        return self._ends_s - now if self._ends_s > now else decode_s

    def _limit_s(self, decode_s: float) -> float:
        """How long a step may take; where only its prefills are limited, these and the decodes."""
        limit_s = limit_beside_decodes(self._config, decode_s)
        if limit_s is not None:
            return limit_s
        return decode_s + step_budget(self._config, self._cost.step_seconds(0, 0)).prefill_s

    def _stay_s(self, num_ahead: int) -> float:
        """Until there is a place among the running, by how long others have stayed there."""
        waiting, num_running = self._roster.waiting, len(self._roster.running)
        places = self._max_running
        if waiting and not self._ledger.has_room(
            -(-waiting.first.state.num_tokens // self._ledger.block_size)
        ):
            places = max(1, num_running)
        num_missing = num_running + num_ahead + 1 - places
        return max(0, num_missing) / places * self._roster.stay_s

    def _parts_left(self) -> _Left:
        """Worked out once a step, for however many come in it: whole documents have many pictures."""
        prefills, left, seen = self._roster.prefills(), self._left, set[bytes]()
        if left is None or left.prefills != prefills:
            parts = tuple([self._part_left(progress, seen) for progress in prefills])
            left = self._left = _Left(prefills, parts)
        return left

    def _part_left(self, progress: Progress, seen: set[bytes]) -> Sum:
        state = progress.state
        start, length = state.num_computed_tokens, state.num_remaining_tokens
        return Sum(
            count=0,
            encode_s=self._encode_s(state.request.prompt.spans, seen, start),
            prefill_s=self._cost.step_seconds(0, 0, length, chunk_context(start, length)),
        )

    def _encode_s(self, spans: Iterable[Span], seen: set[bytes], num_computed: int) -> float:
        """What is left to encode of the spans behind the computed tokens, without those `seen`."""
        seconds = 0.0
        for span in spans:
            if span.end > num_computed and span.key not in seen:
                seen.add(span.key)
                seconds += self._cost.encode_seconds(*self._encodes.work_left(span.item))
        return seconds


def _least_tokens(request: Request) -> int:
    """Of its answer, by what the request says."""
    sampling = request.sampling
    if sampling.ignore_eos and not (sampling.stop or sampling.stop_token_ids):
        return request.max_tokens
    return max(1, min(sampling.min_tokens, request.max_tokens))
