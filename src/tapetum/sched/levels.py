"""At which level those began to take part that have no counter of their own, by the scores of their requests.

Who takes part are all up to a limit of scores. The limit rises with time, and whoever it passes comes in at the level
of that moment; when a better class comes it falls, and all above it are out. So the scores below it fall into ranges,
the later ones higher, each with one level for all in it. Owns these ranges.
"""

from __future__ import annotations

from bisect import bisect_left


class Levels:
    def __init__(self) -> None:
        self._limits: list[float] = []  # the highest scores of the ranges
        self._levels: list[float] = []
        self._decisions: list[int] = []  # at which they came in

    def __len__(self) -> int:
        return len(self._limits)

    def at(self, score: float) -> tuple[float, int]:
        """The level of a score that takes part, and the decision that let it in."""
        index = bisect_left(self._limits, score)
        return self._levels[index], self._decisions[index]

    def add(self, limit: float, level: float, decision: int) -> None:
        """All up to a higher limit come in."""
        self._limits.append(limit)
        self._levels.append(level)
        self._decisions.append(decision)

    def widen(self, limit: float) -> None:
        """The limit rises, and nobody comes in."""
        self._limits[-1] = limit

    def cut(self, limit: float) -> None:
        """The limit falls."""
        index = bisect_left(self._limits, limit)
        self._limits[index] = limit
        self._drop(slice(index + 1, None))

    def forget_below(self, score: float) -> None:
        """Nobody has a lower one."""
        self._drop(slice(bisect_left(self._limits, score)))

    def clear(self) -> None:
        self._drop(slice(None))

    def _drop(self, places: slice) -> None:
        for part in (self._limits, self._levels, self._decisions):
            del part[places]
