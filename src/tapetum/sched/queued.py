"""What waits, in predicted seconds: all of it, and what goes before a request that comes now.

Owns the sums, by priority class and apart for requests with media: text does not wait for the encodes of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tapetum.core.priority import CLASSES, class_of
from tapetum.sched.progress import Progress


@dataclass(slots=True)
class Sum:
    """Of some requests; seconds as they were predicted when these began to wait."""

    count: int = 0
    encode_s: float = 0.0
    prefill_s: float = 0.0

    def add(self, other: Sum) -> None:
        self.count += other.count
        self.encode_s += other.encode_s
        self.prefill_s += other.prefill_s

    @property
    def seconds(self) -> float:
        return self.encode_s + self.prefill_s


class Queued:
    def __init__(self) -> None:
        self._sums: defaultdict[tuple[int, bool], Sum] = defaultdict(Sum)
        self._parts: dict[str, Sum] = {}  # by request

    def push(self, progress: Progress, encode_s: float, prefill_s: float) -> None:
        """It waits, with so much to do."""
        part = self._parts[progress.request_id] = Sum(1, encode_s, prefill_s)
        self._sums[_kind(progress)].add(part)

    def remove(self, progress: Progress) -> None:
        kind, part = _kind(progress), self._parts.pop(progress.request_id)
        if self._sums[kind].count == 1:
            del self._sums[kind]  # no rounding error outlives the queue
        else:
            self._sums[kind].add(Sum(-1, -part.encode_s, -part.prefill_s))

    def by_class(self) -> dict[str, int]:
        """How many wait, of every class of priority."""
        counts = dict.fromkeys(CLASSES, 0)
        for (priority, _), part in self._sums.items():
            counts[class_of(priority)] += part.count
        return counts

    def total(self) -> Sum:
        return _sum_of(list(self._sums.values()))

    def ahead(self, priority: int, *, has_media: bool) -> Sum:
        """What goes before a request of this class; without media, only others that have none either."""
        return _sum_of(
            part
            for (other, other_has_media), part in list(self._sums.items())
            if other <= priority and (has_media or not other_has_media)
        )


def _kind(progress: Progress) -> tuple[int, bool]:
    request = progress.state.request
    return request.priority, bool(request.prompt.spans)


def _sum_of(parts: Iterable[Sum]) -> Sum:
    total = Sum()
    for part in parts:
        total.add(part)
    return total
