"""WindowCache: what the first layers of an encoder have made of windows, for pictures that have them again.

Owns the states and their bytes, on the device. The scheduler knows nothing of it: a state is a copy that nobody waits
for, and may go at any time. Least recently used goes first.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor


class WindowCache:
    """Implements `models.encoding.WindowStates`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._states: OrderedDict[bytes, Tensor] = OrderedDict()

    def get(self, key: bytes) -> Tensor | None:
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: bytes, state: Tensor) -> None:
        """The cache's own from now on; not kept if it is larger than all of the cache."""
        if key in self._states or state.nbytes > self.capacity_bytes:
            return
        self._states[key] = state
        self.num_bytes += state.nbytes
        while self.num_bytes > self.capacity_bytes:
            _, gone = self._states.popitem(last=False)
            self.num_bytes -= gone.nbytes

    def clear(self) -> None:
        self._states.clear()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._states)
