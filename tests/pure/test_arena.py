"""Shared memory for patches: parts never overlap, nothing is lost, and the other side sees the same bytes."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tapetum.core.media import MediaItem
from tapetum.core.request import Request
from tapetum.engine.arena import Arena, ArenaReader
from tapetum.engine.child import anonymous_file
from tapetum.engine.holdings import Holdings
from tests.scripted import make_item, make_request

PAGE = 4096
PAGES = 12


class ArenaMachine(RuleBasedStateMachine):
    """Beside a dictionary of what must be where."""

    @initialize()
    def begin(self) -> None:
        self.arena = Arena(anonymous_file(PAGES * PAGE), PAGES * PAGE)
        self.reader = ArenaReader(os.dup(self.arena.file), PAGES * PAGE)
        self.kept: dict[int, np.ndarray] = {}

    @rule(size=st.integers(1, 5 * PAGE), value=st.integers(0, 255))
    def put(self, size: int, value: int) -> None:
        patches = np.full((size,), value, np.uint8)
        offset = self.arena.try_put(patches)
        if offset is None:
            assert _longest_gap(self.kept) < size, "there was room"
        else:
            assert offset not in self.kept
            self.kept[offset] = patches

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.kept:
            offset = data.draw(st.sampled_from(sorted(self.kept)))
            self.arena.free(offset)
            del self.kept[offset]

    @invariant()
    def every_part_reads_back(self) -> None:
        for offset, patches in getattr(self, "kept", {}).items():
            assert np.array_equal(self.reader.array(offset, patches.shape), patches)

    @invariant()
    def what_is_held_is_what_was_put(self) -> None:
        if hasattr(self, "arena"):
            pages = sum(-(-len(patches) // PAGE) for patches in self.kept.values())
            assert self.arena.num_held_bytes == pages * PAGE

    def teardown(self) -> None:
        if hasattr(self, "arena"):
            self.arena.close()


def _longest_gap(kept: dict[int, np.ndarray]) -> int:
    """The longest run of pages that nobody holds, in bytes."""
    is_used = [False] * PAGES
    for offset, patches in kept.items():
        for page in range(offset // PAGE, offset // PAGE - (-len(patches) // PAGE)):
            is_used[page] = True
    runs = "".join("x" if used else "." for used in is_used).split("x")
    return max(map(len, runs)) * PAGE


TestArena = ArenaMachine.TestCase


def item(key: str, size: int) -> MediaItem:
    return replace(make_item(key, 1), patches=np.full((size,), ord(key), np.uint8))


def request(name: str, *items: MediaItem) -> Request:
    return make_request(name, [1, *items])


def key(letter: str) -> bytes:
    return make_item(letter, 1).key


@pytest.fixture
def arena():
    arena = Arena(anonymous_file(4 * PAGE), 4 * PAGE)
    yield arena
    arena.close()


def test_one_copy_serves_all_until_the_last_lets_go(arena):
    holdings = Holdings(arena)
    first, second = request("a", item("1", 10)), request("b", item("1", 10), item("1", 10))
    holdings.hold(first)
    holdings.hold(second)
    assert arena.num_held_bytes == PAGE
    assert holdings.offsets(first) == holdings.offsets(second)
    holdings.let_go("a")
    assert arena.num_held_bytes == PAGE
    holdings.let_go("b")
    assert arena.num_held_bytes == 0
    holdings.let_go("b")


def test_what_has_no_room_is_left_out(arena):
    holdings = Holdings(arena)
    asked = request("a", item("1", PAGE), item("2", 4 * PAGE), item("3", PAGE))
    holdings.hold(asked)
    assert holdings.offsets(asked).keys() == {key("1"), key("3")}
    holdings.let_go("a")
    assert arena.num_held_bytes == 0


def test_a_request_that_was_not_prepared_is_held_when_it_is_needed(arena):
    holdings = Holdings(arena)
    asked = request("a", item("1", 10))
    assert holdings.offsets(asked).keys() == {key("1")}
    holdings.let_go("a")
    assert arena.num_held_bytes == 0


def test_a_picture_that_another_thread_has_put_meanwhile_is_there_once(arena, monkeypatch):
    holdings = Holdings(arena)
    first, second = request("a", item("1", 10)), request("b", item("1", 10))
    put = arena.try_put

    def put_late(patches):
        monkeypatch.undo()
        holdings.hold(second)
        return put(patches)

    monkeypatch.setattr(arena, "try_put", put_late)
    holdings.hold(first)
    assert arena.num_held_bytes == PAGE
    assert holdings.offsets(first) == holdings.offsets(second)
    holdings.let_go("b")
    assert arena.num_held_bytes == PAGE
    holdings.let_go("a")
    assert arena.num_held_bytes == 0
