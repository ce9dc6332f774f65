"""Tiers: the way from the engine to the stores behind the device, and back.

Owns the thread that everything moves on. Any thread may call; nobody who does waits. Answers come through callbacks
on the thread of the tiers, which must not block it and must not raise.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from tapetum.cache.tiers import Entry, Kind, Name, Store, TierCounts, TierName
from tapetum.engine.lanes import Lane
from tapetum.engine.transfers import Found, Load, OnLoaded, Transfers

__all__ = ["Found", "Load", "OnLoaded", "Tiers"]

_MAX_PENDING_BYTES = 256 * 2**20  # of saves that wait, per store
_THREAD_GRACE_S = 0.2  # for a thread to end that has nothing left to do


class Tiers:
    def __init__(
        self,
        stores: Mapping[Kind, Sequence[Store]],
        *,
        clock: Callable[[], float] = time.monotonic,
        max_pending_bytes: int = _MAX_PENDING_BYTES,
    ) -> None:
        """Stores of each kind, the fastest first. The same store may stand under several kinds."""
        self._clock = clock
        lanes: dict[int, Lane] = {}
        for store in (store for several in stores.values() for store in several):
            if id(store) not in lanes:
                lanes[id(store)] = Lane(store, clock, max_pending_bytes)
        self._all_lanes = tuple(lanes.values())
        self._lanes = {kind: tuple(lanes[id(store)] for store in several) for kind, several in stores.items()}
        self._is_closed = False
        self._gate = threading.Lock()  # nothing is posted to a loop that has ended
        self._loop = asyncio.new_event_loop()
        self._transfers = Transfers(self._lanes, self._loop, clock)
        self._thread = threading.Thread(target=self._loop.run_forever, name="tapetum-tiers", daemon=True)
        self._thread.start()
        for lane in self._all_lanes:
            self._post(partial(self._transfers.begin_refresh, lane))

    # Questions: from any thread, answered at once.

    def has(self, kind: Kind) -> bool:
        return bool(self._lanes.get(kind))

    def knows(self, kind: Kind, key: bytes) -> bool | None:
        """Whether a load would find the entry; None = only the load can tell."""
        answers = {lane.knows(Name(kind, key)) for lane in self._lanes.get(kind, ())}
        return True if True in answers else None if None in answers else False

    def nearest(self, kind: Kind, key: bytes) -> TierName | None:
        """Where a load would find the entry, as far as that is known without asking."""
        lanes = (lane for lane in self._lanes.get(kind, ()) if lane.knows(Name(kind, key)))
        return next((lane.store.tier for lane in lanes), None)

    def seconds(self, kind: Kind, num_bytes: int, key: bytes | None = None) -> float:
        """Predicted for a load of so much: from where it lies, or from the slowest place where it may lie."""
        slowest = -math.inf
        for lane in self._lanes.get(kind, ()):
            knows = None if key is None else lane.knows(Name(kind, key))
            if knows:
                return lane.seconds(num_bytes)
            if knows is None and not lane.reads.breaker.is_resting:
                slowest = max(slowest, lane.seconds(num_bytes))
        return abs(slowest)  # without such a place it never comes

    def counts(self) -> tuple[TierCounts, ...]:
        return tuple(
            TierCounts(tier=lane.store.tier, holdings=lane.store.holdings(), events=lane.events())
            for lane in self._all_lanes
        )

    # Commands: from any thread, carried out later.

    def load(self, kind: Kind, keys: Iterable[bytes], on_done: OnLoaded, *, patience_s: float = 0.0) -> Load:
        """Tell `on_done` once which of the entries there are.

        Looks again for those that are not there, as another process may be making them, until the patience ends.
        """
        load = Load(on_done, self._cancel)
        names = [Name(kind, key) for key in dict.fromkeys(keys)]
        if not self._post(partial(self._transfers.begin_load, load, names, self._clock() + patience_s)):
            load.finish({})
        return load

    def save(self, entry: Entry) -> None:
        """Keep the entry in every store of its kind."""
        self._post(partial(self._transfers.begin_save, entry))

    def use(self, kind: Kind, keys: Sequence[bytes]) -> None:
        """Count a use of entries that nobody has to load, as what they hold is still where it came from."""
        self._post(partial(self._transfers.begin_use, [Name(kind, key) for key in keys]))

    def reject(self, found: Found) -> None:
        """An entry that is whole but not what it should be, such as one of another shape: count and remove it."""
        self._post(partial(self._transfers.begin_reject, found))

    def claim(self, kind: Kind, key: bytes, seconds: float, on_done: Callable[[bool], None]) -> None:
        """Tell whether this process is the one to make the entry, for so long; so it is if no store can be asked."""
        if not self._post(partial(self._transfers.begin_claim, Name(kind, key), seconds, on_done)):
            on_done(True)

    def release(self, kind: Kind, key: bytes) -> None:
        """Give the claim back, after the save of the entry if there is one under way."""
        self._post(partial(self._transfers.begin_release, Name(kind, key)))

    def close(self, grace_s: float = 5.0) -> None:
        """Let saves finish for so long, then end all threads but those that hang in a store."""
        with self._gate:
            if self._is_closed:
                return
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(self._transfers.end(grace_s), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for lane in self._all_lanes:
            lane.close(_THREAD_GRACE_S)

    def _post(self, command: Callable[[], None]) -> bool:
        with self._gate:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(command)
            return not self._is_closed

    def _cancel(self, load: Load) -> None:
        self._post(partial(self._transfers.cancel, load))
