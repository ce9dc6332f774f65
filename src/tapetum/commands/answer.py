"""One streamed answer, read from any OpenAI-compatible server.

Owns what is known of the answer so far; a reader that is cancelled leaves it as far as it came.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping

import httpx2
import msgspec
from msgspec import Struct

from tapetum.core.errors import EngineError, RequestError, TapetumError


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(Struct, frozen=True):
    completion_tokens: int


class _Error(Struct, frozen=True):
    message: str


class _Chunk(Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_UNAUTHORIZED = 401
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """`show` gets each piece of text and whether the model only thinks it."""

    def __init__(self, show: Callable[[str, bool], None]) -> None:
        self._show = show
        self.text = ""
        self.finish_reason: str | None = None
        self.num_tokens: int | None = None
        self.first_s: float | None = None  # from the question to the first piece
        self.seconds = 0.0

    async def read(self, client: httpx2.AsyncClient, request: Mapping[str, object]) -> None:
        """Raises TapetumError when there is none, or when it breaks off."""
        started_s = time.perf_counter()
        body = {**request, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                if not response.is_success:
                    raise refusal(response.status_code, await response.aread())
                async for event in _events(response):
                    self._note(event, started_s)
        finally:
            self.seconds = time.perf_counter() - started_s

    def _note(self, event: bytes, started_s: float) -> None:
        try:
            chunk = _decode_chunk(event)
        except msgspec.DecodeError as error:
            raise EngineError(f"the server streams what is no answer: {error}") from error
        if chunk.error:
            raise EngineError(chunk.error.message)
        if chunk.usage:
            self.num_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
            self._piece(choice.delta.reasoning_content or "", True, started_s)
            self._piece(choice.delta.content or "", False, started_s)

    def _piece(self, text: str, is_thought: bool, started_s: float) -> None:
        if not text:
            return
        if self.first_s is None:
            self.first_s = time.perf_counter() - started_s
        if not is_thought:
            self.text += text
        self._show(text, is_thought)


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events. Lines end at newlines only: text may hold other separators."""
    tail = b""
    async for received in response.aiter_bytes():
        *lines, tail = (tail + received).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if len(data) < len(line) and line.startswith(b"data:") and data != b"[DONE]":
                yield data


def refusal(status: int, body: bytes) -> TapetumError:
    """What a server says instead of what it was asked for."""
    try:
        error = _decode_chunk(body).error
    except msgspec.DecodeError:
        error = None
    message = error.message if error else f"the server answers with status {status}"
    if status == _UNAUTHORIZED:
        message = f"{message}; --api-key takes the key"
    return RequestError(message) if status < 500 else EngineError(message)
