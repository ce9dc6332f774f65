"""HostSlots: which places for KV blocks in host memory are free.

Owns the counts, not the contents, as the pool does for the device: a slot is a number, free or taken.
"""

from __future__ import annotations

from collections.abc import Iterable


class HostSlots:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(
            range(num_slots)
        )  # sorted, so that most takings are a run: one copy instead of many

    @property
    def num_taken(self) -> int:
        return self.num_slots - len(self._free)

    def try_take(self, count: int) -> tuple[int, ...] | None:
        """So many slots in rising order; None if there is no room for all of them."""
        if count > len(self._free):
            return None
        taken = tuple(self._free[:count])
        del self._free[:count]
        return taken

    def give_back(self, slots: Iterable[int]) -> None:
        self._free = sorted((*self._free, *slots))
        assert len(self._free) <= self.num_slots, "slots are given back twice"
