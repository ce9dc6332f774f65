"""Several answers to one prompt.

The first runs alone until its first token; by then the prompt's keys and values can be found, and the others start
from them. So a picture is encoded once and a prompt prefilled once, however many answers are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from tapetum.core.request import FinishReason
from tapetum.engine.generation import Generation
from tapetum.engine.output import Delta

Fork = Callable[[int], Awaitable[Generation]]  # the generation of another index, once the engine has taken it


class Choices:
    """An asynchronous iterator of (index, Delta) over all answers, as their news come.

    `generation` is the first of them. An error of any one is raised from the iteration and ends them all, as does
    the end of the reader.
    """

    def __init__(self, generation: Generation, count: int, fork: Fork) -> None:
        self.generation = generation
        self.num_tokens = 0  # of all answers, as far as they have been read
        self._count = count
        self._fork = fork
        self._all = {0: generation}  # by index, as far as the engine has taken them

    @property
    def finish_reasons(self) -> tuple[FinishReason | None, ...]:
        """Of each answer that has begun, None where it has not been read to its end."""
        return tuple(generation.finish_reason for generation in self._all.values())

    @property
    def num_predicted(self) -> tuple[int, int]:
        """Tokens of the prediction that came true in these answers, and those that did not, as far as they are over."""
        each = [generation.num_predicted for generation in self._all.values()]
        return sum(right for right, _ in each), sum(wrong for _, wrong in each)

    def cancel(self) -> None:
        """Ask the engine to end all of them. No effect on those that have ended."""
        for generation in self._all.values():
            generation.cancel()

    async def __aiter__(self) -> AsyncGenerator[tuple[int, Delta], None]:
        async with aclosing(self._alone() if self._count == 1 else self._merged()) as news:
            try:
                async for index, delta in news:
                    self.num_tokens += len(delta.tokens)
                    yield index, delta
            except BaseException:
                self.cancel()
                raise

    async def _alone(self) -> AsyncGenerator[tuple[int, Delta], None]:
        async for delta in self.generation:
            yield 0, delta

    async def _merged(self) -> AsyncGenerator[tuple[int, Delta], None]:
        reads = {self._read(0): 0}
        try:
            while reads:
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                for read in sorted(done, key=reads.__getitem__):
                    index = reads.pop(read)
                    delta = read.result()
                    if delta.finish_reason is None:
                        reads[self._read(index)] = index
                    if len(self._all) == 1 and (delta.tokens or delta.finish_reason):
                        await self._fork_others()
                        reads |= {self._read(other): other for other in range(1, self._count)}
                    yield index, delta
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def _fork_others(self) -> None:
        """All at once; should one be refused, or the reader leave meanwhile, those that were taken can be cancelled."""
        outcomes = await asyncio.gather(*map(self._take, range(1, self._count)), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _take(self, index: int) -> None:
        self._all[index] = await self._fork(index)

    def _read(self, index: int) -> asyncio.Future[Delta]:
        return asyncio.ensure_future(anext(self._all[index]))
