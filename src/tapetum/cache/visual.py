"""VisualCache: where the features of a picture or clip are, and who needs them.

Owns the accounts of one device's feature memory; the features themselves lie in the executor's store, which follows
the arrivals, encodes, exports and drops of the plan. A key is absent, landed (in the host's memory, for somebody who
has reserved it), being encoded or resident. A key that is being encoded is never begun again (single flight): whoever
else needs it pins it and shares the outcome, failure included. Only resident features that nobody pins are evicted,
what is worth least first (greedy.py), and what is reserved is copied out before. Every key that leaves the account is
dropped. An encode takes what it can from the parts of resident features, which stay until it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tapetum.cache.greedy import GreedyDual
from tapetum.cache.parts import PartIndex
from tapetum.cache.reserve import FeatureSource, Landed, Reserve
from tapetum.core.errors import MediaTooLarge
from tapetum.core.media import MediaItem, Part
from tapetum.core.plan import EncodeJob, FeatureArrival, KnownPart, Payload

FeatureState = Literal["absent", "landed", "encoding", "resident"]


class FeatureKey(NamedTuple):
    """Identity of features: the content with its processing, and the encoder that transformed it."""

    media_key: bytes
    encoder_fingerprint: bytes


@dataclass(slots=True, eq=False)
class _Entry:
    num_bytes: int
    cost_s: float  # of encoding it again
    is_resident: bool = False
    uses: int = 0  # requests that have pinned it
    pins: dict[str, int] = field(default_factory=dict)  # request id -> spans that need it
    parts: tuple[Part, ...] = ()
    num_loans: int = 0  # encodes that take parts from it
    lenders: list[tuple[FeatureKey, _Entry]] = field(
        default_factory=list
    )  # what its own encode takes them from


class VisualCache:
    """`is_exporting`: whatever is encoded is copied out once. `has_parts`: a part comes out the same in any item."""

    def __init__(
        self,
        capacity_bytes: int,
        bytes_per_token: int,
        encoder_fingerprint: bytes = b"",
        *,
        is_exporting: bool = False,
        has_parts: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserve = Reserve(capacity_bytes)
        self._bytes_per_token = bytes_per_token
        self._encoder_fingerprint = encoder_fingerprint
        self._is_exporting = is_exporting
        self._has_parts = has_parts
        self._parts = PartIndex()
        self._entries: dict[FeatureKey, _Entry] = {}
        self._idle: GreedyDual[FeatureKey] = GreedyDual()  # resident without pins
        self._num_bytes = 0
        self._idle_bytes = 0
        # for the next plan, by media key
        self._dropped: list[bytes] = []
        self._exports: dict[bytes, None] = {}
        self._arrivals: dict[bytes, Landed] = {}
        self._drops_windows = False
        self.num_evictions = 0

    def key_of(self, item: MediaItem) -> FeatureKey:
        return self.key_from(item.key)

    def key_from(self, media_key: bytes) -> FeatureKey:
        return FeatureKey(media_key, self._encoder_fingerprint)

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

    @property
    def num_parts(self) -> int:
        """Distinct tiles that resident features hold."""
        return len(self._parts)

    def state(self, key: FeatureKey) -> FeatureState:
        entry = self._entries.get(key)
        if entry is None:
            return "landed" if self.reserve.has_landed(key.media_key) else "absent"
        return "resident" if entry.is_resident else "encoding"

    def whereabouts(self, media_key: bytes) -> FeatureState:
        """`state` by media key. May be asked from another thread."""
        return self.state(self.key_from(media_key))

    def try_reserve(self, media_key: bytes, num_tokens: int, request_id: str) -> bool:
        """Keep features within reach until the request ends, or lets go; False if there is no room for that.

        May be called from another thread. What is on the device afterwards stays within reach.
        """
        return self.reserve.try_hold(media_key, num_tokens * self._bytes_per_token, request_id)

    def cost_of(self, media_key: bytes) -> float:
        """Seconds of encoding again what is here, 0 for what is not."""
        entry = self._entries.get(self.key_from(media_key))
        return entry.cost_s if entry else 0.0

    def needs_encode(self, item: MediaItem) -> bool:
        """Whether its features are nowhere, and nobody sees to them."""
        return not item.is_reserved and self.state(self.key_of(item)) == "absent"

    def clear(self) -> None:
        """Evict all that nobody pins, and all windows."""
        while self._idle:
            self._evict()
        self.clear_windows()

    def clear_windows(self) -> None:
        """The next plan tells the executor to forget what it keeps of them."""
        self._drops_windows = True

    def take_windows(self) -> bool:
        """Whether the next plan tells it."""
        is_told, self._drops_windows = self._drops_windows, False
        return is_told

    def check_size(self, item: MediaItem) -> None:
        """Raise MediaTooLarge for an item whose features can never fit."""
        num_bytes = self._bytes_of(item)
        if num_bytes > self.capacity_bytes:
            raise MediaTooLarge(
                f"{item.geometry.kind} has {item.geometry.num_tokens} visual tokens with {num_bytes} bytes of "
                f"features, limit {self.capacity_bytes}; raise --feature-cache-gib or send it smaller"
            )

    def has_room(self, item: MediaItem) -> bool:
        """Whether `begin` or `try_arrive` would succeed, evicting if it must."""
        return self._num_bytes - self._idle_bytes + self._bytes_of(item) <= self.capacity_bytes

    def job_of(self, item: MediaItem) -> EncodeJob:
        """The encode of an absent item, should it begin now and nothing be evicted for it."""
        return EncodeJob(item=item, known=self._known(item))

    def begin(self, item: MediaItem, cost_s: float = 0.0) -> EncodeJob:
        """Reserve memory for an absent item that is about to be encoded. There must be room.

        What it takes parts from stays until it has ended, but for what has to make room for it.
        """
        known = self._known(item)
        media_keys = dict.fromkeys(part.media_key for part in known if part.media_key != item.key)
        lenders = [(key, self._entries[key]) for key in map(self.key_from, media_keys)]
        for key, lender in lenders:
            lender.num_loans += 1
            self._unset_idle(key, lender)
        while lenders and not self.has_room(item):
            self._give_back(*lenders.pop())
        self._enter(item, cost_s)
        self._entries[self.key_of(item)].lenders = lenders
        there = {item.key, *(key.media_key for key, _ in lenders)}
        return EncodeJob(item=item, known=tuple(part for part in known if part.media_key in there))

    def try_arrive(self, item: MediaItem, cost_s: float = 0.0) -> FeatureSource | None:
        """Features that have landed are resident from the next step on -> where they are from. There must be room.

        None if they have gone since: who reserved them may let go at any time.
        """
        landed = self.reserve.try_take(item.key)
        if landed is None:
            return None
        self._enter(item, cost_s)
        self._arrivals[item.key] = landed
        self._become_resident(self.key_of(item))
        return landed.source

    def complete(self, key: FeatureKey) -> None:
        """What was being encoded is resident."""
        self._become_resident(key)
        if self._is_exporting:
            self._exports[key.media_key] = None

    def fail(self, key: FeatureKey, *, is_begun: bool = True) -> tuple[str, ...]:
        """Give up features -> the requests that were waiting for them.

        Once a step may have begun to encode them they are dropped as well: it may have failed after the encode.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return ()
        self._unset_idle(key, entry)
        self._num_bytes -= entry.num_bytes
        self._parts.remove(key.media_key, entry.parts)
        self._end_loans(entry)
        if is_begun:
            self._dropped.append(key.media_key)
        self._exports.pop(key.media_key, None)
        return tuple(entry.pins)

    def pin(self, key: FeatureKey, request_id: str) -> None:
        """Forbid eviction until as many calls of `unpin`."""
        entry = self._entries[key]
        self._unset_idle(key, entry)
        entry.uses += request_id not in entry.pins
        entry.pins[request_id] = entry.pins.get(request_id, 0) + 1

    def unpin(self, key: FeatureKey, request_id: str) -> None:
        """Undo one `pin`; nothing to do if the features have failed since."""
        entry = self._entries.get(key)
        if entry is None or request_id not in entry.pins:
            return
        entry.pins[request_id] -= 1
        if not entry.pins[request_id]:
            del entry.pins[request_id]
        self._rest(key, entry)

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

    @property
    def has_exports(self) -> bool:
        return bool(self._exports)

    def take_exports(self) -> tuple[bytes, ...]:
        """Media keys to copy out in the next plan; those that it drops too are still there then."""
        exports = tuple(self._exports)
        self._exports.clear()
        return exports

    def return_exports(self, keys: Iterable[bytes]) -> None:
        self._exports = {**dict.fromkeys(keys), **self._exports}

    def settle_exports(self, keys: Iterable[bytes], exported: Mapping[bytes, Payload]) -> tuple[bytes, ...]:
        """What was copied out stays for those who have reserved it -> what they have lost."""
        lost: list[bytes] = []
        for key in keys:
            state = self.state(self.key_from(key))
            if not self.reserve.is_held(key) or state == "resident":
                continue
            if key in exported:
                self.reserve.land(key, Landed(exported[key], "host"))
            elif state == "absent":
                lost.append(key)
        return tuple(lost)

    def take_arrivals(self) -> tuple[FeatureArrival, ...]:
        """For the next plan, which has to come before anything else is decided."""
        arrivals = tuple(
            FeatureArrival(key=key, payload=landed.payload) for key, landed in self._arrivals.items()
        )
        self._arrivals.clear()
        return arrivals

    def return_arrivals(self, arrivals: Iterable[FeatureArrival]) -> None:
        """Of a plan that was broken off: they arrive in the next one, but for what was evicted since."""
        for arrival in arrivals:
            landed = Landed(arrival.payload, "host")
            if self.key_from(arrival.key) in self._entries:
                self._arrivals[arrival.key] = landed
            else:
                self._exports.pop(arrival.key, None)
                self.reserve.land(arrival.key, landed)

    def _bytes_of(self, item: MediaItem) -> int:
        return item.geometry.num_tokens * self._bytes_per_token

    def _known(self, item: MediaItem) -> tuple[KnownPart, ...]:
        return self._parts.find(item) if self._has_parts else ()

    def _enter(self, item: MediaItem, cost_s: float) -> None:
        key = self.key_of(item)
        assert key not in self._entries, "features are encoded or resident already"
        assert self.has_room(item), "no room for features"
        num_bytes = self._bytes_of(item)
        while self._num_bytes + num_bytes > self.capacity_bytes:
            self._evict()
        self._entries[key] = _Entry(num_bytes, cost_s, parts=item.parts)
        self._num_bytes += num_bytes

    def _become_resident(self, key: FeatureKey) -> None:
        entry = self._entries[key]
        assert not entry.is_resident, "features were resident already"
        entry.is_resident = True
        self._parts.add(key.media_key, entry.parts)
        self._end_loans(entry)
        self._rest(key, entry)

    def _end_loans(self, entry: _Entry) -> None:
        """Of an encode that is over."""
        while entry.lenders:
            self._give_back(*entry.lenders.pop())

    def _give_back(self, key: FeatureKey, lender: _Entry) -> None:
        lender.num_loans -= 1
        if self._entries.get(key) is lender:  # it has not failed since
            self._rest(key, lender)

    def _evict(self) -> None:
        key = self._idle.pop()
        entry = self._entries.pop(key)
        self._idle_bytes -= entry.num_bytes
        self._num_bytes -= entry.num_bytes
        self._parts.remove(key.media_key, entry.parts)
        self.num_evictions += 1
        if landed := self._arrivals.pop(key.media_key, None):  # it has not gone to the device yet
            self.reserve.land(key.media_key, landed)
            return
        self._dropped.append(key.media_key)
        if self.reserve.is_held(key.media_key) and not self.reserve.has_landed(key.media_key):
            self._exports[key.media_key] = None

    def _rest(self, key: FeatureKey, entry: _Entry) -> None:
        """What nobody needs any more may be evicted."""
        if entry.pins or entry.num_loans or not entry.is_resident or key in self._idle:
            return
        self._idle.add(key, entry.cost_s, entry.num_bytes, max(1, entry.uses))
        self._idle_bytes += entry.num_bytes

    def _unset_idle(self, key: FeatureKey, entry: _Entry) -> None:
        if key in self._idle:
            self._idle.remove(key)
            self._idle_bytes -= entry.num_bytes
