"""Requests whose pictures may have been encoded before, on their way to the scheduler.

A request that has pictures which the device lacks waits here while they are searched for (searches.py), and goes on
with what was found: that lies in the memory of the host, and goes to the device when a row needs it (cache/reserve.py).
What is encoded is saved once. Belongs to the thread of the loop. Without tiers nothing is held here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from tapetum.cache.reserve import Landed
from tapetum.core.cost import CostModel
from tapetum.core.errors import TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Request
from tapetum.engine.feature_tiers import FeatureTiers
from tapetum.engine.mailbox import Mailbox
from tapetum.engine.searches import Searches
from tapetum.sched.limits import late_among
from tapetum.sched.scheduler import Scheduler


class Promotion:
    def __init__(
        self, tiers: FeatureTiers | None, scheduler: Scheduler, cost: CostModel, mailbox: Mailbox
    ) -> None:
        self._tiers = tiers
        self._scheduler = scheduler
        self._visual = scheduler.visual
        self._cost = cost
        self._searches = (
            None
            if tiers is None
            else Searches(tiers, mailbox, self._encode_s, lambda: scheduler.backlog.encode_s, self._ended)
        )
        self._held: dict[str, Request] = {}  # by request id
        self._awaited: dict[str, set[bytes]] = {}  # by request id, media keys
        self._ready: deque[Request] = deque()

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    @property
    def num_searches(self) -> int:
        return 0 if self._searches is None else self._searches.num_searches

    @property
    def num_leases(self) -> int:
        return 0 if self._searches is None else self._searches.num_leases

    def source(self, media_key: bytes | None) -> str:
        """Where features are, as far as that is known without asking. May be asked from another thread."""
        if media_key is None:
            return "miss"
        state = self._visual.whereabouts(media_key)
        if state in ("resident", "landed"):
            return "device" if state == "resident" else "host"
        return (self._tiers and self._tiers.source(media_key)) or "miss"

    def try_hold(self, request: Request, now: float) -> bool:
        """Begin to search for what the request lacks; it comes back from `take_ready`. False if it lacks nothing."""
        if self._tiers is None or self._searches is None or not request.prompt.spans:
            return False
        request_id = request.request_id
        for span in request.prompt.spans:
            self._tiers.save_alias(span.item)
            self._searches.share_lease(span.key, request_id)
        keys = {
            item.key
            for item in self._lacking(request)
            if self._visual.try_reserve(item.key, item.geometry.num_tokens, request_id)
            and self._visual.whereabouts(item.key) != "landed"
            and self._searches.try_join(item, request_id, now)
        }
        if keys:
            self._held[request_id], self._awaited[request_id] = request, keys
        return bool(keys)

    def take_ready(self, now: float) -> Iterator[Request]:
        """Requests that have got what there was, or have waited long enough."""
        if self._searches is not None:
            self._searches.expire(now)
        while self._ready:
            request = self._ready.popleft()
            del self._held[request.request_id]
            yield request

    def drop(self, request_id: str) -> bool:
        """Forget a request that is held; False if it is not. What it has reserved it still has."""
        request = self._held.pop(request_id, None)
        if request is None or self._searches is None:
            return False
        if request in self._ready:
            self._ready.remove(request)
        for key in self._awaited.pop(request_id, ()):
            self._searches.leave(key, request_id)
        return True

    def drop_late(self, now: float) -> Mapping[str, TapetumError]:
        """Forget the requests whose deadline has passed meanwhile, and say so."""
        late = late_among(self._held.values(), now)
        for request_id in late:
            self.drop(request_id)
        return late

    def drop_all(self) -> list[str]:
        """Forget all requests that are held."""
        held = list(self._held)
        for request_id in held:
            self.drop(request_id)
        return held

    def forget(self, request_id: str) -> None:
        """The request has ended, or will never be added."""
        self._visual.reserve.let_go(request_id)
        if self._searches is not None:
            self._searches.forget(request_id)

    def keep(self, plan: BatchPlan, result: StepResult) -> None:
        """Save the features that were copied out."""
        if self._tiers is None or self._searches is None:
            return
        for key in plan.exports:
            if payload := result.exported.get(key):
                self._tiers.save(key, payload, self._visual.cost_of(key))
            self._searches.release(key)

    def _lacking(self, request: Request) -> Iterator[MediaItem]:
        """Pictures that the request cannot do without and that are not on the device, nor soon will be."""
        num_found: int | None = None
        for item, end in {span.item.key: (span.item, span.end) for span in request.prompt.spans}.values():
            if item.is_reserved or self._visual.whereabouts(item.key) in ("encoding", "resident"):
                continue
            num_found = self._scheduler.num_found(request) if num_found is None else num_found
            if end > num_found:
                yield item

    def _ended(self, media_key: bytes, found: Landed | None, waiters: tuple[str, ...]) -> None:
        if found is not None:
            self._visual.reserve.land(media_key, found)
        for request_id in waiters:
            if found is None:
                self._visual.reserve.let_go_of(media_key, request_id)
            keys = self._awaited[request_id]
            keys.discard(media_key)
            if not keys:
                del self._awaited[request_id]
                self._ready.append(self._held[request_id])

    def _encode_s(self, item: MediaItem) -> float:
        return self._cost.encode_seconds(item.geometry.num_patches, item.geometry.squares)
