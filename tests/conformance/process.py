"""One server process of ours and the processes it started: begin, signals, memory, log, end.

Owns what only the operating system can tell, read from /proc. Does not own what the server says over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WORKER = "tapetum.engine.process"  # a word on the command line of the engine process
_TURN_S = 0.02
_KILL_AFTER_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a start went: ready, ended with a code, or neither within the time."""

    is_ready: bool
    exit_code: int | None
    seconds: float
    flags: tuple[str, ...]
    log: str


@dataclass(frozen=True)
class Process:
    """Told apart from a later one of the same number by when it started."""

    pid: int
    started: str
    parent: int = field(compare=False)
    command: str = field(compare=False)


class ServerProcess:
    """Started on a free port in a session of its own; `log` collects all it prints."""

    def __init__(self, command: Sequence[str], flags: Sequence[str], log_path: Path) -> None:
        self.flags = tuple(flags)
        self.url = f"http://127.0.0.1:{(port := _free_port())}"
        self._log_path = log_path
        self._seen: set[Process] = set()
        self.ended_s: float | None = None
        with log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                [*command, *flags, "--host", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; below 0 where a signal ended it."""
        code = self._popen.poll()
        if code is not None and self.ended_s is None:
            self.ended_s = time.monotonic()
        return code

    @property
    def log_size(self) -> int:
        return self._log_path.stat().st_size

    def log(self, since: int = 0) -> str:
        with self._log_path.open("rb") as log:
            log.seek(since)
            return log.read().decode("utf-8", "replace")

    def send(self, target: str, name: str) -> None:
        """Send SIGTERM or SIGKILL to the server or to its worker, and remember who ran at that moment."""
        tree = self.tree()
        self._seen |= set(tree)
        pids = (
            [self._popen.pid] if target == "server" else [item.pid for item in tree if WORKER in item.command]
        )
        if not pids:
            raise ProcessLookupError(f"the server has no process with {WORKER} on its command line")
        for pid in pids:
            os.kill(pid, signal.Signals[f"SIG{name}"])

    def tree(self) -> list[Process]:
        """The server and all that descend from it."""
        processes = list(_processes())
        found = [item for item in processes if item.pid == self._popen.pid]
        for owner in found:
            found += [item for item in processes if item.parent == owner.pid]
        return found

    def orphans(self) -> list[Process]:
        """What ran when a signal was sent, still runs, and is no longer below the server."""
        return sorted((self._seen & set(_processes())) - set(self.tree()), key=lambda item: item.pid)

    def resident_bytes(self) -> int:
        return sum(_status_kib(item.pid, "VmRSS") for item in self.tree()) * 1024

    def forget_peak(self) -> None:
        """From here on `peak_bytes` tells the most that was resident since."""
        for item in self.tree():
            Path(f"/proc/{item.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        return sum(_status_kib(item.pid, "VmHWM") for item in self.tree()) * 1024

    async def until_ended(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.exit_code is None and time.monotonic() < deadline:
            await asyncio.sleep(_TURN_S)
        return self.exit_code is not None

    async def stop(self) -> None:
        """End it, softly unless it has been signalled before, and with it all that it started."""
        is_spent = bool(self._seen)
        ours = self._seen | set(self.tree())
        if self.exit_code is None and not is_spent:
            self._popen.terminate()
            await self.until_ended(_KILL_AFTER_S)
        for item in ours & set(_processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(item.pid, signal.SIGKILL)
        await self.until_ended(_KILL_AFTER_S)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _processes() -> Iterator[Process]:
    """All processes that live; those that only wait to be buried are left out."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it has ended meanwhile
            continue
        if fields[0] not in "ZX":
            yield Process(int(entry.name), fields[19], int(fields[1]), command)


def _status_kib(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
