"""Tiers whose stores go wrong in every order: no wrong entry, no one who is not told, and all is well afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tapetum.cache.tiers import Store
from tapetum.cache.tiers_host import HostStore
from tapetum.engine.tiers import Found, Tiers
from tests.faulty_store import FaultyStore
from tests.tier_entries import entry, name_of

KEYS = st.integers(0, 5)
FAULTS = st.sampled_from(
    ["is_dead", "is_full", "is_forgetful", "flips_bit", "cuts_to", "delay_s", "hang", "none"]
)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["save", "claim", "release", "cancel"]), KEYS),
    st.tuples(st.just("load"), st.lists(KEYS, min_size=1, max_size=4)),
    st.tuples(st.just("fault"), st.tuples(st.integers(0, 1), FAULTS, st.integers(0, 600))),
    st.tuples(st.just("rest"), st.just(0)),
)
VALUES: dict[str, Callable[[int], object]] = {
    "flips_bit": lambda number: 8 * number,
    "cuts_to": lambda number: number,
    "delay_s": lambda number: 0.001,
}


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.faulty = (FaultyStore(tier="disk", timeout_s=0.02), FaultyStore(tier="redis", timeout_s=0.02))
        self.host = HostStore(2000)
        stores: tuple[Store, ...] = (self.host, *self.faulty)
        self.tiers = Tiers({"features": stores}, clock=lambda: self.now)
        self.num_asked = 0
        self.answers: list[object] = []

    def load(self, numbers: list[int]) -> None:
        def on_done(found: Mapping[bytes, Found]) -> None:
            for key, one in found.items():
                assert one.entry == entry(int.from_bytes(key, "big"))
            self.answers.append(found)

        self.num_asked += 1
        self.tiers.load("features", [entry(number).key for number in numbers], on_done)

    def fault(self, change: tuple[int, str, int]) -> None:
        place, fault, number = change
        store = self.faulty[place]
        store.is_dead = store.is_full = store.is_forgetful = False
        store.flips_bit = store.cuts_to = None
        store.delay_s = 0.0
        store.go_on()
        if fault == "hang":
            store.hang()
        elif fault != "none":
            setattr(store, fault, VALUES.get(fault, lambda _: True)(number))

    def act(self, action: str, about: object) -> None:
        if action == "load":
            self.load(about)  # type: ignore[arg-type]
        elif action == "fault":
            self.fault(about)  # type: ignore[arg-type]
        elif action == "rest":
            self.now += 5.1
        else:
            self.act_on(action, about)  # type: ignore[arg-type]

    def act_on(self, action: str, number: int) -> None:
        key = entry(number).key
        if action == "save":
            self.tiers.save(entry(number))
        elif action == "claim":
            self.num_asked += 1
            self.tiers.claim("features", key, 1.0, self.answers.append)
        elif action == "release":
            self.tiers.release("features", key)
        else:
            self.tiers.load("features", [key], lambda _: None).cancel()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it never comes true"
        time.sleep(0.001)


@given(st.lists(ACTIONS, max_size=25))
def test_whatever_goes_wrong_no_entry_is_wrong_and_all_are_told(actions: list[tuple[str, object]]) -> None:
    before = set(threading.enumerate())
    world = World()
    try:
        for action, about in actions:
            world.act(action, about)
        until(lambda: len(world.answers) == world.num_asked)
        for place in (0, 1):
            world.fault((place, "none", 0))
        world.now += 5.1
        until(lambda: recovers(world))
    finally:
        world.tiers.close()
    until(lambda: set(threading.enumerate()) <= before)
    assert len(world.answers) == world.num_asked, "once each"
    for lane_counts in world.tiers.counts():
        assert min(lane_counts.events.values()) >= 0


def recovers(world: World) -> bool:
    """Whether a save reaches every store that went wrong."""
    world.now += 5.1
    world.tiers.save(entry(7))
    time.sleep(0.002)
    return all(store.read_head(name_of(entry(7)), 1) is not None for store in world.faulty)
