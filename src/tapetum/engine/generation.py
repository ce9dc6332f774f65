"""One client's end of a running request.

Owns the news between the engine and its reader, who gets all of it that is unread as one delta. All of it lives on
one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tapetum.core.checks import MAX_SEED
from tapetum.core.media import Degradation, PagesSeen
from tapetum.core.request import FinishReason, Prompt, Request, RequestStats
from tapetum.engine.documents import Spent
from tapetum.engine.output import (
    Decoder,
    Delta,
    MediaReport,
    RequestOutput,
    Timing,
    degradations_of,
    joined,
    media_reports,
    output_of,
    timing_of,
)


class Generation:
    """An asynchronous iterator of Delta. A TapetumError of the request is raised from the iteration.

    A reader whose task is cancelled while it waits here cancels the request; one that leaves the loop early calls
    `cancel`. Both free what the request holds within one step.
    """

    def __init__(
        self,
        request: Request,
        *,
        prepared_s: float,
        tokenizer: Decoder,
        cancel: Callable[[str], None],
        spent: Spent,
    ) -> None:
        self.request_id = request.request_id
        self.prompt: Prompt = request.prompt
        self._request = request
        self._prepared_s = prepared_s
        self._tokenizer = tokenizer
        self._cancel = cancel
        self.spent = spent  # on the way to this request
        self._unread: list[Delta] = []
        self._arrived = asyncio.Event()
        self._stats: RequestStats | None = None
        self._num_tokens = 0
        self._is_over = False
        self.finish_reason: FinishReason | None = None  # once the last delta has been read

    @property
    def media(self) -> tuple[MediaReport, ...]:
        """What the model saw; where it came from is known with the first token."""
        return media_reports(self._request, self._stats)

    @property
    def degradations(self) -> tuple[Degradation, ...]:
        """In which ways that is not what was asked for; complete once the last delta has been read."""
        return degradations_of(self._request, self._stats)

    @property
    def num_choices(self) -> int:
        """Answers to the prompt, this one among them."""
        return self._request.num_choices

    @property
    def pages(self) -> tuple[PagesSeen, ...]:
        """What the model saw of each document."""
        return self._request.pages

    @property
    def timing(self) -> Timing:
        """Complete once the last delta has been read."""
        return timing_of(self._request, self._prepared_s, self._stats or RequestStats(), self._num_tokens)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed again; known with the first token."""
        return self._stats.num_cached_tokens if self._stats else 0

    @property
    def num_predicted(self) -> tuple[int, int]:
        """Tokens of the prediction that were verified, right and wrong ones; known once all has been read."""
        stats = self._stats or RequestStats()
        return stats.num_predicted_right, stats.num_predicted_wrong

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        if self._is_over:
            raise StopAsyncIteration
        delta = await self._read()
        self._num_tokens += len(delta.tokens)
        self._stats = delta.stats or self._stats
        self.finish_reason = delta.finish_reason
        self._is_over = delta.finish_reason is not None
        if delta.error is not None:
            raise delta.error
        return delta

    async def output(self) -> RequestOutput:
        """Wait for the end: all that is left to read, as one record."""
        whole = joined([delta async for delta in self])
        return output_of(self._request, None, whole, self._prepared_s, self._tokenizer)

    def forked(self, request_id: str, index: int) -> Request:
        """The request of another answer to the same prompt, with a seed of its own where there is one."""
        seed = self._request.sampling.seed
        if seed is not None:
            seed = (seed + index + MAX_SEED + 1) % (2 * MAX_SEED + 2) - MAX_SEED - 1
        sampling = replace(self._request.sampling, seed=seed)
        return replace(self._request, request_id=request_id, sampling=sampling, is_sibling=True)

    def cancel(self) -> None:
        """Ask the engine to end the request; the last delta then says `abort`. No effect on one that has ended."""
        self._cancel(self.request_id)

    async def accepted(self) -> None:
        """Wait until the engine has taken the request; raises when it refuses."""
        delta = await self._read()
        if delta.error is not None:
            self._is_over = True
            raise delta.error
        if delta != Delta():
            self.put(delta)

    def put(self, delta: Delta) -> None:
        """News from the engine, in order."""
        self._unread.append(delta)
        self._arrived.set()

    async def _read(self) -> Delta:
        try:
            await self._arrived.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        unread, self._unread = self._unread, []
        self._arrived.clear()
        return joined(unread)
