"""Tiers in host memory and on disk: limits, order of eviction, leases, and what a folder may do to them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import settings

from tapetum.cache.entries import HEAD_BYTES, unpack
from tapetum.cache.stores import open_store, open_stores
from tapetum.cache.tiers import Accounts, Buffer, Store, StoreError
from tapetum.cache.tiers_disk import DiskStore
from tapetum.cache.tiers_host import HostStore
from tapetum.core.config import TierConfig
from tapetum.core.errors import ConfigError
from tapetum.core.tier_urls import TierUrl
from tests.store_machine import LIMIT, StoreMachine
from tests.tier_entries import entry, name_of, whole

EXAMPLES = settings.default.max_examples  # of the profile; every invariant here looks at all entries


class HostMachine(StoreMachine):
    def open(self) -> Store:
        return HostStore(LIMIT)


class DiskMachine(StoreMachine):
    def open(self) -> Store:
        self.folder = tempfile.TemporaryDirectory()
        return self.reopen()

    def reopen(self) -> Store:
        return DiskStore(Path(self.folder.name), LIMIT)

    def weigh(self, num_bytes: int) -> int:
        return -(-num_bytes // 4096) * 4096

    def teardown(self) -> None:
        super().teardown()
        assert not list(Path(self.folder.name, "partial").iterdir())
        self.folder.cleanup()


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=EXAMPLES // 3)
TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=EXAMPLES // 5, stateful_step_count=30)


@pytest.fixture(params=["host", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return HostStore(2**20) if request.param == "host" else DiskStore(tmp_path, 2**20)


def put(store: Store, number: int, num_bytes: int = 64, cost_s: float = 0.5) -> None:
    made = entry(number, num_bytes, cost_s)
    store.write(name_of(made), [whole(made)], cost_s)


def has(store: Store, number: int) -> bool:
    return store.read_head(name_of(entry(number)), 1) is not None


# Which goes first.


def test_what_is_cheap_to_make_again_goes_first() -> None:
    store = HostStore(3 * len(whole(entry(0, 1024))))
    for number, cost_s in enumerate((1.0, 0.1, 2.0)):
        put(store, number, 1024, cost_s)
    put(store, 3, 1024, 0.5)
    assert [has(store, number) for number in range(4)] == [True, False, True, True]


def test_what_is_used_stays() -> None:
    store = HostStore(3 * len(whole(entry(0, 1024))))
    for number in range(3):
        put(store, number, 1024)
    for number in (0, 2):
        store.read(name_of(entry(number)))
    put(store, 3, 1024)
    assert [has(store, number) for number in range(4)] == [True, False, True, True]


def test_what_is_small_for_its_cost_stays() -> None:
    store = HostStore(20_000)
    put(store, 0, 1024)
    put(store, 1, 9000)
    put(store, 2, 9000)
    put(store, 3, 9000)
    assert [has(store, number) for number in range(4)] == [True, False, False, True]


def test_what_was_dear_once_does_not_stay_for_ever() -> None:
    store = HostStore(3 * len(whole(entry(0, 1024))))
    put(store, 0, 1024, cost_s=5.0)
    for number in range(1, 100):
        put(store, number, 1024, cost_s=1.0)
        store.read(name_of(entry(number)))
    assert not has(store, 0)


def test_accounts_of_many_entries_stay_quick() -> None:
    accounts = Accounts(2**30)
    names = [name_of(entry(number)) for number in range(1000)]
    for name in names:
        accounts.add(name, 100, 1.0)
    for _ in range(50):
        for name in names:
            accounts.use(name)
    assert accounts.num_bytes == 100_000
    assert len(accounts.shed(99_950)) == 1000
    assert accounts.num_bytes == 0


# Leases.


def test_a_lease_is_held_by_one_and_ends(tmp_path: Path) -> None:
    now = [1000.0]
    name = name_of(entry(1))
    host = HostStore(2**20, clock=lambda: now[0])
    assert [host.claim(name, 5), host.claim(name, 5)] == [True, False]
    ours, theirs = (DiskStore(tmp_path, 2**20, clock=lambda: now[0]) for _ in range(2))
    assert [ours.claim(name, 5), ours.claim(name, 5), theirs.claim(name, 5)] == [True, False, False]
    assert theirs.claim(name_of(entry(2)), 5), "of another entry"
    theirs.release(name)
    assert not theirs.claim(name, 5), "only the holder gives a lease back"
    now[0] += 5.1
    assert host.claim(name, 5)
    assert [theirs.claim(name, 5), ours.claim(name, 5)] == [True, False], "it has ended"
    ours.release(name)
    assert not ours.claim(name, 5), "who lost a lease does not give it back"
    theirs.release(name)
    host.release(name)
    assert ours.claim(name, 5) and host.claim(name, 5)


def test_a_lease_of_which_nothing_is_written_yet_is_held(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 2**20)
    name = name_of(entry(1))
    (tmp_path / "leases" / f"{name.kind}-{name.key.hex()}").touch()
    assert not store.claim(name, 5)
    (tmp_path / "leases" / f"{name.kind}-{name.key.hex()}").write_text("what is this")
    assert store.claim(name, 5)


def test_of_many_who_claim_at_once_one_is_given_it(store: Store) -> None:
    start, given = threading.Barrier(8), []

    def claim() -> None:
        start.wait()
        given.append(store.claim(name_of(entry(1)), 60))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(given) == 1


# What a folder may do.


def path_of(folder: Path, number: int) -> Path:
    key = entry(number).key.hex()
    return folder / "features" / key[:2] / f"{key}.safetensors"


def test_the_index_comes_back_after_a_restart(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10 * 8192)
    for number in range(10):
        put(store, number, 4096, cost_s=1.0 + number)
    os.utime(path_of(tmp_path, 3), (2e9, 2e9))
    store.close()
    again = DiskStore(tmp_path, 5 * 8192)
    assert again.knows(name_of(entry(9))) is None
    again.refresh()
    assert again.holdings().num_bytes["features"] == 5 * 8192
    assert [number for number in range(10) if has(again, number)] == [5, 6, 7, 8, 9], "the dear ones"
    assert again.knows(name_of(entry(9)))
    found = again.read(name_of(entry(9)))
    assert found is not None
    assert unpack(found, name_of(entry(9))) == entry(9, 4096, cost_s=10.0)


def test_of_equal_worth_the_least_recently_used_goes_first_after_a_restart(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 2**20)
    for number in range(4):
        put(store, number)
        os.utime(path_of(tmp_path, number), (1000 - number, 1000 - number))
    store.read(name_of(entry(3)))
    again = DiskStore(tmp_path, 2 * 4096)
    again.refresh()
    assert [number for number in range(4) if has(again, number)] == [0, 3]


def test_half_written_files_are_cleaned_up_and_never_read(tmp_path: Path) -> None:
    DiskStore(tmp_path, 2**20)
    old, fresh, lease = (tmp_path / part for part in ("partial/old", "partial/fresh", "leases/old"))
    for path in (old, fresh, lease):
        path.write_bytes(b"half")
    for path in (old, lease):
        os.utime(path, (1, 1))
    store = DiskStore(tmp_path, 2**20)
    assert [path.exists() for path in (old, fresh, lease)] == [False, True, False]
    store.refresh()
    assert list(store.names()) == []


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 3 * 4096)
    others = [
        tmp_path / "features" / "notes.txt",
        tmp_path / "features" / "ab" / "cd.txt",
        tmp_path / "README",
    ]
    others.append(tmp_path / "features" / "ab" / "nothex.safetensors")
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    for number in range(9):
        put(store, number)
    store.refresh()
    assert len(list(store.names())) == 3
    assert all(path.read_text() == "mine" for path in others)


def test_vanished_files_are_misses(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 2**20)
    put(store, 1)
    put(store, 2)
    path_of(tmp_path, 1).unlink()
    assert store.read(name_of(entry(1))) is None
    assert store.knows(name_of(entry(1))) is None
    path_of(tmp_path, 2).unlink()
    store.refresh()
    assert store.holdings().num_bytes["features"] == 0
    put(store, 1)
    assert has(store, 1)


def test_a_vanished_folder_is_made_again(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a", 2**20)
    put(store, 1)
    shutil.rmtree(tmp_path / "a")
    assert store.read(name_of(entry(1))) is None
    put(store, 1)
    assert has(store, 1)


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    ours = DiskStore(tmp_path, 8 * 4096)
    program = (
        "import sys; from pathlib import Path\n"
        "from tapetum.cache.tiers_disk import DiskStore\n"
        "from tests.tier_entries import entry, name_of, whole\n"
        "store = DiskStore(Path(sys.argv[1]), 8 * 4096)\n"
        "for number in range(100, 150):\n"
        "    store.write(name_of(entry(number)), [whole(entry(number))], 0.5)\n"
        "    store.read(name_of(entry(number - 1)))\n"
    )
    root = Path(__file__).parents[2]
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
    )
    while other.poll() is None:
        for number in range(50):
            put(ours, number)
            found = ours.read(name_of(entry(number)))
            assert found is None or bytes(found) == whole(entry(number))
    assert other.returncode == 0
    ours.refresh()
    assert ours.holdings().num_bytes["features"] <= 8 * 4096
    assert len(list(ours.names())) <= 8


def test_an_entry_of_another_process_is_found_without_a_look(tmp_path: Path) -> None:
    ours, theirs = (DiskStore(tmp_path, 2**20) for _ in range(2))
    put(theirs, 1)
    assert ours.read(name_of(entry(1))) == whole(entry(1))
    put(ours, 1)
    assert ours.holdings().num_bytes["features"] == 4096


class FullDisk(DiskStore):
    """Files of the folder may take so many bytes, as others fill the disk."""

    room = 2**30

    def _write_file(self, path: Path, buffers: list[Buffer]) -> None:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        used = sum(each.stat().st_size for each in path.parents[1].rglob("*.safetensors"))
        if used + size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super()._write_file(path, buffers)


def test_a_full_disk_makes_the_limit_smaller(tmp_path: Path) -> None:
    store = FullDisk(tmp_path, 2**20)
    for number in range(8):
        put(store, number, cost_s=number)
    store.room = 4 * len(whole(entry(0)))
    with pytest.raises(StoreError, match="No space left"):
        put(store, 8)
    store.room = 8 * len(whole(entry(0)))
    put(store, 9, cost_s=9)
    assert has(store, 9) and not has(store, 0), "what is worth least gave way"
    assert not list((tmp_path / "partial").iterdir())


def test_a_folder_that_becomes_read_only_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, 2**20)
    put(store, 1)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    with pytest.raises(StoreError, match="Read-only"):
        put(store, 2)
    assert store.read(name_of(entry(1))) == whole(entry(1))
    assert not list((tmp_path / "partial").iterdir())


def test_a_disk_that_is_full_at_the_start_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(DiskStore(tmp_path, 2**20), 1)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(full))
        store = DiskStore(tmp_path, 2**20)
        assert store.read(name_of(entry(1))) == whole(entry(1))
        assert not list((tmp_path / "partial").iterdir())
    put(store, 2)
    assert store.read(name_of(entry(2))) == whole(entry(2))


def test_a_place_that_is_no_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ConfigError, match=r"file cannot be written to: .*; make it writable or name another"):
        open_store(TierUrl.parse(f"disk:{tmp_path}/file?max=1MiB", "--feature-tier"))


def test_no_file_stays_open(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 2**20)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        put(store, number)
        store.read(name_of(entry(number)))
        store.read_head(name_of(entry(number)), HEAD_BYTES)
        store.claim(name_of(entry(number)), 1)
    store.refresh()
    list(store.names())
    assert len(os.listdir("/proc/self/fd")) == before


# From URLs to stores.


def test_a_place_of_both_kinds_is_opened_once(tmp_path: Path) -> None:
    url = f"disk:{tmp_path}?max=1MiB"
    stores = open_stores(TierConfig(feature_tiers=("host:?max=1MiB", url), kv_tiers=("host:?max=2MiB", url)))
    assert [store.tier for store in stores["features"]] == ["host", "disk"]
    assert stores["alias"] == stores["features"]
    assert stores["kv"][1] is stores["features"][1]
    assert stores["kv"][0] is not stores["features"][0]
    assert open_stores(TierConfig()) == {"features": (), "alias": (), "kv": ()}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("floppy:/a", "a tier begins with host:, disk:, redis:, rediss:, unix:, s3: such as disk:"),
        ("/a", "a tier begins with"),
        ("disk:", "write it as disk:/"),
        ("disk://a/b", "write it as disk:/"),
        ("host:/a", "write it as host:?max=4GiB"),
        ("redis:", "write it as redis://"),
        ("s3://", "write it as s3://bucket"),
        ("host:?max=4", "with max='4'; write a size such as max=20GiB"),
        ("host:?max=0GiB", "with max='0GiB'"),
        ("host:?max=-1GiB", "with max='-1GiB'"),
        ("host:?size=4GiB", "with the option 'size'; allowed are max, timeout_s"),
        ("disk:/a?timeout_s=0", "write seconds above 0 and up to 3600"),
        ("disk:/a?timeout_s=nan", "with timeout_s='nan'"),
        ("s3://a/b?max=4GiB", "leave max out and give the bucket a lifecycle rule"),
        ("redis://:secret@a:1/0?max=no", "redis://***@a:1/0"),
    ],
)
def test_urls_that_are_wrong_say_how(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TierUrl.parse(url, "--feature-tier")
    assert words in caught.value.message
    assert caught.value.message.startswith("--feature-tier is ")
    assert "secret" not in caught.value.message


def test_urls_that_are_right() -> None:
    url = TierUrl.parse("disk:/a b/c%20?d?max=1.5GiB&timeout_s=0.5", "--kv-tier")
    assert (url.place, url.max_bytes, url.timeout_s) == ("/a b/c%20?d", 3 * 2**29, 0.5)
    assert TierUrl.parse("host:", "--kv-tier").max_bytes == 4 * 2**30
    assert TierUrl.parse("disk:here?max=20MB", "--kv-tier").max_bytes == 20_000_000
    assert TierUrl.parse("redis://a:1/0", "--kv-tier").max_bytes is None
    s3 = TierUrl.parse("s3://a/b?endpoint=http://c:9&region=d", "--kv-tier")
    assert (s3.text, s3.options) == ("s3://a/b", {"endpoint": "http://c:9", "region": "d"})
    assert TierUrl.parse("rediss://user:pw@a:1/0", "--kv-tier").shown == "rediss://***@a:1/0"
