"""How much one key may ask: requests per second, and requests at a time.

Owns the counts of a key. A rate is a bucket of one second's requests, at least one, that fills evenly: who has asked
nothing for a while may ask so many at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tapetum.server.errors import RateLimited

QUOTA = "tapetum.quota"  # where the scope of a connection has the one of its key


class Quota:
    def __init__(
        self,
        *,
        rps: float | None = None,
        concurrent: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rps = rps
        self._concurrent = concurrent
        self._clock = clock
        self._room = self._most = max(rps or 0.0, 1.0)  # requests that may come at once
        self._filled_s = clock()
        self._num_running = 0

    def take(self) -> None:
        """Count a request that begins; raises RateLimited. Each that was counted is released when it ends."""
        if self._concurrent is not None and self._num_running >= self._concurrent:
            raise RateLimited(
                f"{self._num_running} requests of this key are running, its limit; wait for one to end", 1.0
            )
        if self._rps is not None:
            self._spend(self._rps)
        self._num_running += 1

    def release(self) -> None:
        self._num_running -= 1

    def _spend(self, rps: float) -> None:
        now = self._clock()
        self._room = min(self._room + (now - self._filled_s) * rps, self._most)
        self._filled_s = now
        if self._room < 1:
            wait_s = (1 - self._room) / rps
            raise RateLimited(
                f"this key may ask {rps:g} times per second; come back in {wait_s:.3g} s", wait_s
            )
        self._room -= 1
