"""One server as a process: started on a free port of this machine, asked for its health, stopped with its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2

from tapetum.bench.guard import tree_s
from tapetum.bench.load import Answer, Target, client_at
from tapetum.bench.peers import Peer
from tapetum.bench.workloads import first_token
from tapetum.core.errors import EngineError

_START_LIMIT_S = 900.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.02
_IDLE_S = 1.0
_SPIN_LIMIT = 0.05  # cores of a server that nobody asks
_LOWER = ("nice", "-n", "3")  # the process that asks has a turn before the servers: its times are to be right


class Launched:
    """A running server. Leave it with `stop`, whatever happened."""

    def __init__(self, peer: Peer, log: Path) -> None:
        self.peer = peer
        self._log = log
        self._port = _free_port()
        self._started_s = time.perf_counter()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*_LOWER, *peer.command, "--host", "127.0.0.1", "--port", str(self._port)],
                env={**os.environ, **peer.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self) -> httpx2.AsyncClient:
        return client_at(f"http://127.0.0.1:{self._port}")

    def target(self, client: httpx2.AsyncClient) -> Target:
        return Target(client, self.peer.model, self.peer.fields)

    async def first_token(self) -> tuple[float, float]:
        """Seconds from the start until the server was healthy, and until its first token had come."""
        async with self.client() as client:
            while not await self._is_healthy(client):
                self._check()
                await asyncio.sleep(_POLL_S)
            healthy_s = time.perf_counter() - self._started_s
            answer: Answer = await self.target(client).ask(first_token())
        if answer.fault:
            raise EngineError(f"{self.peer.label} does not answer: {answer.fault}; its log is {self._log}")
        return healthy_s, time.perf_counter() - self._started_s

    def spins(self) -> bool:
        """Whether it uses the processor while nobody asks; takes a second."""
        before_s = tree_s(self.pid)
        time.sleep(_IDLE_S)
        return (tree_s(self.pid) - before_s) / _IDLE_S > _SPIN_LIMIT

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):  # the whole session has ended
                os.killpg(self.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_LIMIT_S)

    async def _is_healthy(self, client: httpx2.AsyncClient) -> bool:
        try:
            return (await client.get("/health", timeout=5)).status_code == 200
        except httpx2.HTTPError:
            return False

    def _check(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise EngineError(f"{self.peer.label} has ended with {code}; its log is {self._log}")
        if time.perf_counter() - self._started_s > _START_LIMIT_S:
            raise EngineError(
                f"{self.peer.label} is not healthy after {_START_LIMIT_S:g} s; its log is {self._log}"
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
