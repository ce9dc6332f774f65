"""`tapetum bench kernels`, on shapes that take no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tapetum.commands import kernels_attention, kernels_linear
from tapetum.commands.bench_kernels import kernels
from tapetum.native import library as native
from tapetum.ops import memory

LIBRARY = native.load()

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native library is not built: make native")


def test_memory_is_read_to_its_end() -> None:
    assert LIBRARY is not None
    words = memory.allocate(3 * 1024**2).view(torch.int64).random_()
    assert LIBRARY.tpt_read(words.data_ptr(), words.nbytes) == words.sum().item() % 2**64


def test_every_measurement_is_told_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert LIBRARY is not None
    for name in ("BF16_SHAPES", "FP32_SHAPES", "HEADS"):
        monkeypatch.setattr(kernels_linear, name, ((name, 40, 24),))
    monkeypatch.setattr(kernels_linear, "READ_BYTES", 1024**2)
    for name, shapes in (("SEGMENTS", ((64,),)), ("DECODES", ((1, 32),)), ("CHUNKS", ((16, 0),))):
        monkeypatch.setattr(kernels_attention, name, shapes)
    monkeypatch.setattr(kernels_attention, "CACHES_BYTES", 1024**2)
    threads, torch_threads = LIBRARY.tpt_num_threads(), torch.get_num_threads()
    try:
        out = tmp_path / "kernels.json"
        outcome = CliRunner().invoke(kernels, ["--threads", "1", "--seconds", "0.0001", "--json", str(out)])
    finally:
        LIBRARY.tpt_set_num_threads(threads)
        torch.set_num_threads(torch_threads)
    assert outcome.exit_code == 0, outcome.output
    written = json.loads(out.read_text())
    assert written["threads"] == 1
    few = len(kernels_linear.FEW_ROWS)
    assert len(written["timings"]) == 1 + 2 + few + 1 + 2 + 1 + 1
    for row in written["timings"]:
        assert row["rate"] > 0 and row["native_s"] > 0 and row["torch_s"] > 0
        assert row["name"] in outcome.output
