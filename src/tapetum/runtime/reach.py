"""How far the tokens of a step see: those of some pictures see each other both ways, all others what is before them.

Pure: numbers in, an array out, which becomes `AttentionLayout.reach`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tapetum.core.media import Span

PackedRow = tuple[int, int, Sequence[Span]]  # first position, last + 1, spans of the request


def plan_reach(rows: Sequence[PackedRow]) -> np.ndarray | None:
    """For each packed token how many tokens of its row it sees, int32 [T]; None if each sees those up to itself."""
    if not any(True for row in rows for _ in _runs(*row)):
        return None
    parts = []
    for start, end, spans in rows:
        reach = np.arange(start + 1, end + 1, dtype=np.int32)
        for first, last in _runs(start, end, spans):
            assert last <= end, "no chunk ends within tokens that see each other both ways"
            reach[max(0, first - start) : last - start] = last
        parts.append(reach)
    return np.concatenate(parts)


def _runs(start: int, end: int, spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Of atomic spans, those that have tokens in [start, end)."""
    for span in spans:
        if span.is_atomic and span.start < end and start < span.end:
            yield from ((first, last) for first, last in span.placeholders if first < end and start < last)
