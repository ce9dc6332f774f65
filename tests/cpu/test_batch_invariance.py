"""A request's bits do not depend on its company: alone or in a batch, in chunks, cached, preempted, on any threads.

Two levels: rows given by hand to the runner, where logits and pages of keys and values are compared bit by bit, and
whole answers of an LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tapetum import LLM, SamplingParams
from tapetum.assets import MODEL_DIR
from tapetum.core.media import Geometry, MediaItem, Span
from tapetum.core.plan import Row
from tapetum.core.request import Prompt, Request
from tapetum.core.stats import SchedulerStats
from tapetum.engine.build import build_engine
from tapetum.engine.options import config_from
from tapetum.engine.output import CompletionOutput
from tapetum.models.base import VisionLanguageModel
from tapetum.models.table import load_model
from tapetum.native.library import load
from tapetum.ops.table import native_table
from tapetum.runtime.inputs import TokenBook
from tapetum.runtime.runner import ModelRunner
from tapetum.runtime.store import FeatureStore, KVStore
from tests.checkpoints import write_checkpoint
from tests.geometries import bare

LIBRARY = load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native library is not built: make native")
CPU = torch.device("cpu")
BLOCK = 16
PROMPT, TOTAL = 61, 70  # tokens of the request that is looked at: its prompt, and with what it puts out
Share = tuple[str, int, int]  # name, start, length
Step = Sequence[Share]


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "tapetum-mini"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "tapetum-mini":
        return MODEL_DIR
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, seed=3)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, directory: Path) -> VisionLanguageModel:
    ops = native_table(request.param)
    assert ops is not None
    return load_model(directory, request.param, CPU, ops)


class Run:
    """Steps over fresh stores: logits by (name, tokens seen), and the pages of a request."""

    def __init__(self, model: VisionLanguageModel) -> None:
        self._spec, self._book = model.spec, TokenBook()
        self._kv, self._features = KVStore(model.spec, 256, BLOCK), FeatureStore()
        self.runner = ModelRunner(model, self._kv, self._features, self._book)
        self._free = np.random.default_rng(0).permutation(256).tolist()
        self.tables: dict[str, tuple[int, ...]] = {}
        self.logits: dict[tuple[str, int], Tensor] = {}

    def add(self, name: str, seed: int = 0, total: int = TOTAL) -> None:
        source = torch.Generator().manual_seed(seed)
        token_ids = torch.randint(100, 900, (total,), generator=source).tolist()
        span = Span(start=5, end=17, item=item(f"picture {seed}"), placement=())
        features = torch.randn(12, self._spec.hidden_size, generator=source).to(self._spec.dtype)
        self._features.put(span.key, features)
        positions = np.stack([np.arange(total), np.arange(total) // 2, np.arange(total) % 11])
        prompt = Prompt(token_ids=tuple(token_ids), spans=(span,), position_ids=positions, position_delta=0)
        sampling = SamplingParams(max_tokens=1).resolved(SamplingParams())
        self._book.add(
            Request(
                request_id=name, prompt=prompt, sampling=sampling, max_tokens=1, stop_token_ids=frozenset()
            )
        )
        self.move(name, total)

    def move(self, name: str, total: int = TOTAL) -> None:
        """Give the request other blocks, empty ones."""
        self.tables[name] = tuple(self._free.pop() for _ in range(-(-total // BLOCK)))

    def step(self, shares: Step) -> None:
        rows = [
            Row(
                request_id=name,
                start=start,
                length=length,
                block_ids=self.tables[name][: -(-(start + length) // BLOCK)],
                has_sample=True,
            )
            for name, start, length in shares
        ]
        scored = self.runner.forward(rows)
        assert scored is not None
        ends = {name: start + length for name, start, length in shares}
        for name, logits in zip(scored.request_ids, scored.logits, strict=True):
            self.logits[name, ends[name]] = logits.clone()

    def pages(self, name: str) -> Tensor:
        """[layers, 2 K, blocks, S, D]"""
        return torch.stack([layer[:, list(self.tables[name])] for layer in self._kv.layers])


def item(name: str) -> MediaItem:
    geometry = Geometry(
        kind="image",
        original=(1, 1),
        used=(1, 1),
        frames=1,
        grid_thw=(1, 6, 8),
        num_tokens=12,
        segments=(48,),
    )
    return MediaItem(key=name.encode(), geometry=geometry, patches=None)


def prefill(name: str, chunk: int = PROMPT) -> list[Step]:
    return [[(name, start, min(chunk, PROMPT - start))] for start in range(0, PROMPT, chunk)]


def decode(name: str, first: int = PROMPT, last: int = TOTAL) -> list[Step]:
    return [[(name, start, 1)] for start in range(first, last)]


def alone(model: VisionLanguageModel) -> Run:
    run = Run(model)
    run.add("a")
    for step in prefill("a") + decode("a"):
        run.step(step)
    return run


def assert_same(run: Run, wanted: Run, least: int = TOTAL - PROMPT + 1) -> None:
    shared = [key for key in run.logits if key in wanted.logits]
    assert len([key for key in shared if key[0] == "a"]) >= least
    for key in shared:
        assert torch.equal(run.logits[key], wanted.logits[key]), key
    assert torch.equal(run.pages("a"), wanted.pages("a"))


def test_logits_depend_on_the_request(model: VisionLanguageModel) -> None:
    run = alone(model)
    run.add("b", seed=1)
    for step in prefill("b"):
        run.step(step)
    assert not torch.equal(run.logits["a", PROMPT], run.logits["b", PROMPT])
    assert len({tuple(logits[:50].tolist()) for logits in run.logits.values()}) == len(run.logits)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_chunks(model: VisionLanguageModel, chunk: int) -> None:
    run = Run(model)
    run.add("a")
    for step in prefill("a", chunk) + decode("a"):
        run.step(step)
    assert_same(run, alone(model))


@pytest.mark.parametrize("size", range(2, 10))
def test_batches(model: VisionLanguageModel, size: int) -> None:
    """Neighbours prefill and decode beside it, in other phases and lengths."""
    run, others = Run(model), [f"b{index}" for index in range(1, size)]
    run.add("a")
    for index, name in enumerate(others):
        run.add(name, seed=index + 1, total=120)
    ends = dict.fromkeys(others, 0)
    for number, step in enumerate(prefill("a", 20) + decode("a")):
        shares: list[Share] = []
        for index, name in enumerate(others):
            length = 1 if (number + index) % 3 else 1 + (7 * index + number) % 9
            shares.append((name, ends[name], length))
            ends[name] += length
        place = number % (len(shares) + 1)
        run.step([*shares[:place], *step, *shares[place:]])
    assert_same(run, alone(model))


def test_a_prefix_of_another_request(model: VisionLanguageModel) -> None:
    run = Run(model)
    run.add("z")
    run.step([("z", 0, 48)])
    run.add("a")
    run.tables["a"] = run.tables["z"][:3] + run.tables["a"][3:]
    for step in [[("a", 48, PROMPT - 48)], *decode("a")]:
        run.step(step)
    assert_same(run, alone(model))


def test_preempted_and_resumed(model: VisionLanguageModel) -> None:
    run = Run(model)
    run.add("a")
    for step in prefill("a", 16) + decode("a", PROMPT, 65):
        run.step(step)
    run.move("a")
    for step in [[("a", 0, 66)], *decode("a", 66)]:
        run.step(step)
    assert_same(run, alone(model))


def test_pictures(model: VisionLanguageModel) -> None:
    grids = [(1, 6, 10), (1, 2, 2), (2, 10, 4), (1, 14, 18)]
    source = torch.Generator().manual_seed(0)
    patches = [
        torch.randint(0, 256, (t * h * w, 588 * min(t, 2)), generator=source, dtype=torch.uint8)
        for t, h, w in grids
    ]
    together = model.begin_encode(patches, bare(grids)).finish()
    for place, features in enumerate(together):
        (single,) = model.begin_encode([patches[place]], bare([grids[place]])).finish()
        assert torch.equal(features, single)
    turned = model.begin_encode(patches[::-1], bare(grids[::-1])).finish()
    assert all(torch.equal(*pair) for pair in zip(turned[::-1], together, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads(model: VisionLanguageModel, threads: int) -> None:
    assert LIBRARY is not None
    wanted, before = alone(model), LIBRARY.tpt_num_threads()
    LIBRARY.tpt_set_num_threads(threads)
    try:
        assert_same(alone(model), wanted)
    finally:
        LIBRARY.tpt_set_num_threads(before)


@pytest.mark.parametrize("name", ["portable", "avx2"])
def test_other_instruction_sets(model: VisionLanguageModel, name: str) -> None:
    assert LIBRARY is not None
    best = LIBRARY.tpt_isa()
    if LIBRARY.tpt_use_isa(name.encode()):
        pytest.skip(f"this processor has no {name}")
    try:
        run = Run(model)
        run.add("a")
        run.add("b", seed=1)
        for number, step in enumerate(prefill("a", 7) + decode("a")):
            run.step([("b", number, 1), *step])
        assert_same(run, alone(model))
    finally:
        LIBRARY.tpt_use_isa(best)


SAMPLINGS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=1.5, seed=5, max_tokens=40, ignore_eos=True, logprobs=0),
    SamplingParams(
        temperature=0.9, seed=6, top_p=0.9, max_tokens=30, ignore_eos=True, repetition_penalty=1.3
    ),
]
PLANS = {
    "one at a time": {"max_num_seqs": 1},
    "chunks of 48": {"max_num_batched_tokens": 48, "enable_prefix_caching": False},
    "in time": {"schedule": "interactive", "itl_target_ms": 1.0},
    "no guesses": {"speculate": "off"},
    "few blocks": {"max_model_len": 192, "speculate": "off"},  # for a few requests
}


def conversations() -> list[list[dict[str, object]]]:
    def picture(seed: int, width: int, height: int) -> dict[str, object]:
        pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
        return {"type": "image", "image": Image.fromarray(pixels)}

    def ask(text: str, *parts: dict[str, object]) -> list[dict[str, object]]:
        return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]

    return [
        ask("What is this?", picture(0, 112, 84)),
        ask("Name the colors of the circle", picture(1, 60, 150), picture(0, 112, 84)),
        ask("Hello"),
        ask("What is this thing?", picture(0, 112, 84)),
        ask("Count: one two three four five six seven eight nine ten eleven twelve"),
        ask("Which of them is larger?", picture(2, 224, 112)),
    ]


Answer = list[tuple[int, float | None]]


def answers(plan: dict[str, object], dtype: str) -> tuple[list[Answer], SchedulerStats]:
    options = {"max_model_len": 512, "kv_cache_bytes": 64 * 1024**2, **plan}
    asked = conversations() * 2
    samplings = [SAMPLINGS[(index + index // 6) % len(SAMPLINGS)] for index in range(len(asked))]
    engine = build_engine(config_from(None, {"dtype": dtype, "device": "cpu", **options}))
    with LLM(engine) as llm:
        outputs = llm.chat(asked, samplings, use_tqdm=False)
    return [answer_of(output.outputs[0]) for output in outputs], engine.stats


def answer_of(chosen: CompletionOutput) -> Answer:
    scores = chosen.logprobs or [None] * len(chosen.token_ids)
    return [
        (token_id, None if score is None else score[token_id].logprob)
        for token_id, score in zip(chosen.token_ids, scores, strict=True)
    ]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def together(request: pytest.FixtureRequest) -> tuple[str, list[Answer]]:
    return request.param, answers({}, request.param)[0]


@pytest.mark.parametrize("plan", PLANS)
def test_answers_are_the_same_however_they_are_scheduled(
    together: tuple[str, list[Answer]], plan: str
) -> None:
    dtype, wanted = together
    assert len({str(answer) for answer in wanted}) == len(wanted)
    options = PLANS[plan]
    if plan == "few blocks":
        engine = build_engine(config_from(None, {"dtype": dtype, "device": "cpu", "max_model_len": 192}))
        options = {**options, "kv_cache_bytes": engine.facts.kv_bytes_per_token * 2 * 192}
    found, stats = answers(options, dtype)
    assert found == wanted
    assert (stats.num_preemptions > 0) == (plan == "few blocks")
