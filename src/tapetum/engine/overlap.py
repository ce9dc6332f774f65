"""Steps of an engine with the work of the host beside them.

While a plan is carried out on a thread of its own, the caller's thread tells the news of the step before, hears who
comes and goes, and plans one step ahead where the result does not decide it (sched/foresight.py). Who comes or goes in
time is heard before that step: it is withdrawn and planned anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from tapetum.engine.engine import Engine
from tapetum.engine.execution import Flight, Worker
from tapetum.engine.output import Delta

# Before it reaches its kernels the step that follows needs the interpreter, and would wait for this thread to let go of
# it: so long, and such a share of the step, it has it for itself.
_LEAD_S, _LEAD_SHARE = 0.001, 0.1


class Overlap:
    """Belongs to one thread. `changed` is notified when the engine has mail; `on_news` must not block."""

    def __init__(
        self, engine: Engine, changed: threading.Condition, on_news: Callable[[Mapping[str, Delta]], None]
    ) -> None:
        self._engine = engine
        self._changed = changed
        self._on_news = on_news
        self._worker = Worker(engine.carry_out, self._notify)
        self._flights: deque[Flight] = deque()  # the step that runs, and perhaps the foreseen one

    def turn(self) -> None:
        """Until the step that runs is over; one is begun if there is none."""
        if not self._flights and not self._try_begin():
            return
        self._tell()
        if len(self._flights) == 1 and (ahead := self._engine.foresee(self._flights[0].plan)):
            self._flights.append(self._worker.begin(ahead))
        self._land()

    def close(self) -> None:
        """See what runs to its end, and end the thread."""
        while self._flights:
            self._withdraw()
            self._land()
        self._tell()
        self.drop()

    def drop(self) -> None:
        """End the thread once it is through with what it has."""
        self._worker.close()

    def _try_begin(self) -> bool:
        """False if there is nothing to carry out."""
        if self._engine.has_mail:
            self._tell()
        plan = self._engine.plan()
        if plan.is_empty:
            self._engine.skip(plan)
            self._tell()
            return False
        self._flights.append(self._worker.begin(plan))
        return True

    def _land(self) -> None:
        """Wait for the step that runs, and hear who comes and goes meanwhile."""
        flight = self._flights[0]
        while not self._is_over(flight):
            self._withdraw()
            self._tell()
        try:
            outcome = flight.outcome.result()
        except BaseException:  # the thread is gone, and with it what was to come
            for lost in self._flights:
                self._engine.abandon(lost.plan)
            self._flights.clear()
            raise
        self._flights.popleft()
        if self._flights:
            time.sleep(min(_LEAD_S, _LEAD_SHARE * outcome.result.forward_s))
        self._engine.commit(flight.plan, outcome)

    def _is_over(self, flight: Flight) -> bool:
        """Waits for the end of the flight, or for mail."""
        with self._changed:
            while not (flight.is_over or self._engine.has_mail):
                self._changed.wait()
        return flight.is_over

    def _withdraw(self) -> None:
        """Take the foreseen step back unless it runs already."""
        if len(self._flights) == 2 and self._flights[1].try_withdraw():
            self._engine.withdraw(self._flights.pop().plan)

    def _tell(self) -> None:
        if news := self._engine.take_news():
            self._on_news(news)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()
