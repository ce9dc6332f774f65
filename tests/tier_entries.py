"""Entries for tests, and the naive account that every store with a limit is held against."""

from __future__ import annotations

from dataclasses import dataclass, field

from tapetum.cache.entries import pack
from tapetum.cache.tiers import KINDS, Entry, Kind, Name


def entry(number: int, num_bytes: int = 64, cost_s: float = 0.5, kind: Kind = "features") -> Entry:
    """The entry of that number: the same key and data whenever it is asked for."""
    data = number.to_bytes(8, "little") * (num_bytes // 8)
    return Entry(
        kind=kind, key=number.to_bytes(32, "big"), dtype="uint8", shape=(len(data),), data=data, cost_s=cost_s
    )


def name_of(made: Entry) -> Name:
    return Name(made.kind, made.key)


def whole(made: Entry) -> bytes:
    return b"".join(pack(made))


@dataclass
class Kept:
    num_bytes: int
    cost_s: float
    uses: int = 1
    worth: float = 0.0


@dataclass
class NaiveAccount:
    """GreedyDual-Size-Frequency, word by word, looking at every entry every time."""

    max_bytes: int
    age: float = 0.0
    kept: dict[Name, Kept] = field(default_factory=dict)
    num_evictions: int = 0

    def write(self, name: Name, num_bytes: int, cost_s: float) -> None:
        if name in self.kept:
            self.use(name)
        elif num_bytes <= self.max_bytes:
            while sum(each.num_bytes for each in self.kept.values()) + num_bytes > self.max_bytes:
                least = min(self.kept, key=lambda one: self.kept[one].worth)
                self.age = self.kept.pop(least).worth
                self.num_evictions += 1
            self.kept[name] = Kept(num_bytes, cost_s, uses=0)
            self.use(name)

    def use(self, name: Name) -> None:
        if name in self.kept:
            kept = self.kept[name]
            kept.uses += 1
            kept.worth = self.age + kept.cost_s * kept.uses / kept.num_bytes

    def restart(self) -> None:
        """What a folder does not tell: the age, and how often a file was used."""
        self.age = 0.0
        for kept in self.kept.values():
            kept.uses, kept.worth = 1, kept.cost_s / kept.num_bytes

    def num_bytes(self) -> dict[Kind, int]:
        return {
            kind: sum(each.num_bytes for name, each in self.kept.items() if name.kind == kind)
            for kind in KINDS
        }
