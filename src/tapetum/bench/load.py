"""The client that is timed: streams answers of any OpenAI-compatible server and notes when each piece came.

Owns the clock of a question: it starts with the first byte sent, the body is encoded before. A question that fails is
an answer with a fault, never an end of the run. Connections are used once, as some servers close idle ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import httpx2
import msgspec
from msgspec import Struct

from tapetum.bench.workloads import Ask, Paced, Script

_PATH = "/v1/chat/completions"
_TIMEOUT_S = 900.0
_MAX_FAULT = 300  # characters of a message that are kept
_NEWLINE = b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Times in seconds from the question; `pieces_s` has one for each event with text."""

    pieces_s: tuple[float, ...] = ()
    end_s: float = 0.0
    num_prompt_tokens: int | None = None
    num_tokens: int = 0
    fault: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0]

    @property
    def tpot_s(self) -> float:
        """Servers may send several tokens in one event, so tokens count, not events; all in one end with the answer."""
        last_s = self.pieces_s[-1] if len(self.pieces_s) > 1 else self.end_s
        return (last_s - self.pieces_s[0]) / max(1, self.num_tokens - 1)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self.pieces_s, self.pieces_s[1:], strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answers of a script, in its order."""

    lanes: tuple[tuple[Answer, ...], ...]
    paced: tuple[Answer, ...]
    wall_s: float

    @property
    def answers(self) -> tuple[Answer, ...]:
        return (*(answer for lane in self.lanes for answer in lane), *self.paced)


class Target:
    """One server: its client, what it calls the model, and the fields it wants for an answer of so many tokens."""

    def __init__(
        self, client: httpx2.AsyncClient, model: str, fields: Callable[[int], Mapping[str, object]]
    ) -> None:
        self._client = client
        self._model = model
        self._fields = fields

    async def ask(self, ask: Ask) -> Answer:
        body = {
            "model": self._model,
            **self._fields(ask.max_tokens),
            "messages": ask.messages,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            return await self._timed(msgspec.json.encode(body))
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            return Answer(fault=f"{type(error).__name__}: {error}"[:_MAX_FAULT])

    async def _timed(self, body: bytes) -> Answer:
        pieces: list[float] = []
        usage = _Usage()
        headers = {"content-type": "application/json"}
        started_s = time.perf_counter()
        async with self._client.stream("POST", _PATH, content=body, headers=headers) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                return Answer(fault=f"status {response.status_code}: {text}"[:_MAX_FAULT])
            async for event in _events(response):
                now_s = time.perf_counter() - started_s
                chunk = _decode(event)
                if chunk.error is not None:
                    return Answer(fault=str(chunk.error)[:_MAX_FAULT])
                usage = chunk.usage or usage
                pieces += [now_s for choice in chunk.choices if choice.delta.content]
        if not pieces:
            return Answer(fault="an answer without text")
        return Answer(
            pieces_s=tuple(pieces),
            end_s=time.perf_counter() - started_s,
            num_prompt_tokens=usage.prompt_tokens,
            num_tokens=usage.completion_tokens or len(pieces),
        )


def client_at(url: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx2.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits)


async def run_script(target: Target, script: Script) -> Outcome:
    started_s = time.perf_counter()
    ended = asyncio.Event()
    paced = asyncio.create_task(_pace(target, script.paced, ended))
    await asyncio.sleep(script.lead_s)
    lanes = await asyncio.gather(*(_lane(target, lane) for lane in script.lanes))
    if lanes:  # paced questions alone are all asked
        ended.set()
    return Outcome(lanes=tuple(lanes), paced=await paced, wall_s=time.perf_counter() - started_s)


async def _lane(target: Target, asks: tuple[Ask, ...]) -> tuple[Answer, ...]:
    return tuple([await target.ask(ask) for ask in asks])


async def _pace(target: Target, questions: tuple[Paced, ...], ended: asyncio.Event) -> tuple[Answer, ...]:
    tasks = []
    for question in questions:
        if ended.is_set():
            break
        tasks.append(asyncio.create_task(target.ask(question.ask)))
        await _sleep_until(ended, question.pause_s)
    return tuple(await asyncio.gather(*tasks))


async def _sleep_until(ended: asyncio.Event, pause_s: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), pause_s)
    except TimeoutError:
        return


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events, without the mark at the end."""
    tail = b""
    async for received in response.aiter_bytes():
        *lines, tail = (tail + received).split(_NEWLINE)
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data and data != b"[DONE]":
                yield data


class _Delta(Struct, frozen=True):
    content: str | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode
