"""PrefixTree beside a naive model, and block keys under mutation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapetum.cache.blocks import BlockPool
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


class TreeMachine(RuleBasedStateMachine):
    """The model: a dictionary from (root, path) to block, who holds which path, when each was let go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tree = PrefixTree(self.pool)
        self.published: dict[tuple[object, Path], int] = {}
        self.holders: list[tuple[object, Path]] = []
        self.let_go: dict[tuple[object, Path], int] = {}
        self.clock = 0

    def _is_held(self, root: object, path: Path) -> bool:
        return any(root == held_root and held[: len(path)] == path for held_root, held in self.holders)

    def _longest(self, root: object, path: Path) -> int:
        return max(n for n in range(len(path) + 1) if n == 0 or (root, path[:n]) in self.published)

    @rule(
        root=st.sampled_from(ROOTS),
        path=st.lists(st.sampled_from(KEYS[:3]), min_size=1, max_size=4).map(tuple),
    )
    def hold(self, root: object, path: Path) -> None:
        """What a request does: match, share what is there, publish the rest block by block."""
        matched = self.tree.match(root, path)
        assert len(matched) == self._longest(root, path)
        assert [node.block for node in matched] == [
            self.published[root, path[: n + 1]] for n in range(len(matched))
        ]
        if len(path) - len(matched) > self.pool.num_free:
            return
        for node in matched:
            self.pool.acquire(node.block)
        parent: PrefixNode | None = matched[-1] if matched else None
        for depth in range(len(matched), len(path)):
            block = self.pool.allocate("text")
            parent = self.tree.publish(root, parent, path[depth], block)
            assert parent.block == block
            self.published[root, path[: depth + 1]] = block
        self.holders.append((root, path))
        for depth in range(len(path)):
            self.let_go.pop((root, path[: depth + 1]), None)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def let(self, data: st.DataObject) -> None:
        root, path = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        for depth in range(len(path), 0, -1):
            self.pool.release(self.published[root, path[:depth]])
            if not self._is_held(root, path[:depth]):
                self.clock += 1
                self.let_go[root, path[:depth]] = self.clock

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
        assert node.block == self.published[root, path]
        self.pool.release(own)

    @precondition(lambda self: self.let_go)
    @rule()
    def evict(self) -> None:
        """The oldest goes; it never has anything below it."""
        oldest = min(self.let_go, key=self.let_go.__getitem__)
        root, path = oldest
        assert not any(r == root and len(p) > len(path) and p[: len(path)] == path for r, p in self.published)
        self.tree.evict()
        assert self.tree.match(root, path) == self.tree.match(root, path[:-1])
        del self.let_go[oldest], self.published[oldest]

    @invariant()
    def accounts_agree(self) -> None:
        assert self.tree.num_blocks == len(self.published)
        assert self.tree.num_roots == len({root for root, _ in self.published})
        assert self.pool.num_cached == len(self.let_go)
        assert self.pool.num_held == len(self.published) - len(self.let_go)
        for (root, path), block in self.published.items():
            holders = sum(root == r and held[: len(path)] == path for r, held in self.holders)
            assert self.pool.references(block) == holders


TestTree = TreeMachine.TestCase
