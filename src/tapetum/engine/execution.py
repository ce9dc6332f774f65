"""Plans carried out: each as a whole, or in pieces where that fails; at once, or on a thread of its own.

The thread takes plans in the order they are handed to it. It goes from one to the next without waiting for anybody, so
what was foreseen begins the moment the step before it is over, less the rows which that has made void.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from tapetum.core.plan import BatchPlan, Executor, StepResult
from tapetum.engine.isolate import execute_apart
from tapetum.sched.foresight import Foresight

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan. In pieces its times do not say what such a step takes."""

    plan: BatchPlan  # as it was carried out
    result: StepResult
    is_whole: bool = True


def carry_out(executor: Executor, plan: BatchPlan) -> Outcome:
    """Raises what is no Exception, and what the executor raises for no request's fault."""
    if plan.is_empty:
        return Outcome(plan, StepResult(step=plan.step))
    try:
        return Outcome(plan, executor.execute(plan))
    except Exception:  # whatever a plan meets must not end the loop while a part of it can go on
        _log.exception("step %d failed; its parts run one at a time", plan.step)
        return Outcome(plan, execute_apart(executor, plan), is_whole=False)


class Flight:
    """A plan that was handed to the thread."""

    def __init__(self, plan: BatchPlan, ahead: Foresight | None) -> None:
        self.plan = plan
        self.ahead = ahead
        self.outcome: Future[Outcome] = Future()

    @property
    def is_over(self) -> bool:
        return self.outcome.done()

    def try_withdraw(self) -> bool:
        """Take it back; False once it has begun."""
        return self.outcome.cancel()


class Worker:
    """Handed plans by one thread; `on_done` is called on its own. What ends it ends it for good."""

    def __init__(self, carry_out: Callable[[BatchPlan], Outcome], on_done: Callable[[], None]) -> None:
        self._carry_out = carry_out
        self._on_done = on_done
        self._flights: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tapetum-steps", daemon=True)
        self._thread.start()

    def begin(self, plan: BatchPlan | Foresight) -> Flight:
        """A foreseen plan comes right behind the one it was foreseen from."""
        flight = Flight(plan.plan, plan) if isinstance(plan, Foresight) else Flight(plan, None)
        self._flights.put(flight)
        return flight

    def close(self) -> None:
        self._flights.put(None)

    def _run(self) -> None:
        last: Outcome | None = None
        while (flight := self._flights.get()) is not None:
            if not flight.outcome.set_running_or_notify_cancel():
                continue
            plan = flight.plan
            if flight.ahead is not None and last is not None:
                plan = flight.ahead.given(last.result)
            try:
                last = self._carry_out(plan)
            except BaseException as error:
                flight.outcome.set_exception(error)
                self._on_done()
                return
            flight.outcome.set_result(last)
            self._on_done()
