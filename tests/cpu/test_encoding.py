"""Encodes in slices: whatever the cuts, the same features, at the pace that was asked for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapetum.models.encoding import MAX_ROWS, QUANTUM, Encoding, Stage
from tapetum.models.table import load_model
from tapetum.ops.table import choose_table
from tests.checkpoints import FAMILIES, write_checkpoint
from tests.geometries import bare

CPU = torch.device("cpu")
GRIDS = [(1, 14, 22), (2, 10, 6), (1, 4, 2)]
CUTS = st.lists(st.floats(0, 1), max_size=12).map(sorted)


class Tally:
    """Stages that only count."""

    def __init__(self, *stages: tuple[int, float]) -> None:
        self.rows = [0] * len(stages)
        self.calls: list[tuple[int, int, int]] = []
        self.encoding = Encoding(
            [
                Stage(rows, work, lambda start, end, index=index: self._run(index, start, end))
                for index, (rows, work) in enumerate(stages)
            ],
            lambda: [torch.tensor(self.rows)],
        )

    def _run(self, index: int, start: int, end: int) -> None:
        assert start == self.rows[index] < end
        self.rows[index] = end
        self.calls.append((index, start, end))


STAGES = st.lists(st.tuples(st.integers(1, 5000), st.floats(0.1, 1e6)), min_size=1, max_size=6)


@given(stages=STAGES, cuts=CUTS)
def test_every_row_is_computed_once_and_in_order(stages: list, cuts: list[float]) -> None:
    tally = Tally(*stages)
    for cut in cuts:
        tally.encoding.advance(cut)
    assert tally.encoding.finish()[0].tolist() == [rows for rows, _ in stages]
    assert tally.encoding.done == 1
    assert [index for index, *_ in tally.calls] == sorted(index for index, *_ in tally.calls)
    assert all(end - start <= MAX_ROWS for _, start, end in tally.calls)


@given(stages=STAGES, cuts=CUTS)
def test_a_slice_reaches_its_share_and_at_most_a_quantum_more(stages: list, cuts: list[float]) -> None:
    tally = Tally(*stages)
    total = sum(rows * work for rows, work in stages)
    largest = QUANTUM * max(work for _, work in stages) / total
    for cut in cuts:
        before = tally.encoding.done
        done = tally.encoding.advance(cut)
        assert done == tally.encoding.done >= min(cut, 1 - 1e-8)
        assert done <= max(before, cut) + largest + 1e-8
        is_over = tally.rows == [rows for rows, _ in stages]
        assert (done == 1) == is_over


def test_the_same_share_again_is_no_work() -> None:
    tally = Tally((1000, 1.0), (1000, 3.0))
    tally.encoding.advance(0.5)
    calls = list(tally.calls)
    for share in (0.5, 0.2, 0.0):
        tally.encoding.advance(share)
    assert tally.calls == calls


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def _patches(seed: int = 0) -> list[torch.Tensor]:
    """Two pictures and a clip between them."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 256, (t * h * w, 588 * t), generator=generator, dtype=torch.uint8)
        for t, h, w in GRIDS
    ]


@torch.inference_mode()
def test_encodes_under_way_do_not_touch_each_other(directory: Path) -> None:
    model = load_model(directory, torch.float32, CPU, choose_table(CPU, torch.float32))
    first, second = (model.begin_encode(_patches(seed), bare(GRIDS)) for seed in (1, 2))
    for share in (0.1, 0.4, 0.7, 0.9):
        first.advance(share)
        second.advance(share)
    for encoding, seed in ((first, 1), (second, 2)):
        alone = model.begin_encode(_patches(seed), bare(GRIDS)).finish()
        for mine, wanted in zip(encoding.finish(), alone, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_large_picture_is_cut_within_its_layers(directory: Path) -> None:
    """32 layers or 2: a slice is a small part of a layer if that is what was asked for."""
    model = load_model(directory, torch.float32, CPU, choose_table(CPU, torch.float32))
    encoding = model.begin_encode([torch.zeros(40 * 40, 588, dtype=torch.uint8)], bare([(1, 40, 40)]))
    shares = [0.0]
    while shares[-1] < 1:
        shares.append(encoding.advance(shares[-1] + 0.01))
    assert max(after - before for before, after in pairwise(shares)) < 0.04


@pytest.mark.parametrize("shape", [(307, 588), (309, 588), (308, 1000)])
def test_patches_that_do_not_fit_their_grid_are_refused(directory: Path, shape: tuple[int, int]) -> None:
    model = load_model(directory, torch.float32, CPU, choose_table(CPU, torch.float32))
    with pytest.raises(ValueError, match=r"patches have shape .*14 x 22"):
        model.begin_encode([torch.zeros(shape, dtype=torch.uint8)], bare(GRIDS[:1]))
