"""Which server a case runs against: one at a time, started again only when its settings differ.

Owns starts and ends of servers and what is measured on one with default settings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.process import ServerProcess, Start
from tests.conformance.server import LiveServer

COMMON = ("--enable-debug-endpoints", "--dtype", "float32")


class StartFailed(Exception):
    """A server that a case needs does not start."""


class Unavailable(Exception):
    """What a case needs cannot be done to a server that somebody else runs."""


class Fleet:
    """`command` starts servers; `url` is one that runs already, used for everything that needs no settings."""

    def __init__(self, command: Sequence[str] | None, url: str | None) -> None:
        self._command = command
        self._url = url
        self._logs = tempfile.TemporaryDirectory(prefix="conformance-")
        self._num_starts = 0
        self._server: LiveServer | None = None
        self._flags: tuple[str, ...] | None = None  # of a server of ours

    @property
    def folder(self) -> Path:
        """For files of this run."""
        return Path(self._logs.name)

    async def serving(self, flags: tuple[str, ...], *, needs_process: bool = False) -> LiveServer:
        """A ready server with these settings; `needs_process`: it must be a process of ours."""
        is_theirs = self._url is not None and not flags and not (needs_process and self._command)
        if is_theirs and needs_process:
            raise Unavailable("needs a server process of its own")
        wanted = None if is_theirs else flags
        if self._server is not None and self._server.is_running and self._flags == wanted:
            return self._server
        if is_theirs:
            await self._end()
            self._server = LiveServer(str(self._url))
            return self._server
        start = await self.start(flags)
        if not start.is_ready:
            settings = " ".join(flags) or "default settings"
            raise StartFailed(f"the server with {settings} does not start: {start.log[-2000:]}")
        return self.current

    async def start(self, flags: tuple[str, ...]) -> Start:
        """A fresh server, ready or not; the one before is ended first."""
        if self._command is None:
            raise Unavailable(f"needs a server of its own, with {' '.join(flags) or 'default settings'}")
        await self._end()
        self._num_starts += 1
        process = ServerProcess([*self._command, *COMMON], flags, self.folder / f"{self._num_starts}.log")
        self._server, self._flags = LiveServer(process.url, process, _key_of(flags)), flags
        return await self._server.until_ready(flags)

    @property
    def current(self) -> LiveServer:
        assert self._server is not None
        return self._server

    def retire(self) -> None:
        """Let no later case have the server that runs, if it is ours."""
        if self._server is not None and self._server.process is not None:
            self._server.is_spent = True

    async def close(self) -> None:
        await self._end()
        self._logs.cleanup()

    async def _end(self) -> None:
        if self._server is not None:
            await self._server.close()
        self._server = self._flags = None


def _key_of(flags: tuple[str, ...]) -> str | None:
    """A key that the server takes, where it wants one."""
    return flags[flags.index("--api-key") + 1] if "--api-key" in flags else None
