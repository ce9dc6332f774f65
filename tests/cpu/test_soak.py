"""Many clients of all kinds at once, a fifth of whom leave at some point: nothing is lost, nothing stays behind.

The server is the one users start, with caches so small that they are full early on.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import signal
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx2
import pytest
from PIL import Image

from tests.cpu.served_kit import Served
from tests.cpu.server_kit import eventually

FLAGS = (
    "--max-model-len=512",
    "--max-num-seqs=8",
    "--kv-cache-memory=0.02",
    "--feature-cache-gib=0.001",
    "--enable-debug-endpoints",
)
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CLIENTS = 8
LEAVE = 0.2  # of the clients
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["S", "M"]}, "paid": {"type": "boolean"}},
    "required": ["size", "paid"],
    "additionalProperties": False,
}
SHAPED = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}}


@dataclass(frozen=True)
class Ask:
    """One request: what is sent, what it must come to, and when its client leaves, in seconds, if it does."""

    path: str
    body: bytes
    statuses: tuple[int, ...] = (200,)
    num_choices: int = 1
    leaves_after_s: float | None = None


class Clients:
    """Draws requests. Equal seeds draw equal ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pictures = [self._picture() for _ in range(6)]
        self._kinds: list[tuple[int, Callable[[], Ask]]] = [
            (4, lambda: self._chat(self._words())),
            (4, lambda: self._chat([self._part(), self._text()])),
            (2, lambda: self._chat([self._part(), self._part(), self._text()])),
            (2, lambda: self._chat(self._words(), n=self._random.randint(2, 4), seed=1)),
            (2, lambda: self._chat(self._words(), response_format=SHAPED, max_tokens=60)),
            (2, lambda: self._ask(TEXT, prompt=self._words(), **self._terms())),
            (
                2,
                lambda: self._ask(RESPONSES, input=self._words(), stream=self._stream(), max_output_tokens=8),
            ),
            (2, self._wrong),
        ]

    def draw(self) -> Ask:
        weights, kinds = zip(*self._kinds, strict=True)
        ask: Ask = self._random.choices(kinds, weights)[0]()
        leaves = self._random.random() < LEAVE
        after_s = self._random.uniform(0, 0.3) if leaves else None
        return Ask(ask.path, ask.body, ask.statuses, ask.num_choices, after_s)

    def _chat(self, content: object, statuses: tuple[int, ...] = (200,), **fields: object) -> Ask:
        messages = [{"role": "user", "content": content}]
        return self._ask(CHAT, statuses, messages=messages, **{**self._terms(), **fields})

    def _ask(self, path: str, statuses: tuple[int, ...] = (200,), **fields: object) -> Ask:
        num_choices = fields.get("n", 1)
        assert isinstance(num_choices, int)
        return Ask(path, json.dumps(fields).encode(), statuses, num_choices)

    def _wrong(self) -> Ask:
        """A request at fault, and the status that tells it."""
        broken = self._pictures[0][: self._random.randint(0, 40)]
        return self._random.choice(
            (
                lambda: self._chat(self._words(), (400,), temperature=-1),
                lambda: self._chat(self._words(), (404,), model="nobody"),
                lambda: self._chat("long " * 2000, (400,)),
                lambda: self._chat([self._part(broken)], (400,)),
                lambda: self._chat(self._words(), (408,), timeout_s=1e-6),
                lambda: Ask(CHAT, b'{"messages": [', (400,)),
                lambda: self._ask("/v1/nowhere", (404,)),
            )
        )()

    def _terms(self) -> dict[str, object]:
        terms: dict[str, object] = {
            "max_tokens": self._random.choice((1, 4, 16, 40)),
            "stream": self._stream(),
        }
        if self._random.random() < 0.5:
            terms |= {"temperature": 1.0, "ignore_eos": True}
        return terms

    def _stream(self) -> bool:
        return self._random.random() < 0.5

    def _words(self) -> str:
        return " ".join(
            self._random.choices(("red", "total", "shop", "of", "what", "a"), k=self._random.randint(1, 60))
        )

    def _text(self) -> dict[str, object]:
        return {"type": "text", "text": self._words()}

    def _part(self, data: bytes | None = None) -> dict[str, object]:
        """One of the pictures that come again and again, or one that comes once."""
        if data is None:
            data = self._picture() if self._random.random() < 0.3 else self._random.choice(self._pictures)
        return {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{b64encode(data).decode()}"},
        }

    def _picture(self) -> bytes:
        width, height = self._random.randint(28, 160), self._random.randint(28, 160)
        file = io.BytesIO()
        Image.frombytes("L", (width, height), self._random.randbytes(width * height)).save(file, "PNG")
        return file.getvalue()


@dataclass
class Findings:
    faults: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    num_answers: int = 0  # choices that were answered whole
    num_left: int = 0  # choices whose client left, or did not get them
    memory_bytes: list[int] = field(default_factory=list)  # after each request


async def soak(served: Served, asks: Sequence[Ask], word: str) -> Findings:
    findings = Findings()
    left = iter(enumerate(asks))
    async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:

        async def work() -> None:
            for number, ask in left:
                try:
                    async with asyncio.timeout(ask.leaves_after_s):
                        await one(client, f"{word}-{number}", ask, findings)
                except TimeoutError:
                    findings.num_left += ask.num_choices
                findings.memory_bytes.append(tree_bytes(served.process.pid))

        await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return findings


async def one(client: httpx2.AsyncClient, name: str, ask: Ask, findings: Findings) -> None:
    headers = {"content-type": "application/json", "x-request-id": name}
    response = await client.post(ask.path, content=ask.body, headers=headers)
    findings.statuses[response.status_code] += 1
    if response.status_code not in ask.statuses:
        findings.faults.append(f"{name}: {response.status_code}, not {ask.statuses}: {response.text[:300]}")
    elif response.status_code != 200:
        assert response.json()["error"]["message"]
    elif problem := incomplete(response, ask):
        findings.faults.append(f"{name}: {problem}: {response.text[-300:]}")
    else:
        findings.num_answers += ask.num_choices


def incomplete(response: httpx2.Response, ask: Ask) -> str | None:
    """What an answer lacks."""
    if response.headers["content-type"].startswith("application/json"):
        records = [response.json()]
    elif ask.path == RESPONSES:
        return (
            None if re.search("^event: response.(completed|incomplete)$", response.text, re.M) else "no end"
        )
    else:
        *data, last = re.findall(r"^data: (.*)$", response.text, re.MULTILINE)
        if last != "[DONE]":
            return "no end"
        records = [json.loads(line) for line in data]
    if ask.path == RESPONSES:
        return None if records[0]["status"] in ("completed", "incomplete") else "no end"
    ends = Counter(
        choice["index"]
        for record in records
        for choice in record.get("choices", ())
        if choice["finish_reason"] is not None
    )
    return None if ends == Counter(range(ask.num_choices)) else f"ends of choices {ends}"


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and its children."""
    folder = Path("/proc") / str(pid)
    try:
        pages = int((folder / "statm").read_text().split()[1])
        children = [child for task in folder.glob("task/*/children") for child in task.read_text().split()]
    except FileNotFoundError:
        return 0
    return pages * 4096 + sum(tree_bytes(int(child)) for child in children)


def readings(served: Served, pattern: str) -> list[float]:
    """The values of all metrics that match."""
    text = httpx2.get(f"{served.url}/metrics", timeout=10).text
    return [
        float(line.split()[-1])
        for line in text.splitlines()
        if re.match(f"tapetum:({pattern})(\\{{|_total)", line)
    ]


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served(*FLAGS)
    yield server
    assert server.end(signal.SIGTERM) == 0
    assert "Traceback" not in "".join(server.log)


@pytest.mark.parametrize(
    "count", [150, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_soak(served: Served, count: int) -> None:
    clients = Clients(seed=count)
    asks = [clients.draw() for _ in range(count)]
    asyncio.run(soak(served, asks[: count // 10], "warm"))  # caches and allocators fill
    before = sum(readings(served, "request_success"))
    findings = asyncio.run(soak(served, asks, "soak"))

    assert findings.faults == []
    assert max(findings.statuses) < 500
    assert min(findings.statuses[200], findings.statuses[400], findings.num_left) > count / 40

    held = "num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    assert eventually(lambda: sum(readings(served, held)) == 0), "requests or blocks stay behind"
    ended = sum(readings(served, "request_success")) - before
    assert findings.num_answers <= ended <= findings.num_answers + findings.num_left + findings.statuses[408]
    httpx2.post(f"{served.url}/debug/reset_caches", timeout=10).raise_for_status()
    assert sum(readings(served, "kv_blocks|tier_bytes")) == 0, "something still holds blocks or features"

    lines = [json.loads(line) for line in served.log if '"soak-' in line]
    ends = Counter(line["client_request_id"] for line in lines)
    assert set(ends.values()) == {1}, "a request ends once"
    assert len(ends) >= sum(findings.statuses.values()), "a request that was answered has ended"

    fifth = len(findings.memory_bytes) // 5
    middle, last = (median(findings.memory_bytes[n * fifth : (n + 1) * fifth]) for n in (2, 4))
    assert last <= 1.05 * middle, f"memory grows from {middle / 2**20:.0f} to {last / 2**20:.0f} MiB"
