"""How long a step may take, corrected by what was measured.

The cost model says what fits the target. Where it says so wrongly, or the machine is busy with something else, tokens
come late all the same: then the limit is cut at once, and given back little by little as long as they come on time. It
is never longer than the target asks for, and never shorter than a part of that. Only steps that hold something beside
their decodes are looked at, and of those only the ones that were planned to be on time: no budget helps the others.
"""

from __future__ import annotations

from tapetum.core.config import ScheduleConfig
from tapetum.sched.budget import limit_beside_decodes

_CUT, _GROWTH = 0.7, 0.05
_LEAST = 0.5  # of the limit
_INTERVAL = 8  # steps after which the limit moves
_LATE = 1.1  # times the limit
_ROUNDING = 1.001


class Pace:
    def __init__(self, config: ScheduleConfig) -> None:
        self.factor = 1.0  # what is left of the limit
        self._config = config
        self._watched: dict[int, float] = {}  # step -> the limit that was wanted, of those in flight
        self._last_s: float | None = None  # when the last step ended
        self._num_seen = self._num_late = 0  # of this interval

    def limit(self, decodes_s: float, *, is_urgent: bool = False) -> float | None:
        """Seconds of a step whose decodes alone take so long; None where there is no target."""
        wanted = limit_beside_decodes(self._config, decodes_s, is_urgent=is_urgent)
        return None if wanted is None else self.factor * wanted

    def planned(self, step: int, seconds: float, decodes_s: float, *, is_urgent: bool = False) -> None:
        """A step that holds something beside its decodes should take so long."""
        wanted = limit_beside_decodes(self._config, decodes_s, is_urgent=is_urgent)
        if wanted is not None and seconds <= _ROUNDING * wanted:
            self._watched[step] = wanted

    def ended(self, step: int, now: float) -> None:
        """A step is over: everyone who decodes has the next token, whose last one came with the step before it."""
        wanted, last_s = self._watched.pop(step, None), self._last_s
        self._last_s = now
        if wanted is None or last_s is None:
            return
        self._num_seen += 1
        self._num_late += now - last_s > _LATE * wanted
        if self._num_seen == _INTERVAL:
            is_late = 2 * self._num_late >= _INTERVAL
            self.factor = max(_LEAST, self.factor * _CUT) if is_late else min(1.0, self.factor + _GROWTH)
            self._num_seen = self._num_late = 0

    def dropped(self, step: int) -> None:
        """A step will not be carried out."""
        self._watched.pop(step, None)
