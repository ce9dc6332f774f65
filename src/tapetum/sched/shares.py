"""Who gets the time that decodes leave: encodes and prefills take turns, in predicted seconds.

Deficit round robin of two. A step gives each side half, and what one side got less or more than the other, since a
picture or a chunk is cut only so fine, is carried to the steps behind it. Nothing is carried once a side has had all it
wanted, so nobody saves up time, and time that one side does not want belongs to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_CARRIED = 4.0  # times the length of a step
_MAX_BORROWED_S = 1.0  # of encodes, by prefills that would be late


@dataclass(slots=True)
class Shares:
    owed_s: float = 0.0  # to encodes; negative = to prefills

    def of_encodes(self, even_s: float, both_s: float, *, is_urgent: bool = False) -> float:
        """Seconds of the next step, where `even_s` would be its share without a debt, `both_s` what there is.

        None where a prefill `is_urgent`, until that has borrowed too much.
        """
        if is_urgent and self.owed_s < _MAX_BORROWED_S:
            return 0.0
        return min(max(even_s + self.owed_s, 0.0), both_s)

    def settle(
        self,
        encode_s: float,
        prefill_s: float,
        *,
        is_contended: bool,
        step_s: float,
        is_urgent: bool = False,
    ) -> None:
        """A step gives so much to either side. `is_contended`: both would have had use for more."""
        if not is_contended:
            self.owed_s = 0.0
            return
        limit = _MAX_CARRIED * step_s
        most = max(limit, _MAX_BORROWED_S) if is_urgent else max(limit, self.owed_s)
        self.owed_s = min(max(self.owed_s + (prefill_s - encode_s) / 2, -limit), most)
