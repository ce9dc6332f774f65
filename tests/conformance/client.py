"""How a client speaks to the server under test: requests, streams, broken-off streams, polls.

Owns the wire and its times. Every failure of a connection is part of the reply; nothing here raises for one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

import httpx2

from tests.conformance.reply import Chunk, Reply

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
_LONGEST_S = 300.0  # an answer that takes longer counts as a hang
_REFUSED = (httpx2.ConnectError, httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)


class Client:
    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx2.Timeout(_LONGEST_S, connect=10.0),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Reply:
        return await self._exchange("GET", path, b"", {}, {})

    async def post(
        self,
        body: dict,
        *,
        path: str = CHAT,
        headers: Mapping[str, str] = JSON,
        abort_after_chunks: int | None = None,
        abort_after_s: float | None = None,
    ) -> Reply:
        """The whole answer, or what came of it before the client went away."""
        raw = json.dumps(body).encode()
        return await self._exchange(
            "POST", path, raw, {**JSON, **headers}, body, abort_after_chunks, abort_after_s
        )

    async def post_raw(self, raw: bytes, *, path: str = CHAT, headers: Mapping[str, str] = JSON) -> Reply:
        return await self._exchange("POST", path, raw, headers, {})

    async def _exchange(
        self,
        method: str,
        path: str,
        raw: bytes,
        headers: Mapping[str, str],
        asked: dict,
        abort_after_chunks: int | None = None,
        abort_after_s: float | None = None,
    ) -> Reply:
        reading = _Reading(abort_after_chunks)
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(_LONGEST_S if abort_after_s is None else abort_after_s):
                await self._read(method, path, raw, headers, reading)
        except TimeoutError:
            if abort_after_s is None:
                reading.failure = f"no end within {_LONGEST_S:g} s"
        except httpx2.HTTPError as error:
            reading.failure = f"{type(error).__name__}: {error}".rstrip(": ")
            reading.is_refused = reading.status is None and isinstance(error, _REFUSED)
        return Reply(
            asked=asked,
            path=path,
            status=reading.status,
            body=bytes(reading.body),
            chunks=tuple(reading.chunks),
            failure=reading.failure,
            is_refused=reading.is_refused,
            began_s=began_s,
            ended_s=time.monotonic(),
        )

    async def _read(
        self, method: str, path: str, raw: bytes, headers: Mapping[str, str], reading: _Reading
    ) -> None:
        async with self._http.stream(method, path, content=raw, headers=dict(headers)) as response:
            reading.status = response.status_code
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            async for piece in response.aiter_raw():
                reading.add(piece, is_stream=is_stream)
                if reading.is_enough:
                    return


class _Reading:
    """What has come so far."""

    def __init__(self, max_chunks: int | None) -> None:
        self.status: int | None = None
        self.body = bytearray()
        self.chunks: list[Chunk] = []
        self.failure = ""
        self.is_refused = False
        self._rest = b""
        self._max_chunks = max_chunks

    @property
    def is_enough(self) -> bool:
        return self._max_chunks is not None and len(self.chunks) >= self._max_chunks

    def add(self, piece: bytes, *, is_stream: bool) -> None:
        self.body += piece
        if not is_stream:
            return
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            lines = [line[5:].lstrip() for line in event.splitlines() if line.startswith(b"data:")]
            if lines and not self.is_enough:
                self.chunks.append(Chunk(b"\n".join(lines), time.monotonic()))
