"""The encodes of a step being written: small items whole and together, of a larger one the slice that fits.

Items are begun as they are due, the earliest first; each takes its whole work in one step where that fits, and of the
first that does not fit a slice in every step. While it is under way, items that fit whole are put beside it: without
limit those that are due earlier, in half of the time those that are due later. One that is due earlier and does not
fit either is encoded in slices before it, which then waits. Beyond these two none is begun that does not fit. The
slices take whatever is left, and a tenth of the step where nothing is. What is due earlier passes only what is of the
same account.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tapetum.cache.reserve import FeatureSource
from tapetum.cache.visual import FeatureKey, VisualCache
from tapetum.core.cost import CostModel
from tapetum.core.media import MediaItem
from tapetum.core.plan import EncodeJob
from tapetum.sched.budget import StepBudget

ENCODE_SHARE = 0.5  # of the time that decodes leave, where prefills want it as well
LEAST_SHARE = 0.1  # of a step's time, for an encode under way
_MAX_UNDER_WAY = 2
_LATER_SHARE = 0.5  # of the time for encodes, to items that are due later than one under way
_LEAST_S = 1e-4  # the same where a step seems to take no time
_ROUNDING = 1e-6


@dataclass(slots=True, eq=False)
class UnderWay:
    """An item that is encoded in slices, whose and by when it is due, and the share of it that is done."""

    job: EncodeJob  # as a whole
    due_s: float
    account: str
    done: float = 0.0
    is_begun: bool = False  # a slice of it was planned

    @property
    def item(self) -> MediaItem:
        return self.job.item


class EncodeDraft:
    """`under_way`: as the step before has left them, the one that is due first in front."""

    def __init__(
        self, budget: StepBudget, visual: VisualCache, cost: CostModel, under_way: tuple[UnderWay, ...]
    ) -> None:
        self.jobs: list[EncodeJob] = []
        self.under_way = list(under_way)
        self.lacks_time = False  # an item waits for it
        self._budget = budget
        self._visual = visual
        self._cost = cost
        self._ready: set[FeatureKey] = set()
        self._lacks_room = False
        self._patches = self._squares = 0.0

    @property
    def seconds(self) -> float:
        """Predicted for what is planned."""
        return self._cost.encode_seconds(self._patches, self._squares)

    def is_ready(self, item: MediaItem) -> bool:
        """Whether the rows of this step find the features."""
        key = self._visual.key_of(item)
        return key in self._ready or self._visual.state(key) == "resident"

    def try_begin(
        self, item: MediaItem, due_s: float, seconds: float, *, account: str, may_slice: bool
    ) -> bool:
        """Encode an absent item whole if that takes `seconds` at most, else in slices if it may and can be.

        Only what is of the same account passes an item under way: between accounts turns decide, not who sends more.
        """
        job = self._visual.job_of(item)
        if not self._has_room(job):
            return False
        is_next = not self.under_way or (
            account == self.under_way[0].account and due_s < self.under_way[0].due_s
        )
        total = (self.seconds + max(0.0, seconds)) * (1.0 if is_next else _LATER_SHARE)
        if self.seconds + self._seconds_with(job, 1.0) <= total:
            job = self._visual.begin(item, self._alone_s(item))
            self._budget.take_encode(job.num_tokens)
            self._add(job, 0.0, 1.0)
            return True
        if not (may_slice and is_next and len(self.under_way) < _MAX_UNDER_WAY):
            self.lacks_time = True
            return False
        job = self._visual.begin(item, self._alone_s(item))
        self.under_way.insert(0, UnderWay(job, due_s, account))
        return True

    def try_arrive(self, item: MediaItem) -> FeatureSource | None:
        """Bring features that have landed to the device -> where they are from; None if that cannot be now."""
        if self._lacks_memory(item):
            return None
        return self._visual.try_arrive(item, self._alone_s(item))

    def join(self, item: MediaItem, due_s: float) -> None:
        """Someone else wants an item that may be under way."""
        for current in self.under_way:
            if current.item.key == item.key:
                current.due_s = min(current.due_s, due_s)
        self.under_way.sort(key=lambda current: current.due_s)  # those under way are of one account

    def try_end(self, seconds: float) -> None:
        """Plan the rest of those under way that take `seconds` at most, as they are due."""
        for current in tuple(self.under_way):
            needed = self._seconds_with(current.job, 1 - current.done)
            if needed > seconds:
                return
            seconds -= needed
            self._end(current)

    def least_s(self, longest: float) -> float:
        """The shortest slice of a step that takes so long, with what its start costs."""
        return self._cost.encode_start_s + max(LEAST_SHARE * longest, _LEAST_S)

    def add_slices(self, slack: float, longest: float) -> None:
        """Plan what fits `slack` for those under way, or a little where the step of `longest` has none."""
        least = max(LEAST_SHARE * longest, _LEAST_S)
        while self.under_way and max(slack, least) > 0:
            current, before = self.under_way[0], self.seconds
            start_s = 0.0 if self.jobs else self._cost.encode_start_s
            job = current.job
            seconds = max(slack - start_s, least)
            end = current.done + self._cost.encode_share(seconds, job.num_patches, job.squares)
            if end < 1 - _ROUNDING:
                current.is_begun = True
                self._add(job, current.done, end)
                return
            self._end(current)
            slack, least = slack - (self.seconds - before), 0.0

    def _has_room(self, job: EncodeJob) -> bool:
        """In the budget and in memory."""
        return self._budget.allows_encode(job.num_tokens) and not self._lacks_memory(job.item)

    def _lacks_memory(self, item: MediaItem) -> bool:
        """Who finds none is waited for: nobody behind takes what becomes free."""
        self._lacks_room = self._lacks_room or not self._visual.has_room(item)
        return self._lacks_room

    def _alone_s(self, item: MediaItem) -> float:
        """Predicted for an item by itself."""
        return self._cost.encode_seconds(item.geometry.num_patches, item.geometry.squares)

    def _end(self, current: UnderWay) -> None:
        self._add(current.job, current.done, 1.0)
        self.under_way.remove(current)

    def _seconds_with(self, job: EncodeJob, share: float) -> float:
        """Predicted for this share of a whole encode on top of what is planned."""
        patches, squares = self._patches + share * job.num_patches, self._squares + share * job.squares
        return self._cost.encode_seconds(patches, squares) - self.seconds

    def _add(self, job: EncodeJob, start: float, end: float) -> None:
        self.jobs.append(replace(job, start=start, end=end))
        self._patches += (end - start) * job.num_patches
        self._squares += (end - start) * job.squares
        if end >= 1:
            self._ready.add(self._visual.key_of(job.item))
