"""Sightings beside a search through everything that is published."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tapetum.cache.blocks import BlockPool
from tapetum.cache.ledger import Ledger
from tapetum.cache.prefix import PrefixTree
from tapetum.cache.sightings import Sighting
from tapetum.core.media import MediaItem
from tapetum.core.request import RequestState
from tests.scripted import PLACEHOLDER, make_item, make_request

SIZE = 4
PICTURES = [make_item("a", 3), make_item("b", 6), make_item("c", 9)]
Segments = list[int | MediaItem]


def make_ledger(num_blocks: int) -> Ledger:
    pool = BlockPool(num_blocks)
    return Ledger(pool, PrefixTree(pool), SIZE, (b"weights",))


def run(ledger: Ledger, segments: Segments, tenant: str = "", *, num_exact: int | None = None) -> None:
    """A request that computes its prompt and ends."""
    state = RequestState(make_request("r", segments, tenant=tenant))
    if ledger.admit(state) is not None:
        if num_exact is not None:
            state.num_exact_tokens = num_exact
        state.num_computed_tokens = state.num_tokens
        ledger.publish(state)
        ledger.release(state)


def seen(ledger: Ledger, item: MediaItem, tenant: str = "") -> list[Sighting]:
    state = RequestState(make_request("probe", [5, item], tenant=tenant))
    assert ledger.admit(state) is not None
    found = list(ledger.sightings(state, item.key))
    ledger.release(state)
    return found


def test_a_picture_is_seen_in_each_of_its_places() -> None:
    ledger, (a, b, _) = make_ledger(64), PICTURES
    run(ledger, [1, 2, b, 3, 4])
    run(ledger, [9, 9, 9, a, b, 3, 4, 5, 6])
    later, earlier = seen(ledger, b)
    assert (earlier.position, earlier.first, earlier.num_blocks) == (2, 2, 2)
    assert (later.position, later.first, later.num_blocks) == (6, 2, 2)
    assert later.token_ids == (PLACEHOLDER,) * 6 and len(later.path) == 3
    assert len(later.block_ids) == 2 and set(later.block_ids).isdisjoint(earlier.block_ids)


def test_no_more_is_seen_than_is_published() -> None:
    ledger, (_, _, c) = make_ledger(64), PICTURES
    run(ledger, [1, c, 2])  # 11 tokens, 8 of them in full blocks
    assert [len(sighting.token_ids) for sighting in seen(ledger, c)] == [7]
    run(ledger, [1, c, 2, 3])
    assert [len(sighting.token_ids) for sighting in seen(ledger, c)] == [9]


def test_what_rests_on_a_link_is_not_published() -> None:
    ledger, (_, _, c) = make_ledger(64), PICTURES
    run(ledger, [1, 2, 3, 4, c, 2, 3, 4, 5], num_exact=9)
    assert ledger.tree is not None and ledger.tree.num_blocks == 2
    assert [len(sighting.token_ids) for sighting in seen(ledger, c)] == [4]


def test_another_tenant_sees_nothing() -> None:
    ledger, (a, *_) = make_ledger(64), PICTURES
    run(ledger, [1, 2, a, 3, 4, 5], tenant="x")
    assert seen(ledger, a, "x") and not seen(ledger, a, "y")


def test_who_holds_a_sighting_keeps_it() -> None:
    ledger, (_, b, _) = make_ledger(6), PICTURES
    run(ledger, [1, 2, b])
    (sighting,) = seen(ledger, b)
    ledger.hold(sighting)
    run(ledger, [*range(20, 36)])  # takes all that is left
    ledger.tree.clear()
    assert [other.block_ids for other in seen(ledger, b)] == [sighting.block_ids]
    ledger.let_go(sighting)
    ledger.tree.clear()
    assert not seen(ledger, b) and ledger.pool.num_free == 6


class SightingsMachine(RuleBasedStateMachine):
    """Prompts come and go; whatever is in the tree is seen, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = make_ledger(14)

    @rule(
        segments=st.lists(st.one_of(st.integers(1, 2), st.sampled_from(PICTURES)), min_size=1, max_size=8),
        tenant=st.sampled_from(["", "x"]),
    )
    def ask(self, segments: Segments, tenant: str) -> None:
        run(self.ledger, segments, tenant)

    @rule()
    def evict(self) -> None:
        if self.ledger.pool.num_cached:
            self.ledger.tree.evict()

    @invariant()
    def all_ends_are_seen(self) -> None:
        tree = self.ledger.tree
        nodes = list(tree._nodes.values())
        for item in PICTURES:
            ends = set(tree.sightings._ends.get(item.key, ()))
            holders = [node for node in nodes if node.parts_of(item.key)]
            assert (item.key in tree.sightings) == bool(holders) == tree.holds(item.key)
            assert ends <= set(holders)
            last = {
                node
                for node in holders
                if not any(
                    part.offset for child in node.children.values() for part in child.parts_of(item.key)
                )
            }
            assert last <= ends, "a place whose last block is published is seen"
            for sighting in tree.sightings.find(("", b"weights"), item.key):
                assert sighting.token_ids == (PLACEHOLDER,) * len(sighting.token_ids)
                assert 0 < len(sighting.token_ids) <= item.geometry.num_tokens
                assert sighting.path[0].parent is None and sighting.path[0].root == ("", b"weights")


TestSightings = SightingsMachine.TestCase
