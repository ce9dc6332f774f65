"""VisualCache: where the features of a picture or clip are, and who needs them.

Owns the accounts of one device's feature memory; the features themselves lie in the executor's store, which follows
the encodes and drops of the plan. A key is absent, being encoded or resident. A key that is being encoded is never
begun again (single flight): whoever else needs it pins it and shares the outcome, failure included. Only resident
features that nobody pins are evicted, the least recently used first. Every key that leaves the account is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tapetum.core.errors import MediaTooLarge
from tapetum.core.media import MediaItem

FeatureState = Literal["absent", "encoding", "resident"]


class FeatureKey(NamedTuple):
    """Identity of features: the content with its processing, and the encoder that transformed it."""

    media_key: bytes
    encoder_fingerprint: bytes


@dataclass(slots=True, eq=False)
class _Entry:
    num_bytes: int
    is_resident: bool = False
    pins: dict[str, int] = field(default_factory=dict)  # request id -> spans that need it


class VisualCache:
    def __init__(self, capacity_bytes: int, bytes_per_token: int, encoder_fingerprint: bytes = b"") -> None:
        self.capacity_bytes = capacity_bytes
        self._bytes_per_token = bytes_per_token
        self._encoder_fingerprint = encoder_fingerprint
        self._entries: dict[FeatureKey, _Entry] = {}
        self._idle: OrderedDict[FeatureKey, None] = OrderedDict()  # resident without pins, least recent first
        self._num_bytes = 0
        self._idle_bytes = 0
        self._dropped: list[bytes] = []  # media keys
        self.num_evictions = 0

    def key_of(self, item: MediaItem) -> FeatureKey:
        return FeatureKey(item.key, self._encoder_fingerprint)

    @property
    def num_bytes(self) -> int:
        """Resident features and those being encoded."""
        return self._num_bytes

    @property
    def resident_keys(self) -> tuple[bytes, ...]:
        """Media keys of all resident features. May be asked while another thread changes them."""
        entries = list(
            self._entries.items()
        )  # at once: a loop over the mapping itself would fail when it changes
        return tuple(key.media_key for key, entry in entries if entry.is_resident)

    @property
    def num_pinned(self) -> int:
        return sum(bool(entry.pins) for entry in self._entries.values())

    def state(self, key: FeatureKey) -> FeatureState:
        entry = self._entries.get(key)
        if entry is None:
            return "absent"
        return "resident" if entry.is_resident else "encoding"

    def clear(self) -> None:
        """Evict all that nobody pins."""
        while self._idle:
            self._evict()

    def check_size(self, item: MediaItem) -> None:
        """Raise MediaTooLarge for an item whose features can never fit."""
        num_bytes = self._bytes_of(item)
        if num_bytes > self.capacity_bytes:
            raise MediaTooLarge(
                f"{item.geometry.kind} has {item.geometry.num_tokens} visual tokens with {num_bytes} bytes of "
                f"features, limit {self.capacity_bytes}; raise --feature-cache-gib or send it smaller"
            )

    def has_room(self, item: MediaItem) -> bool:
        """Whether `begin` would succeed, evicting if it must."""
        return self._num_bytes - self._idle_bytes + self._bytes_of(item) <= self.capacity_bytes

    def begin(self, item: MediaItem) -> None:
        """Reserve memory for an absent item that is about to be encoded. There must be room."""
        key = self.key_of(item)
        assert key not in self._entries, "features are encoded or resident already"
        assert self.has_room(item), "no room for features"
        num_bytes = self._bytes_of(item)
        while self._num_bytes + num_bytes > self.capacity_bytes:
            self._evict()
        self._entries[key] = _Entry(num_bytes)
        self._num_bytes += num_bytes

    def complete(self, key: FeatureKey) -> None:
        """What was being encoded is resident."""
        entry = self._entries[key]
        assert not entry.is_resident, "features were resident already"
        entry.is_resident = True
        if not entry.pins:
            self._set_idle(key, entry)

    def fail(self, key: FeatureKey) -> tuple[str, ...]:
        """Give up features -> the requests that were waiting for them.

        They are dropped as well: the step may have failed after the encode.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return ()
        self._unset_idle(key, entry)
        self._num_bytes -= entry.num_bytes
        self._dropped.append(key.media_key)
        return tuple(entry.pins)

    def pin(self, key: FeatureKey, request_id: str) -> None:
        """Forbid eviction until as many calls of `unpin`."""
        entry = self._entries[key]
        self._unset_idle(key, entry)
        entry.pins[request_id] = entry.pins.get(request_id, 0) + 1

    def unpin(self, key: FeatureKey, request_id: str) -> None:
        """Undo one `pin`; nothing to do if the features have failed since."""
        entry = self._entries.get(key)
        if entry is None or request_id not in entry.pins:
            return
        entry.pins[request_id] -= 1
        if not entry.pins[request_id]:
            del entry.pins[request_id]
        if not entry.pins and entry.is_resident:
            self._set_idle(key, entry)

    def waiters(self, key: FeatureKey) -> tuple[str, ...]:
        entry = self._entries.get(key)
        return tuple(entry.pins) if entry else ()

    def take_dropped(self) -> tuple[bytes, ...]:
        """Media keys evicted or failed since the last call, in order, for the next plan."""
        dropped = tuple(dict.fromkeys(self._dropped))
        self._dropped.clear()
        return dropped

    def return_dropped(self, keys: Iterable[bytes]) -> None:
        """What `take_dropped` gave goes into the next plan: that of the last one never ran."""
        self._dropped = [*keys, *self._dropped]

    def _bytes_of(self, item: MediaItem) -> int:
        return item.geometry.num_tokens * self._bytes_per_token

    def _evict(self) -> None:
        key, _ = self._idle.popitem(last=False)
        entry = self._entries.pop(key)
        self._idle_bytes -= entry.num_bytes
        self._num_bytes -= entry.num_bytes
        self._dropped.append(key.media_key)
        self.num_evictions += 1

    def _set_idle(self, key: FeatureKey, entry: _Entry) -> None:
        self._idle[key] = None
        self._idle_bytes += entry.num_bytes

    def _unset_idle(self, key: FeatureKey, entry: _Entry) -> None:
        if key in self._idle:
            del self._idle[key]
            self._idle_bytes -= entry.num_bytes
