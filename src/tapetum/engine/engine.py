"""The loop: take what came in, schedule, execute, commit, and turn tokens into text.

Owns the scheduler, the executor and one answer per request. `add`, `abort` and `reset_caches` may be called from any
thread; they land in an inbox that the next `step` empties. `step` itself belongs to one thread; what only reads may
come from another and sees the state of some moment. Threads, clients and their queues are the service's business; the
offline LLM calls `step` by hand.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace

from tapetum.core.config import EngineConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, Executor, StepResult, TokenEvent
from tapetum.core.request import Request
from tapetum.core.stats import Backlog, SchedulerStats
from tapetum.engine.answer import Answer
from tapetum.engine.constraints import Constraints
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.isolate import execute_apart
from tapetum.engine.meters import Meters, Metric
from tapetum.engine.output import Delta
from tapetum.engine.profile import observe
from tapetum.sched import build_scheduler
from tapetum.text.grammar import Constraint

_log = logging.getLogger(__name__)


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
        self._scheduler = build_scheduler(config, facts, self._cost)
        # a request to add, the id of one to abort, or who waits for the caches to be reset
        self._inbox: deque[Request | str | Future[None]] = deque()
        self._answers: dict[str, Answer] = {}
        self._constraints = Constraints(files.tokenizer)

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
    def has_work(self) -> bool:
        return bool(self._inbox) or self._constraints.is_compiling or self._scheduler.has_work

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
        return Forecast(
            encode_s=encode_s,
            is_resident=is_resident,
            prefill_s=self._cost.step_seconds(0, 0, length, chunk_context(0, length)),
            queue_s=self.backlog.seconds,
        )

    def step(self) -> dict[str, Delta]:
        """One turn of the loop: the news of every request that has any."""
        news = self.take_inbox()
        plan = self._constraints.bind(self._scheduler.schedule(self.clock()))
        try:
            result = self._constraints.follow(self._execute(plan))
        except BaseException:  # an interrupt, or a device that is lost: end what was in the step, and say so
            now = self.clock()
            error = EngineError("the step was broken off; send the request again")
            self._tell(news, self._scheduler.abandon(plan, error, now), now)
            raise
        now = self.clock()
        self._tell(news, self._scheduler.commit(plan, result, now), now)
        return news

    def take_inbox(self) -> dict[str, Delta]:
        """Admit, refuse and abort; `step` begins with it, a loop may tell its news before the step is done."""
        news: dict[str, Delta] = {}
        while self._inbox:
            entry = self._inbox.popleft()
            now = self.clock()
            if isinstance(entry, Request) and entry.sampling.grammar is not None:
                self._constraints.compile(entry)
            elif isinstance(entry, Request):
                news[entry.request_id] = self._admit(entry, now)
            elif isinstance(entry, Future):
                self._scheduler.reset_caches()
                entry.set_result(None)
            elif self._constraints.drop(entry):
                news[entry] = Delta(finish_reason="abort")
            elif event := self._scheduler.abort(entry, now):
                self._tell(news, (event,), now)
        for request, outcome in self._constraints.take_compiled():
            news[request.request_id] = self._admit(request, self.clock(), outcome)
        for request_id, error in self._constraints.drop_late(self.clock()).items():
            news[request_id] = Delta(finish_reason="error", error=error)
        return news

    def abort_all(self) -> dict[str, Delta]:
        """End every request, those in the inbox too."""
        news = self.take_inbox()
        now = self.clock()
        news |= {request_id: Delta(finish_reason="abort") for request_id in self._constraints.drop_all()}
        self._tell(news, self._scheduler.close(now), now)
        return news

    def _admit(
        self, request: Request, now: float, constraint: Constraint | TapetumError | None = None
    ) -> Delta:
        try:
            if isinstance(constraint, TapetumError):
                raise constraint
            self._scheduler.add(request, now)
        except TapetumError as error:
            return Delta(finish_reason="error", error=error)
        if constraint is not None:
            self._constraints.begin(request.request_id, constraint)
        self._answers[request.request_id] = Answer(request, self.tokenizer)
        self.meters.taken(request)
        return Delta()

    def _execute(self, plan: BatchPlan) -> StepResult:
        if plan.is_empty:
            self._constraints.wait()
            return StepResult(step=plan.step)
        try:
            result = self._executor.execute(plan)
        except Exception:  # whatever a plan meets must not end the loop while a part of it can go on
            _log.exception("step %d failed; its parts run one at a time", plan.step)
            return execute_apart(self._executor, plan)
        observe(self._cost, plan, result)
        self.meters.executed(plan, self._visual_tokens(plan))
        return result

    def _visual_tokens(self, plan: BatchPlan) -> int:
        """How many of the tokens of a plan's rows stand for pictures."""
        count = 0
        for row in plan.rows:
            if not row.is_decode:  # which has none
                spans = self._answers[row.request_id].request.prompt.spans
                count += sum(max(0, min(span.end, row.end) - max(span.start, row.start)) for span in spans)
        return count

    def _tell(self, news: dict[str, Delta], events: Iterable[TokenEvent], now: float) -> None:
        """Add the events to the news, and end what a stop string or a grammar ends."""
        for event in events:
            answer = self._answers[event.request_id]
            delta = answer.read(event)
            self._measure(answer, event, len(delta.tokens), now)
            is_over = self._constraints.is_over(event.request_id)
            if (
                delta.finish_reason == "length" and is_over
            ):  # whole, though its last token was the last allowed
                delta = replace(delta, finish_reason="stop")
            if event.finish_reason is None and (answer.has_met_stop_string or is_over):
                end = self._scheduler.finish(event.request_id, now)
                assert end is not None, "a request without a last event is still there"
                self._measure(answer, end, 0, now)
                delta = delta.then(answer.read(end))
            if delta.finish_reason in ("stop", "length"):
                self.meters.answered(answer.request, answer.num_tokens)
            if delta.finish_reason is not None:
                del self._answers[event.request_id]
                self._constraints.forget(event.request_id)
            before = news.get(event.request_id)
            news[event.request_id] = delta if before is None else before.then(delta)

    def _measure(self, answer: Answer, event: TokenEvent, num_tokens: int, now: float) -> None:
        if num_tokens:
            is_first = answer.last_token_s is None
            if answer.last_token_s is not None:
                self.meters.tokens(num_tokens, now - answer.last_token_s)
            answer.last_token_s = now
            if is_first and event.stats is not None:
                self.meters.first_token(event.stats)
        if event.finish_reason is not None and event.stats is not None:
            self.meters.finished(event.stats, has_tokens=answer.last_token_s is not None)
