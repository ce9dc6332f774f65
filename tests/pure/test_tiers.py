"""Tiers under load and under faults: what arrives is right or missing, nobody waits longer than the timeout."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tapetum.cache.tiers import Buffer, Entry, Event, Name, Store
from tapetum.cache.tiers_disk import DiskStore
from tapetum.cache.tiers_host import HostStore
from tapetum.engine.meters import tier_metrics
from tapetum.engine.tiers import Found, Tiers
from tapetum.server.metrics import exposition
from tests.faulty_store import FaultyStore
from tests.tier_entries import entry, name_of, whole

LONG_S = 10.0  # far above what anything here takes


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def opened() -> Iterator[Callable[..., Tiers]]:
    tiers: list[Tiers] = []

    def make(*stores: Store, **options: object) -> Tiers:
        tiers.append(Tiers({"features": stores, "alias": stores, "kv": ()}, **options))  # type: ignore[arg-type]
        return tiers[-1]

    before = set(threading.enumerate())
    yield make
    for each in tiers:
        each.close(grace_s=1.0)
    until(lambda: set(threading.enumerate()) <= before)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline, "it never comes true"
        time.sleep(0.002)


def load(tiers: Tiers, *numbers: int, patience_s: float = 0.0) -> Mapping[int, Found]:
    done: list[Mapping[bytes, Found]] = []
    came = threading.Event()

    def on_done(found: Mapping[bytes, Found]) -> None:
        done.append(found)
        came.set()

    tiers.load("features", [entry(number).key for number in numbers], on_done, patience_s=patience_s)
    assert came.wait(LONG_S)
    (found,) = done
    return {int.from_bytes(key, "big"): one for key, one in found.items()}


def claim(tiers: Tiers, number: int, seconds: float = 60.0) -> bool:
    given: list[bool] = []
    came = threading.Event()
    tiers.claim("features", entry(number).key, seconds, lambda is_ours: (given.append(is_ours), came.set()))
    assert came.wait(LONG_S)
    return given[0]


def put(store: Store, made: Entry) -> None:
    store.write(name_of(made), [whole(made)], made.cost_s)


def holds(store: Store, number: int) -> bool:
    return store.read_head(name_of(entry(number)), 1) is not None


def events(tiers: Tiers, place: int = 0) -> dict[Event, int]:
    counts = tiers.counts()[place].events
    return {event: number for (event, kind), number in counts.items() if kind == "features" and number}


# Order and flights.


def test_a_save_goes_to_every_store_and_a_load_comes_from_the_nearest(
    opened: Callable[..., Tiers], tmp_path: Path
) -> None:
    host, disk = HostStore(2**20), DiskStore(tmp_path, 2**20)
    tiers = opened(host, disk)
    tiers.save(entry(1))
    until(lambda: holds(host, 1) and holds(disk, 1))
    found = load(tiers, 1, 2)
    assert {number: (one.tier, one.entry) for number, one in found.items()} == {1: ("host", entry(1))}
    assert events(tiers, 0) == {"hits": 1, "misses": 1}
    assert events(tiers, 1) == {"misses": 1}


def test_what_was_far_is_near_the_next_time(opened: Callable[..., Tiers], tmp_path: Path) -> None:
    host, disk, remote = HostStore(2**20), DiskStore(tmp_path, 2**20), FaultyStore()
    put(remote, entry(1))
    tiers = opened(host, disk, remote)
    assert load(tiers, 1)[1].tier == "redis"
    until(lambda: holds(host, 1) and holds(disk, 1))
    assert bytes(host.read(name_of(entry(1))) or b"") == whole(entry(1))
    assert load(tiers, 1)[1].tier == "host"
    assert remote.count("write") == 0 + 1  # that of the test itself


def test_one_read_serves_all_who_ask(opened: Callable[..., Tiers]) -> None:
    store = FaultyStore()
    put(store, entry(1))
    tiers = opened(store)
    store.hang()
    done: list[Mapping[bytes, Found]] = []
    for _ in range(20):
        tiers.load("features", [entry(1).key, entry(1).key], done.append)
    until(lambda: store.count("read") == 1)
    store.go_on()
    until(lambda: len(done) == 20)
    assert store.count("read") == 1
    assert all(found[entry(1).key].entry == entry(1) for found in done)


def test_nothing_more_is_heard_of_a_load_that_was_cancelled(opened: Callable[..., Tiers]) -> None:
    store = FaultyStore()
    for number in range(30):
        put(store, entry(number))
    tiers = opened(store)
    until(lambda: store.count("refresh") == 1)
    store.hang()
    done: list[Mapping[bytes, Found]] = []
    gone = tiers.load("features", [entry(number).key for number in range(30)], done.append)
    shared = tiers.load("features", [entry(0).key], done.append)
    until(lambda: store.count("read") == 4)
    gone.cancel()
    store.go_on()
    until(lambda: len(done) == 1)
    assert list(done[0]) == [entry(0).key]
    assert load(tiers, 1)[1].entry == entry(1), "it can be asked for again"
    assert store.count("read") <= 6, "what nobody waits for is not read"
    shared.cancel()
    gone.cancel()


def test_a_callback_that_fails_harms_nobody(
    opened: Callable[..., Tiers], caplog: pytest.LogCaptureFixture
) -> None:
    tiers = opened(HostStore(2**20))
    tiers.load("features", [b"k"], lambda _: 1 / 0)
    tiers.claim("features", b"k", 1.0, lambda _: 1 / 0)
    assert load(tiers, 1) == {}
    assert "ZeroDivisionError" in caplog.text


def test_a_kind_without_stores_is_nowhere(opened: Callable[..., Tiers]) -> None:
    tiers = opened(HostStore(2**20))
    done: list[Mapping[bytes, Found]] = []
    tiers.load("kv", [b"k"], done.append)
    tiers.save(entry(1, kind="kv"))
    until(lambda: done == [{}])
    assert (tiers.has("kv"), tiers.has("features")) == (False, True)
    assert tiers.knows("kv", b"k") is False
    assert tiers.seconds("kv", 100) == float("inf")


# What is known, and how long it takes.


def test_what_is_known_without_asking(opened: Callable[..., Tiers], tmp_path: Path) -> None:
    host, disk = HostStore(2**20), DiskStore(tmp_path, 2**20)
    alone, both = opened(host), opened(host, disk)
    key = entry(1).key
    assert (alone.knows("features", key), both.knows("features", key)) == (False, None)
    put(disk, entry(1))
    assert (alone.knows("features", key), both.knows("features", key)) == (False, True)
    put(host, entry(1))
    assert alone.knows("features", key) is True


def test_seconds_are_those_that_loads_have_taken(opened: Callable[..., Tiers]) -> None:
    slow = FaultyStore()
    tiers = opened(HostStore(2**26), slow)
    host_s, guess_s = (tiers.seconds("features", 2**20, key) for key in (None, entry(1).key))
    assert host_s == guess_s, "it may be in the slow one"
    slow.delay_s = 0.02
    for number in range(20):
        put(slow, entry(number, 2**17))
        assert load(tiers, number)[number].tier == "redis"
    assert tiers.seconds("features", 2**17, b"elsewhere") > 0.015
    until(lambda: tiers.knows("features", entry(3).key) is True)
    assert tiers.seconds("features", 2**17, entry(3).key) < 0.015


# Faults.


@pytest.mark.parametrize("bit", [3, 8 * 300, 8 * 512 + 5])
def test_a_corrupt_entry_is_counted_removed_and_had_from_elsewhere(
    opened: Callable[..., Tiers], bit: int
) -> None:
    near, far = FaultyStore(tier="host"), FaultyStore()
    put(near, entry(1))
    put(far, entry(1))
    near.flips_bit = bit
    tiers = opened(near, far)
    found = load(tiers, 1)[1]
    assert (found.tier, found.entry) == ("redis", entry(1))
    assert events(tiers, 0) == {"corrupt": 1}
    until(lambda: near.count("remove") == 1 and near.count("write") == 2)
    near.flips_bit = None
    until(lambda: holds(near, 1))
    assert load(tiers, 1)[1].tier == "host"


def test_a_cut_entry_is_a_miss(opened: Callable[..., Tiers]) -> None:
    store = FaultyStore()
    put(store, entry(1))
    store.cuts_to = 540
    tiers = opened(store)
    assert load(tiers, 1) == {}
    assert events(tiers) == {"corrupt": 1}


def test_an_entry_of_another_version_is_a_miss(opened: Callable[..., Tiers], tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, 2**20)
    disk.write(name_of(entry(1)), [whole(entry(1)).replace(b"tapetum entry 1", b"tapetum entry 0")], 0.5)
    tiers = opened(disk)
    assert load(tiers, 1) == {}
    assert events(tiers) == {"version": 1}
    until(lambda: not holds(disk, 1))
    tiers.save(entry(1))
    until(lambda: holds(disk, 1))
    assert load(tiers, 1)[1].entry == entry(1)


def test_an_entry_that_the_engine_rejects_is_removed_everywhere(
    opened: Callable[..., Tiers], tmp_path: Path
) -> None:
    host, disk = HostStore(2**20), DiskStore(tmp_path, 2**20)
    tiers = opened(host, disk)
    put(disk, entry(1))
    found = load(tiers, 1)[1]
    until(lambda: holds(host, 1))
    tiers.reject(found)
    until(lambda: not holds(host, 1) and not holds(disk, 1))
    assert events(tiers, 1) == {"hits": 1, "corrupt": 1}


def test_a_dead_store_is_left_alone_and_tried_again(opened: Callable[..., Tiers]) -> None:
    clock, store = Clock(), FaultyStore()
    put(store, entry(1))
    tiers = opened(store, clock=clock)
    store.is_dead = True
    for _ in range(10):
        assert load(tiers, 1) == {}
    assert store.count("read") == 3
    assert events(tiers) == {"errors": 3, "misses": 7}
    assert tiers.knows("features", entry(1).key) is False
    assert tiers.seconds("features", 100) == float("inf")
    clock.now += 5.1
    assert load(tiers, 1, 2, 3, 4) == {}
    assert store.count("read") == 4, "one call tries whether it has come back"
    store.is_dead = False
    clock.now += 5.1
    assert load(tiers, 1)[1].entry == entry(1)
    assert load(tiers, 1)[1].entry == entry(1)


def test_nobody_waits_for_a_store_that_hangs(opened: Callable[..., Tiers]) -> None:
    clock, hanging, sound = Clock(), FaultyStore(timeout_s=0.1), FaultyStore(tier="s3", timeout_s=5.0)
    for number in range(50):
        put(sound, entry(number))
    tiers = opened(hanging, sound, clock=clock)
    until(lambda: hanging.count("refresh") == 1)
    hanging.hang()
    started = time.monotonic()
    found = load(tiers, *range(50))
    assert len(found) == 50
    assert time.monotonic() - started < 1.0, "once for all of them"
    started = time.monotonic()
    assert load(tiers, 1)[1].tier == "s3"
    assert time.monotonic() - started < 0.09
    assert hanging.count("read") == 4, "as many as it has threads"
    hanging.go_on()
    clock.now += 5.1
    put(hanging, entry(99))
    assert load(tiers, 99)[99].tier == "redis"


def test_a_full_store_is_still_read(opened: Callable[..., Tiers]) -> None:
    store = FaultyStore()
    put(store, entry(1))
    tiers = opened(store)
    store.is_full = True
    for number in range(2, 12):
        tiers.save(entry(number))
    until(lambda: sum(events(tiers).values()) == 10)
    assert events(tiers).get("errors", 0) >= 3
    assert load(tiers, 1)[1].entry == entry(1)


def test_saves_that_find_too_many_waiting_are_skipped_and_counted(opened: Callable[..., Tiers]) -> None:
    slow, quick = FaultyStore(timeout_s=5.0), HostStore(2**20)
    tiers = opened(quick, slow, max_pending_bytes=10_000)
    until(lambda: slow.count("refresh") == 1)
    slow.hang()
    for number in range(20):
        tiers.save(entry(number, 1000))
        until(partial(holds, quick, number))
    assert events(tiers, 1) == {"unsaved": 10}
    slow.go_on()
    until(lambda: holds(slow, 9))
    assert not holds(slow, 10)
    tiers.save(entry(30, 50_000))
    until(lambda: holds(slow, 30))


def test_a_client_library_that_fails_is_a_miss(
    opened: Callable[..., Tiers], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FaultyStore):
        def read(self, name: Name) -> Buffer | None:
            raise KeyError("what")

    tiers = opened(Broken())
    assert load(tiers, 1) == {}
    assert events(tiers) == {"errors": 1}
    assert "KeyError" in caplog.text


# One maker among several processes.


def test_who_does_not_get_the_claim_waits_for_the_entry(opened: Callable[..., Tiers], tmp_path: Path) -> None:
    ours, theirs = opened(DiskStore(tmp_path, 2**20)), opened(DiskStore(tmp_path, 2**20))
    assert claim(ours, 1)
    assert not claim(theirs, 1)
    done: list[Mapping[bytes, Found]] = []
    theirs.load("features", [entry(1).key], done.append, patience_s=LONG_S)
    time.sleep(0.1)
    assert done == []
    ours.save(entry(1, 2**18))
    ours.release("features", entry(1).key)
    until(lambda: len(done) == 1)
    assert done[0][entry(1).key].entry == entry(1, 2**18)
    assert events(theirs) == {"misses": 1, "hits": 1}, "looking again counts once"
    until(lambda: claim(theirs, 1))


def test_a_release_comes_after_the_save(opened: Callable[..., Tiers]) -> None:
    class Watched(FaultyStore):
        was_there: list[bool] = []  # noqa: RUF012

        def release(self, name: Name) -> None:
            self.was_there.append(holds(self._store, 1))
            super().release(name)

    store = Watched(timeout_s=5.0)
    tiers = opened(store)
    assert claim(tiers, 1)
    store.delay_s = 0.05
    tiers.save(entry(1))
    tiers.release("features", entry(1).key)
    until(lambda: store.was_there == [True])


def test_patience_ends(opened: Callable[..., Tiers]) -> None:
    tiers = opened(HostStore(2**20))
    started = time.monotonic()
    assert load(tiers, 1, patience_s=0.1) == {}
    assert 0.05 < time.monotonic() - started < 1.0


def test_a_claim_is_had_in_all_stores_or_in_none(opened: Callable[..., Tiers], tmp_path: Path) -> None:
    shared, alone = DiskStore(tmp_path, 2**20), HostStore(2**20)
    tiers = opened(alone, shared)
    assert DiskStore(tmp_path, 2**20).claim(name_of(entry(1)), 60)
    assert not claim(tiers, 1)
    until(lambda: alone.claim(name_of(entry(1)), 60))
    dead = FaultyStore()
    dead.is_dead = True
    assert claim(opened(dead), 1), "who can ask nobody does the work"


# The end.


def test_close_waits_for_saves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    slow = FaultyStore(timeout_s=5.0)
    slow.delay_s = 0.02
    tiers = Tiers({"features": (DiskStore(tmp_path, 2**20), slow)})
    for number in range(20):
        tiers.save(entry(number))
    tiers.close()
    assert all(holds(DiskStore(tmp_path, 2**20), number) for number in range(20))
    assert slow.count("write") == 20
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_close_gives_claims_back(tmp_path: Path) -> None:
    tiers = Tiers({"features": (DiskStore(tmp_path, 2**20),)})
    assert claim(tiers, 1)
    tiers.save(entry(1))
    tiers.release("features", entry(1).key)
    tiers.close()
    other = DiskStore(tmp_path, 2**20)
    assert holds(other, 1) and other.claim(name_of(entry(1)), 1)


def test_after_the_end_nothing_is_found_and_nobody_hangs() -> None:
    store = HostStore(2**20)
    tiers = Tiers({"features": (store,)})
    tiers.close()
    tiers.close()
    tiers.save(entry(1))
    tiers.release("features", entry(1).key)
    assert load(tiers, 1) == {}
    assert claim(tiers, 1)


def test_a_store_that_hangs_does_not_hold_up_the_end() -> None:
    store = FaultyStore(timeout_s=60.0)
    tiers = Tiers({"features": (store,)})
    until(lambda: store.count("refresh") == 1)
    store.hang()
    done: list[Mapping[bytes, Found]] = []
    given: list[bool] = []
    tiers.save(entry(1))
    tiers.load("features", [entry(1).key], done.append)
    tiers.claim("features", entry(2).key, 60.0, given.append)
    started = time.monotonic()
    tiers.close(grace_s=0.1)
    assert time.monotonic() - started < 3.0
    assert (done, given) == ([{}], [True]), "who waits is told"
    store.go_on()


# Figures.


def test_metrics_tell_each_tier_and_kind_under_one_name(opened: Callable[..., Tiers]) -> None:
    tiers = opened(HostStore(2**20), FaultyStore(), FaultyStore())
    tiers.save(entry(1))
    until(lambda: tiers.knows("features", entry(1).key) is True)
    load(tiers, 1, 2)
    text = exposition(tier_metrics(tiers.counts()), prefix="tapetum", model_name="m").decode()
    assert text.count("# TYPE tapetum:tier_hits_total counter") == 1
    assert 'tapetum:tier_bytes{kind="features",model_name="m",tier="host"} 576.0' in text
    assert 'tapetum:tier_hits_total{kind="features",model_name="m",tier="host"} 1.0' in text
    assert 'tapetum:tier_misses_total{kind="features",model_name="m",tier="redis"} 2.0' in text, "of both"
    assert 'tapetum:tier_unsaved_total{kind="kv",model_name="m",tier="redis"} 0.0' in text
