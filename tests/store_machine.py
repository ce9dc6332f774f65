"""Random use of a store with a limit beside a naive account of the same limit: the same entries stay, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapetum.cache.tiers import Entry, Store
from tests.tier_entries import NaiveAccount, entry, name_of, whole

SIZES = (64, 3000, 9000, 9000, 16_000, 64, 5000, 70_000)  # the last one never fits
COSTS = (0.001, 0.5, 0.31, 3.7, 0.9, 0.0002, 0.123, 9.0)
LIMIT = 40_000


def made(number: int) -> Entry:
    return entry(number, SIZES[number] // 8 * 8, COSTS[number], "kv" if number % 3 else "features")


NUMBERS = st.integers(0, len(SIZES) - 1)


class StoreMachine(RuleBasedStateMachine):
    """A subclass says how a store is opened, and what an entry weighs there."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.open()
        self.naive = NaiveAccount(LIMIT)

    def open(self) -> Store:
        raise NotImplementedError

    def weigh(self, num_bytes: int) -> int:
        return num_bytes

    @rule(number=NUMBERS)
    def write(self, number: int) -> None:
        one, raw = made(number), whole(made(number))
        self.store.write(name_of(one), [raw[:100], memoryview(raw)[100:]], one.cost_s)
        self.naive.write(name_of(one), self.weigh(len(raw)), one.cost_s)

    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        name = name_of(made(number))
        found = self.store.read(name)
        self.naive.use(name)
        assert (found is not None) == (name in self.naive.kept)
        assert found is None or bytes(found) == whole(made(number))

    @rule(number=NUMBERS)
    def use(self, number: int) -> None:
        name = name_of(made(number))
        self.store.use([name])
        self.naive.use(name)

    @rule(number=NUMBERS)
    def read_head(self, number: int) -> None:
        name = name_of(made(number))
        head = self.store.read_head(name, 100)
        assert head == (whole(made(number))[:100] if name in self.naive.kept else None)

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        self.store.remove(name_of(made(number)))
        self.naive.kept.pop(name_of(made(number)), None)

    @rule()
    def refresh(self) -> None:
        self.store.refresh()

    @precondition(lambda self: hasattr(self, "reopen"))
    @rule()
    def restart(self) -> None:
        reopen: Callable[[], Store] = self.reopen
        self.store.close()
        self.store = reopen()
        self.store.refresh()
        self.naive.restart()
        self.naive.num_evictions = 0

    @invariant()
    def the_same_is_kept(self) -> None:
        listed = {each.name: each.num_bytes for each in self.store.names()}
        assert listed == {name: len(whole(made(int.from_bytes(name.key, "big")))) for name in self.naive.kept}
        holdings = self.store.holdings()
        assert holdings.num_bytes == self.naive.num_bytes()
        assert sum(holdings.num_evictions.values()) == self.naive.num_evictions
        for number in range(len(SIZES)):
            name = name_of(made(number))
            assert self.store.knows(name) in (name in self.naive.kept, None)

    def teardown(self) -> None:
        self.store.close()
