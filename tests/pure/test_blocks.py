"""BlockPool beside a naive model, and the arithmetic of KV memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapetum.cache.blocks import BlockPool
from tapetum.core.model import kv_bytes_per_token

MIB, GIB = 1024**2, 1024**3
NUM_BLOCKS = 6


@pytest.mark.parametrize(
    ("layers", "heads", "per_token", "mib_576", "gib_million"),
    [
        (28, 4, 57_344, 31.5, 53.4),  # Qwen2-VL-7B
        (80, 8, 327_680, 180, 305),  # 72B class
        (32, 32, 524_288, 288, 488),  # LLaMA-7B, one KV head per query head
        (32, 8, 131_072, 72, 122),  # Llama-3-8B class
    ],
)
def test_kv_bytes(layers: int, heads: int, per_token: int, mib_576: float, gib_million: float) -> None:
    found = kv_bytes_per_token(layers, heads, 128, 2)
    assert found == per_token
    assert found * 576 / MIB == mib_576
    assert found * 2304 / MIB == 4 * mib_576
    assert found * 1_000_000 / GIB == pytest.approx(gib_million, rel=2e-3)


class PoolMachine(RuleBasedStateMachine):
    """The model: references, publication, tag and account of each taken block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.references: dict[int, int] = {}
        self.published: set[int] = set()
        self.let_go: list[int] = []  # published blocks without references
        self.tags: dict[int, str] = {}
        self.accounts: dict[int, str] = {}

    def _held(self) -> list[int]:
        return sorted(block for block, count in self.references.items() if count)

    @precondition(lambda self: len(self.references) < NUM_BLOCKS)
    @rule(tag=st.sampled_from(["text", "visual", "mixed", "cross"]), account=st.sampled_from(["", "a", "b"]))
    def allocate(self, tag: str, account: str) -> None:
        block = self.pool.allocate(tag, account)
        assert block not in self.references
        self.references[block] = 1
        self.tags[block] = tag
        self.accounts[block] = account

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.acquire(block)
        self.references[block] += 1
        if block in self.let_go:
            self.let_go.remove(block)

    @precondition(_held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._held()))
        self.pool.publish(block)
        self.published.add(block)

    @precondition(_held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._held()))
        self.pool.release(block)
        self.references[block] -= 1
        if self.references[block]:
            return
        if block in self.published:
            self.let_go.append(block)
        else:
            self._forget(block)

    @precondition(lambda self: self.let_go)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        block = self.let_go.pop(data.draw(st.integers(0, len(self.let_go) - 1)))
        self.pool.reclaim(block)
        self.published.discard(block)
        self._forget(block)

    def _forget(self, block: int) -> None:
        del self.references[block], self.tags[block], self.accounts[block]

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        pool = self.pool
        assert pool.num_free == NUM_BLOCKS - len(self.references)
        assert pool.num_cached == len(self.let_go)
        assert pool.num_held == len(self._held())
        assert pool.num_free + pool.num_cached + pool.num_held == pool.num_blocks == NUM_BLOCKS
        assert pool.num_available == pool.num_free + pool.num_cached
        assert {tag: count for tag, count in pool.num_by_tag.items() if count} == Counter(self.tags.values())
        assert pool.num_visual == sum(tag != "text" for tag in self.tags.values())
        assert sum(pool.num_by_tag.values()) + pool.num_free == NUM_BLOCKS
        counts = Counter(self.accounts.values())
        assert pool.num_by_account == counts and pool.num_accounts == len(counts)
        large = [(account, count) for account, count in counts.items() if 2 * count > NUM_BLOCKS]
        assert pool.majority == (large[0] if large else None)
        for block in range(NUM_BLOCKS):
            assert pool.references(block) == self.references.get(block, 0)
            assert pool.is_cached(block) == (block in self.let_go)


TestPool = PoolMachine.TestCase


def test_misuse_is_caught() -> None:
    pool = BlockPool(2)
    block = pool.allocate("text")
    pool.release(block)
    for misuse in (pool.release, pool.acquire, pool.publish, pool.reclaim):
        with pytest.raises(AssertionError, match=f"block {block}"):
            misuse(block)
