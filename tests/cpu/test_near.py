"""Near-duplicates end to end: a camera's frames are encoded once for who allows it, and every answer says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, EncodeJob
from tapetum.core.request import SamplingParams
from tapetum.engine.llm import LLM
from tapetum.runtime.executor import LocalExecutor, load_executor
from tests.cpu.test_executor import MODEL_DIR, make_config, make_item
from tests.pure.test_near import noisy, scene

SAMPLING = SamplingParams(temperature=0.0, max_tokens=8)


def ask(llm: LLM, frames: list[Image.Image], *, near: bool):
    messages = [
        [
            {
                "role": "user",
                "content": [{"type": "image", "image": frame}, {"type": "text", "text": "What is this?"}],
            }
        ]
        for frame in frames
    ]
    outputs = []
    for message in messages:  # one after the other, as a camera sends them
        outputs += llm.chat(message, SAMPLING, reuse={"near_duplicate": near}, use_tqdm=False)
    return [output.media[0] for output in outputs]


@pytest.fixture
def frames() -> list[Image.Image]:
    return [noisy(scene(), seed, deviation=2.0) for seed in range(20)]


def test_frames_of_a_camera_are_encoded_once_and_say_so(frames):
    with LLM() as llm:
        reports = ask(llm, frames, near=True)
    assert [report.cache for report in reports].count("miss") == 1
    assert [report.degraded and report.degraded.reason for report in reports] == [None] + 19 * [
        "near_duplicate"
    ]


def test_nobody_who_did_not_ask_for_it_is_given_another_picture(frames):
    """Not even the same file that was taken for another one before."""
    with LLM() as llm:
        ask(llm, frames, near=True)
        reports = ask(llm, frames, near=False)
    assert [report.cache for report in reports].count("miss") == 19
    assert all(report.degraded is None for report in reports)


def beside(item: MediaItem, step: int, known: MediaItem) -> MediaItem:
    patches = np.minimum(np.asarray(item.patches), 255 - step) + np.uint8(step)
    return replace(item, key=bytes([step]) * 32, patches=patches, compared_with=known.key)


@pytest.fixture
def executor() -> LocalExecutor:
    return load_executor(MODEL_DIR, make_config())


def drift(executor: LocalExecutor, items: list[MediaItem], *, slices: int = 1) -> dict[bytes, float]:
    found: dict[bytes, float] = {}
    for number in range(slices):
        start, end = number / slices, (number + 1) / slices
        jobs = tuple(EncodeJob(item=item, start=start, end=end) for item in items)
        found |= executor.execute(BatchPlan(step=number, encodes=jobs)).drift
    return found


@pytest.mark.parametrize("slices", [1, 3])
def test_a_sampled_one_tells_how_far_off_it_is(executor, slices):
    known = make_item("known")
    executor.execute(BatchPlan(step=0, encodes=(EncodeJob(item=known),)))
    near, far = beside(known, 1, known), beside(known, 90, known)
    found = drift(executor, [near], slices=slices) | drift(executor, [far], slices=slices)
    features = {item.key: executor.features_of(item.key) for item in (known, near, far)}
    for item in (near, far):
        off = torch.dist(features[item.key], features[known.key]) / features[known.key].norm()
        assert found[item.key] == pytest.approx(float(off))
    assert 0 < found[near.key] < found[far.key]


def test_nothing_is_told_without_what_it_stands_beside(executor):
    item = beside(make_item("one"), 1, make_item("gone"))
    assert drift(executor, [item]) == {}
