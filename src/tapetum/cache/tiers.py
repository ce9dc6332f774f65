"""What a tier of bytes holds and does: entries, the protocol of a store, and the accounts that keep its limit.

An entry is immutable and named by its content, so a store has no updates: what is there is right or broken. What is
evicted first is what is cheap to make again, for its size, and seldom used (greedy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, get_args

from tapetum.cache.greedy import GreedyDual

Kind = Literal["features", "kv", "alias"]
TierName = Literal["host", "disk", "redis", "s3"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Event = Literal["hits", "misses", "errors", "corrupt", "version", "unsaved"]
EVENTS: tuple[Event, ...] = get_args(Event)
Buffer = bytes | bytearray | memoryview
DTYPES = {  # as safetensors calls them, and bytes of a value
    "float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2), "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1),
    "uint8": ("U8", 1), "int8": ("I8", 1), "int16": ("I16", 2), "int32": ("I32", 4), "int64": ("I64", 8),
}  # fmt: skip


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

    def __post_init__(self) -> None:
        num_bytes = DTYPES[self.dtype][1] * math.prod(self.shape)
        assert memoryview(self.data).nbytes == num_bytes, "the data of an entry is as long as its shape says"


class StoreError(Exception):
    """A store cannot be reached, is full or broken. Never reaches a user: the work is done anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Bytes of each kind now, and entries evicted since the start, as far as the store knows without asking."""

    num_bytes: Mapping[Kind, int]
    num_evictions: Mapping[Kind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounts:
    """What a store holds, and what has happened to it since the start."""

    tier: TierName
    holdings: Holdings
    events: Mapping[tuple[Event, Kind], int]


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

    def use(self, names: Sequence[Name]) -> None:
        """Count a use of those that are there, as a read does."""

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

    def remarks(self, max_bytes: int | None) -> tuple[str, ...]:
        """What an operator should know and change, given the limit that is meant; empty = all is well."""

    def close(self) -> None:
        """Does not wait. No other method is called afterwards."""


@dataclass(frozen=True, slots=True)
class _Item:
    num_bytes: int
    cost_s: float
    uses: int


class Accounts:
    """Sizes and worths of the entries of one store with a limit. Not safe for threads: the store has a lock."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._items: dict[Name, _Item] = {}
        self._worths: GreedyDual[Name] = GreedyDual()
        self._num_bytes = dict.fromkeys(KINDS, 0)
        self._num_evictions = dict.fromkeys(KINDS, 0)

    def __contains__(self, name: Name) -> bool:
        return name in self._items

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(self._items)

    @property
    def num_bytes(self) -> int:
        return sum(self._num_bytes.values())

    def holdings(self) -> Holdings:
        return Holdings(num_bytes=dict(self._num_bytes), num_evictions=dict(self._num_evictions))

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
        self._put(name, _Item(num_bytes, cost_s, uses=1))
        self._num_bytes[name.kind] += num_bytes

    def use(self, name: Name) -> None:
        """Nothing to do for one that is not known."""
        if name in self._items:
            item = self._items[name]
            self._worths.remove(name)
            self._put(name, replace(item, uses=item.uses + 1))

    def remove(self, name: Name) -> None:
        """Nothing to do for one that is not known."""
        if name in self._items:
            self._worths.remove(name)
            self._num_bytes[name.kind] -= self._items.pop(name).num_bytes

    def _put(self, name: Name, item: _Item) -> None:
        self._items[name] = item
        self._worths.add(name, item.cost_s, item.num_bytes, item.uses)

    def _evict_to(self, max_bytes: int) -> list[Name]:
        evicted = []
        while self.num_bytes > max_bytes:
            name = self._worths.pop()
            self._num_bytes[name.kind] -= self._items.pop(name).num_bytes
            self._num_evictions[name.kind] += 1
            evicted.append(name)
        return evicted
