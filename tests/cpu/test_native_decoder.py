"""All layers in one call give the bits of the operations one by one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tapetum.core.plan import Row
from tapetum.models.base import VisionLanguageModel
from tapetum.models.table import load_model
from tapetum.native.library import load
from tapetum.ops.best import argmax
from tapetum.ops.table import choose_table, native_table
from tests.checkpoints import write_checkpoint
from tests.cpu.test_batch_invariance import PROMPT, Run, Share, decode, prefill

pytestmark = pytest.mark.skipif(load() is None, reason="the native library is not built: make native")
CPU = torch.device("cpu")


def make_model(directory: Path, dtype: torch.dtype, is_whole: bool) -> VisionLanguageModel:
    ops = native_table(dtype)
    assert ops is not None and ops.decoder is not None
    return load_model(directory, dtype, CPU, ops if is_whole else dataclasses.replace(ops, decoder=None))


def test_native_kernels_are_chosen_where_they_compute() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert choose_table(CPU, dtype).name.startswith("native-")
        assert choose_table(torch.device("cuda"), dtype).name == "dense"
    assert choose_table(CPU, torch.float16).name == "dense"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_one_call_equals_the_operations(tmp_path: Path, dtype: torch.dtype, family: str) -> None:
    directory = write_checkpoint(tmp_path, family)
    runs = []
    for is_whole in (True, False):
        run = Run(make_model(directory, dtype, is_whole))
        run.add("a")
        run.add("b", seed=1)
        for number, step in enumerate(prefill("a", 23) + decode("a")):
            beside: list[Share] = [("b", 3 * number, 3)]
            run.step([*step, *beside])
        runs.append(run)
    whole, single = runs
    assert whole.logits.keys() == single.logits.keys()
    for key, logits in whole.logits.items():
        assert torch.equal(logits, single.logits[key]), key
    for name in "ab":
        assert torch.equal(whole.pages(name), single.pages(name))


def test_rows_that_sample_nothing_write_their_keys(tmp_path: Path) -> None:
    model = make_model(write_checkpoint(tmp_path, "qwen2_vl"), torch.float32, True)
    silent, loud = Run(model), Run(model)
    for run in (silent, loud):
        run.add("a")
    row = Row(request_id="a", start=0, length=PROMPT, block_ids=silent.tables["a"], has_sample=False)
    assert silent.runner.forward([row]) is None
    loud.step([("a", 0, PROMPT)])
    assert silent.pages("a").any()
    assert torch.equal(silent.pages("a"), loud.pages("a"))


def test_the_best_token_is_found_while_the_scores_are_written(tmp_path: Path) -> None:
    model = make_model(write_checkpoint(tmp_path, "qwen2_vl"), torch.bfloat16, True)
    hidden = torch.randn(40, model.spec.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    hidden[7] = torch.nan
    logits, best = model.head(hidden)
    assert torch.equal(best, argmax(logits))
    assert best[7] == -1 and (best[:7] >= 0).all() and len(set(best.tolist())) > 20
