"""BlockPool: which KV blocks are free, who holds how many references, what kind of tokens they carry.

Owns the counts, not the contents: a block is a number. Every block is in exactly one of three places:
free (nobody knows it), held (reference count > 0) or cached (published for reuse, held by nobody, evictable), so
free + cached + held = total. Cached blocks are kept in the order in which they were let go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

Tag = Literal["text", "visual", "mixed"]


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: low numbers first, warm blocks first
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._is_published = [False] * num_blocks
        self._tags: list[Tag] = ["text"] * num_blocks
        self._num_by_tag: dict[Tag, int] = {"text": 0, "visual": 0, "mixed": 0}

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Blocks that a request can have: free ones and those that may be evicted."""
        return len(self._free) + len(self._cached)

    @property
    def num_by_tag(self) -> Mapping[Tag, int]:
        """Blocks that are not free, by tag."""
        return dict(self._num_by_tag)

    def references(self, block: int) -> int:
        return self._references[block]

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def allocate(self, tag: Tag) -> int:
        """Take a free block, with one reference. There must be one."""
        block = self._free.pop()
        self._references[block] = 1
        self._tags[block] = tag
        self._num_by_tag[tag] += 1
        return block

    def acquire(self, block: int) -> None:
        """One more reference to a block that is held or cached."""
        assert self._references[block] > 0 or block in self._cached, f"block {block} is free"
        self._cached.pop(block, None)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one leaves the block cached if it was published, else free."""
        assert self._references[block] > 0, f"block {block} is not held"
        self._references[block] -= 1
        if self._references[block]:
            return
        if self._is_published[block]:
            self._cached[block] = None
        else:
            self._free_up(block)

    def publish(self, block: int) -> None:
        """Someone can find this held block from now on: keep it when the last reference goes."""
        assert self._references[block] > 0, f"block {block} is not held"
        self._is_published[block] = True

    def oldest_cached(self) -> int:
        """The cached block that was let go first. There must be one."""
        return next(iter(self._cached))

    def reclaim(self, block: int) -> None:
        """Make a cached block free; whoever could find it must have forgotten it."""
        del self._cached[block]
        self._is_published[block] = False
        self._free_up(block)

    def _free_up(self, block: int) -> None:
        self._num_by_tag[self._tags[block]] -= 1
        self._free.append(block)
