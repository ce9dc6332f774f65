"""Classes of priority: names of some of the numbers, of which the lower are earlier."""

from __future__ import annotations

CLASSES = {"interactive": -1, "standard": 0, "economy": 1, "background": 2}


def class_of(priority: int) -> str:
    """The class a number counts to: the last one that is no later, or the first."""
    return next((name for name, number in reversed(CLASSES.items()) if number <= priority), "interactive")
