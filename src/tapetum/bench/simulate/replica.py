"""One engine of a simulation: a policy, its device, and the step that is in flight.

Owns the order of things in time. A step begins when the one before it is over and there is work; what arrives
meanwhile is known to the next one. Steps of decodes between two events are taken as one, which changes nothing but how
long it takes to simulate them.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from tapetum.bench.simulate.device import Device
from tapetum.bench.simulate.outcome import Watch
from tapetum.core.plan import BatchPlan, StepResult, TokenEvent
from tapetum.core.request import Request
from tapetum.core.stats import Backlog

_MAX_EMPTY = 3


class Policy(Protocol):
    """What decides: the scheduler of the engine, or the plain one of `baseline`."""

    @property
    def has_work(self) -> bool: ...

    @property
    def backlog(self) -> Backlog: ...

    def add(self, request: Request, now: float) -> None: ...

    def schedule(self, now: float) -> BatchPlan: ...

    def stretch(self, plan: BatchPlan, longest: int, now: float) -> int: ...

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[TokenEvent]: ...


@dataclass(frozen=True, slots=True)
class _Flight:
    plan: BatchPlan
    result: StepResult
    ends_s: list[float]  # of its steps

    @property
    def end_s(self) -> float:
        return self.ends_s[-1]


class Replica:
    """`is_leaping`: whether steps of decodes may be taken as one."""

    def __init__(self, policy: Policy, device: Device, watch: Watch, *, is_leaping: bool = True) -> None:
        self.policy = policy
        self.num_steps = 0
        self.num_plans = 0  # fewer, where steps were taken as one
        self.busy_s = 0.0
        self._device = device
        self._watch = watch
        self._is_leaping = is_leaping
        self._num_empty = 0  # plans in a row that do nothing but tell
        self._now = 0.0
        self._flight: _Flight | None = None
        self._seconds: dict[str, float] = {}  # by live request
        self._deadlines: list[float] = []  # a heap; some of requests that have ended

    @property
    def load_s(self) -> float:
        """Predicted for all that is not over."""
        return sum(self._seconds.values())

    def add(self, request: Request, now: float, seconds: float) -> None:
        """Raises what the policy refuses it with. `advance(now)` comes before it; `seconds` are predicted."""
        self.policy.add(request, now)
        self._seconds[request.request_id] = seconds
        self._now = max(self._now, now)
        if request.deadline_s is not None:
            heappush(self._deadlines, request.deadline_s)

    def advance(self, until_s: float) -> None:
        """Take over all steps that are over by then; one that is not stays in flight."""
        while self._flight or self.policy.has_work:
            flight = self._flight or self._begin(until_s)
            if flight.end_s > until_s:
                self._flight = flight
                return
            self._end(flight)

    def _begin(self, until_s: float) -> _Flight:
        now, plan = self._now, self.policy.schedule(self._now)
        self._num_empty = 0 if plan.has_work else self._num_empty + 1
        assert self._num_empty < _MAX_EMPTY, f"work is pending and nothing is done about it at {now:.3f} s"
        ends_s = self._leap(plan, until_s)
        if len(ends_s) > 1:
            result = self._device.run(plan, len(ends_s), ends_s[-1] - now)
        else:
            result = self._device.execute(plan)
            ends_s = [now + (result.encode_s + result.forward_s)]
        self.num_plans += 1
        self.num_steps += len(ends_s)
        self.busy_s += ends_s[-1] - now
        return _Flight(plan, result, ends_s)

    def _leap(self, plan: BatchPlan, until_s: float) -> list[float]:
        """When the steps are over that may be taken as one: the next event is in the last of them, or behind it."""
        if not (
            self._is_leaping and plan.rows and not plan.encodes and all(row.is_decode for row in plan.rows)
        ):
            return []
        while self._deadlines and self._deadlines[0] <= self._now:
            heappop(self._deadlines)
        until_s = min([until_s, *self._deadlines[:1]])
        ends_s = self._device.ends_ahead(plan.rows, self._now, until_s)
        return ends_s[: self.policy.stretch(plan, len(ends_s), self._now)]

    def _end(self, flight: _Flight) -> None:
        self._flight = None
        self._now = flight.end_s
        events = self.policy.commit(flight.plan, flight.result, self._now)
        self._watch.tell(events, flight.ends_s)
        for event in events:
            if event.finish_reason is not None:
                del self._seconds[event.request_id]
