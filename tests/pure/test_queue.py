"""Ranks: what ageing guarantees, and the queue that keeps them in order."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tapetum.sched.queue import AGEING_S, Rank, RankedQueue, rank_of
from tests.scripted import make_request

ARRIVALS = st.floats(0, 1e6, allow_nan=False)
CLASSES = st.integers(-5, 5)


@dataclass(eq=False)
class _Item:
    rank: Rank


def _rank(priority: int, arrival_s: float, order: int = 0) -> Rank:
    return rank_of(make_request("r", [1], priority=priority), order, arrival_s)


@given(CLASSES, ARRIVALS, CLASSES, ARRIVALS)
def test_a_better_class_passes_only_within_the_bound(
    first: int, first_s: float, later: int, wait_s: float
) -> None:
    """A request that comes `wait_s` later passes only if its class is better by more than wait_s / AGEING_S."""
    passes = _rank(later, first_s + wait_s) < _rank(first, first_s)
    if wait_s > AGEING_S * max(0, first - later) + 1e-3:
        assert not passes
    if wait_s < AGEING_S * (first - later) - 1e-3:
        assert passes


def test_ties_go_by_arrival_then_order() -> None:
    ranks = [_rank(0, 0.0, 2), _rank(0, 0.0, 1), _rank(-1, AGEING_S, 0), _rank(0, 1e-3, 0), _rank(-1, 0.0, 9)]
    assert sorted(ranks) == [ranks[4], ranks[1], ranks[0], ranks[2], ranks[3]]


@given(st.lists(st.tuples(CLASSES, ARRIVALS), max_size=30), st.randoms(use_true_random=False))
def test_queue_is_sorted_and_removes_the_very_item(entries: list[tuple[int, float]], random) -> None:
    items = [_Item(_rank(priority, arrival, order)) for order, (priority, arrival) in enumerate(entries)]
    queue: RankedQueue[_Item] = RankedQueue(lambda item: item.rank)
    for item in items:
        queue.push(item)
    random.shuffle(items)
    while items:
        ordered = sorted(items, key=lambda item: item.rank)
        assert list(queue) == ordered
        assert (queue.first, queue.last, len(queue)) == (ordered[0], ordered[-1], len(items))
        queue.remove(items.pop())
    assert not queue
