"""Which requests are being answered, and the end of that: once it drains, no more come in.

Owns the count. What is refused meanwhile, and how, is said by those who ask.
"""

from __future__ import annotations

import asyncio


class Traffic:
    def __init__(self) -> None:
        self.is_draining = False
        self._num_running = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        self._num_running += 1
        self._empty.clear()

    def leave(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._empty.set()

    async def drain(self, grace_s: float) -> int:
        """Let nothing more in, wait for the rest; how many were still there after `grace_s` seconds."""
        self.is_draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        return self._num_running
