"""What has come of encodes: features that are there, that failed, that nobody wants any more.

Owns the item that is encoded in slices, from one step to the next. Which item that is, and how long its slices are, is
decided while a step is written (encode.py).
"""

from __future__ import annotations

from tapetum.cache.visual import VisualCache
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, StepResult, TokenEvent
from tapetum.sched.encode import UnderWay
from tapetum.sched.roster import Roster


class Encodes:
    def __init__(self, visual: VisualCache, roster: Roster) -> None:
        self.under_way: UnderWay | None = None  # set by whoever has written a step
        self._visual = visual
        self._roster = roster

    def share_left(self, item: MediaItem) -> float:
        """How much of an item is still to be encoded, 0 to 1."""
        if self._visual.state(self._visual.key_of(item)) == "resident":
            return 0.0
        current = self.under_way
        return 1 - current.done if current is not None and current.item.key == item.key else 1.0

    def drop_for_nobody(self) -> None:
        """One that is under way goes on for a request that was preempted, and ends with its last one."""
        if self.under_way is None:
            return
        item = self.under_way.item
        key = self._visual.key_of(item)
        if not (self._visual.waiters(key) or self._roster.wants(item)):
            self._visual.fail(key)
            self.under_way = None

    def settle(self, plan: BatchPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Encoded features are resident; failed ones end every request that waits for them."""
        news: list[TokenEvent] = []
        waiters: set[str] = set()
        for job in plan.encodes:
            key = self._visual.key_of(job.item)
            error = result.failed_features.get(job.item.key)
            if error is None:
                waiters.update(self._visual.waiters(key))
                self._note_done(job.item, result.encoded[job.item.key])
                continue
            self._note_done(job.item, None)
            for request_id in self._visual.fail(key):
                if progress := self._roster.find(request_id):
                    news.append(self._roster.end(progress, "error", now, error=error))
        for request_id in waiters:
            if progress := self._roster.find(request_id):
                progress.note_encode(result.encode_s, began_s=now - result.encode_s - result.forward_s)
        return news

    def _note_done(self, item: MediaItem, share: float | None) -> None:
        """So much of an item is encoded; None if that has failed."""
        current = self.under_way if self.under_way and self.under_way.item.key == item.key else None
        if share is not None and share >= 1:
            self._visual.complete(self._visual.key_of(item))
        elif share is not None:
            assert current is not None, "an encode with work left is under way"
            current.done = share
            return
        if current is not None:
            self.under_way = None
