"""Futures that end in time: each with its own deadline, all watched by one thread.

Every future ends exactly once: with a result, a typed error, or its canceller. Its deadline counts as an error.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from tapetum.core.errors import TapetumError

T = TypeVar("T")
GoOn = Callable[[], None]  # called between pieces of work and while something waits; may raise GivenUp


class GivenUp(Exception):
    """Nobody waits for this piece of work any more; no fault of anybody's."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """One piece of work: until when, and the future of who waits."""

    deadline: float
    future: Future[T] = field(default_factory=Future)

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def go_on(self) -> None:
        """Raises GivenUp once nobody waits any more."""
        if self.is_over:
            raise GivenUp

    def deliver(self, outcome: T | TapetumError) -> None:
        """Ends the work; nothing happens when it has been cancelled or has timed out."""
        try:
            if isinstance(outcome, TapetumError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            pass


class Deadlines:
    """Keeps the tickets that are open; all methods may be called from any thread."""

    def __init__(self, late: Callable[[], TapetumError]) -> None:
        self._late = late
        self._state = threading.Condition()  # guards all below; never held while a future ends
        self._open: dict[int, Ticket[object]] = {}
        self._heap: list[tuple[float, int]] = []  # of tickets that may have ended meanwhile
        self._numbers = count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="media-deadlines", daemon=True)
        self._thread.start()

    def add(self, ticket: Ticket[T]) -> None:
        with self._state:
            number = next(self._numbers)
            self._open[number] = ticket  # type: ignore[assignment]  # only ever ended with an error here
            heapq.heappush(self._heap, (ticket.deadline, number))
            self._state.notify()
        ticket.future.add_done_callback(lambda future: self._forget(number, future))

    def close(self, outcome: Callable[[], TapetumError]) -> None:
        """Ends what is open with that error, and the thread."""
        with self._state:
            self._is_closed = True
            waiting = list(self._open.values())
            self._state.notify()
        for ticket in waiting:
            ticket.deliver(outcome())
        self._thread.join()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def _forget(self, number: int, future: Future[T]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()  # without it `concurrent.futures.wait` would not see the end
        with self._state:
            del self._open[number]

    def _watch(self) -> None:
        while True:
            with self._state:
                if self._is_closed:
                    return
                while self._heap and self._heap[0][1] not in self._open:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._state.wait()
                    continue
                deadline, number = self._heap[0]
                if (wait_s := deadline - time.monotonic()) > 0:
                    self._state.wait(wait_s)
                    continue
                heapq.heappop(self._heap)
                ticket = self._open[number]
            ticket.deliver(self._late())
