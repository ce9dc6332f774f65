"""Whether an encode should wait a little, to be carried out together with the next picture that comes.

Waiting pays for all if what the next picture saves by sharing the start of an encode is more than what those that are
here already lose, by the wait and by having it beside them: `c0 - w > n (w + m)`, for n pictures of m seconds each, one
more coming in about w, and c0 seconds that an encode costs however small it is. So it pays where starting is dear, as
on a device that is launched, and hardly ever where c0 is the cost of a function call.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.core.cost import CostModel
from tapetum.core.plan import EncodeJob

_FORGETTING = 0.8  # of the gaps before, with every picture that comes


@dataclass(slots=True)
class Batch:
    """Items that could be encoded together now."""

    num_items: int = 0
    patches: float = 0.0
    squares: float = 0.0
    due_s: float = float("inf")  # the earliest time by which the encode must be over

    def add(self, job: EncodeJob, due_s: float) -> None:
        self.num_items += 1
        self.patches += job.num_patches
        self.squares += job.squares
        self.due_s = min(self.due_s, due_s)


class Hold:
    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._gap_s: float | None = None  # mean, between two requests with pictures
        self._last_s: float | None = None
        self._since_s: float | None = None  # when the wait began that is on

    def came(self, arrival_s: float) -> None:
        """A request with pictures has come."""
        if self._last_s is not None:
            gap_s = max(0.0, arrival_s - self._last_s)
            before_s = gap_s if self._gap_s is None else self._gap_s
            self._gap_s = _FORGETTING * before_s + (1 - _FORGETTING) * gap_s
        self._last_s = arrival_s

    def update(self, batch: Batch, now: float) -> bool:
        """Whether these items should wait for now. Nobody waits longer than until the next one should have come."""
        is_worth = self._is_worth(batch, now if self._since_s is None else self._since_s, now)
        if not is_worth:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now
        return is_worth

    def _is_worth(self, batch: Batch, since_s: float, now: float) -> bool:
        wait_s = self._gap_s
        if wait_s is None or not batch.num_items or now - since_s >= wait_s:
            return False
        start_s = self._cost.encode_start_s
        together_s = self._cost.encode_seconds(batch.patches, batch.squares)
        each_s = (together_s - start_s) / batch.num_items
        is_timely = now + wait_s + together_s + each_s < batch.due_s
        return is_timely and start_s - wait_s > batch.num_items * (wait_s + each_s)
