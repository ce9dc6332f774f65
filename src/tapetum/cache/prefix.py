"""PrefixTree: which runs of KV blocks are reusable, by exact tokens and pictures.

A tree with one node per full block; a path from a root spells a prefix. A root stands for everything else that KV
depends on (tenant, weights, format). Owns the structure; the pool owns references and the order of eviction.

Whoever holds a node's block also holds the blocks of all nodes above it, and lets go of deeper ones first. So nothing
below an unreferenced block is referenced, every cached block can be evicted, and the one let go first is a leaf.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tapetum.cache.blocks import BlockPool
from tapetum.cache.keys import BlockKey, SpanPart
from tapetum.cache.sightings import Sightings


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One published block."""

    block: int
    key: BlockKey
    root: Hashable
    parent: PrefixNode | None
    siblings: dict[BlockKey, PrefixNode]
    children: dict[BlockKey, PrefixNode] = field(default_factory=dict)

    def parts_of(self, media_key: bytes) -> list[SpanPart]:
        """The parts of one picture: the end of one place and the beginning of another may lie in a block."""
        return [part for part in self.key.parts if part.media_key == media_key]


class PrefixTree:
    def __init__(self, pool: BlockPool) -> None:
        self.sightings = Sightings()
        self._pool = pool
        self._roots: dict[Hashable, dict[BlockKey, PrefixNode]] = {}
        self._nodes: dict[int, PrefixNode] = {}  # by block
        self.num_evictions = 0

    @property
    def num_blocks(self) -> int:
        return len(self._nodes)

    @property
    def num_roots(self) -> int:
        return len(self._roots)

    def holds(self, media_key: bytes) -> bool:
        """Whether some of a picture is in a published block. May be asked from another thread."""
        return media_key in self.sightings

    def match(self, root: Hashable, keys: Sequence[BlockKey]) -> list[PrefixNode]:
        """The longest published run that begins with `keys`."""
        found: list[PrefixNode] = []
        level = self._roots.get(root, {})
        for key in keys:
            node = level.get(key)
            if node is None:
                break
            found.append(node)
            level = node.children
        return found

    def publish(self, root: Hashable, parent: PrefixNode | None, key: BlockKey, block: int) -> PrefixNode:
        """The node for `key` below `parent` (None = the root): the one that is there, or a new one for `block`."""
        level = parent.children if parent else self._roots.setdefault(root, {})
        if key not in level:
            level[key] = self._nodes[block] = PrefixNode(block, key, root, parent, level)
            self._pool.publish(block)
            self.sightings.add(level[key])
        return level[key]

    def clear(self) -> None:
        """Forget every block that nobody holds."""
        while self._pool.num_cached:
            self.evict()

    def evict(self) -> None:
        """Forget the block that was let go first. There must be a cached one."""
        block = self._pool.oldest_cached()
        node = self._nodes.pop(block)
        assert not node.children, f"block {block} is not a leaf"
        del node.siblings[node.key]
        if not node.siblings and self._roots.get(node.root) is node.siblings:
            del self._roots[node.root]
        self._pool.reclaim(block)
        self.sightings.remove(node)
        self.num_evictions += 1
