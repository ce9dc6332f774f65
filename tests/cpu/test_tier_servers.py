"""Tiers in a real redis-server and in the S3 of moto: limits, leases, and servers that go away and come back."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tapetum.cache.stores import open_store
from tapetum.cache.tiers import Store, StoreError
from tapetum.cache.tiers_host import HostStore
from tapetum.core.errors import ConfigError
from tapetum.core.tier_urls import TierUrl
from tapetum.engine.tiers import Found, Tiers
from tests.store_machine import LIMIT, StoreMachine
from tests.tier_entries import entry, name_of, whole
from tests.tier_servers import REDIS, RedisServer, free_port, redis_server, s3_bucket

needs_redis = pytest.mark.skipif(REDIS is None, reason="there is no redis-server on this machine")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


def store_at(url: str) -> Store:
    return open_store(TierUrl.parse(url, "--feature-tier"))


def put(store: Store, number: int, num_bytes: int = 64, cost_s: float = 0.5) -> None:
    made = entry(number, num_bytes, cost_s)
    store.write(name_of(made), [whole(made)], cost_s)


def has(store: Store, number: int) -> bool:
    return store.read_head(name_of(entry(number)), 1) is not None


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it never comes true"
        time.sleep(0.005)


def load(tiers: Tiers, number: int) -> Found | None:
    done: list[Mapping[bytes, Found]] = []
    tiers.load("features", [entry(number).key], done.append)
    until(lambda: bool(done))
    return done[0].get(entry(number).key)


# Redis.


@needs_redis
def test_redis_keeps_what_a_naive_account_keeps(redis: RedisServer) -> None:
    class RedisMachine(StoreMachine):
        def open(self) -> Store:
            flush(redis)
            return store_at(redis.url(f"?max={LIMIT // 1000}KB"))

    case = RedisMachine.TestCase
    case.settings = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True)
    case().runTest()


def flush(server: RedisServer) -> None:
    from redis import Redis

    with Redis(port=server.port) as client:
        client.flushall()


@needs_redis
def test_two_processes_keep_one_limit(redis: RedisServer) -> None:
    flush(redis)
    ours, theirs = (store_at(redis.url("?max=10KB")) for _ in range(2))
    for number in range(40):
        put((ours, theirs)[number % 2], number, 1000)
    ours.refresh()
    total = ours.holdings().num_bytes["features"]
    assert total == sum(each.num_bytes for each in ours.names()) <= 10_000
    evicted = [store.holdings().num_evictions["features"] for store in (ours, theirs)]
    assert sum(evicted) == 40 - len(list(ours.names()))
    assert min(evicted) > 0, "each tells those that it brought about"
    ours.close()
    theirs.close()


@needs_redis
def test_what_is_used_stays_but_not_for_ever(redis: RedisServer) -> None:
    flush(redis)
    store = store_at(redis.url("?max=4.7KB"))
    for number in range(3):
        put(store, number, 1000)
    for number in (0, 0, 0, 0, 2):
        store.read(name_of(entry(number)))
    put(store, 3, 1000)
    assert [has(store, number) for number in range(4)] == [True, False, True, True]
    for number in range(4, 40):
        put(store, number, 1000)
        store.read(name_of(entry(number)))
    assert not has(store, 0)
    store.close()


@needs_redis
def test_what_the_server_drops_by_itself_is_a_miss(redis: RedisServer) -> None:
    from redis import Redis

    flush(redis)
    store = store_at(redis.url("?max=1MB"))
    put(store, 1)
    with Redis(port=redis.port) as client:
        client.delete(f"tapetum:features:{entry(1).key.hex()}")
    assert store.read(name_of(entry(1))) is None
    assert store.holdings().num_bytes["features"] == 0, "the account is corrected"
    put(store, 1)
    assert has(store, 1)
    store.close()


@needs_redis
def test_a_server_with_little_memory_takes_what_it_can(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru") as server:
        store = store_at(server.url())
        for number in range(64):
            put(store, number, 2**17)
            found = store.read(name_of(entry(number)))
            assert found is None or bytes(found) == whole(entry(number, 2**17))
        kept = [number for number in range(64) if has(store, number)]
        assert 1 < len(kept) < 40
        store.close()
    with redis_server(tmp_path, "--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        store = store_at(server.url())
        with pytest.raises(StoreError, match="cannot write"):
            for number in range(64):
                put(store, number, 2**17)
        assert has(store, 0)
        store_at(server.url()).close()
        store.close()


@needs_redis
def test_what_an_operator_should_know_of_a_server(tmp_path: Path, redis: RedisServer) -> None:
    store = store_at(redis.url())
    assert "nothing limits what the server keeps" in store.remarks(None)[0]
    assert store.remarks(2**20) == ()
    store.close()
    with redis_server(tmp_path, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server:
        store = store_at(server.url())
        assert store.remarks(2**20) == ()
        for limit in (None, 2**23):
            assert "the server refuses writes above its 4 MiB" in store.remarks(limit)[0]
        store.close()


@needs_redis
def test_a_lease_of_redis_is_held_by_one_and_ends(redis: RedisServer) -> None:
    flush(redis)
    ours, theirs = (store_at(redis.url()) for _ in range(2))
    holds_leases(ours, theirs)
    holds_one_lease_at_a_time(ours, theirs)
    ours.close()
    theirs.close()


def holds_leases(ours: Store, theirs: Store) -> None:
    name = name_of(entry(1))
    assert [ours.claim(name, 60), ours.claim(name, 60), theirs.claim(name, 60)] == [True, False, False]
    theirs.release(name)
    assert not theirs.claim(name, 60), "only the holder gives a lease back"
    ours.release(name)
    assert theirs.claim(name, 0.2)
    assert not ours.claim(name, 60)
    time.sleep(0.25)
    assert [ours.claim(name, 60), theirs.claim(name, 60)] == [True, False], "it has ended"
    ours.release(name)


def holds_one_lease_at_a_time(ours: Store, theirs: Store) -> None:
    name = name_of(entry(1))
    start, given = threading.Barrier(4), []

    def claim(store: Store) -> None:
        start.wait()
        given.append(store.claim(name, 60))

    threads = [threading.Thread(target=claim, args=(store,)) for store in (ours, theirs) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(given) == 1


@needs_redis
def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    now = [1000.0]
    with redis_server(tmp_path) as server:
        tiers = Tiers({"features": (store_at(server.url("?max=1MiB&timeout_s=0.5")),)}, clock=lambda: now[0])
        tiers.save(entry(1))
        until(lambda: load(tiers, 1) is not None)
        server.kill()
        started = time.monotonic()
        for _ in range(20):
            assert load(tiers, 1) is None
            tiers.save(entry(2))
        assert time.monotonic() - started < 2.0
        events = tiers.counts()[0].events
        assert events["errors", "features"] >= 3
        server.start()
        now[0] += 5.1
        assert load(tiers, 1) is None, "it has forgotten"
        tiers.save(entry(1))
        until(lambda: load(tiers, 1) is not None)
        tiers.close()


@needs_redis
def test_a_server_that_stops_answering(tmp_path: Path) -> None:
    import signal

    with redis_server(tmp_path) as server:
        near = HostStore(2**20)
        tiers = Tiers({"features": (near, store_at(server.url("?timeout_s=0.2")))})
        tiers.save(entry(1))
        until(lambda: load(tiers, 1) is not None)
        server.signal(signal.SIGSTOP)
        started = time.monotonic()
        assert load(tiers, 2) is None
        assert load(tiers, 1) is not None
        assert time.monotonic() - started < 1.0
        server.signal(signal.SIGCONT)
        tiers.close()


@needs_redis
def test_no_connection_stays_open(redis: RedisServer) -> None:
    files, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    tiers = Tiers({"features": (store_at(redis.url()),)})
    for number in range(20):
        tiers.save(entry(number))
        load(tiers, number)
    tiers.close()
    assert len(os.listdir("/proc/self/fd")) == files
    assert set(threading.enumerate()) == threads


@needs_redis
def test_a_server_that_wants_a_password(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "open sesame") as server:
        with pytest.raises(ConfigError, match="correct its address or password"):
            store_at(server.url())
        with pytest.raises(ConfigError) as caught:
            store_at(f"redis://:wrong-one@127.0.0.1:{server.port}/0")
        assert "wrong-one" not in caught.value.message
        store = store_at(f"redis://:open%20sesame@127.0.0.1:{server.port}/0")
        put(store, 1)
        assert has(store, 1)
        store.close()


@needs_redis
def test_a_server_behind_a_socket_file(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--unixsocket", str(tmp_path / "redis.sock")):
        store = store_at(f"unix://{tmp_path}/redis.sock?db=3&max=1MiB")
        put(store, 1)
        assert store.read(name_of(entry(1))) == whole(entry(1))
        store.close()


@pytest.mark.parametrize("place", ["127.0.0.1:{port}/0", "127.0.0.1:what/0", "127.0.0.1:{port}/zero"])
def test_a_server_that_is_not_there_is_refused_at_the_start(place: str) -> None:
    with pytest.raises(ConfigError, match=r"^redis://127.0.0.1:"):
        store_at("redis://" + place.format(port=free_port()))


# S3.


def test_objects_are_written_read_listed_and_removed(bucket: str) -> None:
    store = store_at(bucket)
    name = name_of(entry(1, 2**20))
    assert (store.read(name), store.read_head(name, 10)) == (None, None)
    put(store, 1, 2**20)
    put(store, 1, 2**20)
    assert bytes(store.read(name) or b"") == whole(entry(1, 2**20))
    assert store.read_head(name, 10) == whole(entry(1, 2**20))[:10]
    assert [(each.name, each.num_bytes) for each in store.names()] == [(name, 2**20 + 512)]
    assert store.knows(name) is None
    store.remove(name)
    store.remove(name)
    assert list(store.names()) == []


def test_a_lease_of_s3_is_held_by_one_and_ends(bucket: str) -> None:
    # not those of many at a moment: the S3 of moto looks and puts in two steps
    holds_leases(store_at(bucket), store_at(bucket))


def test_a_bucket_as_a_tier(bucket: str) -> None:
    near = HostStore(2**20)
    tiers = Tiers({"features": (near, store_at(bucket))})
    tiers.save(entry(5))
    until(lambda: near.knows(name_of(entry(5))))
    near.remove(name_of(entry(5)))
    until(lambda: (found := load(tiers, 5)) is not None and found.entry == entry(5))
    assert tiers.counts()[1].events["hits", "features"] == 1
    tiers.close()


def test_a_bucket_that_is_not_there_is_refused_at_the_start(bucket: str) -> None:
    with pytest.raises(ConfigError, match=r"s3://other/x cannot be written to: .*correct bucket, endpoint"):
        store_at(bucket.replace("s3://pictures/tapetum", "s3://other/x"))
    with pytest.raises(ConfigError, match="cannot be written to"):
        store_at(f"s3://pictures/x?endpoint=http://127.0.0.1:{free_port()}&timeout_s=0.5")


def test_a_bucket_that_goes_away_is_a_miss() -> None:
    with s3_bucket() as url:
        store = store_at(f"{url}&timeout_s=0.5")
    for call in (store.read, store.remove, lambda name: store.claim(name, 1), store.release):
        with pytest.raises(StoreError):
            call(name_of(entry(1)))
    with pytest.raises(StoreError):
        put(store, 1)


@pytest.mark.parametrize(
    ("package", "url", "extra"), [("redis", "redis://a:1/0", "redis"), ("obstore", "s3://a/b", "s3")]
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        store_at(url)
    assert f'pip install "tapetum[{extra}]"' in caught.value.message
