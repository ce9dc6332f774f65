"""What steps cost, kept between starts: the same predictions, and nothing of another machine or of a damaged file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tapetum.core.cost import CostModel, Learned, LearnedCosts, chunk_context
from tapetum.engine.cost_file import CostFile


@pytest.fixture
def cost() -> CostModel:
    cost = CostModel()
    for decodes in (1, 2, 4, 8):
        cost.observe_step(decodes, 100 * decodes, 0, 0.0, 0.01 + 0.001 * decodes)
        cost.observe_step(0, 0, 16 * decodes, chunk_context(0, 16 * decodes), 0.02 * decodes)
        cost.observe_encode(100.0 * decodes, 1e4 * decodes, 0.05 * decodes)
    return cost


def the_file(folder: Path) -> Path:
    (path,) = (folder / "costs").iterdir()
    return path


def test_what_is_read_predicts_and_learns_as_what_was_written(tmp_path: Path, cost: CostModel) -> None:
    CostFile(tmp_path, "a model here").write(cost)
    found = CostFile(tmp_path, "a model here").read()
    assert found is not None
    for _ in range(2):
        assert found.step_seconds(3, 400, 7, 20.0) == cost.step_seconds(3, 400, 7, 20.0)
        assert found.encode_seconds(500, 1e5) == cost.encode_seconds(500, 1e5)
        found.observe_step(5, 500, 0, 0.0, 0.5)
        cost.observe_step(5, 500, 0, 0.0, 0.5)


def test_each_subject_has_its_own(tmp_path: Path, cost: CostModel) -> None:
    CostFile(tmp_path, "here").write(cost)
    assert CostFile(tmp_path, "elsewhere").read() is None
    CostFile(tmp_path, "elsewhere").write(CostModel())
    assert CostFile(tmp_path, "here").read().learned == cost.learned


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\xfe", b'{"subject":"here","learned":{"step":1}}', b"[" * 5000]
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, cost: CostModel, content: bytes) -> None:
    kept = CostFile(tmp_path, "here")
    kept.write(cost)
    the_file(tmp_path).write_bytes(content)
    assert kept.read() is None
    kept.write(cost)
    assert kept.read() is not None


@pytest.mark.parametrize(
    "broken",
    [
        Learned(products=((1.0,),), sums=(1.0,)),
        Learned(products=((1.0,) * 5,) * 5, sums=(1.0,) * 4),
        Learned(products=((float("nan"),) * 5,) * 5, sums=(1.0,) * 5),
        Learned(products=((-1.0,) * 5,) * 5, sums=(1.0,) * 5),
    ],
    ids=["other formula", "ragged", "no number", "negative"],
)
def test_numbers_that_no_measurement_gives_are_refused(cost: CostModel, broken: Learned) -> None:
    with pytest.raises(ValueError, match="learned"):
        CostModel(learned=LearnedCosts(step=broken, encode=cost.learned.encode))


def test_an_old_file_is_not_used(tmp_path: Path, cost: CostModel) -> None:
    kept = CostFile(tmp_path, "here")
    kept.write(cost)
    os.utime(the_file(tmp_path), (0, 0))
    assert kept.read() is None


def test_without_a_folder_or_without_leave_nothing_is_kept(tmp_path: Path, cost: CostModel) -> None:
    for folder in (None, tmp_path / "file" / "below"):
        (tmp_path / "file").write_text("")
        kept = CostFile(folder, "here")
        kept.write(cost)
        assert kept.read() is None
