"""Searches for features that may have been encoded before, here or elsewhere, and the leases on those to be encoded.

One search serves all requests that need the same picture. It looks into the tiers, no longer than the encode would
take. Where nothing is found and others share the tiers it asks for the lease: who has it encodes, and keeps it until
the features are saved or nobody wants them any more; who has not waits for what the other one makes, about as long as
that should take. So a picture that is new to several processes is encoded by one of them. Belongs to the thread of the
loop and waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from tapetum.cache.reserve import Landed
from tapetum.core.media import MediaItem
from tapetum.engine.feature_tiers import FeatureTiers
from tapetum.engine.mailbox import Mailbox
from tapetum.engine.tiers import Load

LEAST_LOAD_S = 0.25  # a load may take so long, however fast the encode would be
_LEAST_LEASE_S = 2.0
_LEASE_FACTOR = 2.0  # times the seconds until the features should be there


@dataclass(slots=True, eq=False)
class _Search:
    item: MediaItem
    until_s: float
    waiters: dict[str, None] = field(default_factory=dict)  # request ids, in the order they came
    stage: Literal["looking", "claiming", "looking again", "waiting"] = "looking"
    load: Load | None = None


class Searches:
    """`encode_s` predicts an encode, `backlog_s` those that wait; `on_end` hears what has come of a search, and who
    waited for it."""

    def __init__(
        self,
        tiers: FeatureTiers,
        mailbox: Mailbox,
        encode_s: Callable[[MediaItem], float],
        backlog_s: Callable[[], float],
        on_end: Callable[[bytes, Landed | None, tuple[str, ...]], None],
    ) -> None:
        self._tiers = tiers
        self._mailbox = mailbox
        self._encode_s = encode_s
        self._backlog_s = backlog_s
        self._on_end = on_end
        self._searches: dict[bytes, _Search] = {}  # by media key
        self._leases: dict[
            bytes, set[str]
        ] = {}  # media keys that this process encodes, and for which requests

    @property
    def num_searches(self) -> int:
        return len(self._searches)

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    def try_join(self, item: MediaItem, request_id: str, now: float) -> bool:
        """Take part in the search for a picture; False where that is sure to find nothing, or takes longer than the
        encode, or is over because this process has the lease."""
        search = self._searches.get(item.key)
        if search is None and item.key not in self._leases:
            search = self._try_begin(item)
        if search is None:
            return False
        if not search.waiters:
            search.until_s = now + self._load_s(item)
        search.waiters[request_id] = None
        return True

    def share_lease(self, media_key: bytes, request_id: str) -> None:
        """One more request wants what this process encodes, if it has the lease on that."""
        if media_key in self._leases:
            self._leases[media_key].add(request_id)

    def leave(self, media_key: bytes, request_id: str) -> None:
        search = self._searches[media_key]
        search.waiters.pop(request_id, None)
        if not search.waiters:
            self._end(search)

    def expire(self, now: float) -> None:
        """End the searches that have taken too long."""
        for search in [search for search in self._searches.values() if now >= search.until_s]:
            self._end(search)

    def forget(self, request_id: str) -> None:
        """The request has ended: a picture that was to be encoded for it alone is free for others."""
        for key, owners in list(self._leases.items()):
            owners.discard(request_id)
            if not owners:
                self.release(key)

    def release(self, media_key: bytes) -> None:
        """The features are saved, or will not be made; nothing to do without a lease."""
        if self._leases.pop(media_key, None) is not None:
            self._tiers.release(media_key)

    def _try_begin(self, item: MediaItem) -> _Search | None:
        may_find = self._tiers.is_shared or self._tiers.may_have(item.key)
        if not may_find or self._tiers.seconds(item.key, item.geometry.num_tokens) > self._encode_s(item):
            return None
        search = self._searches[item.key] = _Search(item, math.inf)
        self._look(search)
        return search

    def _look(self, search: _Search, patience_s: float = 0.0) -> None:
        def tell(found: Mapping[bytes, Landed]) -> None:
            self._mailbox.put(partial(self._looked, search, found.get(search.item.key)))

        wanted = {search.item.key: search.item.geometry.num_tokens}
        search.load = self._tiers.load(wanted, tell, patience_s=patience_s)

    def _looked(self, search: _Search, found: Landed | None, now: float) -> None:
        if self._searches.get(search.item.key) is not search:
            return  # it was given up
        search.load = None
        if found is None and search.stage == "looking" and self._tiers.is_shared:
            self._claim(search, now)
        else:
            self._end(search, found)

    def _claim(self, search: _Search, now: float) -> None:
        def tell(is_ours: bool) -> None:
            self._mailbox.put(partial(self._claimed, search, is_ours))

        search.stage = "claiming"
        search.until_s = now + self._load_s(search.item)
        self._tiers.claim(search.item.key, self._lease_s(search.item), tell)

    def _claimed(self, search: _Search, is_ours: bool, now: float) -> None:
        """Who has the lease looks once more: it may have become free because the features are there."""
        if is_ours:
            self._leases[search.item.key] = set(search.waiters)
        if not search.waiters:
            search.stage = "looking again"
            self._end(search)
        elif is_ours:
            search.stage = "looking again"
            search.until_s = now + self._load_s(search.item)
            self._look(search)
        else:
            search.stage = "waiting"
            patience_s = self._lease_s(search.item)
            search.until_s = now + patience_s + self._load_s(search.item)
            self._look(search, patience_s)

    def _end(self, search: _Search, found: Landed | None = None) -> None:
        """Those who wait go on, whatever has come of it. A search that has asked for the lease stays for the answer."""
        key, waiters, search.waiters = search.item.key, search.waiters, {}
        if search.stage == "claiming":
            search.until_s = math.inf
        else:
            del self._searches[key]
            if search.load is not None:
                search.load.cancel()
        if key in self._leases:
            self._leases[key] = set(waiters)
            if found is not None or not waiters:
                self.release(key)
        self._on_end(key, found, tuple(waiters))

    def _load_s(self, item: MediaItem) -> float:
        """How long one waits for an answer of the tiers."""
        return max(LEAST_LOAD_S, self._encode_s(item))

    def _lease_s(self, item: MediaItem) -> float:
        return max(_LEAST_LEASE_S, _LEASE_FACTOR * (self._encode_s(item) + self._backlog_s()))
