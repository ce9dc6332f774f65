"""What a request was promised, and whether it was kept: the service level that goodput counts.

A request is good if its first token comes within four times what it takes on an idle device, a second at least, and its
tokens come within twice the time that they take there, on average.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.bench.simulate.outcome import Outcome
from tapetum.bench.simulate.prompts import Unloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Factors are of the unloaded times."""

    least_ttft_s: float = 1.0
    ttft_factor: float = 4.0
    itl_factor: float = 2.0

    def ttft_s(self, unloaded: Unloaded) -> float:
        return max(self.least_ttft_s, self.ttft_factor * unloaded.ttft_s)

    def seconds(self, unloaded: Unloaded) -> float:
        """For the whole answer."""
        return self.ttft_s(unloaded) + self.itl_factor * unloaded.decode_s

    def is_kept(self, outcome: Outcome, unloaded: Unloaded) -> bool:
        if not outcome.is_answered:
            return False
        is_prompt = outcome.ttft_s <= self.ttft_s(unloaded)
        return is_prompt and outcome.itl_s <= self.itl_factor * unloaded.itl_s
