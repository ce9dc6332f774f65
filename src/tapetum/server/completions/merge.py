"""The news of several prompts as one flow, in the order in which they come.

Owns back-pressure: a source is read again only once its last news have been taken, and what an engine says meanwhile
waits there, joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tapetum.engine.choices import Choices
from tapetum.engine.output import Delta

News = tuple[int, int, Delta]  # index of the prompt, index of the choice, what is new


async def merged(sources: Sequence[Choices]) -> AsyncGenerator[News, None]:
    """Ends when all have ended; the first error of any is raised. Closing it ends the requests that are being read."""
    queue: asyncio.Queue[News | BaseException | None] = asyncio.Queue(1)
    pumps = [asyncio.ensure_future(_pump(place, source, queue)) for place, source in enumerate(sources)]
    try:
        num_open = len(pumps)
        while num_open:
            news = await queue.get()
            if news is None:
                num_open -= 1
            elif isinstance(news, BaseException):
                raise news
            else:
                yield news
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(place: int, source: Choices, queue: asyncio.Queue[News | BaseException | None]) -> None:
    try:
        async with aclosing(aiter(source)) as deltas:
            async for index, delta in deltas:
                await queue.put((place, index, delta))
        await queue.put(None)
    except Exception as error:  # whatever it is, the reader is the one to tell
        await queue.put(error)
