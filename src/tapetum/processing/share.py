"""A budget shared out over several claims by their size, as water fills vessels: whoever needs less leaves the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What one takes part with: its size, and what it gets at least and at most."""

    size: float
    least: int
    most: int


def share_out(budget: int, claims: Sequence[Claim]) -> list[int]:
    """Whole shares of at most `budget` together, each in proportion to its size between its least and its most.

    The budget must cover the least of all. Shares are rounded down, so a few units may be left.
    """
    assert sum(claim.least for claim in claims) <= budget
    if sum(claim.most for claim in claims) <= budget:
        return [claim.most for claim in claims]
    low, high = 0.0, max(claim.most / claim.size for claim in claims)  # of units for each unit of size
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        if sum(_clamped(level, claim) for claim in claims) <= budget:
            low = level
        else:
            high = level
    return [int(_clamped(low, claim)) for claim in claims]


_HALVINGS = 64


def _clamped(level: float, claim: Claim) -> float:
    return min(max(level * claim.size, claim.least), claim.most)
