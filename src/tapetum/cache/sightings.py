"""Sightings: where in the prefix tree a picture lies, whatever stands before it there.

Owns no blocks and keeps none: what is evicted is seen no more. Prefixes that share a picture's blocks share its
sighting; each other place of the picture is one more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tapetum.cache.keys import SpanPart

if TYPE_CHECKING:
    from tapetum.cache.prefix import PrefixNode

_MAX_LOOKED_AT = 8  # places of a picture


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sighting:
    """A picture in published blocks, from its first token on, perhaps not to its last."""

    path: tuple[PrefixNode, ...]  # from the root to the last of its blocks
    num_blocks: int  # of them, those that hold tokens of the picture
    first: int  # the slot of its first token in the first of these
    token_ids: tuple[int, ...]
    position: int
    placement: tuple[float, ...]

    @property
    def block_ids(self) -> tuple[int, ...]:
        return tuple(node.block for node in self.path[-self.num_blocks :])


class Sightings:
    def __init__(self) -> None:
        # media key -> the last block of it in each place, the newest place last
        self._ends: dict[bytes, dict[PrefixNode, None]] = {}

    def __contains__(self, media_key: object) -> bool:
        return media_key in self._ends

    def add(self, node: PrefixNode) -> None:
        """A block was published."""
        for part in node.key.parts:
            ends = self._ends.setdefault(part.media_key, {})
            if part.offset and node.parent is not None:
                ends.pop(node.parent, None)
            ends[node] = None

    def remove(self, node: PrefixNode) -> None:
        """A leaf is forgotten: what was seen there is seen as far as its parent."""
        for part in node.key.parts:
            ends = self._ends.get(part.media_key, {})
            ends.pop(node, None)
            if part.offset and node.parent is not None and node.parent.parts_of(part.media_key):
                ends.setdefault(node.parent)
            if not ends:
                self._ends.pop(part.media_key, None)

    def find(self, root: Hashable, media_key: bytes) -> Iterator[Sighting]:
        """Some places of a picture, the newest first."""
        for node in islice(reversed(self._ends.get(media_key, {})), _MAX_LOOKED_AT):
            for part in node.parts_of(media_key) if node.root == root else ():
                yield _sighting(node, part)


def _sighting(end: PrefixNode, last: SpanPart) -> Sighting:
    """Of the picture whose part `last` is in the block `end`, back to its first token."""
    nodes, parts = [end], [last]
    while parts[-1].offset:
        node = nodes[-1].parent
        assert node is not None, "a path holds a picture from its first token on"
        parts.append(node.parts_of(last.media_key)[-1])
        nodes.append(node)
    num_blocks = len(nodes)
    while (above := nodes[-1].parent) is not None:
        nodes.append(above)
    pairs = zip(nodes[num_blocks - 1 :: -1], reversed(parts), strict=True)
    return Sighting(
        path=tuple(reversed(nodes)),
        num_blocks=num_blocks,
        first=parts[-1].first,
        token_ids=tuple(
            token_id for node, part in pairs for token_id in node.key.token_ids[part.first : part.last]
        ),
        position=last.position,
        placement=last.placement,
    )
