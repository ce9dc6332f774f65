"""BlockPool: which KV blocks are free, who holds how many references, what kind of tokens they carry, and for whom.

Owns the counts, not the contents: a block is a number. Every block is in exactly one of three places:
free (nobody knows it), held (reference count > 0) or cached (published for reuse, held by nobody, evictable), so
free + cached + held = total. Blocks that are not free belong to one tag and one account, so both sum up to that.
Which cached block goes first is the order of eviction.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, get_args

# Text tokens, those of pictures, both, or what a text attends to from beside its sequence: keys and values of pictures
# in models with cross-attention layers (Llama 3.2 Vision, Flamingo).
Tag = Literal["text", "visual", "mixed", "cross"]


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: low numbers first, warm blocks first
        self._references = [0] * num_blocks
        self._is_published = [False] * num_blocks
        self._num_cached = 0
        self._tags: list[Tag] = ["text"] * num_blocks
        self._accounts = [""] * num_blocks
        self._num_by_tag: dict[Tag, int] = dict.fromkeys(get_args(Tag), 0)
        self._num_by_account: Counter[str] = Counter()
        self._majority: str | None = None

    @property
    def num_blocks(self) -> int:
        return len(self._references)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Blocks that a request can have: free ones and those that may be evicted."""
        return len(self._free) + self._num_cached

    @property
    def num_by_tag(self) -> Mapping[Tag, int]:
        """Blocks that are not free, by tag."""
        return dict(self._num_by_tag)

    @property
    def num_visual(self) -> int:
        """Blocks with tokens of pictures."""
        return self.num_blocks - len(self._free) - self._num_by_tag["text"]

    @property
    def num_by_account(self) -> Mapping[str, int]:
        """Blocks that are not free, by the account that they were taken for; of accounts that have any."""
        return dict(self._num_by_account)

    @property
    def num_accounts(self) -> int:
        return len(self._num_by_account)

    @property
    def majority(self) -> tuple[str, int] | None:
        """The account with more than half of all blocks, should there be one, and how many it has."""
        return None if self._majority is None else (self._majority, self._num_by_account[self._majority])

    def references(self, block: int) -> int:
        return self._references[block]

    def account_of(self, block: int) -> str:
        return self._accounts[block]

    def is_cached(self, block: int) -> bool:
        return self._is_published[block] and not self._references[block]

    def allocate(self, tag: Tag, account: str = "") -> int:
        """Take a free block, with one reference. There must be one."""
        block = self._free.pop()
        self._references[block] = 1
        self._tags[block] = tag
        self._num_by_tag[tag] += 1
        self._accounts[block] = account
        self._num_by_account[account] += 1
        if 2 * self._num_by_account[account] > self.num_blocks:
            self._majority = account
        return block

    def acquire(self, block: int) -> None:
        """One more reference to a block that is held or cached."""
        assert self._references[block] > 0 or self._is_published[block], f"block {block} is free"
        self._num_cached -= self.is_cached(block)
        self._references[block] += 1

    def release(self, block: int) -> bool:
        """One reference less -> whether it was the last one of a published block, which is cached now.

        Of others the last one leaves the block free.
        """
        assert self._references[block] > 0, f"block {block} is not held"
        self._references[block] -= 1
        if self._references[block]:
            return False
        if not self._is_published[block]:
            self._free_up(block)
            return False
        self._num_cached += 1
        return True

    def publish(self, block: int) -> None:
        """Someone can find this held block from now on: keep it when the last reference goes."""
        assert self._references[block] > 0, f"block {block} is not held"
        self._is_published[block] = True

    def reclaim(self, block: int) -> None:
        """Make a cached block free; whoever could find it must have forgotten it."""
        assert self.is_cached(block), f"block {block} is not cached"
        self._num_cached -= 1
        self._is_published[block] = False
        self._free_up(block)

    def _free_up(self, block: int) -> None:
        self._num_by_tag[self._tags[block]] -= 1
        account = self._accounts[block]
        self._num_by_account[account] -= 1
        if account == self._majority and 2 * self._num_by_account[account] <= self.num_blocks:
            self._majority = None
        if not self._num_by_account[account]:
            del self._num_by_account[account]
        self._free.append(block)
