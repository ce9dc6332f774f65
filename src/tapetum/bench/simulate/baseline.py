"""A plain engine to compare with: first come, first served, pictures in line with everything else.

A step either lets requests in, as many as its tokens allow, or decodes for all that run. Who is let in has all its
pictures encoded whole and its whole prompt computed in that one step, while everybody else waits; no slices, no
classes, no caches, nothing refused. A request is let in when there is memory for its longest answer, so none is
preempted; it ends when its sender waits no longer. This is the policy of engines without chunks, in their favour where
it was to choose.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from tapetum.core.config import ScheduleConfig
from tapetum.core.errors import PromptTooLong
from tapetum.core.plan import BatchPlan, EncodeJob, Row, StepResult, TokenEvent
from tapetum.core.request import Request, RequestState
from tapetum.core.stats import Backlog
from tapetum.sched.limits import too_late


class FirstCome:
    def __init__(self, config: ScheduleConfig, num_slots: int) -> None:
        self._config = config
        self._waiting: deque[RequestState] = deque()
        self._running: dict[str, RequestState] = {}
        self._num_slots = self._num_free = num_slots  # tokens of KV
        self._news: list[TokenEvent] = []
        self._is_timed = False  # whether anybody ever was in a hurry
        self._steps = count(1)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._news)

    @property
    def backlog(self) -> Backlog:
        """Nothing is refused for what waits."""
        return Backlog()

    def add(self, request: Request, now: float) -> None:
        """Raises for what would never fit."""
        state = RequestState(request)
        if _length(state) > self._num_slots:
            raise PromptTooLong(f"request takes up to {_length(state)} tokens, limit {self._num_slots}")
        self._waiting.append(state)
        self._is_timed = self._is_timed or request.deadline_s is not None

    def schedule(self, now: float) -> BatchPlan:
        self._end_expired(now)
        admitted = self._admit()
        if admitted:
            rows = tuple(_row(state, state.num_tokens) for state in admitted)
            spans = (span for state in admitted for span in state.request.prompt.spans)
            encodes = tuple(EncodeJob(item=item) for item in {span.key: span.item for span in spans}.values())
            return BatchPlan(step=next(self._steps), rows=rows, encodes=encodes)
        return BatchPlan(
            step=next(self._steps), rows=tuple(_row(state, 1) for state in self._running.values())
        )

    def stretch(self, plan: BatchPlan, longest: int, now: float) -> int:
        """As that of the scheduler."""
        running = self._running.values()
        if self._waiting or self._news or not all(state.output_token_ids for state in running):
            return 1
        return min(longest, *(state.request.max_tokens - len(state.output_token_ids) for state in running))

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[TokenEvent]:
        events, self._news = self._news, []
        for row in plan.rows:
            state, tokens = self._running[row.request_id], result.tokens[row.request_id]
            state.output_token_ids += [token.token_id for token in tokens]
            state.num_computed_tokens = state.num_tokens - 1
            is_over = len(state.output_token_ids) >= state.request.max_tokens
            if is_over:
                del self._running[row.request_id]
                self._num_free += _length(state)
            events.append(
                TokenEvent(
                    request_id=row.request_id, tokens=tokens, finish_reason="length" if is_over else None
                )
            )
        return events

    def _end_expired(self, now: float) -> None:
        """Who waits no longer goes."""
        for state in [*self._waiting, *self._running.values()] if self._is_timed else ():
            error = too_late(state.request, now)
            if error is None:
                continue
            if self._running.pop(state.request.request_id, None):
                self._num_free += _length(state)
            else:
                self._waiting.remove(state)
            self._news.append(
                TokenEvent(request_id=state.request.request_id, finish_reason="error", error=error)
            )

    def _admit(self) -> list[RequestState]:
        """The first in line, as far as rows, tokens of a step and memory go; a long prompt alone."""
        admitted: list[RequestState] = []
        tokens_left = self._config.max_num_batched_tokens
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            state = self._waiting[0]
            is_too_long = admitted and state.num_tokens > tokens_left
            if is_too_long or _length(state) > self._num_free:
                break
            tokens_left -= state.num_tokens
            self._num_free -= _length(state)
            self._running[state.request.request_id] = self._waiting.popleft()
            admitted.append(state)
        return admitted


def _row(state: RequestState, length: int) -> Row:
    start = state.num_tokens - length
    return Row(request_id=state.request.request_id, start=start, length=length, block_ids=(), has_sample=True)


def _length(state: RequestState) -> int:
    return state.request.num_prompt_tokens + state.request.max_tokens
