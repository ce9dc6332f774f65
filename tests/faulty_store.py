"""A store that goes wrong as a test says, around one that does not: slow, dead, full, hanging, corrupting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from tapetum.cache.tiers import Buffer, Holdings, Listed, Name, Store, StoreError, TierName
from tapetum.cache.tiers_host import HostStore


class FaultyStore:
    """Faults are attributes, changed at any moment; `calls` says what was asked."""

    def __init__(
        self, store: Store | None = None, *, tier: TierName = "redis", timeout_s: float = 1.0
    ) -> None:
        self._store = store or HostStore(2**28)
        self.tier: TierName = tier
        self.timeout_s = timeout_s
        self.calls: list[tuple[str, Name | None]] = []
        self.is_dead = False  # every call fails
        self.is_full = False  # writes fail
        self.is_forgetful = False  # reads find nothing
        self.flips_bit: int | None = None  # which bit of what is read is wrong
        self.cuts_to: int | None = None  # bytes that a read returns at most
        self.delay_s = 0.0
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def hang(self) -> None:
        """All calls from now on wait for `go_on`."""
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def knows(self, name: Name) -> bool | None:
        return None

    def holdings(self) -> Holdings:
        return self._store.holdings()

    def read(self, name: Name) -> Buffer | None:
        self._call("read", name)
        found = None if self.is_forgetful else self._store.read(name)
        if found is None or (self.flips_bit is None and self.cuts_to is None):
            return found
        broken = bytearray(found)
        if self.flips_bit is not None:
            broken[self.flips_bit // 8 % len(broken)] ^= 1 << self.flips_bit % 8
        return broken[: self.cuts_to]

    def read_head(self, name: Name, num_bytes: int) -> bytes | None:
        self._call("read_head", name)
        return self._store.read_head(name, num_bytes)

    def write(self, name: Name, buffers: Sequence[Buffer], cost_s: float) -> None:
        self._call("write", name)
        if self.is_full:
            raise StoreError("cannot write: no space left")
        self._store.write(name, buffers, cost_s)

    def use(self, names: Sequence[Name]) -> None:
        self._call("use", None)
        self._store.use(names)

    def remove(self, name: Name) -> None:
        self._call("remove", name)
        self._store.remove(name)

    def names(self) -> Iterator[Listed]:
        self._call("names", None)
        return self._store.names()

    def claim(self, name: Name, seconds: float) -> bool:
        self._call("claim", name)
        return self._store.claim(name, seconds)

    def release(self, name: Name) -> None:
        self._call("release", name)
        self._store.release(name)

    def refresh(self) -> None:
        self._call("refresh", None)
        self._store.refresh()

    def remarks(self, max_bytes: int | None) -> tuple[str, ...]:
        return self._store.remarks(max_bytes)

    def close(self) -> None:
        self._store.close()

    def count(self, call: str) -> int:
        return sum(asked == call for asked, _ in self.calls)

    def _call(self, call: str, name: Name | None) -> None:
        self.calls.append((call, name))
        if self.delay_s:
            time.sleep(self.delay_s)
        self._may_go_on.wait()
        if self.is_dead:
            raise StoreError(f"cannot {call}: no connection")
