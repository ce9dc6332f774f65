"""Entries in the memory of this process: the fastest tier behind the device, gone with the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tapetum.cache.tiers import Accounts, Buffer, Holdings, Listed, Name, TierName
from tapetum.core.tier_urls import TIMEOUT_S


class HostStore:
    tier: TierName = "host"

    def __init__(
        self, max_bytes: int, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._accounts = Accounts(max_bytes)
        self._entries: dict[Name, bytes] = {}
        self._leases: dict[Name, float] = {}  # until when
        self._lock = threading.Lock()

    def knows(self, name: Name) -> bool:
        return name in self._entries

    def holdings(self) -> Holdings:
        return self._accounts.holdings()

    def read(self, name: Name) -> Buffer | None:
        with self._lock:
            self._accounts.use(name)
            return self._entries.get(name)

    def read_head(self, name: Name, num_bytes: int) -> bytes | None:
        found = self._entries.get(name)
        return None if found is None else found[:num_bytes]

    def use(self, names: Sequence[Name]) -> None:
        with self._lock:
            for name in names:
                self._accounts.use(name)

    def write(self, name: Name, buffers: Sequence[Buffer], cost_s: float) -> None:
        num_bytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        with self._lock:
            if name in self._entries or not self._accounts.can_hold(num_bytes):
                self._accounts.use(name)
                return
        whole = b"".join(buffers)  # a copy of our own, outside the lock
        with self._lock:
            if name in self._entries:
                return
            for evicted in self._accounts.make_room(num_bytes):
                del self._entries[evicted]
            self._accounts.add(name, num_bytes, cost_s)
            self._entries[name] = whole

    def remove(self, name: Name) -> None:
        with self._lock:
            self._accounts.remove(name)
            self._entries.pop(name, None)

    def names(self) -> Iterator[Listed]:
        with self._lock:
            listed = [Listed(name, len(whole)) for name, whole in self._entries.items()]
        return iter(listed)

    def claim(self, name: Name, seconds: float) -> bool:
        now = self._clock()
        with self._lock:
            self._leases = {held: until for held, until in self._leases.items() if until > now}
            if name in self._leases:
                return False
            self._leases[name] = now + seconds
            return True

    def release(self, name: Name) -> None:
        with self._lock:
            self._leases.pop(name, None)

    def refresh(self) -> None:
        """Nobody else writes here."""

    def remarks(self, max_bytes: int | None) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        with self._lock:
            self._entries.clear()
            self._accounts = Accounts(self._accounts.max_bytes)
