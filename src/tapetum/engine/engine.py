"""One model at work: hear who came, schedule, execute, commit, and turn tokens into text.

Owns the scheduler, the executor and the answers. `add`, `abort` and `reset_caches` may be called from any thread; they
land in an inbox that is emptied with the news. So may `reserve` and `let_go`, which take effect at once. All else
belongs to one thread, but what only reads may come from another and sees the state of some moment. `step` does one turn
of everything, which is how the offline LLM runs; the parts that it is made of are for a loop that does some of them
while a plan is executed (overlap.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

from tapetum.core.config import EngineConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, Executor, StepResult, TokenEvent
from tapetum.core.request import Request
from tapetum.core.stats import Backlog, SchedulerStats
from tapetum.engine.answers import Answers
from tapetum.engine.constraints import Constraints
from tapetum.engine.execution import Outcome, carry_out
from tapetum.engine.feature_tiers import feature_tiers
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.kv_tiers import kv_tiers
from tapetum.engine.mailbox import Mailbox
from tapetum.engine.meters import Meters, Metric, tier_metrics
from tapetum.engine.output import Delta
from tapetum.engine.profile import observe
from tapetum.engine.promotion import Promotion
from tapetum.engine.reservations import Reservations, Reserved, Wanted
from tapetum.engine.resumption import Resumption
from tapetum.engine.tiers import Tiers
from tapetum.sched import build_scheduler
from tapetum.sched.foresight import Foresight
from tapetum.text.grammar import Constraint


class Engine:
    """One model on one device. `facts` says what it is, `files` what its prompts are built from."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        executor: Executor,
        facts: ModelFacts,
        files: ModelFiles,
        cost: CostModel | None = None,
        tiers: Tiers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.facts = facts
        self.files = files
        self.tokenizer = files.tokenizer
        self.clock = clock
        self.meters = Meters(facts.block_size * facts.kv_bytes_per_token)
        self._executor = executor
        self._cost = cost or CostModel()
        self.at_end = ExitStack()  # what is to be done once nothing more will be asked
        blocks = kv_tiers(tiers, facts)
        self._scheduler = build_scheduler(config, facts, self._cost, blocks.seconds if blocks else None)
        # a request to add, the id of one to abort, or who waits for the caches to be reset
        self._inbox: deque[Request | str | Future[None]] = deque()
        self._constraints = Constraints(files.tokenizer)
        self._tiers = tiers
        self._mailbox = Mailbox()
        features = feature_tiers(tiers, facts, config.tiers)
        self._resumption = Resumption(blocks, self._scheduler, self._mailbox, facts.num_blocks)
        self._promotion = Promotion(features, self._scheduler, self._cost, self._mailbox)
        self._reservations = Reservations(features, self._scheduler.visual, self._cost)
        self._answers = Answers(
            files.tokenizer, self._constraints, self.meters, self._scheduler.finish, self._promotion.forget
        )
        self._untold: list[tuple[Outcome, list[TokenEvent], float]] = []  # what came of steps, and when

    def add(self, request: Request) -> None:
        self._inbox.append(request)

    def abort(self, request_id: str) -> None:
        """End a request that waits or runs; one that has ended already is no error."""
        self._inbox.append(request_id)

    def reset_caches(self) -> Future[None]:
        """Drop every cached block and feature that no request holds; done when the future is."""
        done: Future[None] = Future()
        self._inbox.append(done)
        return done

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Future[Reserved]:
        """Keep the features of pictures within reach that the request may then come with undecoded.

        Who asks adds the request, or calls `let_go`.
        """
        return self._reservations.ask(request_id, wanted)

    def let_go(self, request_id: str) -> None:
        """Of what a request has reserved that is not added."""
        self._reservations.let_go(request_id)

    @property
    def has_mail(self) -> bool:
        """Whether somebody came, or wants to go."""
        return bool(self._inbox or self._mailbox)

    @property
    def has_work(self) -> bool:
        is_told = not (self._untold or self._answers.has_news)
        return self.has_mail or self._is_waiting or self._scheduler.has_work or not is_told

    @property
    def backlog(self) -> Backlog:
        """What waits for its turn."""
        return self._scheduler.backlog

    @property
    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    @property
    def media_keys(self) -> tuple[bytes, ...]:
        """Of the pictures and clips whose features are on the device."""
        return self._scheduler.media_keys

    def metrics(self, heartbeat_age_s: float) -> tuple[Metric, ...]:
        """All numbers of this moment, read from their owners."""
        behind = () if self._tiers is None else tier_metrics(self._tiers.counts())
        return (*self.meters.read(self.stats, self.backlog, heartbeat_age_s), *behind)

    def forecast(self, workload: Workload) -> Forecast:
        """How long a prompt would take and wait, by the cost model."""
        sources = tuple(map(self._promotion.source, workload.media_keys))
        encode_s = tuple(
            self._cost.encode_seconds(sum(sizes), sum(size * size for size in sizes))
            if source == "miss"
            else 0.0
            for sizes, source in zip(workload.segments, sources, strict=True)
        )
        length = workload.num_tokens
        prefill_s = self._cost.step_seconds(0, 0, length, chunk_context(0, length))
        return Forecast(
            encode_s=encode_s,
            sources=sources,
            is_held=tuple(
                source != "miss" or (key is not None and self._scheduler.has_cached(key))
                for key, source in zip(workload.media_keys, sources, strict=True)
            ),
            prefill_s=prefill_s,
            queue_s=self.backlog.seconds,
            prospect=self._scheduler.prospect(
                workload.priority,
                now=self.clock(),
                encode_s=sum(encode_s),
                prefill_s=prefill_s,
                max_tokens=workload.max_tokens,
            ),
        )

    def step(self) -> dict[str, Delta]:
        """One turn of everything: the news of every request that has any."""
        self._hear()
        plan = self.plan()
        if plan.is_empty:
            self.skip(plan)
        else:
            try:
                outcome = self.carry_out(plan)
            except BaseException:  # an interrupt, or a device that is lost
                self.abandon(plan)
                raise
            self.commit(plan, outcome)
        self._tell()
        return self._answers.take_news()

    def take_news(self) -> dict[str, Delta]:
        """The news of every request that has any, who came and went among them: admitted, refused, aborted."""
        self._tell()
        self._hear()
        return self._answers.take_news()

    def plan(self) -> BatchPlan:
        """The next step; it is committed, skipped or abandoned."""
        return self._constraints.bind(self._scheduler.schedule(self.clock()))

    def foresee(self, plan: BatchPlan) -> Foresight | None:
        """The step after the one in flight, where that can be told; it is committed, withdrawn or abandoned."""
        return self._scheduler.foresee(plan, self.clock())

    def withdraw(self, plan: BatchPlan) -> None:
        self._scheduler.withdraw(plan)

    def carry_out(self, plan: BatchPlan) -> Outcome:
        """On whatever thread, one plan after the other."""
        return carry_out(self._executor, plan)

    def skip(self, plan: BatchPlan) -> None:
        """Commit a plan with nothing in it; while somebody waits for something else, look away for a moment."""
        if self._constraints.is_compiling:
            self._constraints.wait()
        elif self._is_waiting:
            self._mailbox.wait()
        self.commit(plan, Outcome(plan, StepResult(step=plan.step)))

    def commit(self, plan: BatchPlan, outcome: Outcome) -> None:
        """Take over what came of a plan; of answers that their text may end, read it at once."""
        result = self._constraints.follow(plan, outcome.result)
        now = self.clock()
        later: list[TokenEvent] = []
        for event in self._scheduler.commit(plan, result, now):
            if self._answers.may_end(event.request_id):
                self._answers.tell((event,), now)
            else:
                later.append(event)
        self._promotion.keep(plan, result)
        self._resumption.keep()
        self._untold.append((outcome, later, now))

    def abandon(self, plan: BatchPlan) -> None:
        """A plan was broken off: end what was in it, and say so."""
        now = self.clock()
        error = EngineError("the step was broken off; send the request again")
        self._answers.tell(self._scheduler.abandon(plan, error, now), now)

    def abort_all(self) -> dict[str, Delta]:
        """End every request, those in the inbox too; nothing may be in flight."""
        self._tell()
        self._hear()
        held = (*self._resumption.drop_all(), *self._promotion.drop_all())
        for request_id in (*self._constraints.drop_all(), *held):
            self._turn_away(request_id, Delta(finish_reason="abort"))
        now = self.clock()
        self._answers.tell(self._scheduler.close(now), now)
        return self._answers.take_news()

    def end(self) -> None:
        """Nothing more will be asked."""
        self.at_end.close()

    def _tell(self) -> None:
        """Make news of what came of steps, and learn from it what steps take."""
        for outcome, events, now in self._untold:
            if outcome.plan.has_work and outcome.is_whole:
                observe(self._cost, outcome.plan, outcome.result)
                self.meters.executed(
                    outcome.plan, self._answers.num_visual_tokens(outcome.plan), outcome.result.drift
                )
            self._answers.tell(events, now)
        self._untold.clear()

    @property
    def _is_waiting(self) -> bool:
        """Whether somebody waits for what other threads do."""
        is_holding = self._resumption.is_holding or self._promotion.is_holding
        return self._constraints.is_compiling or is_holding

    def _hear(self) -> None:
        """Empty the inbox: take in, refuse and abort; and go on with those who have what they waited for."""
        now = self.clock()
        self._mailbox.deliver(now)
        while self._inbox:
            entry = self._inbox.popleft()
            if isinstance(entry, Request):
                if not self._resumption.try_hold(entry, now):
                    self._promote(entry, now)
            elif isinstance(entry, Future):
                self._scheduler.reset_caches()
                entry.set_result(None)
            else:
                self._abort(entry, now)
        for request in self._resumption.take_ready(now):
            self._promote(request, now)
        for request in self._promotion.take_ready(now):
            self._take_in(request, now)
        for request, outcome in self._constraints.take_compiled():
            self._admit(request, now, outcome)
        late = (
            self._resumption.drop_late(now),
            self._promotion.drop_late(now),
            self._constraints.drop_late(now),
        )
        for request_id, error in (entry for errors in late for entry in errors.items()):
            self._turn_away(request_id, Delta(finish_reason="error", error=error))

    def _promote(self, request: Request, now: float) -> None:
        """Its blocks are where they can be: what it lacks then is pictures whose tokens are still to be computed."""
        if not self._promotion.try_hold(request, now):
            self._take_in(request, now)

    def _take_in(self, request: Request, now: float) -> None:
        """All its pictures are where they can be: what it lacks then is its grammar."""
        if request.sampling.grammar is not None:
            self._constraints.compile(request)
        else:
            self._admit(request, now)

    def _abort(self, request_id: str, now: float) -> None:
        held = (self._resumption, self._promotion, self._constraints)
        if any(holder.drop(request_id) for holder in held):
            self._turn_away(request_id, Delta(finish_reason="abort"))
        elif event := self._scheduler.abort(request_id, now):
            self._answers.tell((event,), now)

    def _turn_away(self, request_id: str, delta: Delta) -> None:
        """The end of a request that the scheduler has never met, or not taken."""
        self._promotion.forget(request_id)
        self._answers.add_news(request_id, delta)

    def _admit(
        self, request: Request, now: float, constraint: Constraint | TapetumError | None = None
    ) -> None:
        try:
            if isinstance(constraint, TapetumError):
                raise constraint
            self._scheduler.add(request, now)
        except TapetumError as error:
            self._turn_away(request.request_id, Delta(finish_reason="error", error=error))
            return
        if constraint is not None:
            self._constraints.begin(request.request_id, constraint)
        self._answers.begin(request)
