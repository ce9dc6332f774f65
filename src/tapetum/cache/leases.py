"""Leases as files of one folder: who may make an entry while others wait for it.

A file is made by one process only and says until when, on the clock that all processes share. One that has ended may
be taken over; two that see that at the same moment may both get it, and then do the same work twice.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

from tapetum.cache.tiers import Name

MAX_LEASE_S = 600.0  # an older file is of a process that has died


class FolderLeases:
    """Methods raise OSError for whatever is wrong with the folder."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock
        self._owner = secrets.token_hex(8)

    def claim(self, name: Name, seconds: float) -> bool:
        path = self._path(name)
        if self._try_create(path, seconds):
            return True
        if _end(path) > self._clock():
            return False
        path.unlink(missing_ok=True)
        return self._try_create(path, seconds)

    def release(self, name: Name) -> None:
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError):
            if path.read_text().endswith(self._owner):
                path.unlink()

    def _path(self, name: Name) -> Path:
        return self._folder / f"{name.kind}-{name.key.hex()}"

    def _try_create(self, path: Path, seconds: float) -> bool:
        try:
            with path.open("x") as file:
                file.write(f"{self._clock() + min(seconds, MAX_LEASE_S):.3f} {self._owner}")
        except FileExistsError:
            return False
        return True


def _end(path: Path) -> float:
    """When the lease ends. That of a file which is still being written is far, of one that is gone or odd past."""
    try:
        text = path.read_text()
        return float(text.split()[0]) if text else path.stat().st_mtime + MAX_LEASE_S
    except (FileNotFoundError, ValueError):
        return 0.0
