"""Entries as files of one folder, which several processes and starts may share: `KIND/ab/<key>.safetensors`.

A file appears whole (written under another name and renamed) and is never changed. The index of this process is made
from the folder by `refresh`, which also finds what others have added since; a file that they removed is a miss. The
limit counts what files occupy, in whole blocks of the file system. Files are read, not mapped: one that another
program cuts short would end the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tapetum.cache.entries import HEAD_BYTES, BadEntry, peek
from tapetum.cache.leases import MAX_LEASE_S, FolderLeases
from tapetum.cache.tiers import KINDS, Accounts, Buffer, Holdings, Listed, Name, StoreError, TierName
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import shown_bytes
from tapetum.core.tier_urls import TIMEOUT_S

_ENDING = ".safetensors"
_FILE_BLOCK = 4096  # bytes that the smallest file occupies
_FULL = (errno.ENOSPC, errno.EDQUOT)
_STALE_S = MAX_LEASE_S  # after which a half-written file is nobody's any more either
_BETWEEN_LOOKS_S = 10.0  # at what others have added, or longer where a look takes long
_LOOKS_SHARE = 50.0  # of the time between two looks, a look takes at most one part of so many


class DiskStore:
    tier: TierName = "disk"

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for a folder that cannot be made or written to; a full disk can be read from, and is
        written to as entries go. The clock is that of all processes."""
        self.timeout_s = timeout_s
        self._folder = folder
        self._partial = folder / "partial"
        self._leases = FolderLeases(folder / "leases", clock)
        self._accounts = Accounts(max_bytes)
        # of the accounts and of removing files; never held while one is read or written
        self._lock = threading.Lock()
        self._next_look = 0.0  # on the monotonic clock
        try:
            for part in (*(folder / kind for kind in KINDS), self._partial, folder / "leases"):
                part.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            self._probe()
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written to: {error.strerror}; make it writable or name another folder"
            ) from error

    def knows(self, name: Name) -> bool | None:
        return True if name in self._accounts else None

    def holdings(self) -> Holdings:
        return self._accounts.holdings()

    def read(self, name: Name) -> Buffer | None:
        path = self._path(name)
        with _told(f"read {path}"):
            found = _read_file(path)
            if found is not None:
                with contextlib.suppress(OSError):  # a folder that may only be read
                    os.utime(path)
        with self._lock:
            if found is None:
                self._accounts.remove(name)
            else:
                self._accounts.use(name)
        return found

    def read_head(self, name: Name, num_bytes: int) -> bytes | None:
        with _told(f"read {self._path(name)}"):
            return _read_file(self._path(name), num_bytes)

    def use(self, names: Sequence[Name]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                os.utime(self._path(name))
            with self._lock:
                self._accounts.use(name)

    def write(self, name: Name, buffers: Sequence[Buffer], cost_s: float) -> None:
        size = _occupied(sum(memoryview(buffer).nbytes for buffer in buffers))
        path = self._path(name)
        if not self._accounts.can_hold(size):
            return
        with _told(f"write {path}"):
            if time.monotonic() >= self._next_look:
                self.refresh()
            if path.exists():
                self._note(name, path, cost_s)
                return
            with self._lock:
                self._delete(self._accounts.make_room(size))
            try:
                self._write_file(path, buffers)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                with self._lock:  # others fill the disk: our share of it is smaller than the limit
                    self._delete(self._accounts.shed(size))
                self._write_file(path, buffers)
            self._note(name, path, cost_s)

    def remove(self, name: Name) -> None:
        with _told(f"remove {self._path(name)}"), self._lock:
            self._path(name).unlink(missing_ok=True)
            self._accounts.remove(name)

    def names(self) -> Iterator[Listed]:
        with _told(f"list {self._folder}"):
            for name, entry in self._scan():
                with contextlib.suppress(FileNotFoundError):
                    yield Listed(name, entry.stat().st_size)

    def claim(self, name: Name, seconds: float) -> bool:
        with _told("claim a lease"):
            return self._leases.claim(name, seconds)

    def release(self, name: Name) -> None:
        with _told("release a lease"):
            self._leases.release(name)

    def refresh(self) -> None:
        """Make the index again from the folder, least recently used first."""
        started = time.monotonic()
        self._next_look = started + _BETWEEN_LOOKS_S  # for other threads meanwhile
        found = {}
        with _told(f"list {self._folder}"):
            for name, entry in self._scan():
                with contextlib.suppress(FileNotFoundError):
                    found[name] = entry.stat()
            fresh = [name for name in found if name not in self._accounts]
            fresh.sort(key=lambda name: found[name].st_mtime_ns)
            costs = {name: self._cost(name) for name in fresh}
            with self._lock:
                for name in self._accounts.names:
                    if name not in found and not self._path(name).exists():
                        self._accounts.remove(name)
                for name in fresh:  # but what was removed since the look
                    if name not in self._accounts and self._path(name).exists():
                        self._accounts.add(name, _occupied(found[name].st_size), costs[name])
                self._delete(self._accounts.make_room(0))
        took = time.monotonic() - started
        self._next_look = started + max(_BETWEEN_LOOKS_S, _LOOKS_SHARE * took)

    def remarks(self, max_bytes: int | None) -> tuple[str, ...]:
        with _told(f"look at {self._folder}"):
            free = shutil.disk_usage(self._folder).free
            held = sum(_occupied(each.num_bytes) for each in self.names())
        room = free + held
        if max_bytes is None or max_bytes <= room:
            return ()
        return (f"the disk has room for {shown_bytes(room)} only; lower max, or make room on the disk",)

    def close(self) -> None:
        """No file is open between two calls."""

    def _path(self, name: Name) -> Path:
        key = name.key.hex()
        return self._folder / name.kind / key[:2] / f"{key}{_ENDING}"

    def _write_file(self, path: Path, buffers: Sequence[Buffer]) -> None:
        for folder in (path.parent, self._partial):
            folder.mkdir(parents=True, exist_ok=True)
        partial = self._partial / secrets.token_hex(8)
        try:
            with partial.open("xb") as file:
                for buffer in buffers:
                    file.write(buffer)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _probe(self) -> None:
        probe = self._partial / f"probe-{secrets.token_hex(8)}"
        try:
            self._write_file(probe, [b"probe"])
            probe.unlink()
        except OSError as error:
            if error.errno not in _FULL:
                raise

    def _note(self, name: Name, path: Path, cost_s: float) -> None:
        """The file is there, whoever has written it: it was used."""
        size = _occupied(path.stat().st_size)
        with self._lock:
            if name in self._accounts:
                self._accounts.use(name)
            else:
                self._accounts.add(name, size, cost_s)

    def _delete(self, evicted: Sequence[Name]) -> None:
        for name in evicted:
            self._path(name).unlink(missing_ok=True)

    def _scan(self) -> Iterator[tuple[Name, os.DirEntry[str]]]:
        for kind in KINDS:
            for part in _listed(self._folder / kind):
                for entry in _listed(part.path) if part.is_dir() else ():
                    with contextlib.suppress(ValueError):  # some other file
                        stem, ending = os.path.splitext(entry.name)
                        if ending == _ENDING:
                            yield Name(kind, bytes.fromhex(stem)), entry

    def _cost(self, name: Name) -> float:
        """What its header says; nothing for one that cannot be read, so it is evicted first."""
        head = _read_file(self._path(name), HEAD_BYTES)
        try:
            return peek(head)[1] if head else 0.0
        except BadEntry:
            return 0.0

    def _remove_stale(self) -> None:
        for folder in (self._partial, self._folder / "leases"):
            for entry in _listed(folder):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime < time.time() - _STALE_S:
                        os.unlink(entry.path)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what}: {error.strerror or error}") from error


def _occupied(num_bytes: int) -> int:
    return -(-num_bytes // _FILE_BLOCK) * _FILE_BLOCK


def _read_file(path: Path, num_bytes: int = -1) -> bytes | None:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(num_bytes)
    except FileNotFoundError:
        return None


def _listed(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:  # removed meanwhile
        return []
