"""The server under test: a process of ours or one that somebody else runs, and all that it may be asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from tests.conformance.client import Client
from tests.conformance.exposition import Numbers
from tests.conformance.observation import Unmet
from tests.conformance.process import Process, ServerProcess, Start
from tests.conformance.reply import Reply
from tests.conformance.trial import PromptSeen, Segment, Span

START_S = 90.0  # a start that takes longer counts as a hang
_TURN_S = 0.05


class LiveServer:
    """`process` is None for a server that is not ours. `client` is anybody; questions about the engine bring `key`."""

    def __init__(self, url: str, process: ServerProcess | None = None, key: str | None = None) -> None:
        self.client = Client(url)
        self._insider = Client(url, {} if key is None else {"authorization": f"Bearer {key}"})
        self.process = process
        self.is_spent = False  # it was signalled: nobody else may use it

    async def until_ready(self, flags: Sequence[str], within_s: float = START_S) -> Start:
        """Wait for /ready, or for /health where there is no /ready."""
        assert self.process is not None
        began_s = time.monotonic()
        is_ready = False
        while not is_ready and self.process.exit_code is None and time.monotonic() < began_s + within_s:
            is_ready = await self._is_ready()
            await asyncio.sleep(0 if is_ready else _TURN_S)
        return Start(
            is_ready=is_ready,
            exit_code=self.process.exit_code,
            seconds=time.monotonic() - began_s,
            flags=tuple(flags),
            log=self.process.log(),
        )

    @property
    def is_running(self) -> bool:
        return not self.is_spent and (self.process is None or self.process.exit_code is None)

    async def close(self) -> None:
        await self.client.close()
        await self._insider.close()
        if self.process is not None:
            await self.process.stop()

    async def context(self) -> int:
        """Tokens of prompt and answer together."""
        reply = await self._insider.get("/v1/models")
        try:
            return int(reply.documents[0]["data"][0]["max_model_len"])
        except (LookupError, TypeError) as error:
            raise Unmet(f"/v1/models tells max_model_len; seen: {reply.outcome}") from error

    async def post(self, body: dict) -> Reply:
        return await self._insider.post(body)

    async def measure_picture(self, part: dict) -> tuple[int, int]:
        """Visual tokens of a picture and the bytes of its features; empties the caches to see the difference."""
        await self.reset_caches()
        before = (await self.numbers()).tier_bytes("features")
        content = [part, {"type": "text", "text": "?"}]
        reply = await self.post({"messages": [{"role": "user", "content": content}], "max_tokens": 1})
        if not reply.is_whole:
            raise Unmet(f"the picture that settings are told in is answered alone; seen: {reply.outcome}")
        visual_tokens = (reply.usage or {})["prompt_tokens_details"]["visual_tokens"]
        return visual_tokens, int((await self.numbers()).tier_bytes("features") - before)

    async def num_prompt_tokens(self, body: dict) -> int | None:
        """Told with an answer of one token; None for a prompt that is refused."""
        return (await self.post({**body, "max_tokens": 1, "stream": False})).prompt_tokens

    async def prompt_of(self, body: dict) -> PromptSeen:
        reply = await self._insider.post(body, path="/debug/prompt")
        if reply.status != 200:
            raise Unmet(
                f"/debug/prompt tells the prompt, with --enable-debug-endpoints; seen: {reply.outcome}"
            )
        report = reply.documents[0]
        return PromptSeen(
            spans=[Span(span["kind"], span["start"], span["end"], span["key"]) for span in report["spans"]],
            segments=[Segment(part["kind"], part.get("text") or "") for part in report["segments"]],
            turns=[turn["role"] for turn in report["turns"]],
        )

    async def numbers(self) -> Numbers:
        reply = await self._insider.get("/metrics")
        if reply.status != 200:
            raise Unmet(f"/metrics tells the numbers; seen: {reply.outcome}")
        return Numbers(reply.body.decode())

    async def reset_caches(self) -> None:
        reply = await self._insider.post({}, path="/debug/reset_caches")
        if reply.status != 200:
            raise Unmet(f"/debug/reset_caches empties the caches; seen: {reply.outcome}")

    async def check_health(self) -> None:
        reply = await self._insider.get("/health")
        if reply.status != 200:
            raise Unmet(f"/health is 200; seen: {reply.outcome}")

    async def ended(self, within_s: float) -> tuple[int, float] | None:
        if self.process is None or not await self.process.until_ended(within_s):
            return None
        assert self.process.exit_code is not None
        assert self.process.ended_s is not None
        return self.process.exit_code, self.process.ended_s

    async def orphans(self, within_s: float) -> Sequence[Process]:
        if self.process is None:
            return ()
        deadline_s = time.monotonic() + within_s
        while (left := self.process.orphans()) and time.monotonic() < deadline_s:
            await asyncio.sleep(_TURN_S)
        return left

    async def _is_ready(self) -> bool:
        reply = await self._insider.get("/ready")
        if reply.status == 404:
            reply = await self._insider.get("/health")
        return reply.status == 200
