"""How quick the tiers are: entries of 1 and 16 MB written and read, and many KV blocks loaded at once.

    python -m benchmarks.tiers [--folder FOLDER] [--repeat N]

Host memory, a folder, a real redis-server and the S3 of moto, both on loopback: upper bounds of what a network gives.
A read counts until the entry is verified. Redis and S3 are left out where what they need is not installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tapetum.cache.entries import pack, unpack
from tapetum.cache.stores import open_store
from tapetum.cache.tiers import Entry, Kind, Name, Store
from tapetum.core.tier_urls import TierUrl
from tapetum.engine.tiers import Found, Tiers
from tests.tier_servers import REDIS, redis_server, s3_bucket

MB = 10**6
SIZES = (1 * MB, 16 * MB)
BLOCKS, BLOCK_BYTES = 128, 458_752  # of 16 tokens of a model of 7 B parameters, half of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the disk tier lies; a temporary folder else")
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    print(f"{'tier':8}{'entry':>8}{'write':>22}{'read':>22}")
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        urls = [f"disk:{folder}?max=4GiB"]
        if REDIS is not None:
            urls.append(held.enter_context(redis_server(folder)).url("?max=4GiB&timeout_s=30"))
        urls.append(held.enter_context(s3_bucket()) + "&timeout_s=30")
        for url in ("host:?max=4GiB", *urls):
            with opened(url) as store:
                for size in SIZES:
                    tell(store, size, options.repeat)
        print()
        for url in ("host:?max=4GiB", *urls):
            tell_blocks(url)


def tell(store: Store, size: int, repeat: int) -> None:
    entries = [made(size) for _ in range(repeat)]
    writes = [seconds(partial(write, store, each)) for each in entries]
    reads = [seconds(partial(read, store, each)) for each in entries]
    for each in entries:
        store.remove(name_of(each))
    print(f"{store.tier:8}{size // MB:5} MB{shown(size, writes)}{shown(size, reads)}")


def write(store: Store, entry: Entry) -> None:
    store.write(name_of(entry), pack(entry), entry.cost_s)


def read(store: Store, entry: Entry) -> None:
    found = store.read(name_of(entry))
    assert found is not None, "what was written is there"
    unpack(found, name_of(entry))


def tell_blocks(url: str) -> None:
    with opened(url) as store:
        entries = [made(BLOCK_BYTES, "kv") for _ in range(BLOCKS)]
        for each in entries:
            write(store, each)
        tiers = Tiers({"kv": (store,)})
        done = threading.Event()
        count = 0

        def on_done(found: Mapping[bytes, Found]) -> None:
            nonlocal count
            count = len(found)
            done.set()

        started = time.perf_counter()
        tiers.load("kv", [each.key for each in entries], on_done)
        done.wait()
        took = time.perf_counter() - started
        tier, rate = store.tier, BLOCKS * BLOCK_BYTES / took / 1e9
        tiers.close()
        assert count == BLOCKS, "all blocks are there"
    print(
        f"{tier:8}{BLOCKS} KV blocks of {BLOCK_BYTES / MB:.2f} MB at once: {1000 * took:.0f} ms, {rate:.2f} GB/s"
    )


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(TierUrl.parse(url, "--feature-tier"))
    try:
        yield store
    finally:
        store.close()


def made(size: int, kind: Kind = "features") -> Entry:
    return Entry(
        kind=kind, key=os.urandom(32), dtype="uint8", shape=(size,), data=os.urandom(size), cost_s=1.0
    )


def name_of(entry: Entry) -> Name:
    return Name(entry.kind, entry.key)


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def shown(size: int, times: list[float]) -> str:
    median = statistics.median(times)
    return f"{1000 * median:9.2f} ms{size / median / 1e9:5.2f} GB/s"


if __name__ == "__main__":
    main()
