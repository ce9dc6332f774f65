"""Who runs, in the order of their seats: those that decode, and those that do not yet.

A seat is the rank of a request as if it had come when it was let in first, so a tenant with many that wait does not
drive out others by having come earlier. Owns which of the two a request is (`Progress.is_decoding`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from tapetum.sched.progress import Progress
from tapetum.sched.queue import RankedQueue


class Seats:
    def __init__(self) -> None:
        self.decodes: RankedQueue[Progress] = RankedQueue(attrgetter("seat"))
        self.prefills: RankedQueue[Progress] = RankedQueue(attrgetter("seat"))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Progress]:
        return chain(self.decodes, self.prefills)

    @property
    def last(self) -> Progress:
        return max((line.last for line in (self.decodes, self.prefills) if line), key=attrgetter("seat"))

    def push(self, progress: Progress) -> None:
        """It runs from now on."""
        progress.is_decoding = progress.lacks_one_token
        self._line_of(progress).push(progress)
        self._count += 1

    def remove(self, progress: Progress) -> None:
        """It runs no more."""
        self._line_of(progress).remove(progress)
        self._count -= 1
        progress.is_decoding = False

    def note_computed(self, progress: Progress) -> None:
        """A prefill has got further, perhaps to its first token."""
        if progress.lacks_one_token:
            self.remove(progress)
            self.push(progress)

    def _line_of(self, progress: Progress) -> RankedQueue[Progress]:
        return self.decodes if progress.is_decoding else self.prefills
