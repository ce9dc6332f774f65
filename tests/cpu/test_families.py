"""Every family, from conversation to tokens, equals transformers, and no way of computing changes an answer.

MEASURE_FAMILIES=1 writes the errors that were seen into tests/families/measured.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tapetum import LLM, SamplingParams
from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.media import PARTS, MediaItem
from tapetum.core.plan import Row
from tapetum.core.request import Request
from tapetum.engine.build import build_engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.front import Front
from tapetum.engine.inputs import chat_input
from tapetum.engine.options import config_from
from tapetum.engine.prompts import Terms
from tapetum.media.ingest import Ingest
from tapetum.models.base import VisionLanguageModel
from tapetum.models.encoding import Encoding
from tapetum.models.table import load_model
from tapetum.ops.table import choose_table, reference_table
from tapetum.runtime.inputs import TokenBook
from tapetum.runtime.runner import ModelRunner
from tapetum.runtime.store import FeatureStore, KVStore
from tests.families.kit import Answer, Family, Inputs, Messages, Oracle
from tests.families.table import FAMILIES

CPU = torch.device("cpu")
TOKENS = 64
FEW_TOKENS = 24  # of an answer that is computed in another way
MAX_PIXEL_ERROR = 2e-3
MAX_LOGIT_ERROR = 1e-4  # of the largest logit
BLOCK = 16
EXACT = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_cache_bytes": 64 << 20}
MEASURED = Path(__file__).parents[1] / "families" / "measured.json"


@dataclass
class Case:
    """One family: its checkpoint, what it is asked, what transformers makes of it and what Tapetum does."""

    family: Family
    directory: Path
    measured: dict[str, object] = field(default_factory=dict)

    @cached_property
    def conversations(self) -> list[Messages]:
        return self.family.conversations()

    @cached_property
    def oracle(self) -> Oracle:
        return self.family.oracle(self.directory, torch.float32)

    @cached_property
    def inputs(self) -> list[Inputs]:
        return [self.oracle.read(messages) for messages in self.conversations]

    @cached_property
    def outputs(self) -> list[tuple[int, ...]]:
        """What Tapetum answers to all of them at once, with nothing kept from before."""
        with LLM(str(self.directory), **EXACT, enable_prefix_caching=False) as llm:
            outputs = llm.chat(self.conversations, greedy(TOKENS), use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    @cached_property
    def answers(self) -> list[Answer]:
        """What transformers answers. Ours are guesses for it, which it need not follow."""
        pairs = zip(self.inputs, self.outputs, strict=True)
        return [self.oracle.ask(inputs, TOKENS, output) for inputs, output in pairs]

    @cached_property
    def requests(self) -> list[Request]:
        engine = build_engine(config_from(str(self.directory), EXACT))
        front = Front(engine.files, engine.config, engine.facts, forecast=engine.forecast, clock=engine.clock)
        terms = Terms(request_id="a", arrival_s=0.0)
        built = [
            front.prompts.build(chat_input(messages), SamplingParams(), terms)
            for messages in self.conversations
        ]
        front.close()
        return built

    def assert_answered(self, llm: LLM, *, is_alone: bool = False) -> None:
        """Every conversation as transformers answers it."""
        groups = [[messages] for messages in self.conversations] if is_alone else [self.conversations]
        outputs = [
            output for group in groups for output in llm.chat(group, greedy(FEW_TOKENS), use_tqdm=False)
        ]
        for index, (output, answer) in enumerate(zip(outputs, self.answers, strict=True)):
            assert output.outputs[0].token_ids == answer.token_ids[:FEW_TOKENS], index


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    family = FAMILIES[request.param]
    case = Case(family, family.write(tmp_path_factory.mktemp(family.name), 3))
    yield case
    if os.environ.get("MEASURE_FAMILIES") and {"max_logit_error", "num_prompts"} <= case.measured.keys():
        _write_measured(case)


def test_prompts_and_pixels_equal_transformers(case: Case) -> None:
    largest = 0.0
    for index, (request, expected) in enumerate(zip(case.requests, case.inputs, strict=True)):
        prompt = request.prompt
        assert prompt.token_ids == expected.token_ids, index
        assert np.array_equal(np.asarray(prompt.position_ids), expected.position_ids), index
        assert len(prompt.spans) == len(expected.pixel_values), index
        for span, pixels in zip(prompt.spans, expected.pixel_values, strict=True):
            ours = normalised(np.asarray(span.item.patches), case.oracle)
            assert ours.shape == pixels.shape, index
            largest = max(largest, float(np.abs(ours - pixels).max()))
    assert largest <= MAX_PIXEL_ERROR
    if any(expected.pixel_values for expected in case.inputs):
        case.measured["max_pixel_error"] = largest


def normalised(patches: np.ndarray, oracle: Oracle) -> np.ndarray:
    """Raw patches [P, values by colour] as the processor of transformers gives them."""
    mean, std = (np.asarray(values, np.float32)[:, None] for values in (oracle.mean, oracle.std))
    by_colour = patches.reshape(len(patches), len(mean), -1).astype(np.float32)
    return ((by_colour / 255 - mean) / std).reshape(len(patches), -1)


def test_logits_equal_transformers(case: Case) -> None:
    model = load_model(case.directory, torch.float32, CPU, choose_table(CPU, torch.float32))
    largest = max(
        relative_error(last_logits(model, request), answer.logits)
        for request, answer in zip(case.requests, case.answers, strict=True)
    )
    assert largest < MAX_LOGIT_ERROR
    case.measured["max_logit_error"] = largest


def test_bfloat16_logits_are_close_to_those_of_transformers(case: Case) -> None:
    model = load_model(case.directory, torch.bfloat16, CPU, choose_table(CPU, torch.bfloat16))
    oracle = case.family.oracle(case.directory, torch.bfloat16)
    for index in range(2):
        theirs = oracle.ask(oracle.read(case.conversations[index]), 1).logits
        assert relative_error(last_logits(model, case.requests[index]), theirs) < 5e-2


def test_greedy_tokens_equal_transformers(case: Case) -> None:
    assert len(case.conversations) >= 12
    answers = [answer.token_ids for answer in case.answers]
    assert len(set(answers)) >= len(answers) - 3, "answers that do not depend on the question test nothing"
    for index, (output, answer) in enumerate(zip(case.outputs, answers, strict=True)):
        assert output == answer, index
    case.measured |= {"num_prompts": len(answers), "num_tokens": TOKENS}


def test_alone_as_in_a_batch(case: Case) -> None:
    with LLM(str(case.directory), **EXACT, enable_prefix_caching=False) as llm:
        case.assert_answered(llm, is_alone=True)


def test_from_the_cache_as_computed(case: Case) -> None:
    with LLM(str(case.directory), **EXACT) as llm:
        for _ in range(2):
            case.assert_answered(llm)
        stats = llm.chat(case.conversations, SamplingParams(max_tokens=1), use_tqdm=False)
    assert all(output.num_cached_tokens >= len(output.prompt_token_ids) - 2 * BLOCK for output in stats)


def test_in_chunks_as_whole(case: Case) -> None:
    for chunk in case.family.chunks:
        with LLM(str(case.directory), **EXACT, max_num_batched_tokens=chunk) as llm:
            case.assert_answered(llm)


@pytest.mark.parametrize(
    ("dtype", "is_reference", "bound"),
    [(torch.float32, True, 1e-6), (torch.float32, False, 1e-5), (torch.bfloat16, False, 3e-2)],
)
@torch.inference_mode()
def test_slices_of_an_encode_give_what_the_whole_gives(
    case: Case, dtype: torch.dtype, is_reference: bool, bound: float
) -> None:
    """To the bit by native kernels; within rounding where the products of torch depend on the number of rows."""
    ops = reference_table() if is_reference else choose_table(CPU, dtype)
    bound = 0.0 if ops.name.startswith("native") else bound
    model = load_model(case.directory, dtype, CPU, ops)
    items = list({span.key: span.item for request in case.requests for span in request.prompt.spans}.values())
    if not items:
        pytest.skip("reads text only")
    items = sorted(items, key=lambda item: item.geometry.num_patches)[len(items) // 2 :][:2] + items[-1:]
    whole = torch.cat(begin(model, items).finish()).float()
    assert whole.shape == (sum(item.geometry.num_tokens for item in items), model.spec.feature_size)

    @settings(max_examples=12, deadline=None)
    @given(cuts=st.lists(st.floats(0, 1), max_size=12).map(sorted))
    def check(cuts: list[float]) -> None:
        encoding = begin(model, items)
        for cut in cuts:
            encoding.advance(cut)
        sliced = torch.cat(encoding.finish()).float()
        assert (sliced - whole).abs().max() <= bound * whole.abs().max()

    check()


def begin(model: VisionLanguageModel, items: list[MediaItem]) -> Encoding:
    patches = [torch.from_numpy(np.asarray(item.patches)) for item in items]
    return model.begin_encode(patches, [item.geometry for item in items])


@torch.inference_mode()
def last_logits(model: VisionLanguageModel, request: Request) -> torch.Tensor:
    """[vocabulary] behind the last token of a prompt that is computed at once, by the runner of the engine."""
    num_blocks = -(-request.num_prompt_tokens // BLOCK)
    kv, features, book = KVStore(model.spec, num_blocks, BLOCK), FeatureStore(), TokenBook()
    for span in request.prompt.spans:
        features.put(span.key, begin(model, [span.item]).finish()[0])
    book.add(request)
    row = Row(
        request_id=request.request_id,
        start=0,
        length=request.num_prompt_tokens,
        block_ids=tuple(range(num_blocks)),
        has_sample=True,
    )
    scored = ModelRunner(model, kv, features, book).forward([row])
    assert scored is not None
    return scored.logits[0].float()


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _write_measured(case: Case) -> None:
    values = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    name = case.family.name
    rounded = {
        key: float(f"{value:.0e}") if isinstance(value, float) else value
        for key, value in case.measured.items()
    }
    values[name] = {"test": f"tests/cpu/test_families.py [{name}]", **rounded}
    MEASURED.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def test_a_lower_rung_is_never_larger(case: Case) -> None:
    """Families of one size, and pictures as small as a family takes them, stay as they are."""
    processor = ModelFiles.load(case.directory).processor
    if "image" not in processor.media_tokens:
        return
    ingest = Ingest(processor, MediaConfig(), workers=1)
    try:
        for size in ((64, 48), (300, 300), (1000, 300), (640, 1800)):
            part = MediaPart(kind="image", source=Image.new("RGB", size))
            whole = ingest.plan(part, tenant="").result(10)
            rungs = [whole, *(ingest.shrunk(whole, PARTS[rung]) for rung in PARTS if rung != "high")]
            patches = [plan.geometry.num_patches for plan in rungs]
            assert patches == sorted(patches, reverse=True), size
            assert all(plan is whole or plan.alias != whole.alias for plan in rungs), size
    finally:
        ingest.close()
