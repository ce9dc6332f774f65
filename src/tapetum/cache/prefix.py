"""PrefixTree: which runs of KV blocks are reusable, by exact tokens and pictures.

A tree with one node per full block; a path from a root spells a prefix. A root stands for everything else that KV
depends on (tenant, weights, format). Owns the structure, and tells the order of eviction which blocks are cached
leaves; the pool owns references.

Whoever holds a node's block also holds the blocks of all nodes above it, and lets go of deeper ones first. So nothing
below an unreferenced block is referenced, and every cached block can be evicted, leaves first.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tapetum.cache.blocks import BlockPool
from tapetum.cache.eviction import EvictionOrder, Quotas, Worth
from tapetum.cache.keys import BlockKey, SpanPart
from tapetum.cache.sightings import Sightings

Root = tuple[Hashable, ...]


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One published block."""

    block: int
    key: BlockKey
    root: Root
    parent: PrefixNode | None
    siblings: dict[BlockKey, PrefixNode]
    worth: Worth
    children: dict[BlockKey, PrefixNode] = field(default_factory=dict)
    name: bytes = b""  # in the tiers; empty = not worked out
    is_kept: bool = False  # in a tier, or on its way there

    def parts_of(self, media_key: bytes) -> list[SpanPart]:
        """The parts of one picture: the end of one place and the beginning of another may lie in a block."""
        return [part for part in self.key.parts if part.media_key == media_key]


class PrefixTree:
    def __init__(self, pool: BlockPool, quotas: Quotas | None = None) -> None:
        self.order = EvictionOrder(pool, quotas or Quotas())
        self.sightings = Sightings()
        self._pool = pool
        self._roots: dict[Root, dict[BlockKey, PrefixNode]] = {}
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

    def has(self, node: PrefixNode) -> bool:
        """Whether it has not been forgotten."""
        return self._nodes.get(node.block) is node

    def match(self, root: Root, keys: Sequence[BlockKey]) -> list[PrefixNode]:
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

    def publish(
        self, root: Root, parent: PrefixNode | None, key: BlockKey, block: int, cost_s: float = 0.0
    ) -> PrefixNode:
        """The node for `key` below `parent` (None = the root): the one that is there, or a new one for `block`.

        `cost_s` = seconds to compute it again.
        """
        level = parent.children if parent else self._roots.setdefault(root, {})
        node = level.get(key)
        if node is None:
            has_picture = bool(key.parts) or (parent is not None and parent.worth.has_picture)
            worth = Worth(block, self._pool.account_of(block), has_picture, cost_s)
            node = level[key] = self._nodes[block] = PrefixNode(block, key, root, parent, level, worth)
            self._pool.publish(block)
            self.sightings.add(node)
            if parent is not None:
                self.order.discard(parent.worth)
        return node

    def acquire(self, node: PrefixNode, *, is_reuse: bool = True) -> None:
        """One more reference to a block that somebody has found here, or computed besides."""
        self._pool.acquire(node.block)
        self.order.discard(node.worth)
        if is_reuse:
            self.order.use(node.worth)

    def release(self, block: int) -> None:
        """One reference less, to a block that is published or not."""
        if self._pool.release(block):
            node = self._nodes[block]
            self.order.place(node.worth)
            if not node.children:
                self.order.add(node.worth)

    def clear(self) -> None:
        """Forget every block that nobody holds."""
        while self._pool.num_cached:
            self.evict()

    def evict(self) -> None:
        """Forget the block that goes first. There must be a cached one."""
        worth = self.order.first()
        self.order.evict(worth)
        node = self._nodes.pop(worth.block)
        assert not node.children, f"block {node.block} is not a leaf"
        del node.siblings[node.key]
        if node.parent is not None:
            if not node.siblings and self._pool.is_cached(node.parent.block):
                self.order.add(node.parent.worth)
        elif not node.siblings:
            del self._roots[node.root]
        self._pool.reclaim(node.block)
        self.sightings.remove(node)
        self.num_evictions += 1
