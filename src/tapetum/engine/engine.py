"""One model at work: hear who came, schedule, execute, commit, and turn tokens into text.

Owns the scheduler, the executor and the answers. `add`, `abort` and `reset_caches` may be called from any thread; they
land in an inbox that is emptied with the news. All else belongs to one thread, but what only reads may come from
another and sees the state of some moment. `step` does one turn of everything, which is how the offline LLM runs; the
parts that it is made of are for a loop that does some of them while a plan is executed (overlap.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

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
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.meters import Meters, Metric
from tapetum.engine.output import Delta
from tapetum.engine.profile import observe
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
        on_end: Callable[[CostModel], None] = lambda _: None,
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
        self._on_end = on_end
        self._scheduler = build_scheduler(config, facts, self._cost)
        # a request to add, the id of one to abort, or who waits for the caches to be reset
        self._inbox: deque[Request | str | Future[None]] = deque()
        self._constraints = Constraints(files.tokenizer)
        self._answers = Answers(files.tokenizer, self._constraints, self.meters, self._scheduler.finish)
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

    @property
    def has_mail(self) -> bool:
        """Whether somebody came, or wants to go."""
        return bool(self._inbox)

    @property
    def has_work(self) -> bool:
        is_told = not (self._untold or self._answers.has_news)
        return self.has_mail or self._constraints.is_compiling or self._scheduler.has_work or not is_told

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
        return self.meters.read(self.stats, self.backlog, heartbeat_age_s)

    def forecast(self, workload: Workload) -> Forecast:
        """How long a prompt would take and wait, by the cost model."""
        resident = frozenset(self.media_keys)
        is_resident = tuple(key in resident for key in workload.media_keys)
        encode_s = tuple(
            0.0 if is_here else self._cost.encode_seconds(sum(sizes), sum(size * size for size in sizes))
            for sizes, is_here in zip(workload.segments, is_resident, strict=True)
        )
        length = workload.num_tokens
        prefill_s = self._cost.step_seconds(0, 0, length, chunk_context(0, length))
        return Forecast(
            encode_s=encode_s,
            is_resident=is_resident,
            is_held=tuple(
                is_here or (key is not None and self._scheduler.has_cached(key))
                for key, is_here in zip(workload.media_keys, is_resident, strict=True)
            ),
            prefill_s=prefill_s,
            queue_s=self.backlog.seconds,
            prospect=self._scheduler.prospect(
                workload.priority,
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
        """Commit a plan with nothing in it; while a grammar is compiled, look away for a moment."""
        self._constraints.wait()
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
        for request_id in self._constraints.drop_all():
            self._answers.add_news(request_id, Delta(finish_reason="abort"))
        now = self.clock()
        self._answers.tell(self._scheduler.close(now), now)
        return self._answers.take_news()

    def end(self) -> None:
        """Nothing more will be asked: hand on what steps have been found to cost."""
        self._on_end(self._cost)

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

    def _hear(self) -> None:
        """Empty the inbox: admit, refuse and abort."""
        while self._inbox:
            entry = self._inbox.popleft()
            now = self.clock()
            if isinstance(entry, Request) and entry.sampling.grammar is not None:
                self._constraints.compile(entry)
            elif isinstance(entry, Request):
                self._admit(entry, now)
            elif isinstance(entry, Future):
                self._scheduler.reset_caches()
                entry.set_result(None)
            elif self._constraints.drop(entry):
                self._answers.add_news(entry, Delta(finish_reason="abort"))
            elif event := self._scheduler.abort(entry, now):
                self._answers.tell((event,), now)
        for request, outcome in self._constraints.take_compiled():
            self._admit(request, self.clock(), outcome)
        for request_id, error in self._constraints.drop_late(self.clock()).items():
            self._answers.add_news(request_id, Delta(finish_reason="error", error=error))

    def _admit(
        self, request: Request, now: float, constraint: Constraint | TapetumError | None = None
    ) -> None:
        try:
            if isinstance(constraint, TapetumError):
                raise constraint
            self._scheduler.add(request, now)
        except TapetumError as error:
            self._answers.add_news(request.request_id, Delta(finish_reason="error", error=error))
            return
        if constraint is not None:
            self._constraints.begin(request.request_id, constraint)
        self._answers.begin(request)
