"""The whole way, file to tokens, equals transformers: prompt ids, positions, grids and 64 greedy tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from tapetum import LLM, SamplingParams
from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.engine.build import build_engine
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input
from tapetum.engine.options import config_from
from tapetum.engine.prompts import Terms
from tests.checkpoints import FAMILIES, write_checkpoint
from tests.oracle import Oracle

TOKENS = 64
WORDS = "river stone window total market 12.50 bridge What is the color of circle table 7 Names".split()  # noqa: SIM905


@pytest.fixture(scope="module", params=[*FAMILIES, "tapetum-mini"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tapetum-mini":
        return MODEL_DIR
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, seed=3)


def picture(seed: int, width: int, height: int) -> Image.Image:
    source = random.Random(seed)
    image = Image.new("RGB", (width, height), tuple(source.randrange(256) for _ in range(3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = source.randrange(width), source.randrange(height)
        box = (x, y, x + source.randrange(4, 90), y + source.randrange(4, 90))
        draw.rectangle(box, fill=tuple(source.randrange(256) for _ in range(3)))
    draw.text((4, 4), " ".join(source.choices(WORDS, k=3)), fill=(0, 0, 0))
    return image


def image_part(seed: int, width: int, height: int) -> dict[str, object]:
    return {"type": "image", "image": picture(seed, width, height)}


def clip_part(seed: int, frames: int, width: int, height: int) -> dict[str, object]:
    return {"type": "video", "video": [picture(seed + index, width, height) for index in range(frames)]}


def words(seed: int, count: int = 6) -> dict[str, object]:
    return {"type": "text", "text": " ".join(random.Random(seed).choices(WORDS, k=count))}


def user(*parts: dict[str, object]) -> dict[str, object]:
    return {"role": "user", "content": list(parts)}


def conversations() -> list[list[dict[str, object]]]:
    """One picture, several, none, extreme shapes, frames, several turns."""
    single = [
        [user(image_part(i, *size), words(i))]
        for i, size in enumerate(
            [(224, 224), (300, 120), (90, 300), (28, 28), (1, 1), (640, 480), (1400, 10), (12, 1200)]
        )
    ]
    texts = [[user(words(i, 12))] for i in (20, 21)]
    plain = [[{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello"}]]
    several = [
        [user(image_part(30, 200, 100), image_part(31, 100, 200), words(30))],
        [user(words(32), image_part(32, 112, 112), words(33), image_part(34, 112, 140), words(35))],
        [user(image_part(36, 84, 84), image_part(36, 84, 84), image_part(37, 84, 84))],
        [user(words(38, 30), image_part(38, 250, 170))],
    ]
    turns = [
        [
            user(image_part(40 + i, 140, 112), words(40 + i)),
            {"role": "assistant", "content": "Athens"},
            user(words(50 + i), *([image_part(60 + i, 112, 112)] if i else [])),
        ]
        for i in range(3)
    ]
    # Each clip spans fewer time positions than rows or columns: there transformers' rule and ours agree.
    clips = [
        [user(clip_part(70, 4, 140, 112), words(70))],
        [user(clip_part(71, 3, 112, 140), words(71), image_part(72, 112, 112), words(72))],
        [user(clip_part(73, 2, 140, 140), clip_part(74, 4, 168, 112))],
    ]
    return single + texts + plain + several + turns + clips


def test_greedy_tokens_equal_transformers(directory: Path) -> None:
    asked = conversations()
    assert len(asked) >= 20
    oracle = Oracle(directory)
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(str(directory), dtype="float32", device="cpu") as llm:
        outputs = llm.chat(asked, sampling, use_tqdm=False)
    answers = [output.outputs[0].token_ids for output in outputs]
    assert len(set(answers)) >= 19, "answers that do not depend on the question test nothing"
    for index, (messages, output) in enumerate(zip(asked, outputs, strict=True)):
        expected = oracle.ask(messages, TOKENS)
        assert output.prompt_token_ids == expected.prompt_token_ids, index
        assert [report.visual_tokens for report in output.media] == [
            t * h * w // 4 for t, h, w in expected.grids
        ], index
        assert output.outputs[0].token_ids == expected.token_ids, index


def test_positions_and_grids_equal_transformers(directory: Path) -> None:
    oracle = Oracle(directory)
    engine = build_engine(config_from(str(directory), {"dtype": "float32", "device": "cpu"}))
    front = Front(engine.files, engine.config, engine.facts)
    for messages in conversations():
        prompt = front.prompts.build(
            chat_input(messages), SamplingParams(), Terms(request_id="a", arrival_s=0.0)
        ).prompt
        expected = oracle.ask(messages, 1)
        assert np.array_equal(np.asarray(prompt.position_ids), expected.position_ids.numpy())
        assert [span.item.geometry.grid_thw for span in prompt.spans] == expected.grids
    front.close()


def test_the_samples_of_the_bundled_model_are_answered_as_recorded_by_transformers() -> None:
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
        outputs = llm.chat(asked, SamplingParams(temperature=0.0, max_tokens=64), use_tqdm=False)
    for sample, output in zip(samples, outputs, strict=True):
        assert output.outputs[0].text == sample.get("model_answer", sample["expected"])


def test_bfloat16_first_logprobs_are_close(directory: Path) -> None:
    """In bf16 the log-probabilities of the first token agree within the rounding of the type."""
    messages = conversations()[0]
    oracle = Oracle(directory, torch.bfloat16)
    inputs, _ = oracle.inputs(messages)
    with torch.no_grad():
        logits = oracle.model(**inputs).logits[0, -1].float()
    expected = logits.log_softmax(-1)
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20)
    with LLM(str(directory), dtype="bfloat16", device="cpu") as llm:
        output = llm.chat(messages, sampling, use_tqdm=False)[0].outputs[0]
    assert output.logprobs is not None
    scale = float(logits.abs().max())
    for token_id, candidate in output.logprobs[0].items():
        assert abs(candidate.logprob - float(expected[token_id])) < 3e-2 * scale
