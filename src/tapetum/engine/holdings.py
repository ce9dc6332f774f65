"""Which request holds which patches in the arena.

One copy serves all requests that have the same picture at the same time; it is freed with the last of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import numpy as np

from tapetum.core.media import MediaItem
from tapetum.core.request import Request
from tapetum.engine.arena import Arena


class Holdings:
    """All methods may be called from any thread."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._lock = threading.Lock()
        self._offsets: dict[bytes, int] = {}  # media key -> where its patches lie
        self._holders: Counter[bytes] = Counter()  # media key -> requests that hold them
        self._held: dict[str, tuple[bytes, ...]] = {}  # request id -> media keys

    def hold(self, request: Request) -> None:
        """Copy the patches of a request's pictures into the arena, as far as there is room."""
        items = {span.item.key: span.item for span in request.prompt.spans if not span.item.is_reserved}
        held = tuple(key for key, item in items.items() if self._holds(key) or self._put(item))
        with self._lock:
            self._held[request.request_id] = held

    def let_go(self, request_id: str) -> None:
        """Nothing happens for a request that holds nothing."""
        with self._lock:
            for key in self._held.pop(request_id, ()):
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key]
                    self._arena.free(self._offsets.pop(key))

    def offsets(self, request: Request) -> Mapping[bytes, int]:
        """Where the patches of a request's pictures lie, those that had room; it holds them if it did not before."""
        if request.request_id not in self._held:
            self.hold(request)
        with self._lock:
            return {key: self._offsets[key] for key in self._held[request.request_id]}

    def _holds(self, key: bytes) -> bool:
        """One more holder of what is there already."""
        with self._lock:
            is_there = key in self._offsets
            if is_there:
                self._holders[key] += 1
        return is_there

    def _put(self, item: MediaItem) -> bool:
        offset = self._arena.try_put(np.asarray(item.patches))
        if offset is None:
            return False
        with self._lock:
            if item.key in self._offsets:  # another thread was faster
                self._arena.free(offset)
            else:
                self._offsets[item.key] = offset
            self._holders[item.key] += 1
        return True
