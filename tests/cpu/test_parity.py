"""The bundled model, which is trained, answers as transformers does: greedy tokens, and what was recorded of it."""

from __future__ import annotations

import json

from tapetum import LLM, SamplingParams
from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tests.families.kit import conversations, user
from tests.families.qwen_vl import oracle

TOKENS = 64


def test_greedy_tokens_equal_transformers() -> None:
    asked = conversations(has_clips=True)
    transformers = oracle(MODEL_DIR)
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(dtype="float32", device="cpu") as llm:
        outputs = llm.chat(asked, sampling, use_tqdm=False)
    for index, (messages, output) in enumerate(zip(asked, outputs, strict=True)):
        inputs = transformers.read(messages)
        assert output.prompt_token_ids == inputs.token_ids, index
        answer = output.outputs[0].token_ids
        assert answer == transformers.ask(inputs, TOKENS, answer).token_ids, index


def test_the_samples_are_answered_as_recorded_by_transformers() -> None:
    samples = json.loads((SAMPLES_DIR / "samples.json").read_text())
    asked = [
        [
            user(
                {"type": "image", "image": SAMPLES_DIR / sample["image"]},
                {"type": "text", "text": sample["question"]},
            )
        ]
        for sample in samples
    ]
    with LLM(dtype="float32", device="cpu") as llm:
        outputs = llm.chat(asked, SamplingParams(temperature=0.0, max_tokens=96), use_tqdm=False)
    for sample, output in zip(samples, outputs, strict=True):
        assert output.outputs[0].text == sample.get("model_answer", sample["expected"])
