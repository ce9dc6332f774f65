"""What a tier of bytes holds and does: entries, the protocol of a store, and the accounts that keep its limit.

An entry is immutable and named by its content, so a store has no updates: what is there is right or broken. Accounts
order entries by GreedyDual-Size-Frequency (Cherkasova 1998): `L + cost x uses / bytes`, where L is the worth of what
was evicted last, so that what was dear once and is not asked for any more goes too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, get_args

Kind = Literal["features", "kv", "alias"]
TierName = Literal["host", "disk", "redis", "s3"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Buffer = bytes | bytearray | memoryview


class Name(NamedTuple):
    """What an entry is found by; the key alone is unique within its kind."""

    kind: Kind
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor with the time that it took to compute. `data` is little-endian and must not change any more."""

    kind: Kind
    key: bytes
    dtype: str  # as the runtime calls it, such as bfloat16
    shape: tuple[int, ...]
    data: Buffer
    cost_s: float


class StoreError(Exception):
    """A store cannot be reached, is full or broken. Never reaches a user: the work is done anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Bytes of each kind now, and entries evicted since the start, as far as the store knows without asking."""

    num_bytes: Mapping[Kind, int]
    num_evictions: Mapping[Kind, int]


class Listed(NamedTuple):
    name: Name
    num_bytes: int


class Store(Protocol):
    """Bytes by name. Methods may be called from several threads; all but three wait for the store.

    Raises StoreError for whatever is wrong with the place. An entry that is not there is no error.
    """

    @property
    def tier(self) -> TierName: ...

    @property
    def timeout_s(self) -> float:
        """After which a call counts as hung."""

    def knows(self, name: Name) -> bool | None:
        """Whether the entry is there; None = only a read can tell. Does not wait."""

    def holdings(self) -> Holdings:
        """Does not wait."""

    def read(self, name: Name) -> Buffer | None:
        """The whole entry as it was written; counts as a use."""

    def read_head(self, name: Name, num_bytes: int) -> bytes | None:
        """Its first bytes."""

    def write(self, name: Name, buffers: Sequence[Buffer], cost_s: float) -> None:
        """Keep the buffers, one behind the other, and evict what is worth less. One that is there is used once more."""

    def remove(self, name: Name) -> None: ...

    def names(self) -> Iterator[Listed]:
        """All entries, also those of other processes."""

    def claim(self, name: Name, seconds: float) -> bool:
        """Take the lease on making this entry, unless another one holds it."""

    def release(self, name: Name) -> None:
        """Give a lease of ours back before its time."""

    def refresh(self) -> None:
        """Look at what is really there, such as what other processes have added."""

    def close(self) -> None:
        """Does not wait. No other method is called afterwards."""


@dataclass(slots=True, eq=False)
class _Item:
    num_bytes: int
    cost_s: float
    uses: int = 1
    worth: float = 0.0
    order: int = 0  # of the last use; breaks ties


@dataclass(slots=True, eq=False)
class _Totals:
    num_bytes: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    num_evictions: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


class Accounts:
    """Sizes and worths of the entries of one store with a limit. Not safe for threads: the store has a lock."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._items: dict[Name, _Item] = {}
        self._heap: list[tuple[float, int, Name]] = []  # an entry is true if its order is that of the item
        self._age = 0.0  # L
        self._num_uses = 0
        self._totals = _Totals()

    def __contains__(self, name: Name) -> bool:
        return name in self._items

    def __len__(self) -> int:
        return len(self._items)

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(self._items)

    @property
    def num_bytes(self) -> int:
        return sum(self._totals.num_bytes.values())

    def size(self, name: Name) -> int:
        return self._items[name].num_bytes

    def holdings(self) -> Holdings:
        return Holdings(
            num_bytes=dict(self._totals.num_bytes), num_evictions=dict(self._totals.num_evictions)
        )

    def can_hold(self, num_bytes: int) -> bool:
        return num_bytes <= self.max_bytes

    def make_room(self, num_bytes: int) -> list[Name]:
        """Evict what is worth least until so much fits under the limit -> what has to be deleted."""
        assert self.can_hold(num_bytes), "an entry above the limit can never fit"
        return self._evict_to(self.max_bytes - num_bytes)

    def shed(self, num_bytes: int) -> list[Name]:
        """Evict at least so much, if there is as much."""
        return self._evict_to(max(0, self.num_bytes - num_bytes))

    def add(self, name: Name, num_bytes: int, cost_s: float) -> None:
        """Account for an entry that is not known yet, within the limit or above it."""
        assert name not in self._items, "the entry is known already"
        self._items[name] = item = _Item(num_bytes, cost_s)
        self._totals.num_bytes[name.kind] += num_bytes
        self._rank(name, item)

    def use(self, name: Name) -> None:
        """Nothing to do for one that is not known."""
        item = self._items.get(name)
        if item is not None:
            item.uses += 1
            self._rank(name, item)

    def remove(self, name: Name) -> None:
        """Nothing to do for one that is not known."""
        item = self._items.pop(name, None)
        if item is not None:
            self._totals.num_bytes[name.kind] -= item.num_bytes

    def _evict_to(self, max_bytes: int) -> list[Name]:
        evicted = []
        while self.num_bytes > max_bytes:
            worth, order, name = heapq.heappop(self._heap)
            item = self._items.get(name)
            if item is None or item.order != order:
                continue
            self._age = worth
            self.remove(name)
            self._totals.num_evictions[name.kind] += 1
            evicted.append(name)
        return evicted

    def _rank(self, name: Name, item: _Item) -> None:
        self._num_uses += 1
        item.order = self._num_uses
        item.worth = self._age + item.cost_s * item.uses / max(1, item.num_bytes)
        heapq.heappush(self._heap, (item.worth, item.order, name))
        if len(self._heap) > 2 * len(self._items) + 64:
            self._heap = [(each.worth, each.order, other) for other, each in self._items.items()]
            heapq.heapify(self._heap)
