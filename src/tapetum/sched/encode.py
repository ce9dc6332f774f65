"""The encodes of a step being written: small items whole, of a larger one the slice that the step has time for.

One item at a time is encoded in slices, from its first to its last, and stays under way between the steps. The rule
beside requests that decode: half of what the decodes leave of the step's time belongs to the encode under way, the
other half to prefills and to items that fit in whole; what these do not use the slice takes as well. It never takes
less than a tenth of the step, so an encode ends after ten times its own time at most. Where nothing decodes only
encodes are limited, so that whoever comes meanwhile is soon let in.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.cache.visual import FeatureKey, VisualCache
from tapetum.core.cost import CostModel
from tapetum.core.media import MediaItem
from tapetum.core.plan import EncodeJob
from tapetum.sched.budget import StepBudget

ENCODE_SHARE = 0.5  # of the time that decodes leave, for an encode under way that needs it
_LEAST_SHARE = 0.1  # of a step's time, for the same
_LEAST_S = 1e-4  # the same where a step seems to take no time
_ROUNDING = 1e-6


@dataclass(slots=True, eq=False)
class UnderWay:
    """An item that is encoded in slices, and the share of it that is done."""

    item: MediaItem
    done: float = 0.0


class EncodeDraft:
    def __init__(
        self, budget: StepBudget, visual: VisualCache, cost: CostModel, under_way: UnderWay | None
    ) -> None:
        self.jobs: list[EncodeJob] = []
        self.under_way = under_way
        self._budget = budget
        self._visual = visual
        self._cost = cost
        self._ready: set[FeatureKey] = set()
        self._patches = self._squares = 0.0

    @property
    def seconds(self) -> float:
        """Predicted for what is planned."""
        return self._cost.encode_seconds(self._patches, self._squares)

    def is_ready(self, item: MediaItem) -> bool:
        """Whether the rows of this step find the features."""
        key = self._visual.key_of(item)
        return key in self._ready or self._visual.state(key) == "resident"

    def try_begin(self, item: MediaItem, seconds: float) -> bool:
        """Encode an absent item whole if that takes `seconds` at most; else in slices, unless another one is."""
        if not (self._budget.allows_encode(item.geometry.num_tokens) and self._visual.has_room(item)):
            return False
        if self._seconds_with(item, 1.0) <= seconds:
            self._visual.begin(item)
            self._budget.take_encode(item.geometry.num_tokens)
            self._add(item, 0.0, 1.0)
            return True
        if self.under_way is not None:
            return False
        self._visual.begin(item)
        self.under_way = UnderWay(item)
        return True

    def try_end(self, seconds: float) -> None:
        """Plan the rest of the item under way if that takes `seconds` at most."""
        current = self.under_way
        if current is not None and self._seconds_with(current.item, 1 - current.done) <= seconds:
            self._end(current)

    def add_slice(self, slack: float, longest: float) -> None:
        """Plan for the item under way what fits `slack`, or a little where the step of `longest` has none."""
        current = self.under_way
        if current is None:
            return
        start_s = 0.0 if self.jobs else self._cost.encode_start_s
        seconds = max(slack - start_s, _LEAST_SHARE * longest, _LEAST_S)
        geometry = current.item.geometry
        end = current.done + self._cost.encode_share(seconds, geometry.num_patches, geometry.squares)
        if end < 1 - _ROUNDING:
            self._add(current.item, current.done, end)
        else:
            self._end(current)

    def _end(self, current: UnderWay) -> None:
        self._add(current.item, current.done, 1.0)
        self.under_way = None

    def _seconds_with(self, item: MediaItem, share: float) -> float:
        """Predicted for this share of an item on top of what is planned."""
        patches = self._patches + share * item.geometry.num_patches
        return (
            self._cost.encode_seconds(patches, self._squares + share * item.geometry.squares) - self.seconds
        )

    def _add(self, item: MediaItem, start: float, end: float) -> None:
        self.jobs.append(EncodeJob(item=item, start=start, end=end))
        self._patches += (end - start) * item.geometry.num_patches
        self._squares += (end - start) * item.geometry.squares
        if end >= 1:
            self._ready.add(self._visual.key_of(item))
