"""The scheduler under anything that may happen, in any order, beside a naive model of what each request must say."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tapetum.core.cost import CostModel
from tapetum.core.errors import DeadlineOutOfReach, DeadlinePassed, EngineError, TapetumError
from tapetum.core.media import MediaItem, Reuse
from tapetum.core.plan import BatchPlan, Link
from tapetum.core.request import Request
from tapetum.core.tenant import salted
from tapetum.sched.foresight import Foresight
from tests.pure.stage import SIZE, Stage
from tests.scripted import ScriptedExecutor, hashed_token, make_item, make_request

ITEMS = [make_item(name, size) for name, size in (("a", 1), ("b", 3), ("c", 4), ("d", 9))]
SEGMENTS = st.lists(
    st.one_of(
        st.lists(st.integers(10, 11), min_size=1, max_size=7), st.sampled_from(ITEMS).map(lambda item: [item])
    ),
    min_size=1,
    max_size=4,
).map(lambda runs: [segment for run in runs for segment in run])
MAX_LIVE = 8


class SchedulerMachine(RuleBasedStateMachine):
    """The model knows the whole answer of every request beforehand: tokens depend on id and position alone."""

    @initialize(
        num_blocks=st.sampled_from([10, 13, 40]),
        max_num_seqs=st.sampled_from([2, 5, 8]),
        tokens=st.sampled_from([3, 16, 100]),
        encoder=st.sampled_from([3, 20]),
        features=st.sampled_from([9, 14, 50]),
        itl_target_ms=st.sampled_from([1.0, 7.0, 30.0]),
        schedule=st.sampled_from(["balanced", "throughput"]),
        is_caching=st.booleans(),
        speculate=st.sampled_from(["auto", "off"]),
        quantum=st.sampled_from([0.0, 0.3]),
        patch_s=st.sampled_from([1e-5, 3e-3]),  # of the largest picture 0.4 ms or 0.1 s
        is_atomic=st.booleans(),
        num_host_slots=st.sampled_from([0, 4, 100]),
    )
    def build(
        self,
        num_blocks: int,
        max_num_seqs: int,
        tokens: int,
        encoder: int,
        features: int,
        itl_target_ms: float,
        schedule: str,
        is_caching: bool,
        speculate: str,
        quantum: float,
        patch_s: float,
        is_atomic: bool,
        num_host_slots: int,
    ) -> None:
        cost = CostModel()
        for patches in (4, 12, 16, 36) * 9:
            cost.observe_encode(patches, patches**2, patch_s * patches)
        self.stage = Stage(
            cost=cost,
            executor=ScriptedExecutor(SIZE, quantum=quantum, link_error=_link_error),
            link_share=0.2,
            link_tokens=1,
            link_tolerance=0.5,
            num_blocks=num_blocks,
            num_host_slots=num_host_slots,
            feature_tokens=features,
            is_caching=is_caching,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=tokens,
            encoder_budget_tokens=encoder,
            itl_target_ms=itl_target_ms,
            schedule=schedule,
            speculate=speculate,
        )
        self.is_atomic = is_atomic
        # a step may take a picture whole that has no room in it
        longest = max(item.geometry.num_tokens for item in ITEMS) - 1 if is_atomic else 0
        self.limits = (max_num_seqs, tokens + longest, encoder)
        self.requests: dict[str, Request] = {}
        self.refused = 0
        self.in_flight: BatchPlan | None = None
        self.executed: BatchPlan | None = None  # of the plan in flight, what is not void
        self.foreseen: Foresight | None = None

    def _live(self) -> list[str]:
        return sorted(self.requests.keys() - self.stage.ends.keys())

    @precondition(lambda self: len(self._live()) < MAX_LIVE)
    @rule(
        segments=SEGMENTS,
        max_tokens=st.integers(1, 30),
        priority=st.integers(-3, 3),
        tenant=st.sampled_from(["", "x", salted("y", "a"), salted("y", "b")]),
        has_stop=st.booleans(),
        patience=st.sampled_from([None, None, None, 12.0]),
        may_link=st.booleans(),
    )
    def add(
        self,
        segments: list,
        max_tokens: int,
        priority: int,
        tenant: str,
        has_stop: bool,
        patience: float | None,
        may_link: bool,
    ) -> None:
        name = f"r{len(self.requests) + self.refused}"
        request = make_request(
            name,
            segments,
            max_tokens=max_tokens,
            priority=priority,
            tenant=tenant,
            stop_token_ids=range(0, 1000, 20) if has_stop else (),
            arrival_s=self.stage.now,
            deadline_s=None if patience is None else self.stage.now + patience,
            is_atomic=self.is_atomic,
            reuse=Reuse(position_independent=may_link),
        )
        try:
            self.stage.add(request)
        except (DeadlineOutOfReach, DeadlinePassed):
            self.refused += 1
            assert patience is not None
            return
        except TapetumError:
            self.refused += 1
            assert request.num_prompt_tokens + max_tokens > 10 * SIZE
            return
        self.requests[name] = request

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def schedule(self) -> None:
        scheduler, roster = self.stage.scheduler, self.stage.scheduler._roster
        decoding = {progress.request_id for progress in roster.running if progress.is_decoding}
        was_under_way = [(current.item, current.is_begun) for current in scheduler._encodes.under_way]
        self.in_flight = scheduler.schedule(self.stage.now)
        assert self.in_flight.has_work or not (scheduler.num_running or scheduler.num_waiting)
        max_rows, max_tokens, max_visual = self.limits
        encodes = [job.item.geometry.num_tokens for job in self.in_flight.encodes if job.is_whole]
        assert len(self.in_flight.rows) <= max_rows
        assert sum(row.length for row in self.in_flight.rows) <= max_tokens
        assert sum(encodes) <= max_visual or len(encodes) == 1
        self._check_slices(was_under_way)
        left_out = decoding - {row.request_id for row in self.in_flight.rows}
        preempted = {progress.request_id for progress in roster.waiting}
        out_of_time = {event.request_id for event in scheduler._news}
        assert left_out <= preempted | out_of_time

    def _check_slices(self, before: list[tuple[MediaItem, bool]]) -> None:
        """What is due first goes on, or a prefill does in its place, while somebody waits for it; two are under way at
        most."""
        under_way = self.stage.scheduler._encodes.under_way
        unfinished = [job for job in self.in_flight.encodes if job.end < 1]
        assert len(under_way) <= 2
        if unfinished or not any(not row.is_decode for row in self.in_flight.rows):
            assert [job.item for job in unfinished] == [current.item for current in under_way[:1]]
        assert list(under_way) == sorted(under_way, key=lambda current: current.due_s)
        wanted = {span.key for name in self._live() for span in self.requests[name].prompt.spans}
        assert all(current.item.key in wanted for current in under_way)
        gone = {job.item.key for job in self.in_flight.encodes if job.end == 1}
        gone |= {current.item.key for current in under_way} | set(self.in_flight.dropped_features)
        assert all(item.key in gone for item, is_begun in before if is_begun)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def commit(self) -> None:
        result = self.stage.finish_step(self.in_flight, self.executed)
        self.in_flight = self.executed = None
        if self.foreseen is not None:
            self.in_flight, self.executed = self.foreseen.plan, self.foreseen.given(result)
            self.foreseen = None

    @precondition(lambda self: self.in_flight is not None and self.foreseen is None)
    @rule()
    def foresee(self) -> None:
        self.foreseen = self.stage.scheduler.foresee(self.in_flight, self.stage.now)

    @precondition(lambda self: self.foreseen is not None)
    @rule()
    def withdraw(self) -> None:
        self.stage.scheduler.withdraw(self.foreseen.plan)
        self.foreseen = None

    @precondition(lambda self: self.foreseen is not None)
    @rule()
    def schedule_what_was_foreseen(self) -> None:
        """The plan that the scheduler makes of the result has the rows that were foreseen, if not their guesses."""
        foreseen, plan = self.foreseen, self.in_flight
        self.withdraw()
        result = self.stage.finish_step(plan, self.executed)
        self.in_flight = self.executed = None
        waits = self.stage.scheduler.num_waiting
        self.schedule()
        wanted = [(row.request_id, row.start) for row in foreseen.given(result).rows]
        ended = {event.request_id for event in self.stage.scheduler._news}
        found = [(row.request_id, row.start) for row in self.in_flight.rows]
        assert waits or found == [row for row in wanted if row[0] in self._live() and row[0] not in ended]

    @precondition(lambda self: self.in_flight is None)
    @rule(count=st.integers(1, 20))
    def steps_ahead(self, count: int) -> None:
        self.schedule()
        for _ in range(count):
            if self.foreseen is None:
                self.foresee()
            self.commit()
            if self.in_flight is None:
                self.schedule()

    @precondition(lambda self: self.in_flight is None)
    @rule(count=st.integers(1, 10))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.schedule()
            self.commit()

    @precondition(_live)
    @rule(data=st.data(), what=st.sampled_from(["abort", "finish", "break", "break encode"]))
    def disturb(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(self._live()))
        if what == "break":
            self.stage.executor.fail_requests[name] = EngineError(f"broken {name}")
        elif what == "break encode":
            item = data.draw(st.sampled_from(ITEMS))
            self.stage.executor.fail_features[item.key] = EngineError("broken encode")
        else:
            self._end(name, is_finish=what == "finish")

    def _end(self, name: str, *, is_finish: bool) -> None:
        scheduler = self.stage.scheduler
        event = (scheduler.finish if is_finish else scheduler.abort)(name, self.stage.now)
        if event is None:  # its deadline has ended it, which the next commit tells
            assert name in {news.request_id for news in scheduler._news}
            return
        assert event.finish_reason == ("stop" if is_finish else "abort")
        self.stage.tell([event])
        assert scheduler.abort(name, self.stage.now) is None

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "stage"):
            return
        stats = self.stage.scheduler.stats()
        told = len(self._live()) - stats.num_running - stats.num_waiting
        assert told == len(self.stage.scheduler._news)  # ended, and told by the next commit
        blocks = stats.num_free_blocks + stats.num_cached_blocks + stats.num_held_blocks
        assert blocks == self.stage.scheduler._ledger.pool.num_blocks
        assert stats.feature_bytes <= self.stage.scheduler.visual.capacity_bytes
        assert sum(stats.finished.values()) == len(self.stage.ends) + told

    @invariant()
    def turns_remember_no_more_than_accounts(self) -> None:
        if hasattr(self, "stage"):
            assert self.stage.scheduler._roster.turns._fairness.num_counters <= 3

    @rule()
    def reset_caches(self) -> None:
        self.stage.scheduler.reset_caches()
        assert self.stage.scheduler.stats().num_cached_blocks == 0

    @invariant()
    def the_backlog_is_what_is_left(self) -> None:
        if not hasattr(self, "stage"):
            return
        waiting = list(self.stage.scheduler._roster.waiting)
        backlog = self.stage.scheduler.backlog
        assert backlog.num_waiting == len(waiting)
        running = list(self.stage.scheduler._roster.running)
        least = self.stage.scheduler._roster.queued.total().seconds
        if not any(entry.state.num_preemptions for entry in waiting):
            whole = sum(entry.encode_s + entry.prefill_s for entry in waiting)
            assert least == pytest.approx(whole, abs=1e-9)
        assert backlog.seconds >= least - 1e-9
        assert (backlog.seconds > least + 1e-9) == any(not entry.is_decoding for entry in running)

    @invariant()
    def answers_are_right_so_far(self) -> None:
        for name, request in getattr(self, "requests", {}).items():
            wanted = _answer(request)
            found = self.stage.tokens[name]
            assert found == wanted[: len(found)]
            end = self.stage.ends.get(name)
            if end is None or end.finish_reason in ("abort", "error"):
                assert len(found) < len(wanted)
            elif end.tokens:
                assert found == wanted
                assert end.finish_reason == ("stop" if found[-1] in request.stop_token_ids else "length")

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        while self.in_flight is not None:
            self.commit()
        work = sum(request.num_prompt_tokens + request.max_tokens for request in self.requests.values())
        self.stage.drain(max_steps=50 + 10 * work)
        assert self.stage.ends.keys() == self.requests.keys()
        for name, end in self.stage.ends.items():
            assert (end.error is not None) == (end.finish_reason == "error"), name
        self.answers_are_right_so_far()
        self.stage.assert_clean()


def _link_error(link: Link) -> float | None:
    """Of some it is not known, some do not fit, most do."""
    return (0.0, 0.3, None, 0.9, 0.1)[(link.first + 3 * link.shift) % 5]


def _answer(request: Request) -> list[int]:
    """All that the request would say if nothing happened to it."""
    answer: list[int] = []
    while len(answer) < request.max_tokens:
        answer.append(hashed_token(request.request_id, request.num_prompt_tokens + len(answer)))
        if answer[-1] in request.stop_token_ids:
            break
    return answer


TestScheduler = SchedulerMachine.TestCase
