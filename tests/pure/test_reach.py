"""How far the tokens of a step see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.media import Span
from tapetum.runtime.reach import plan_reach
from tests.scripted import make_item


def _span(start: int, end: int, *runs: tuple[int, int], is_atomic: bool = True) -> Span:
    item = make_item("p", end - start)
    return Span(start=start, end=end, item=item, placement=(), runs=runs, is_atomic=is_atomic)


def _of_one(start: int, end: int, spans: Sequence[Span]) -> list[int] | None:
    reach = plan_reach([(start, end, spans)])
    return None if reach is None else reach.tolist()


def test_tokens_of_a_picture_see_its_last_one() -> None:
    assert _of_one(0, 7, [_span(2, 5)]) == [1, 2, 5, 5, 5, 6, 7]


@pytest.mark.parametrize("bounds", [(0, 2), (5, 9), (8, 9)])
def test_without_a_picture_in_the_row_nothing_is_told(bounds: tuple[int, int]) -> None:
    assert _of_one(*bounds, [_span(2, 5)]) is None
    assert _of_one(0, 9, [_span(2, 5, is_atomic=False)]) is None
    assert plan_reach([]) is None


def test_the_rest_of_a_picture_whose_first_part_is_cached() -> None:
    assert _of_one(4, 8, [_span(2, 6)]) == [6, 6, 7, 8]


def test_runs_of_a_picture_see_only_themselves() -> None:
    assert _of_one(0, 9, [_span(1, 8, (0, 3), (4, 7))]) == [1, 4, 4, 4, 5, 8, 8, 8, 9]
    assert _of_one(4, 5, [_span(1, 8, (0, 3), (4, 7))]) is None


def test_rows_are_packed_one_behind_the_other() -> None:
    reach = plan_reach([(40, 41, []), (0, 4, [_span(1, 3)]), (7, 9, ())])
    assert reach is not None and reach.dtype == np.int32
    assert reach.tolist() == [41, 1, 3, 3, 4, 8, 9]


def test_a_row_that_cuts_a_picture_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        plan_reach([(0, 4, [_span(2, 5)])])


@given(lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=4))
def test_everyone_sees_at_least_himself_and_pictures_see_themselves(
    lengths: list[tuple[int, int, bool]],
) -> None:
    spans, end = [], 1
    for gap, length, is_atomic in lengths:
        spans.append(replace(_span(end + gap, end + gap + length), is_atomic=is_atomic))
        end += gap + length
    reach = _of_one(0, end, spans) or list(range(1, end + 1))
    for position, seen in enumerate(reach):
        inside = [span.end for span in spans if span.is_atomic and span.start <= position < span.end]
        assert seen == (inside[0] if inside else position + 1)
