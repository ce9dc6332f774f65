"""GreedyDual beside a model that looks at everything each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tapetum.cache.greedy import GreedyDual
from tapetum.cache.visual import VisualCache
from tests.scripted import make_item

Step = st.tuples(
    st.sampled_from(("add", "remove", "pop")),
    st.integers(0, 9),
    st.sampled_from((0.0, 0.5, 1.0, 8.0)),
    st.integers(1, 4),
    st.integers(1, 3),
)


@given(st.lists(Step, max_size=120))
def test_the_least_worth_goes_first(steps):
    greedy: GreedyDual[int] = GreedyDual()
    worths: dict[int, tuple[float, int]] = {}
    age = 0.0
    for order, (what, key, cost_s, num_bytes, uses) in enumerate(steps):
        if what == "add" and key not in worths:
            greedy.add(key, cost_s, num_bytes, uses)
            worths[key] = (age + cost_s * uses / num_bytes, order)
        elif what == "remove" and key in worths:
            greedy.remove(key)
            del worths[key]
        elif what == "pop" and worths:
            least = min(worths, key=worths.__getitem__)
            assert greedy.pop() == least
            age = worths.pop(least)[0]
        assert set(greedy) == worths.keys() and len(greedy) == len(worths)


def test_removing_over_and_over_keeps_it_small():
    greedy: GreedyDual[int] = GreedyDual()
    greedy.add(-1, 1.0, 1)
    for number in range(10_000):
        greedy.add(number, 1.0, 1)
        greedy.remove(number)
    assert len(greedy._heap) < 200 and greedy.pop() == -1


def put(cache: VisualCache, name: str, cost_s: float, num_uses: int = 1) -> None:
    """Encode an item of two tokens, which so many requests use."""
    item = make_item(name, 2)
    key = cache.key_of(item)
    cache.begin(item, cost_s)
    cache.complete(key)
    for number in range(num_uses):
        cache.pin(key, f"r{number}")
        cache.unpin(key, f"r{number}")


def resident(cache: VisualCache) -> set[bytes]:
    return {key[:1] for key in cache.resident_keys}


def test_what_is_dear_or_used_often_stays_and_what_was_dear_once_goes():
    cache = VisualCache(60, 10)  # three items
    put(cache, "a", 1.0)
    put(cache, "b", 5.0)
    put(cache, "c", 1.0, num_uses=6)
    put(cache, "d", 1.0)
    assert resident(cache) == {b"b", b"c", b"d"}
    put(cache, "e", 1.0)
    assert resident(cache) == {b"b", b"c", b"e"}
    for number in range(40):
        put(cache, f"n{number}", 1.0)
        cache.pin(cache.key_of(make_item("c", 2)), f"r{number}")
        cache.unpin(cache.key_of(make_item("c", 2)), f"r{number}")
    assert b"c" in resident(cache) and b"b" not in resident(cache)
