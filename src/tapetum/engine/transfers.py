"""What moves between the engine and its stores, on the event loop of Tiers: loads, saves, claims.

A load asks the nearest store first and copies what a farther one had into the nearer ones; one read serves all who
ask for the same entry. A save goes to every store of its kind, and is skipped where too much waits already. Nothing
that happens to a store is an error here; it is a miss that is counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tapetum.cache.entries import BadEntry, pack, unpack
from tapetum.cache.tiers import Buffer, Entry, Event, Kind, Name, Store, StoreError, TierName
from tapetum.engine.lanes import Lane, Resting

T = TypeVar("T")
_log = logging.getLogger(__name__)
_POLL_S = 0.02  # between two looks for an entry that another process is making

OnLoaded = Callable[[Mapping[bytes, "Found"]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    entry: Entry
    tier: TierName


class Load:
    """Entries on their way to one who asked."""

    def __init__(self, on_done: OnLoaded, on_cancel: Callable[[Load], None]) -> None:
        self._on_done: OnLoaded | None = on_done
        self._on_cancel = on_cancel
        self.task: asyncio.Task[dict[bytes, Found]] | None = None

    def cancel(self) -> None:
        """Its answer is not waited for: unless it is being told right now, nothing more is heard of it.

        What no one else asked for is not begun any more.
        """
        self._on_done = None
        self._on_cancel(self)

    def finish(self, found: Mapping[bytes, Found]) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(found)


@dataclass(slots=True, eq=False)
class _Flight:
    """One read of an entry, for all who ask for it meanwhile."""

    task: asyncio.Task[Found | None]
    num_waiting: int = 0


class Transfers:
    """Belongs to the thread of the loop."""

    def __init__(
        self,
        lanes: Mapping[Kind, Sequence[Lane]],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self._lanes = lanes
        self._loop = loop
        self._clock = clock
        self._flights: dict[Name, _Flight] = {}
        self._saves: dict[asyncio.Task[None], Name] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    def _begin(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the tiers failed", exc_info=error)

    async def end(self, grace_s: float) -> None:
        if last := (*self._saves, *self._releases):
            await asyncio.wait(last, timeout=grace_s)
        rest = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def begin_refresh(self, lane: Lane) -> None:
        self._begin(_quietly(lane.writes.run(lane.store.refresh)))

    def begin_load(self, load: Load, names: Sequence[Name], until: float) -> None:
        load.task = self._begin(self._load(names, until))
        load.task.add_done_callback(lambda task: load.finish(_outcome(task, {})))

    def cancel(self, load: Load) -> None:
        if load.task is not None:
            load.task.cancel()

    async def _load(self, names: Sequence[Name], until: float) -> dict[bytes, Found]:
        found = await asyncio.gather(*(self._look_until(name, until) for name in names))
        return {name.key: one for name, one in zip(names, found, strict=True) if one is not None}

    async def _look_until(self, name: Name, until: float) -> Found | None:
        found = await self._look(name, is_first=True)
        while found is None and self._clock() + _POLL_S < until:
            await asyncio.sleep(_POLL_S)
            found = await self._look(name, is_first=False)
        return found

    async def _look(self, name: Name, *, is_first: bool) -> Found | None:
        flight = self._flights.get(name)
        if flight is None:
            flight = _Flight(self._loop.create_task(self._fetch(name, is_first=is_first)))
            self._flights[name] = flight
        flight.num_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting:
                flight.task.cancel()
                del self._flights[name]

    async def _fetch(self, name: Name, *, is_first: bool) -> Found | None:
        lanes = self._lanes.get(name.kind, ())
        for index, lane in enumerate(lanes):
            outcome = await self._read(lane, name)
            if isinstance(outcome, str):
                if is_first or outcome != "misses":
                    lane.count(outcome, name.kind)
                continue
            lane.count("hits", name.kind)
            entry, raw = outcome
            self._begin_writes(_Parcel(entry, (raw,)), lanes[:index])
            return Found(entry=entry, tier=lane.store.tier)
        return None

    async def _read(self, lane: Lane, name: Name) -> tuple[Entry, Buffer] | Event:
        if lane.knows(name) is False:
            return "misses"
        lane.num_waiting += 1
        try:
            outcome = await lane.reads.run(partial(_read_entry, lane.store, name))
        except BadEntry as bad:
            return bad.reason
        except Resting:
            return "misses"
        except StoreError:
            return "errors"
        finally:
            lane.num_waiting -= 1
        if outcome is None:
            return "misses"
        entry, raw, seconds = outcome
        lane.speed.observe(memoryview(raw).nbytes, seconds)
        return entry, raw

    def begin_save(self, entry: Entry) -> None:
        self._begin_writes(_Parcel(entry), self._lanes.get(entry.kind, ()))

    def _begin_writes(self, parcel: _Parcel, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if lane.store.knows(parcel.name):
                continue
            if lane.writes.breaker.is_resting or not lane.try_reserve(parcel.num_bytes):
                lane.count("unsaved", parcel.name.kind)
                continue
            task = self._begin(self._write(parcel, lane))
            self._saves[task] = parcel.name
            task.add_done_callback(self._saves.pop)

    async def _write(self, parcel: _Parcel, lane: Lane) -> None:
        try:
            await lane.writes.run(partial(_write_parcel, lane.store, parcel))
        except StoreError as error:
            lane.count("unsaved" if isinstance(error, Resting) else "errors", parcel.name.kind)
        finally:
            lane.unreserve(parcel.num_bytes)

    def begin_use(self, names: Sequence[Name]) -> None:
        for lane in self._lanes.get(names[0].kind, ()):
            self._begin(_quietly(lane.writes.run(partial(lane.store.use, names))))

    def begin_reject(self, found: Found) -> None:
        name = Name(found.entry.kind, found.entry.key)
        for lane in self._lanes[name.kind]:
            if lane.store.tier == found.tier:
                lane.count("corrupt", name.kind)
            self._begin(_quietly(lane.writes.run(partial(lane.store.remove, name))))

    def begin_claim(self, name: Name, seconds: float, on_done: Callable[[bool], None]) -> None:
        task = self._begin(self._claim(name, seconds))
        task.add_done_callback(lambda task: on_done(_outcome(task, True)))

    async def _claim(self, name: Name, seconds: float) -> bool:
        """In all stores or in none; all processes ask in the same order, so one of two gets through."""
        taken: list[Lane] = []
        for lane in self._lanes.get(name.kind, ()):
            try:
                is_ours = await lane.reads.run(partial(lane.store.claim, name, seconds))
            except StoreError:
                continue
            if not is_ours:
                self._begin(self._release(name, taken))
                return False
            taken.append(lane)
        return True

    def begin_release(self, name: Name) -> None:
        task = self._begin(self._release(name, self._lanes.get(name.kind, ())))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, name: Name, lanes: Sequence[Lane]) -> None:
        saves = [task for task, saved in self._saves.items() if saved == name]
        await asyncio.gather(*saves, return_exceptions=True)
        for lane in reversed(lanes):
            await _quietly(lane.reads.run(partial(lane.store.release, name)))


class _Parcel:
    """An entry on its way into stores; turned into bytes once, on the thread of the first of them."""

    def __init__(self, entry: Entry, buffers: Sequence[Buffer] | None = None) -> None:
        self.name = Name(entry.kind, entry.key)
        self.cost_s = entry.cost_s
        self.num_bytes = memoryview(entry.data).nbytes
        self._entry = entry
        self._buffers = buffers
        self._lock = threading.Lock()

    def buffers(self) -> Sequence[Buffer]:
        with self._lock:
            if self._buffers is None:
                self._buffers = pack(self._entry)
            return self._buffers


def _write_parcel(store: Store, parcel: _Parcel) -> None:
    store.write(parcel.name, parcel.buffers(), parcel.cost_s)


def _read_entry(store: Store, name: Name) -> tuple[Entry, Buffer, float] | None:
    """The entry, its bytes, and how many seconds both took. One that is broken is removed, before a good one comes."""
    started = time.perf_counter()
    raw = store.read(name)
    if raw is None:
        return None
    try:
        entry = unpack(raw, name)
    except BadEntry:
        with suppress(StoreError):
            store.remove(name)
        raise
    return entry, raw, time.perf_counter() - started


def _outcome(task: asyncio.Task[T], otherwise: T) -> T:
    """What a task came to; one that was cancelled or failed came to nothing."""
    return otherwise if task.cancelled() or task.exception() is not None else task.result()


async def _quietly(work: Coroutine[None, None, None]) -> None:
    """What went wrong is the breaker's to know; nobody waits for this."""
    with suppress(StoreError):
        await work
