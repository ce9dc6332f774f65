"""Who is kept when the pool is full: the dear, the reused, the recent, what is within its quota. No scan flushes it.

That the order is the one of a naive model is shown in test_prefix.py.
"""

from __future__ import annotations

import pytest

from tapetum.cache.blocks import BlockPool
from tapetum.cache.eviction import MAX_USES, Quotas
from tapetum.cache.keys import BlockKey, SpanPart
from tapetum.cache.prefix import PrefixNode, PrefixTree
from tapetum.core.cost import CostModel
from tapetum.core.request import Request
from tests.pure.stage import SIZE, Stage
from tests.scripted import make_item, make_request

PART = SpanPart(0, SIZE, b"picture", 0, ())


class Shelf:
    """A tree whose prefixes are blocks without anything below them, by name."""

    def __init__(self, num_blocks: int, quotas: Quotas | None = None) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = PrefixTree(self.pool, quotas or Quotas(visual=1.0, tenant=1.0, once=1.0))
        self.nodes: dict[str, PrefixNode] = {}

    def put(
        self, *names: str, cost_s: float = 1.0, uses: int = 1, tenant: str = "", picture: bool = False
    ) -> None:
        for name in names:
            key = BlockKey(tuple(name.encode()), (PART,) if picture else ())
            if not self.pool.num_free:
                self.tree.evict()
            block = self.pool.allocate("visual" if picture else "text", tenant)
            self.nodes[name] = self.tree.publish((tenant,), None, key, block, cost_s)
            self.tree.release(block)
            self.use(name, uses - 1)

    def use(self, name: str, times: int = 1) -> None:
        for _ in range(times):
            self.tree.acquire(self.nodes[name])
            self.tree.release(self.nodes[name].block)

    def evict(self, count: int) -> None:
        for _ in range(count):
            self.tree.evict()

    @property
    def kept(self) -> str:
        """The names that are still found."""
        return "".join(name for name, node in self.nodes.items() if self.tree.match(node.root, [node.key]))


def test_what_is_dear_stays_longer_than_what_is_recent() -> None:
    shelf = Shelf(4)
    shelf.put("d", cost_s=10.0)
    shelf.put("a", "b", "c")
    shelf.evict(3)
    assert shelf.kept == "d"


def test_what_is_used_often_stays_longer_than_what_is_dear() -> None:
    shelf = Shelf(3)
    shelf.put("a", uses=4)
    shelf.put("b", cost_s=3.0)
    shelf.put("c", cost_s=2.0)
    shelf.evict(2)
    assert shelf.kept == "a"


def test_of_equals_the_one_that_was_let_go_first_goes() -> None:
    shelf = Shelf(3)
    shelf.put("a", "b", "c")
    shelf.use("a")
    shelf.put("d")
    assert shelf.kept == "acd"


def test_what_was_dear_and_popular_once_is_old_some_day() -> None:
    shelf = Shelf(4)
    shelf.put("a", cost_s=2.0, uses=10**3)
    shelf.put("b", "c", "d")
    for name in map(chr, range(1000, 1000 + 3 * 2 * MAX_USES - 9)):
        shelf.put(name)  # three of them raise the age by one
        assert len(shelf.kept) == 4
    assert shelf.kept[0] == "a"
    shelf.put(*map(chr, range(3000, 3012)))
    assert "a" not in shelf.kept


def test_pictures_above_their_budget_go_before_texts() -> None:
    shelf = Shelf(4, Quotas(visual=0.5, tenant=1.0, once=1.0))
    shelf.put("a", "b", picture=True, cost_s=10.0)
    shelf.put("t", "u")
    shelf.put("c", picture=True, cost_s=10.0)  # within the budget: the oldest text
    assert shelf.kept == "abuc"
    shelf.put("v")  # above it
    assert shelf.kept == "bucv"
    assert dict(shelf.tree.order.evictions) == {"worth": 1, "visual": 1, "tenant": 0, "once": 0}


def test_behind_a_picture_text_goes_with_it() -> None:
    """Above the budget it must not be the texts of others that make room for pictures."""
    shelf = Shelf(3, Quotas(visual=0.5, tenant=1.0, once=1.0))
    shelf.put("t", cost_s=0.1)
    shelf.put("p", picture=True, cost_s=10.0)
    node = shelf.nodes["p"]
    shelf.tree.acquire(node)
    block = shelf.pool.allocate("mixed")
    shelf.nodes["q"] = shelf.tree.publish(node.root, node, BlockKey((1,), (PART,)), block, 5.0)
    shelf.tree.release(block)
    shelf.tree.release(node.block)
    shelf.evict(1)
    assert "t" in shelf.kept and shelf.tree.num_blocks == 2


def test_who_has_more_than_a_share_of_the_pool_goes_first() -> None:
    shelf = Shelf(8, Quotas(visual=1.0, tenant=0.5, once=1.0))
    shelf.put("a", "b", tenant="small", cost_s=0.1)
    shelf.put(*"cdefghijkl", tenant="large")
    assert shelf.kept.startswith("ab")
    assert shelf.tree.order.evictions["tenant"] == 4
    shelf.evict(2)  # until it is within its share
    assert shelf.kept.startswith("ab")
    shelf.evict(1)
    assert shelf.kept == "bijkl"


def test_the_order_remembers_about_as_much_as_there_is() -> None:
    shelf = Shelf(64)
    shelf.put(*map(chr, range(1000, 1064)))
    for _ in range(50):
        for name in shelf.nodes:
            shelf.use(name)
    sizes = [len(entry.entries) for entry in shelf.tree.order._all.values()]
    assert shelf.tree.order.num_candidates == 64 and sum(sizes) < 3 * 64 + 4 * 32
    shelf.tree.clear()
    assert not shelf.tree.order._by_account and shelf.pool.num_free == 64


def _turn(name: str, history: list, new: list[int], tenant: str = "") -> Request:
    return make_request(name, [*history, *new], max_tokens=4, tenant=tenant)


def _talk(stage: Stage, history: list, tenant: str = "") -> list:
    """Three turns of a conversation -> all that was said."""
    for turn in range(3):
        name, question = f"turn {turn}", [500 + turn, 501, 502, 503]
        stage.add(_turn(name, history, question, tenant))
        stage.drain()
        history = [*history, *question, *stage.tokens[name]]
    return history


def _scan(stage: Stage, num_pages: int, pages_each: int, tenant: str = "") -> None:
    for first in range(0, num_pages, pages_each):
        pages = [make_item(f"page {number}", 12) for number in range(first, first + pages_each)]
        stage.add(make_request(f"scan {first}", [1, *pages, 2, 3], max_tokens=4, tenant=tenant))
        stage.drain()


@pytest.mark.parametrize("opening", [list(range(100, 132)), [100, 101, make_item("photo", 24), 102]])
@pytest.mark.parametrize("pages_each", [1, 10])
@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_document_of_500_pages_does_not_flush_a_conversation(
    opening: list, pages_each: int, tenant: str
) -> None:
    """Whether it comes page by page or ten at a time, by the same client or another, dearer than the talk or not."""
    stage = Stage(num_blocks=64, max_model_len=200, feature_tokens=200, cost=CostModel())
    history = _talk(stage, opening)
    _scan(stage, 500, pages_each, tenant)
    assert stage.scheduler.stats().prefix_evictions > 500
    stage.add(_turn("again", history, [9]))
    stage.drain()
    stats = stage.ends["again"].stats
    assert stats is not None and stats.num_cached_tokens >= len(history) - 3 * SIZE
    stage.assert_clean()


def test_a_scan_beside_a_conversation_takes_what_is_free() -> None:
    """A quota only orders: with nobody else about, one document fills the pool."""
    stage = Stage(num_blocks=64, max_model_len=200, feature_tokens=200)
    _scan(stage, 60, 10)
    stats = stage.scheduler.stats()
    assert stats.num_free_blocks < 64 / 4
    assert sum(stats.evictions_by_reason.values()) == stats.prefix_evictions > 0 == stats.num_reused_blocks
    assert stats.num_tenants == 1 and stats.largest_tenant_blocks == 64 - stats.num_free_blocks
    assert stats.num_visual_budget_blocks == 57


def test_a_request_that_comes_back_after_it_gave_way_is_no_second_use() -> None:
    stage = Stage(num_blocks=7, speculate="off")
    for name in "abc":
        stage.add(make_request(name, [ord(name) + place for place in range(8)], max_tokens=12))
    stage.drain()
    assert stage.scheduler.stats().num_preemptions > 0 == stage.scheduler.stats().num_reused_blocks
