"""The loop: take what came in, schedule, execute, commit, and turn tokens into text.

Owns the scheduler, the executor and one answer per request. `add` and `abort` may be called from any thread; they
land in an inbox that the next `step` empties. `step` itself belongs to one thread. Threads, clients and their
queues are the service's business; the offline LLM calls `step` by hand.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from tapetum.core.config import EngineConfig
from tapetum.core.cost import CostModel
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, Executor, StepResult, TokenEvent
from tapetum.core.request import Request
from tapetum.core.stats import SchedulerStats
from tapetum.engine.answer import Answer
from tapetum.engine.files import ModelFiles
from tapetum.engine.isolate import execute_apart
from tapetum.engine.meters import Meters
from tapetum.engine.output import Delta
from tapetum.engine.profile import observe
from tapetum.engine.prompts import PromptBuilder, PromptLimits
from tapetum.media.ingest import Ingest
from tapetum.sched import build_scheduler

_log = logging.getLogger(__name__)


class Engine:
    """One model on one device. `prompts` builds requests for it; `facts` says what it is."""

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
        self.tokenizer = files.tokenizer
        self.clock = clock
        self.meters = Meters(facts.block_size * facts.kv_bytes_per_token)
        self._executor = executor
        self._cost = cost or CostModel()
        self._scheduler = build_scheduler(config, facts, self._cost)
        self._ingest = Ingest(files.processor, config.media, max_tokens=facts.max_model_len - 1)
        limits = PromptLimits(max_model_len=facts.max_model_len, max_media=config.media.limit_per_prompt)
        self.prompts = PromptBuilder(files, self._ingest, limits)
        self._inbox: deque[Request | str] = deque()  # a request to add, or the id of one to abort
        self._answers: dict[str, Answer] = {}

    def add(self, request: Request) -> None:
        self._inbox.append(request)

    def abort(self, request_id: str) -> None:
        """End a request that waits or runs; one that has ended already is no error."""
        self._inbox.append(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self._inbox) or self._scheduler.has_work

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._scheduler.num_waiting

    @property
    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    def step(self) -> dict[str, Delta]:
        """One turn of the loop: the news of every request that has any."""
        news = self.take_inbox()
        plan = self._scheduler.schedule(self.clock())
        try:
            result = self._execute(plan)
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
            if isinstance(entry, Request):
                news[entry.request_id] = self._admit(entry, now)
            elif event := self._scheduler.abort(entry, now):
                self._tell(news, (event,), now)
        return news

    def abort_all(self) -> dict[str, Delta]:
        """End every request, those in the inbox too."""
        news = self.take_inbox()
        now = self.clock()
        self._tell(news, self._scheduler.close(now), now)
        return news

    def close(self) -> None:
        """End the media workers."""
        self._ingest.close()

    def _admit(self, request: Request, now: float) -> Delta:
        try:
            self._scheduler.add(request, now)
        except TapetumError as error:
            return Delta(finish_reason="error", error=error)
        self._answers[request.request_id] = Answer(request, self.tokenizer)
        self.meters.taken(request)
        return Delta()

    def _execute(self, plan: BatchPlan) -> StepResult:
        if plan.is_empty:
            return StepResult(step=plan.step)
        try:
            result = self._executor.execute(plan)
        except Exception:  # whatever a plan meets must not end the loop while a part of it can go on
            _log.exception("step %d failed; its parts run one at a time", plan.step)
            return execute_apart(self._executor, plan)
        observe(self._cost, plan, result)
        return result

    def _tell(self, news: dict[str, Delta], events: Iterable[TokenEvent], now: float) -> None:
        """Add the events to the news, and end what a stop string ends."""
        for event in events:
            answer = self._answers[event.request_id]
            self._measure(answer, event, now)
            delta = answer.read(event)
            if answer.has_met_stop_string and event.finish_reason is None:
                end = self._scheduler.finish(event.request_id, now)
                assert end is not None, "a request without a last event is still there"
                self._measure(answer, end, now)
                delta = delta.then(answer.read(end))
            if delta.finish_reason is not None:
                del self._answers[event.request_id]
            news[event.request_id] = news.get(event.request_id, Delta()).then(delta)

    def _measure(self, answer: Answer, event: TokenEvent, now: float) -> None:
        if event.token is not None:
            is_first = answer.last_token_s is None
            self.meters.token(None if answer.last_token_s is None else now - answer.last_token_s)
            answer.last_token_s = now
            if is_first and event.stats is not None:
                self.meters.first_token(event.stats)
        if event.finish_reason is not None and event.stats is not None:
            self.meters.finished(event.stats, has_tokens=answer.last_token_s is not None)
