"""The pool on which prompts are built, off the event loop: how many at a time, until when, and what if nobody waits.

All of the class but its threads lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from tapetum.core.errors import Overloaded
from tapetum.engine.loads import Loads

T = TypeVar("T")
_MAX_THREADS = 8  # for what they have to do
_MAX_WAITING_THREADS = 32  # for what mostly waits for fetches and for the media workers


class Preparation:
    """`limit` is the number of prompts that may be prepared or wait for it; more are refused."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="tapetum-prompt")
        self._waiting = ThreadPoolExecutor(_MAX_WAITING_THREADS, thread_name_prefix="tapetum-media-prompt")
        self.num_running = 0  # until a thread is done with the prompt, be its client still there or not

    async def run(
        self,
        work: Callable[[], T],
        loads: Loads,
        *,
        has_media: bool = False,
        on_waste: Callable[[T], None] | None = None,
    ) -> T:
        """The outcome of `work` on a thread; raises Overloaded. What has media may wait long for them, and then keeps
        only others waiting that have some too.

        Who is cancelled gives up the `loads` too; what comes out of the work all the same goes to `on_waste`.
        """
        if self.num_running >= self._limit:
            raise Overloaded(f"{self._limit} prompts are being prepared, the limit; come back later")
        future = (self._waiting if has_media else self._pool).submit(work)
        event_loop = asyncio.get_running_loop()
        self._count(1)
        future.add_done_callback(lambda _: post(event_loop, self._count, -1))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            loads.cancel()
            if on_waste is not None:
                future.add_done_callback(lambda done: _waste(done, on_waste))
            raise

    def close(self) -> None:
        """What is queued is refused when its turn comes."""
        self._pool.shutdown(wait=False)
        self._waiting.shutdown(wait=False)

    def _count(self, change: int) -> None:
        self.num_running += change


def post(loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None], news: T) -> None:
    """Run `deliver` on the event loop, from any thread; nobody is left to tell when that has ended."""
    with suppress(RuntimeError):  # what a closed loop raises
        loop.call_soon_threadsafe(deliver, news)


def _waste(future: Future[T], on_waste: Callable[[T], None]) -> None:
    if not future.cancelled() and future.exception() is None:
        on_waste(future.result())
