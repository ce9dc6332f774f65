"""The any-resolution rules: published token counts, and what holds for every picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.processing.anyres import best_field, scaled_into, shrunk, unpadded

TILE, SIDE = 336, 24
FIELDS = [(672, 336), (336, 672), (672, 672), (336, 1008), (1008, 336)]
SIZES = st.tuples(st.integers(1, 5000), st.integers(1, 5000))


@pytest.mark.parametrize(
    ("size", "field", "cells"),
    [
        ((336, 336), (672, 336), (24, 24)),
        ((672, 672), (672, 672), (48, 48)),
        ((1280, 720), (672, 672), (48, 28)),
        ((2480, 3508), (672, 672), (34, 48)),
    ],
)
def test_known_pictures(size: tuple[int, int], field: tuple[int, int], cells: tuple[int, int]) -> None:
    assert best_field(size, FIELDS) == field
    assert unpadded((field[0] // 14, field[1] // 14), size) == cells


@given(size=SIZES)
def test_a_picture_lies_within_its_field(size: tuple[int, int]) -> None:
    field = best_field(size, FIELDS)
    assert field in FIELDS
    scaled = scaled_into(size, field)
    assert scaled[0] == field[0] or scaled[1] == field[1]
    assert 1 <= scaled[0] <= field[0] and 1 <= scaled[1] <= field[1]
    all_cells = field[0] // 14, field[1] // 14
    cells = unpadded(all_cells, size)
    assert 0 <= cells[0] <= all_cells[0] and 0 <= cells[1] <= all_cells[1]
    assert cells[0] == all_cells[0] or cells[1] == all_cells[1]
    assert (all_cells[0] - cells[0]) % 2 == (all_cells[1] - cells[1]) % 2 == 0


@given(size=SIZES)
def test_the_padding_that_is_cut_away_is_padding(size: tuple[int, int]) -> None:
    field = best_field(size, FIELDS)
    scaled = scaled_into(size, field)
    cells = unpadded((field[0] // 14, field[1] // 14), size)
    for axis in (0, 1):
        assert cells[axis] * 14 >= scaled[axis] - 28


@given(cells=st.tuples(st.integers(1, 200), st.integers(0, 200)), most=st.integers(1, 9000))
def test_a_shrunk_grid_is_of_about_as_many_as_allowed(cells: tuple[int, int], most: int) -> None:
    columns, rows = shrunk(cells, most)
    if cells[0] * cells[1] <= most:
        assert (columns, rows) == cells
    assert columns * rows <= 1.21 * most
    assert (columns, rows) == cells or max(columns, rows) < max(cells)


def test_without_fields_there_is_none() -> None:
    assert best_field((100, 100), []) is None


def test_a_picture_of_which_nothing_is_left_gets_a_field_all_the_same() -> None:
    assert best_field((5000, 1), FIELDS) in FIELDS
