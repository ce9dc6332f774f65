"""Clients that cost little: one process, raw sockets, requests that are bytes made before the clock runs.

Run by server.py: `python -m benchmarks.server_load PORT CLIENTS PAUSE_S SECONDS` reads one JSON list of request bodies
from its standard input; each client asks the next one when it has the whole answer to its last, and has paused. Prints
one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import cycle

import uvloop

END = b"0\r\n\r\n"  # of a chunked body
MARK = b"TAPETUM00000"  # valid base64, of 9 bytes
TAIL = 64  # bytes that hold the last event and the end


class Client(asyncio.Protocol):
    """One connection that is asked again and again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._last = b""  # what came, or the end of it
        self._started_s = 0.0
        self._first_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        if self._first_s is None:
            self._first_s = time.perf_counter()
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the server answers {data[:400]!r}")
        self._load.num_events += data.count(b"data: {")
        self._last = (self._last + data)[-TAIL:]
        if not self._last.endswith(END):
            return
        if b"data: [DONE]" not in self._last:
            raise RuntimeError(f"an answer ends in {data[-400:]!r}")
        self._load.told(self._started_s, self._first_s)
        if self._load.pause_s:
            asyncio.get_running_loop().call_later(self._load.pause_s, self._ask)
        else:
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if self._load.is_running:
            raise RuntimeError(f"the server has closed the connection: {error}")

    def _ask(self) -> None:
        if self._load.is_running:
            self._started_s, self._first_s = time.perf_counter(), None
            self._transport.writelines(next(self._load.requests))
        else:
            self._transport.close()


class Load:
    def __init__(self, bodies: list[str], pause_s: float) -> None:
        self.requests = _requests(bodies)
        self.pause_s = pause_s
        self.is_running = True
        self.num_events = 0
        self.times: list[tuple[float, float, float]] = []  # asked, first bytes, end

    def told(self, started_s: float, first_s: float) -> None:
        self.times.append((started_s, first_s, time.perf_counter()))


def _requests(bodies: list[str]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The bodies again and again; a mark in one is a number that never comes again, so no two requests are equal."""
    parted = [_request(body.encode()).partition(MARK) for body in bodies]
    for number, (head, mark, tail) in enumerate(cycle(parted)):
        yield head, mark and str(number).encode().rjust(len(MARK), b"A"), tail


def _request(body: bytes) -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(port: int, num_clients: int, seconds: float, load: Load) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    failure: asyncio.Future[None] = loop.create_future()
    loop.set_exception_handler(lambda _, told: failure.done() or failure.set_exception(told["exception"]))
    lag(port)  # from here on it counts
    started_s = time.perf_counter()
    for _ in range(num_clients):
        await loop.create_connection(lambda: Client(load), "127.0.0.1", port)
    await asyncio.wait((failure,), timeout=seconds)
    took_s = time.perf_counter() - started_s
    late = lag(port)
    load.is_running = False
    if failure.done():
        failure.result()
    firsts = sorted(first - asked for asked, first, _ in load.times)
    wholes = sorted(end - asked for asked, _, end in load.times)
    return {
        "requests": len(load.times),
        "seconds": took_s,
        "events_per_request": load.num_events / len(load.times),
        "requests_per_s": len(load.times) / took_s,
        "first_ms_p50": 1000 * firsts[len(firsts) // 2],
        "whole_ms_p50": 1000 * wholes[len(wholes) // 2],
        "whole_ms_p99": 1000 * wholes[int(0.99 * (len(wholes) - 1))],
        **{f"lag_ms_{name}": value for name, value in late.items()},
    }


def lag(port: int) -> dict[str, float]:
    """How late the server's event loop was since the last call."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/lag") as answer:
        late: dict[str, float] = json.load(answer)
    return late


if __name__ == "__main__":
    port, num_clients = int(sys.argv[1]), int(sys.argv[2])
    load = Load(json.load(sys.stdin), float(sys.argv[3]))
    print(json.dumps(uvloop.run(run(port, num_clients, float(sys.argv[4]), load))))
