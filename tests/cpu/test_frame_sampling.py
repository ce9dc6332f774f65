"""The choice of frames against transformers' own, taken from its source: the module itself needs torchvision."""

from __future__ import annotations

import ast
import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from tapetum.processing.options import ProcessorOptions
from tapetum.processing.sampling import FrameSampling
from tests.processors import make_processor

MODULE = "transformers.models.qwen2_vl.video_processing_qwen2_vl"
NUMBERS = ("temporal_patch_size", "min_frames", "max_frames")


def load_reference() -> tuple[object, SimpleNamespace]:
    """The function and the numbers of its class."""
    package, _, name = MODULE.rpartition(".")
    folder = importlib.util.find_spec(package).submodule_search_locations[0]
    tree = ast.parse((Path(folder) / f"{name}.py").read_text())
    (owner,) = (node for node in tree.body if getattr(node, "name", "") == "Qwen2VLVideoProcessor")
    (function,) = (node for node in owner.body if getattr(node, "name", "") == "sample_frames")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in owner.body
        if isinstance(node, ast.Assign) and node.targets[0].id in NUMBERS
    }
    assert set(values) == set(NUMBERS)
    lines = ast.unparse(ast.Module([ast.parse("from __future__ import annotations").body[0], function], []))
    space = {"math": math, "torch": torch}
    exec(compile(lines, name, "exec"), space)
    return space["sample_frames"], SimpleNamespace(fps=None, num_frames=None, **values)


SAMPLE_FRAMES, REFERENCE = load_reference()
NEWEST = SimpleNamespace(
    **{name: getattr(Qwen3VLVideoProcessor, name) for name in ("fps", "min_frames", "max_frames")}
)


def reference(total: int, rate: float, fps: float | None, num_frames: int | None) -> list[int]:
    metadata = SimpleNamespace(total_num_frames=total, fps=rate)
    return SAMPLE_FRAMES(REFERENCE, metadata, fps=fps, num_frames=num_frames).tolist()


@settings(deadline=None)
@given(
    st.integers(2, 5000),
    st.sampled_from([1.0, 10.0, 23.976, 25.0, 29.97, 30.0, 60.0, 120.0]),
    st.sampled_from([0.25, 0.5, 1.0, 1.7, 2.0, 4.0, 8.0]) | st.floats(0.1, 30),
)
def test_a_rate(total, rate, fps):
    sampling = FrameSampling()
    count = sampling.count(total, total / rate, ProcessorOptions(fps=fps))
    expected = reference(total, rate, fps, None)
    if count == total:
        assert expected == list(range(total)) or total % 2, "of an odd clip, all frames rather than one less"
        return
    assert sampling.spread(total, count) == expected[:count]
    assert len(expected) in (count, count + 1), "its floats may add a frame behind the last"


@settings(deadline=None)
@given(st.integers(2, 3000), st.integers(2, 768))
def test_a_number(total, num_frames):
    assume(num_frames + 1 < total)
    sampling = FrameSampling()
    count = sampling.count(total, 1.0, ProcessorOptions(num_frames=num_frames))
    expected = reference(total, 30.0, None, num_frames)
    assert sampling.spread(total, count) == expected[:count]
    assert len(expected) in (count, count + 1)


@settings(deadline=None)
@given(
    st.integers(1, 5000),
    st.sampled_from([1.0, 23.976, 25.0, 29.97, 30.0, 60.0]),
    st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]) | st.floats(0.1, 30),
)
def test_a_rate_of_qwen3(total, rate, fps):
    sampling = make_processor("qwen3_vl").sampling
    count = sampling.count(total, total / rate, ProcessorOptions(fps=fps))
    metadata = SimpleNamespace(total_num_frames=total, fps=rate)
    expected = Qwen3VLVideoProcessor.sample_frames(NEWEST, metadata, fps=fps)
    assert sampling.spread(total, count) == expected.tolist()


@pytest.mark.parametrize("model", ["qwen2_vl", "qwen2_5_vl"])
def test_the_numbers_come_from_the_checkpoint(model):
    assert make_processor(model).sampling == FrameSampling(
        min_frames=REFERENCE.min_frames,
        max_frames=REFERENCE.max_frames,
        multiple=REFERENCE.temporal_patch_size,
    )
    files = {
        "min_pixels": 100_352,
        "max_pixels": 602_112,
        "fps": 1,
        "min_frames": 8,
        "max_frames": 16,
        "num_frames": 12,
    }
    sampling = make_processor(model, video=files).sampling
    assert sampling == FrameSampling(fps=1.0, min_frames=8, max_frames=16, num_frames=12)
