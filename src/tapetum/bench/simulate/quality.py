"""The ladder of picture sizes in a simulation: the real decision, on the real geometry, for pictures without pixels.

All media of a request stand on one rung. None is text, none is pinned; one that was seen before is sent at its full
size, as a server does for what it has.
"""

from __future__ import annotations

from tapetum.bench.simulate.prompts import Prompts
from tapetum.bench.simulate.trace import Arrival
from tapetum.core.media import PARTS, Rung
from tapetum.sched.quality import QualityLadder, choose

_RUNGS: tuple[Rung, ...] = tuple(PARTS)


class Quality:
    def __init__(self, target_s: float, prompts: Prompts) -> None:
        self._ladder = QualityLadder(target_s)
        self._prompts = prompts
        self._seen: set[tuple[str, str]] = set()  # tenants and contents

    def rung(self, arrival: Arrival, queue_s: float) -> Rung:
        """What a request gets that comes while so many predicted seconds wait."""
        shape, now = arrival.shape, arrival.at_s
        if not shape.media:
            return "high"
        works = [self._prompts.unloaded(shape, rung).ttft_s for rung in _RUNGS]
        self._ladder.observe(queue_s, now)
        self._ladder.charge(arrival.tenant, works[0], now)
        contents = {(arrival.tenant, medium.content) for medium in shape.media if medium.content}
        is_seen = bool(contents & self._seen)
        self._seen |= contents
        if is_seen:
            return "high"
        return _RUNGS[choose(self._ladder.allowance(arrival.priority, arrival.tenant, now), works)]
