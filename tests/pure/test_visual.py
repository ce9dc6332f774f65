"""VisualCache beside a naive model, and its refusals."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapetum.cache.visual import VisualCache
from tapetum.core.errors import MediaTooLarge
from tests.scripted import make_item

CAPACITY, BYTES_PER_TOKEN = 100, 10
ITEMS = {name: make_item(name, size) for name, size in {"a": 2, "b": 3, "c": 4, "d": 5, "e": 7}.items()}
OWNERS = ["r1", "r2", "r3"]


class VisualMachine(RuleBasedStateMachine):
    """The model: state and pins of each key, and when it was last let go."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = VisualCache(CAPACITY, BYTES_PER_TOKEN, b"encoder")
        self.states: dict[str, str] = {}
        self.pins: dict[str, Counter[str]] = {}
        self.idle_since: dict[str, int] = {}
        self.dropped: list[str] = []
        self.clock = 0

    def _key(self, name: str):
        return self.cache.key_of(ITEMS[name])

    def _bytes(self, names) -> int:
        return sum(ITEMS[name].geometry.num_tokens * BYTES_PER_TOKEN for name in names)

    def _let_go(self, name: str) -> None:
        if self.states[name] == "resident" and not +self.pins[name]:
            self.clock += 1
            self.idle_since[name] = self.clock

    def _of(self, state: str) -> list[str]:
        return sorted(name for name, found in self.states.items() if found == state)

    @rule(name=st.sampled_from(sorted(ITEMS)))
    def begin(self, name: str) -> None:
        if name in self.states:
            return  # single flight: nobody may begin it again
        needed = self._bytes([name])
        fixed = self._bytes(set(self.states) - set(self.idle_since))
        assert self.cache.has_room(ITEMS[name]) == (fixed + needed <= CAPACITY)
        if fixed + needed > CAPACITY:
            return
        self.cache.begin(ITEMS[name])
        while self._bytes(self.states) + needed > CAPACITY:
            oldest = min(self.idle_since, key=self.idle_since.__getitem__)
            self.dropped.append(oldest)
            del self.states[oldest], self.pins[oldest], self.idle_since[oldest]
        self.states[name] = "encoding"
        self.pins[name] = Counter()

    @precondition(lambda self: self._of("encoding"))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._of("encoding")))
        self.cache.complete(self._key(name))
        self.states[name] = "resident"
        self._let_go(name)

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.states)))
        assert set(self.cache.fail(self._key(name))) == set(+self.pins[name])
        del self.states[name], self.pins[name]
        self.idle_since.pop(name, None)
        self.dropped.append(name)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def pin(self, data: st.DataObject, owner: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.states)))
        self.cache.pin(self._key(name), owner)
        self.pins[name][owner] += 1
        self.idle_since.pop(name, None)

    @rule(name=st.sampled_from(sorted(ITEMS)), owner=st.sampled_from(OWNERS))
    def unpin(self, name: str, owner: str) -> None:
        """Unpinning what one does not hold changes nothing."""
        self.cache.unpin(self._key(name), owner)
        if name in self.states and self.pins[name][owner]:
            self.pins[name][owner] -= 1
            self._let_go(name)

    @rule(is_lost=st.booleans())
    def take_dropped(self, is_lost: bool) -> None:
        """Each once, in order; what the plan that took them never told is told by the next."""
        taken = self.cache.take_dropped()
        assert taken == tuple(dict.fromkeys(ITEMS[name].key for name in self.dropped))
        assert self.cache.take_dropped() == ()
        if is_lost:
            self.cache.return_dropped(taken)
        else:
            self.dropped.clear()

    @invariant()
    def accounts_agree(self) -> None:
        assert self.cache.num_bytes == self._bytes(self.states) <= CAPACITY
        assert self.cache.num_pinned == sum(bool(+pins) for pins in self.pins.values())
        for name in ITEMS:
            assert self.cache.state(self._key(name)) == self.states.get(name, "absent")
            assert set(self.cache.waiters(self._key(name))) == set(+self.pins.get(name, Counter()))


TestVisual = VisualMachine.TestCase


def test_an_item_above_the_capacity_is_refused_with_numbers() -> None:
    cache = VisualCache(CAPACITY, BYTES_PER_TOKEN)
    cache.check_size(make_item("fits", 10))
    with pytest.raises(
        MediaTooLarge, match=r"11 visual tokens with 110 bytes.*limit 100; raise --feature-cache-gib"
    ):
        cache.check_size(make_item("larger", 11))


def test_another_encoder_is_another_key() -> None:
    item = make_item("a", 1)
    old, new = (VisualCache(CAPACITY, 1, fingerprint) for fingerprint in (b"old", b"new"))
    assert old.key_of(item) != new.key_of(item)
    assert old.key_of(item) == VisualCache(5, 2, b"old").key_of(make_item("a", 1))


def test_pinned_or_running_features_are_never_evicted() -> None:
    cache = VisualCache(CAPACITY, BYTES_PER_TOKEN)
    for name in ("a", "b", "c"):  # 90 of 100 bytes
        cache.begin(ITEMS[name])
    cache.complete(cache.key_of(ITEMS["a"]))
    cache.complete(cache.key_of(ITEMS["c"]))
    cache.pin(cache.key_of(ITEMS["a"]), "r1")
    assert cache.has_room(make_item("new", 5)) and not cache.has_room(make_item("new", 6))
    cache.begin(make_item("new", 5))
    assert cache.take_dropped() == (ITEMS["c"].key,)
    with pytest.raises(AssertionError, match="no room"):
        cache.begin(make_item("another", 1))


def test_keys_may_be_asked_for_while_another_thread_changes_them() -> None:
    cache = VisualCache(50 * BYTES_PER_TOKEN, BYTES_PER_TOKEN)
    items = [make_item(str(number), 1) for number in range(100)]
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            for item in items:
                cache.begin(item)
                cache.complete(cache.key_of(item))
            cache.clear()

    thread = threading.Thread(target=change)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(4000):
            assert set(cache.resident_keys) <= {item.key for item in items}
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
