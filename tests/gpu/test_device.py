"""The same torch path on a GPU: greedy tokens equal those of the CPU, half precision stays close."""

from __future__ import annotations

import pytest
import torch

from tapetum import LLM, SamplingParams
from tests.checkpoints import FAMILIES, write_checkpoint
from tests.cpu.test_parity import conversations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_equals_the_cpu(family: str, tmp_path) -> None:
    directory = str(write_checkpoint(tmp_path, family, seed=3))
    sampling = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    answers = []
    for device in ("cpu", "cuda"):
        with LLM(directory, dtype="float32", device=device) as llm:
            outputs = llm.chat(conversations(), sampling, use_tqdm=False)
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_and_stays_close(dtype: str, tmp_path) -> None:
    directory = str(write_checkpoint(tmp_path, "qwen2_vl", seed=3))
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1)
    values = []
    for name, device in (("float32", "cpu"), (dtype, "cuda")):
        with LLM(directory, dtype=name, device=device) as llm:
            outputs = llm.chat(conversations()[:4], sampling, use_tqdm=False)
        values.append([max(c.logprob for c in output.outputs[0].logprobs[0].values()) for output in outputs])
    assert all(abs(a - b) < 0.5 for a, b in zip(*values, strict=True))
