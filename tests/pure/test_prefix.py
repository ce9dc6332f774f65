"""PrefixTree beside a naive model, and block keys under mutation."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapetum.cache.blocks import BlockPool
from tapetum.cache.eviction import Quotas, Worth
from tapetum.cache.keys import BlockKey, SpanPart, span_parts, tag_of
from tapetum.cache.prefix import PrefixNode, PrefixTree
from tests.scripted import make_item, make_prompt

NUM_BLOCKS = 8
PART = SpanPart(1, 3, b"picture", 4, (1.0, 2.0, 2.0))
KEYS = [
    BlockKey((1, 7, 7, 2), (PART,)),
    BlockKey((1, 7, 7, 2), (PART._replace(media_key=b"another"),)),
    BlockKey((1, 7, 7, 2), (PART._replace(offset=6),)),
    BlockKey((1, 7, 7, 2), (PART._replace(placement=(1.0, 1.0, 4.0)),)),
    BlockKey((1, 7, 7, 2), (PART._replace(position=9),)),
    BlockKey((1, 7, 7, 3), (PART,)),
    BlockKey((1, 7, 7, 2), ()),
]
ROOTS = [("tenant", b"weights", "bf16"), ("other", b"weights", "bf16"), ("tenant", b"other", "bf16")]
Path = tuple[BlockKey, ...]


def test_any_field_changes_the_key() -> None:
    assert len(set(KEYS)) == len(KEYS)
    for first in KEYS:
        pool = BlockPool(2)
        tree = PrefixTree(pool)
        tree.publish(ROOTS[0], None, first, pool.allocate("mixed"))
        for root in ROOTS:
            for key in KEYS:
                assert bool(tree.match(root, [key])) == (root == ROOTS[0] and key == first)


def test_equal_tokens_with_adjacent_pictures_cut_elsewhere_differ() -> None:
    """Two pictures side by side are all placeholders: only the parts say where one ends."""
    long, short = (
        make_prompt([make_item("a", 3), make_item("b", 1)]),
        make_prompt([make_item("a", 2), make_item("b", 2)]),
    )
    assert long.token_ids == short.token_ids
    assert span_parts(long.spans, 4, 4) != span_parts(short.spans, 4, 4)


@given(
    st.lists(st.one_of(st.integers(10, 20), st.integers(1, 9).map(lambda n: make_item("x", n))), max_size=12),
    st.sampled_from([1, 2, 4, 8]),
)
def test_parts_cover_spans_exactly(segments: list, size: int) -> None:
    prompt = make_prompt(segments)
    blocks = span_parts(prompt.spans, len(prompt.token_ids), size)
    assert len(blocks) == -(-len(prompt.token_ids) // size)
    found = {
        (index * size + position, part.media_key, part.offset + position - part.first)
        for index, parts in enumerate(blocks)
        for part in parts
        for position in range(part.first, part.last)
    }
    wanted = {
        (position, span.key, position - span.start)
        for span in prompt.spans
        for position in range(span.start, span.end)
    }
    assert found == wanted
    for index, parts in enumerate(blocks):
        covered = sum(position // size == index for position, _, _ in wanted)
        assert tag_of(parts, size) == ("text" if not covered else "visual" if covered == size else "mixed")


COSTS = dict(zip(KEYS, (5.0, 5.0, 2.0, 7.0, 7.0, 1.0, 1.0), strict=True))
QUOTAS = Quotas(visual=0.5, tenant=0.6, once=0.4)
Name = tuple[tuple[object, ...], Path]  # a published block: its root, and the way to it


@dataclass
class _Model:
    """What the naive model knows of a published block."""

    block: int
    uses: int = 1
    level: float = 0.0
    ticket: int = 0  # 0 = no candidate


class TreeMachine(RuleBasedStateMachine):
    """The model: a dictionary from (root, path) to what is published, who holds which path, and plain arithmetic.

    It finds who goes next by looking at all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tree = PrefixTree(self.pool, QUOTAS)
        self.published: dict[Name, _Model] = {}
        self.holders: list[Name] = []
        self.age = 0.0
        self.num_tickets = 0

    def _is_held(self, name: Name) -> bool:
        root, path = name
        return any(root == other and held[: len(path)] == path for other, held in self.holders)

    def _longest(self, root: object, path: Path) -> int:
        return max(n for n in range(len(path) + 1) if n == 0 or (root, path[:n]) in self.published)

    def _is_leaf(self, name: Name) -> bool:
        root, path = name
        return not any(r == root and p[:-1] == path for r, p in self.published)

    def _make_candidate(self, name: Name) -> None:
        if name in self.published and self._is_leaf(name) and not self._is_held(name):
            self.num_tickets += 1
            self.published[name].ticket = self.num_tickets

    def _publish(self, name: Name, parent: PrefixNode | None) -> PrefixNode:
        root, path = name
        block = self.pool.allocate(tag_of(path[-1].parts, 4), str(root[0]))
        node = self.tree.publish(root, parent, path[-1], block, COSTS[path[-1]])
        assert node.block == block
        self.published[name] = _Model(block)
        return node

    @rule(
        root=st.sampled_from(ROOTS),
        path=st.lists(st.sampled_from([KEYS[0], KEYS[1], KEYS[6]]), min_size=1, max_size=4).map(tuple),
    )
    def hold(self, root: tuple[object, ...], path: Path) -> None:
        """What a request does: match, share what is there, publish the rest block by block."""
        matched = self.tree.match(root, path)
        names = [(root, path[:depth]) for depth in range(1, len(path) + 1)]
        assert len(matched) == self._longest(root, path)
        assert [node.block for node in matched] == [
            self.published[name].block for name in names[: len(matched)]
        ]
        if len(path) - len(matched) > self.pool.num_free:
            return
        for node, name in zip(matched, names, strict=False):
            self.tree.acquire(node)
            self.published[name].uses += 1
            self.published[name].ticket = 0
        parent: PrefixNode | None = matched[-1] if matched else None
        for name in names[len(matched) :]:
            parent = self._publish(name, parent)
        self.holders.append((root, path))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def let(self, data: st.DataObject) -> None:
        root, path = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        for depth in range(len(path), 0, -1):
            name = (root, path[:depth])
            model = self.published[name]
            self.tree.release(model.block)
            if not self._is_held(name):
                model.level = self.age + model.uses * COSTS[path[depth - 1]]
                self._make_candidate(name)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        """An equal block that someone computed besides: the tree keeps the one it has."""
        root, path = data.draw(st.sampled_from(self.holders))
        if not self.pool.num_free:
            return
        own = self.pool.allocate("text")
        parent = self.tree.match(root, path[:-1])
        node = self.tree.publish(root, parent[-1] if parent else None, path[-1], own)
        assert node.block == self.published[root, path].block
        self.tree.release(own)

    @rule(root=st.sampled_from(ROOTS), key=st.sampled_from(KEYS))
    def land(self, root: tuple[object, ...], key: BlockKey) -> None:
        """A block that comes from elsewhere, behind one that is there or at the root, and that nobody holds."""
        above = [path for r, path in self.published if r == root and len(path) < 4]
        path = (*max(above, key=len, default=()), key)
        if not self.pool.num_free or (root, path) in self.published:
            return
        parent = self.tree.match(root, path[:-1])
        node = self._publish((root, path), parent[-1] if parent else None)
        if parent:
            self.published[root, path[:-1]].ticket = 0
        self.tree.release(node.block)
        self.published[root, path].level = self.age + COSTS[key]
        self._make_candidate((root, path))

    def _num_exceeded(self, name: Name) -> int:
        """Quotas counted afresh."""
        (root, path), published = name, self.published
        num_visual = sum(bool(p[-1].parts) for _, p in published)
        num_once = sum(model.uses == 1 for model in published.values())
        num_own = sum(r[0] == root[0] for r, _ in published)
        return (
            (len(published) > num_own > QUOTAS.tenant * NUM_BLOCKS)
            + (num_visual > QUOTAS.visual * NUM_BLOCKS and any(key.parts for key in path))
            + (num_once > QUOTAS.once * NUM_BLOCKS and published[name].uses == 1)
        )

    def _next(self) -> Name:
        candidates = {name: model for name, model in self.published.items() if model.ticket}
        return min(
            candidates,
            key=lambda name: (-self._num_exceeded(name), candidates[name].level, candidates[name].ticket),
        )

    @precondition(lambda self: any(model.ticket for model in self.published.values()))
    @rule(cost_s=st.sampled_from([0.5, 3.0, 20.0]))
    def evict(self, cost_s: float) -> None:
        """Who has most of its quotas exceeded, then who is worth least; it never has anything below it."""
        name = self._next()
        root, path = name
        assert self._is_leaf(name) and not self._is_held(name)
        model = self.published[name]
        newcomer = Worth(-1, "nobody", has_picture=False, cost_s=cost_s)
        is_once = sum(other.uses == 1 for other in self.published.values()) > QUOTAS.once * NUM_BLOCKS
        is_kept = (-self._num_exceeded(name), model.level) > (-is_once, self.age + cost_s)
        is_equal = (-self._num_exceeded(name), model.level) == (-is_once, self.age + cost_s)
        assert self.tree.order.prefers(newcomer) == (not is_kept and not is_equal)
        self.tree.evict()
        assert self.tree.match(root, path) == self.tree.match(root, path[:-1])
        self.age = max(self.age, model.level)
        del self.published[name]
        self._make_candidate((root, path[:-1]))

    @invariant()
    def accounts_agree(self) -> None:
        assert self.tree.num_blocks == len(self.published)
        assert self.tree.num_roots == len({root for root, _ in self.published})
        num_held = sum(self._is_held(name) for name in self.published)
        assert self.pool.num_held == num_held
        assert self.pool.num_cached == len(self.published) - num_held
        assert self.pool.num_accounts == len({root[0] for root, _ in self.published})
        order, models = self.tree.order, self.published.values()
        assert order.num_candidates == sum(model.ticket > 0 for model in models)
        assert order.num_reused == sum(model.uses > 1 for model in models)
        assert sum(order.evictions.values()) == self.tree.num_evictions
        for (root, path), model in self.published.items():
            holders = sum(root == r and held[: len(path)] == path for r, held in self.holders)
            assert self.pool.references(model.block) == holders


TestTree = TreeMachine.TestCase
