"""Who is here: waiting, running, just ended.

Owns the life of every request from `add` to its single last event, and with it what the request holds: blocks, pins,
a place in a queue. Which request moves when is the scheduler's decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter

from tapetum.cache.ledger import Ledger
from tapetum.cache.traffic import Traffic
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import DeadlinePassed, InvalidParameter, TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, SampledToken, StepResult, TokenEvent
from tapetum.core.request import FinishReason, Phase, Request, RequestState
from tapetum.core.tenant import account_of
from tapetum.sched.charges import Charged, charges_of_encodes, charges_of_rows
from tapetum.sched.due import due_of
from tapetum.sched.limits import too_late
from tapetum.sched.progress import Progress, stats_of
from tapetum.sched.promise import Promises, Prospect
from tapetum.sched.queue import RankedQueue, rank_of
from tapetum.sched.queued import Queued
from tapetum.sched.seats import Seats
from tapetum.sched.swap import Swap
from tapetum.sched.turns import Turns

_NEWEST = 0.1  # how much the newest stay counts in their average


class Roster:
    def __init__(
        self, ledger: Ledger, visual: VisualCache, swap: Swap, traffic: Traffic, cost: CostModel
    ) -> None:
        self.waiting: RankedQueue[Progress] = RankedQueue(attrgetter("rank"))
        self.running = Seats()
        self.finished: Counter[str] = Counter()
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up at first admissions
        self.prefix_hits = 0  # of those, found
        self._ledger = ledger
        self._visual = visual
        self._swap = swap
        self._traffic = traffic
        self._cost = cost
        self.queued = Queued()
        self.promises = Promises()
        self.turns = Turns()
        self.charged = Charged()
        self.stay_s = 0.0  # in a place among the running, of recent requests on average
        self._live: dict[str, Progress] = {}
        self._wanted: Counter[bytes] = Counter()  # media keys in their prompts
        self._deadlines: list[tuple[float, int, str]] = []  # a heap, with some of ended requests
        self._released: list[str] = []
        self._num_added = 0

    def find(self, request_id: str) -> Progress | None:
        return self._live.get(request_id)

    @property
    def victim(self) -> Progress:
        """Who gives way first: of those that run one of the lowest class, the last that was let in."""
        return self.running.last

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def num_deadlines(self) -> int:
        """Deadlines remembered: at most two for each live request."""
        return len(self._deadlines)

    def live(self) -> tuple[Progress, ...]:
        return tuple(self._live.values())

    def wants(self, item: MediaItem) -> bool:
        """Whether a live request has this picture or clip in its prompt."""
        return item.key in self._wanted

    def prefills(self) -> tuple[Progress, ...]:
        """Those that run and do not decode, in order of their seats. May be asked from another thread."""
        return tuple(self.running.prefills)

    def add(self, request: Request, now: float, prospect: Prospect) -> None:
        if request.request_id in self._live:
            raise InvalidParameter(
                f"request_id {request.request_id!r} is in use by a live request; choose another",
                param="request_id",
            )
        self._num_added += 1
        encode_s, prefill_s = self._predicted(request)
        progress = Progress(
            RequestState(request),
            rank_of(request, self._num_added, request.arrival_s),
            account_of(request.tenant),
            encode_s=encode_s,
            prefill_s=prefill_s,
            added_s=now,
            predicted_s=prospect.first_token_s,
            had_encode=prospect.encode_s > 0,
            due_s=due_of(request, encode_s + prefill_s),
        )
        self._live[request.request_id] = progress
        self._wanted.update(span.key for span in request.prompt.spans)
        self._push_waiting(progress, encode_s, prefill_s)
        if request.deadline_s is not None:
            heappush(self._deadlines, (request.deadline_s, self._num_added, request.request_id))

    def start(self, progress: Progress, num_matched: int, now: float) -> None:
        """From waiting to running, with blocks reserved and so many tokens in them computed already."""
        state = progress.state
        self._remove_waiting(progress)
        state.phase = Phase.RUNNING
        progress.begin(self._swap.load(state, num_matched))
        if state.first_scheduled_s is None:
            state.first_scheduled_s = now
            progress.seat = rank_of(state.request, progress.rank.order, now)
            state.num_cached_tokens = num_matched
            self.prefix_queries += state.num_tokens
            self.prefix_hits += num_matched
        self.running.push(progress)

    def preempt(self, progress: Progress, *, may_save: bool = True) -> None:
        """From running back to waiting: everything held is given back, outputs and rank are kept.

        What its blocks hold may move to the host, where that is known to be right.
        """
        state = progress.state
        self.running.remove(progress)
        state.phase = Phase.WAITING
        state.num_preemptions += 1
        self.num_preemptions += 1
        if may_save:
            self._swap.save(state)
        self._give_back(progress)
        self._push_waiting(progress, *self._left(progress))

    def charge(self, plan: BatchPlan, owners: Sequence[Progress], result: StepResult) -> None:
        """What a step has done counts for the turns of those it was done for; before any of it is taken over."""
        for job, seconds in charges_of_encodes(plan.encodes, result, self._cost):
            for request_id in self._visual.waiters(self._visual.key_of(job.item))[:1]:
                if progress := self._live.get(request_id):
                    self._charge({progress.account: seconds})
        self._charge(charges_of_rows(plan.rows, owners, result, self._cost))

    def _charge(self, seconds: Mapping[str, float]) -> None:
        self.turns.charge(seconds)
        self.charged.add(seconds)

    def end(
        self,
        progress: Progress,
        reason: FinishReason,
        now: float,
        *,
        tokens: tuple[SampledToken, ...] = (),
        error: TapetumError | None = None,
    ) -> TokenEvent:
        """The last event of a live request. The executor is told to forget it whether it has met it or not."""
        state = progress.state
        if state.phase is Phase.RUNNING:
            self.running.remove(progress)
        else:
            self._remove_waiting(progress)
        state.phase = Phase.FINISHED
        self._swap.forget((progress.request_id,))
        self._traffic.ended(state)
        self._learn(progress, reason, now, error)
        self._give_back(progress)
        self._visual.reserve.let_go(progress.request_id)
        del self._live[progress.request_id]
        for span in state.request.prompt.spans:
            self._wanted[span.key] -= 1
            if not self._wanted[span.key]:
                del self._wanted[span.key]
        self._forget_deadlines()
        self._released.append(progress.request_id)
        self.finished[reason] += 1
        return TokenEvent(
            request_id=progress.request_id,
            tokens=tokens,
            finish_reason=reason,
            error=error,
            stats=stats_of(state, now),
        )

    def end_expired(self, now: float) -> list[TokenEvent]:
        """End every request whose deadline has passed."""
        events: list[TokenEvent] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline = heappop(self._deadlines)
            if self._is_live(deadline):
                progress = self._live[deadline[2]]
                events.append(self.end(progress, "error", now, error=too_late(progress.state.request, now)))
        return events

    def has_expired(self, now: float) -> bool:
        """Whether `end_expired` has something to look at."""
        return bool(self._deadlines) and self._deadlines[0][0] <= now

    def take_released(self) -> tuple[str, ...]:
        released = tuple(self._released)
        self._released.clear()
        return released

    def return_released(self, request_ids: Iterable[str]) -> None:
        """What `take_released` gave goes into the next plan: that of the last one never ran."""
        self._released = list(dict.fromkeys((*request_ids, *self._released)))

    @property
    def has_released(self) -> bool:
        return bool(self._released)

    def _predicted(self, request: Request) -> tuple[float, float]:
        """Seconds of encode and prefill of a request that finds nothing cached."""
        geometries = [span.item.geometry for span in request.prompt.spans]
        encode_s = self._cost.encode_seconds(
            sum(geometry.num_patches for geometry in geometries),
            sum(geometry.squares for geometry in geometries),
        )
        length = request.num_prompt_tokens
        return encode_s, self._cost.step_seconds(0, 0, length, chunk_context(0, length))

    def _left(self, progress: Progress) -> tuple[float, float]:
        """Seconds of encode and prefill of a request that was preempted: what is cached is not computed again, and
        what was saved is loaded."""
        state = progress.state
        num_there, move_s = self._swap.outlook(state, self._ledger.num_found(state))
        length = state.num_tokens - num_there
        prefill_s = self._cost.step_seconds(0, 0, length, chunk_context(num_there, length))
        is_passed = all(span.end <= num_there for span in state.request.prompt.spans)
        return 0.0 if is_passed else progress.encode_s, move_s + prefill_s

    def _push_waiting(self, progress: Progress, encode_s: float, prefill_s: float) -> None:
        self.waiting.push(progress)
        self.queued.push(progress, encode_s, prefill_s)
        self.turns.push(progress)

    def _remove_waiting(self, progress: Progress) -> None:
        self.waiting.remove(progress)
        self.queued.remove(progress)
        self.turns.remove(progress)

    def _is_live(self, deadline: tuple[float, int, str]) -> bool:
        """Whether it belongs to a live request, and to this use of the id."""
        _, order, request_id = deadline
        progress = self._live.get(request_id)
        return progress is not None and progress.rank.order == order

    def _forget_deadlines(self) -> None:
        """Drop those of ended requests once they are the greater part; each end pays for a few."""
        if len(self._deadlines) > 2 * len(self._live):
            self._deadlines = [deadline for deadline in self._deadlines if self._is_live(deadline)]
            heapify(self._deadlines)

    def _learn(
        self, progress: Progress, reason: FinishReason, now: float, error: TapetumError | None
    ) -> None:
        """How long a request took that came to an end of its own, or to its deadline."""
        request, first_s = progress.state.request, progress.state.first_scheduled_s
        is_late = isinstance(error, DeadlinePassed)
        if reason in ("abort", "error") and not is_late:
            return
        end_s = now if request.deadline_s is None or not is_late else max(now, request.deadline_s)
        num_tokens, token_s = len(progress.state.output_token_ids), progress.state.first_token_s
        first_token_s = end_s if token_s is None else token_s
        self.promises.observe_first(
            progress.predicted_s,
            first_token_s - progress.added_s,
            has_media=progress.had_encode,
            is_late=token_s is None,
        )
        self.promises.observe_rest(num_tokens - 1, end_s - first_token_s)
        if not is_late:
            self.promises.observe_length(num_tokens)
        if first_s is not None:
            stay_s = now - first_s
            self.stay_s = self.stay_s + _NEWEST * (stay_s - self.stay_s) if self.stay_s else stay_s

    def _give_back(self, progress: Progress) -> None:
        progress.stop(self._visual)
        self._ledger.release(progress.state)
