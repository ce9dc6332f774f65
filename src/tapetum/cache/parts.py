"""PartIndex: which resident features hold which parts of pictures.

Owns no memory: a part is a reference into features that are there, and goes with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.core.media import MediaItem, Part
from tapetum.core.plan import KnownPart

Runs = tuple[tuple[int, int], ...]


class PartIndex:
    def __init__(self) -> None:
        self._holders: dict[bytes, dict[bytes, Runs]] = {}  # part key -> media key -> where in its features

    def add(self, media_key: bytes, parts: Sequence[Part]) -> None:
        """These features are resident; of a part that they hold twice the first counts."""
        for part in parts:
            if part.runs:
                self._holders.setdefault(part.key, {}).setdefault(media_key, part.runs)

    def remove(self, media_key: bytes, parts: Sequence[Part]) -> None:
        for part in parts:
            holders = self._holders.get(part.key, {})
            holders.pop(media_key, None)
            if not holders:
                self._holders.pop(part.key, None)

    def find(self, item: MediaItem) -> tuple[KnownPart, ...]:
        """The parts of an absent item that are there, taken from few, and those that it has twice itself."""
        found: list[KnownPart] = []
        chosen: dict[bytes, None] = {}
        own: dict[bytes, Runs] = {}
        for number, part in enumerate(item.parts):
            if not part.runs:
                continue
            if holders := dict(self._holders.get(part.key, ())):  # which another thread may change
                media_key = next((key for key in chosen if key in holders), None) or next(reversed(holders))
                chosen[media_key] = None
                found.append(KnownPart(number=number, media_key=media_key, runs=holders[media_key]))
            elif part.key in own:
                found.append(KnownPart(number=number, media_key=item.key, runs=own[part.key]))
            else:
                own[part.key] = part.runs
        return tuple(found)

    def __len__(self) -> int:
        """Distinct parts."""
        return len(self._holders)
