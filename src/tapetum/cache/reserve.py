"""Reserve: features that requests on their way need, kept within reach whatever happens on the device.

Owns who has reserved which features, from before the request is added until it has ended, and those that lie in the
memory of the host: brought by a tier, or saved when they were evicted. They take no room on the device until a row
needs them, so who has a reservation keeps nobody waiting. What nobody reserves any more is forgotten at once. All
methods may be called from any thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from tapetum.core.plan import Payload

FeatureSource = Literal["host", "disk", "remote"]


@dataclass(frozen=True, slots=True)
class Landed:
    """Features in the memory of the host, and the tier that they are from."""

    payload: Payload
    source: FeatureSource


@dataclass(slots=True, eq=False)
class _Held:
    num_bytes: int
    holders: set[str]
    landed: Landed | None = None


class Reserve:
    """`max_bytes` of features may be reserved, wherever they lie."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards all below
        self._held: dict[bytes, _Held] = {}  # by media key
        self._keys: dict[str, set[bytes]] = {}  # by request id
        self.num_bytes = 0

    @property
    def num_requests(self) -> int:
        """Requests that have reserved something."""
        return len(self._keys)

    def try_hold(self, media_key: bytes, num_bytes: int, request_id: str) -> bool:
        """False if there is no room for more."""
        with self._lock:
            held = self._held.get(media_key)
            if held is None:
                if self.num_bytes + num_bytes > self._max_bytes:
                    return False
                held = self._held[media_key] = _Held(num_bytes, set())
                self.num_bytes += num_bytes
            held.holders.add(request_id)
            self._keys.setdefault(request_id, set()).add(media_key)
            return True

    def let_go(self, request_id: str) -> None:
        """Of all that the request has reserved, if anything."""
        with self._lock:
            for media_key in tuple(self._keys.get(request_id, ())):
                self._let_go_of(media_key, request_id)

    def let_go_of(self, media_key: bytes, request_id: str) -> None:
        """Of these alone, if it has reserved them."""
        with self._lock:
            if media_key in self._keys.get(request_id, ()):
                self._let_go_of(media_key, request_id)

    def lose(self, media_key: bytes) -> None:
        """They are gone for good: nobody can rely on them any more."""
        with self._lock:
            held = self._held.pop(media_key, None)
            if held is None:
                return
            self.num_bytes -= held.num_bytes
            for request_id in held.holders:
                keys = self._keys[request_id]
                keys.discard(media_key)
                if not keys:
                    del self._keys[request_id]

    def holders(self, media_key: bytes) -> tuple[str, ...]:
        with self._lock:
            held = self._held.get(media_key)
            return tuple(held.holders) if held else ()

    def is_held(self, media_key: bytes, request_id: str | None = None) -> bool:
        """By this request, or by any."""
        with self._lock:
            held = self._held.get(media_key)
            return held is not None and (request_id is None or request_id in held.holders)

    def has_landed(self, media_key: bytes) -> bool:
        held = self._held.get(media_key)
        return held is not None and held.landed is not None

    def land(self, media_key: bytes, landed: Landed) -> None:
        """They are in the memory of the host; nothing is kept of what nobody has reserved."""
        with self._lock:
            if held := self._held.get(media_key):
                held.landed = landed

    def try_take(self, media_key: bytes) -> Landed | None:
        """They go to the device; None if they have not landed, or nobody has reserved them any more."""
        with self._lock:
            held = self._held.get(media_key)
            if held is None:
                return None
            landed, held.landed = held.landed, None
            return landed

    def _let_go_of(self, media_key: bytes, request_id: str) -> None:
        held, keys = self._held[media_key], self._keys[request_id]
        held.holders.discard(request_id)
        keys.discard(media_key)
        if not held.holders:
            del self._held[media_key]
            self.num_bytes -= held.num_bytes
        if not keys:
            del self._keys[request_id]
