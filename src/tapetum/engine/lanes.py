"""One store at work: its threads, how fast it is, and when it is left alone.

Reads and writes are two sides with threads of their own, so a slow upload delays no read and a full disk is still
read from. A side that fails or hangs rests for some seconds; then one call tries it again. A call that hangs keeps its
thread, but nobody waits for it longer than the timeout of the store. Lane and Side belong to the event loop of Tiers.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tapetum.cache.entries import BadEntry
from tapetum.cache.tiers import EVENTS, KINDS, Event, Kind, Name, Store, StoreError, TierName

T = TypeVar("T")
_log = logging.getLogger(__name__)
_READERS, _WRITERS = 4, 2  # threads
_MAX_FAILURES = 3  # in a row; one call that hangs is as bad
_REST_S = 5.0
_WEIGHT = 0.2  # of a new sample in an average
_SMALL_BYTES = 2**16  # below, a read tells the latency, above, the rate
_FIRST_GUESS: dict[TierName, tuple[float, float]] = {  # seconds, bytes a second, checksum included
    "host": (50e-6, 0.6e9), "disk": (300e-6, 0.4e9), "redis": (1e-3, 0.2e9), "s3": (30e-3, 50e6),
}  # fmt: skip


class Resting(StoreError):
    """The side was not asked at all."""


class Crew:
    """Threads that run jobs in order. They do not keep the process alive, as one may hang for ever."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((future, job))  # type: ignore[arg-type]  # the future is that of its own job
        return future

    def close(self, grace_s: float) -> None:
        """End after the job in hand; a thread that hangs is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(grace_s)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            future, job = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except Exception as error:  # told to whoever waits
                future.set_exception(error)
            del item, future, job  # nothing of a job is kept while the thread waits for the next one


class Breaker:
    """Whether a side may be asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._rests_until = 0.0

    @property
    def is_resting(self) -> bool:
        return self._failures >= _MAX_FAILURES and self._clock() < self._rests_until

    def try_pass(self) -> bool:
        """After a rest one call goes first, and the others wait for what becomes of it."""
        if self.is_resting:
            return False
        if self._failures >= _MAX_FAILURES:
            self._rests_until = self._clock() + _REST_S
        return True

    def succeed(self) -> None:
        self._failures = 0

    def fail(self, *, is_hung: bool) -> bool:
        """-> whether the rest begins with this failure."""
        was_well = self._failures < _MAX_FAILURES
        self._failures = _MAX_FAILURES if is_hung else self._failures + 1
        self._rests_until = self._clock() + _REST_S
        return was_well and self._failures >= _MAX_FAILURES


class Side:
    """The reads or the writes of a store."""

    def __init__(self, name: str, num_threads: int, timeout_s: float, clock: Callable[[], float]) -> None:
        self.name = name
        self.breaker = Breaker(clock)
        self._crew = Crew(name, num_threads)
        self._free = asyncio.Semaphore(num_threads)
        self._timeout_s = timeout_s

    async def run(self, work: Callable[[], T]) -> T:
        """Raises StoreError at the latest when the timeout has passed since a thread was free, or what `work` does."""
        async with self._free:
            if not self.breaker.try_pass():
                raise Resting(f"{self.name} rests")
            try:
                async with asyncio.timeout(self._timeout_s):
                    result = await asyncio.wrap_future(self._crew.submit(work))
            except BadEntry:
                self.breaker.succeed()
                raise
            except TimeoutError as error:
                self._note(f"no answer in {self._timeout_s:g} s", is_hung=True)
                raise StoreError(f"{self.name} hangs") from error
            except StoreError as error:
                self._note(str(error), is_hung=False)
                raise
            except Exception as error:  # a fault of a client library; the request goes on without this store
                _log.exception("%s failed", self.name)
                self._note(type(error).__name__, is_hung=False)
                raise StoreError(str(error)) from error
            self.breaker.succeed()
            return result

    def close(self, grace_s: float) -> None:
        self._crew.close(grace_s)

    def _note(self, why: str, *, is_hung: bool) -> None:
        if self.breaker.fail(is_hung=is_hung):
            _log.warning("%s is left alone for %g s: %s", self.name, _REST_S, why)


class Speed:
    """Seconds of a read as `latency + bytes / rate`, followed by moving averages."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self._latency_s = latency_s
        self._s_per_byte = 1 / bytes_per_s
        self.mean_s = latency_s

    def observe(self, num_bytes: int, seconds: float) -> None:
        self.mean_s += _WEIGHT * (seconds - self.mean_s)
        if num_bytes < _SMALL_BYTES:
            self._latency_s += _WEIGHT * (seconds - self._latency_s)
        else:
            moving_s = max(seconds - self._latency_s, seconds / 2)
            self._s_per_byte += _WEIGHT * (moving_s / num_bytes - self._s_per_byte)

    def seconds(self, num_bytes: int) -> float:
        return self._latency_s + num_bytes * self._s_per_byte


class Lane:
    """A store with its two sides, its speed and what has happened to it."""

    def __init__(self, store: Store, clock: Callable[[], float], max_pending_bytes: int) -> None:
        self.store = store
        name = f"tapetum-{store.tier}"
        self.reads = Side(f"{name}-read", _READERS, store.timeout_s, clock)
        self.writes = Side(f"{name}-write", _WRITERS, store.timeout_s, clock)
        self.speed = Speed(*_FIRST_GUESS[store.tier])
        self.num_waiting = 0  # reads, begun or not
        self._events: dict[tuple[Event, Kind], int] = {(event, kind): 0 for event in EVENTS for kind in KINDS}
        self._pending_bytes = 0
        self._max_pending_bytes = max_pending_bytes

    def count(self, event: Event, kind: Kind, num: int = 1) -> None:
        self._events[event, kind] += num

    def events(self) -> Counter[tuple[Event, Kind]]:
        """May be asked by any thread."""
        return Counter(self._events)

    def knows(self, name: Name) -> bool | None:
        """As of the store; one that rests would not be read from."""
        return False if self.reads.breaker.is_resting else self.store.knows(name)

    def seconds(self, num_bytes: int) -> float:
        """Predicted for a read that is asked for now."""
        return self.num_waiting * self.speed.mean_s / _READERS + self.speed.seconds(num_bytes)

    def try_reserve(self, num_bytes: int) -> bool:
        """Room for a save among those that wait; `unreserve` gives it back."""
        if self._pending_bytes and self._pending_bytes + num_bytes > self._max_pending_bytes:
            return False
        self._pending_bytes += num_bytes
        return True

    def unreserve(self, num_bytes: int) -> None:
        self._pending_bytes -= num_bytes

    def close(self, grace_s: float) -> None:
        for side in (self.reads, self.writes):
            side.close(grace_s)
        self.store.close()
