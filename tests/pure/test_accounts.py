"""After every one of many random operations the accounts of blocks and features are the sum of what is really held."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tapetum.cache.blocks import BlockPool
from tapetum.cache.ledger import Ledger
from tapetum.cache.prefix import PrefixTree
from tapetum.cache.visual import VisualCache
from tapetum.core.request import RequestState
from tests.scripted import make_item, make_request

SIZE, NUM_BLOCKS = 4, 24
BYTES_PER_TOKEN, CAPACITY_TOKENS = 10, 20
ITEMS = [make_item(f"item {size}", size) for size in (1, 2, 3, 5, 8, 13)]


class Blocks:
    """A ledger, and the requests that hold blocks by it."""

    def __init__(self, random: Random, *, is_caching: bool) -> None:
        self._random = random
        pool = BlockPool(NUM_BLOCKS)
        self.ledger = Ledger(pool, PrefixTree(pool) if is_caching else None, SIZE)
        self.live: list[RequestState] = []
        self._count = 0

    def operate(self) -> None:
        choice = self._random.randrange(10)
        if choice < 3 or not self.live:
            self._admit()
        elif choice < 6:
            self._grow(self._random.choice(self.live))
        elif choice < 8:
            state = self._random.choice(self.live)
            state.num_computed_tokens = self._random.randint(state.num_computed_tokens, state.num_tokens)
            self.ledger.publish(state)
        elif choice < 9:
            state = self._random.choice(self.live)
            self.ledger.extend(state, num_ahead=self._random.randrange(9))
            state.num_computed_tokens = max(state.num_computed_tokens, state.num_tokens - 1)
            self.ledger.trim(state)
            self.ledger.extend(state)
        else:
            state = self.live.pop(self._random.randrange(len(self.live)))
            self.ledger.release(state)

    def check(self) -> None:
        pool = self.ledger.pool
        held = Counter(block for state in self.live for block in state.block_ids)
        assert pool.num_held == len(held)
        assert all(pool.references(block) == count for block, count in held.items())
        assert pool.num_free + pool.num_cached + pool.num_held == NUM_BLOCKS
        assert (
            sum(pool.num_by_tag.values()) == sum(pool.num_by_account.values()) == NUM_BLOCKS - pool.num_free
        )
        own = {state.request.tenant for state in self.live}
        assert all(pool.num_by_account[tenant] >= len(self._held_by(tenant)) for tenant in own)
        assert all(pool.account_of(block) == tenant for tenant in own for block in self._held_by(tenant))
        assert self.ledger.tree is None or pool.num_cached <= self.ledger.tree.num_blocks

    def _held_by(self, tenant: str) -> set[int]:
        return {block for state in self.live if state.request.tenant == tenant for block in state.block_ids}

    def _admit(self) -> None:
        self._count += 1
        family = self._random.randrange(3)  # whose members begin alike
        prompt = [family] * self._random.randint(1, 30) + [self._random.randrange(50)]
        if self._random.random() < 0.3:
            prompt.insert(len(prompt) // 2, self._random.choice(ITEMS))
        tenant = self._random.choice(("acme", "other"))
        state = RequestState(make_request(str(self._count), prompt, tenant=tenant))
        found = self.ledger.admit(state, spare=len(self.live))
        if found is None:
            assert not state.block_ids
            self.ledger.release(state)
            return
        state.num_computed_tokens = found
        self.live.append(state)

    def _grow(self, state: RequestState) -> None:
        state.output_token_ids.append(self._random.randrange(50))
        if not self.ledger.extend(state):
            state.output_token_ids.pop()


class Features:
    """A visual cache, and what a device would hold by it: begun and not dropped."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.cache = VisualCache(CAPACITY_TOKENS * BYTES_PER_TOKEN, BYTES_PER_TOKEN)
        self._device: dict[bytes, int] = {}
        self._pins: list[tuple[int, str]] = []

    def operate(self) -> None:
        number = self._random.randrange(len(ITEMS))
        item = ITEMS[number]
        key, owner = self.cache.key_of(item), str(self._random.randrange(4))
        choice, state = self._random.randrange(8), self.cache.state(key)
        if choice < 3 and state == "absent" and self.cache.has_room(item):
            self.cache.begin(item)
            self._drop()
            self._device[item.key] = item.geometry.num_tokens * BYTES_PER_TOKEN
        elif choice < 5 and state == "encoding":
            self.cache.complete(key)
        elif choice == 5 and state != "absent":
            self.cache.pin(key, owner)
            self._pins.append((number, owner))
        elif choice == 6 and self._pins:
            number, owner = self._pins.pop(self._random.randrange(len(self._pins)))
            self.cache.unpin(self.cache.key_of(ITEMS[number]), owner)
        elif choice == 7 and state != "absent" and self._random.random() < 0.2:
            self.cache.fail(key)
            self._pins = [pin for pin in self._pins if pin[0] != number]
        self._drop()

    def check(self) -> None:
        assert self.cache.num_bytes == sum(self._device.values()) <= self.cache.capacity_bytes
        assert self.cache.num_pinned == len({number for number, _ in self._pins})

    def _drop(self) -> None:
        for key in self.cache.take_dropped():
            del self._device[key]


@pytest.mark.parametrize("is_caching", [True, False])
@pytest.mark.parametrize("num_operations", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_accounts_are_the_sum_of_what_is_held(num_operations: int, is_caching: bool) -> None:
    random = Random(num_operations + is_caching)
    blocks, features = Blocks(random, is_caching=is_caching), Features(random)
    for _ in range(num_operations // 2):  # each operates on both
        blocks.operate()
        blocks.check()
        features.operate()
        features.check()
    for state in blocks.live:
        blocks.ledger.release(state)
    assert blocks.ledger.pool.num_held == 0
