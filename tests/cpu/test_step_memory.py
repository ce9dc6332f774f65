"""What is said of memory against what is allocated, in every family: weights, keys and values, features, and a step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.autograd.profiler import profile

from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, ScheduleConfig
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, EncodeJob, Row
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.paper import read_paper
from tapetum.models.composed import make_spec
from tapetum.models.table import load_model, read_blueprint
from tapetum.ops.table import torch_table
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.processing.extent import extent
from tapetum.processing.options import ProcessorOptions
from tapetum.runtime import executor as executor_module
from tapetum.runtime.executor import LocalExecutor, load_executor
from tapetum.runtime.memory import largest_step_bytes
from tests.families.table import FAMILIES

CPU = torch.device("cpu")
BLOCK = 16
ROWS, TOKENS = 8, 192  # of a step
KV_BYTES = 16 << 20
MAX_ERROR = 0.01


@dataclass
class Case:
    directory: Path
    processor: Processor
    executor: LocalExecutor
    config: EngineConfig

    def __post_init__(self) -> None:
        self._steps = count(1)

    def execute(self, **parts: object) -> None:
        self.executor.execute(BatchPlan(step=next(self._steps), **parts))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    directory = FAMILIES[request.param].write(tmp_path_factory.mktemp(request.param), 3)
    config = EngineConfig(
        model=ModelConfig(dtype="float32", pack_cache=""),
        cache=CacheConfig(block_size=BLOCK, kv_cache_bytes=KV_BYTES),
        schedule=ScheduleConfig(max_num_seqs=ROWS, max_num_batched_tokens=TOKENS, encoder_budget_tokens=128),
        device=DeviceConfig(device="cpu", threads=1),
    )
    yield Case(directory, load_processor(directory), load_executor(directory, config), config)


def peak_bytes(run: Callable[[], None]) -> int:
    """The most that torch had allocated at once, beyond what was there."""
    with profile(profile_memory=True) as seen:
        run()
    events = [event for event in seen.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def held_bytes(root: object) -> int:
    """Of all tensors that can be reached from an object, each memory counted once."""
    seen: dict[int, object] = {}
    storages: dict[int, int] = {}
    left = [root]
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | str | bytes):
            continue
        seen[id(found)] = found
        if isinstance(found, torch.Tensor):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        else:
            cells = [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
            left += [*gc.get_referents(found), *cells] if not callable(found) or _is_ours(found) else cells
    return sum(storages.values())


def _is_ours(found: object) -> bool:
    return type(found).__module__.startswith("tapetum")


def pictures(processor: Processor, number: int, side: int = 224) -> list[MediaItem]:
    if "image" not in processor.media_tokens:
        return []
    geometry = processor.geometry("image", side, side, options=ProcessorOptions())
    width, height = geometry.used
    patches = processor.patches([np.full((height, width, 3), 128, np.uint8)], geometry)
    return [MediaItem(key=b"%d" % index, geometry=geometry, patches=patches) for index in range(number)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_as_predicted(case: Case, dtype: torch.dtype) -> None:
    """By the tables of a device that keeps each weight once, as it is."""
    model = load_model(case.directory, dtype, CPU, torch_table(torch.device("meta"), dtype))
    predicted = read_paper(case.directory).footprint(dtype.itemsize).weight_bytes
    assert predicted == pytest.approx(held_bytes(model), rel=MAX_ERROR)


def test_keys_values_and_features_are_as_predicted(case: Case) -> None:
    footprint, executor = read_paper(case.directory).footprint(bytes_per_value=4), case.executor
    slots = executor.facts.num_blocks * BLOCK
    held = sum(layer.nbytes for layer in executor._kv.layers)
    assert footprint.token_bytes * slots == pytest.approx(held, rel=MAX_ERROR)
    assert executor.facts.kv_bytes_per_token == footprint.token_bytes
    for item in pictures(case.processor, 2):
        case.execute(encodes=(EncodeJob(item=item),))
        held = executor.features_of(item.key).untyped_storage().nbytes()
        assert footprint.feature_bytes * item.geometry.num_tokens == pytest.approx(held, rel=MAX_ERROR)
        case.execute(dropped_features=(item.key,))


@pytest.mark.parametrize("is_native", [True, False])
def test_the_largest_step_takes_no_more_than_predicted(
    case: Case, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item under way, then as many items at once as the budget allows, then as many rows and tokens."""
    if not is_native:
        monkeypatch.setattr(executor_module, "choose_table", torch_table)
        case = replace(case, executor=load_executor(case.directory, case.config))
    spec = make_spec(read_blueprint(case.directory), torch.float32, CPU)
    schedule, media = case.config.schedule, case.config.media
    sizes = extent(case.processor, media.max_pixels, media.max_frames)
    allowed = largest_step_bytes(spec, case.config, sizes, spec.max_model_len, is_native=True)
    if not is_native:  # scores of one product at a time, which are few here
        heads = read_blueprint(case.directory).decoder.num_heads
        allowed += 3 * heads * TOKENS**2 * 4
    items = pictures(case.processor, 1 + schedule.encoder_budget_tokens)
    if items:
        tokens = items[0].geometry.num_tokens
        items = items[: 1 + max(1, schedule.encoder_budget_tokens // tokens)]
    rows = list(forward_rows(case))

    def run() -> None:
        if items:
            case.execute(encodes=(EncodeJob(item=items[0], start=0.0, end=0.1),))
            case.execute(encodes=tuple(EncodeJob(item=item) for item in items[1:]))
        case.execute(rows=tuple(rows))

    peak = peak_bytes(run)
    case.execute(dropped_features=tuple(item.key for item in items))
    case.execute(released=tuple(row.request_id for row in rows))
    assert 0 < peak <= allowed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_choice_takes_is_an_upper_bound_and_not_far(case: Case, temperature: float) -> None:
    step = make_spec(read_blueprint(case.directory), torch.float32, CPU).step
    rows = list(forward_rows(case, temperature))
    decodes = rows[1:]
    peak = peak_bytes(lambda: case.execute(rows=tuple(decodes)))
    case.execute(released=tuple(row.request_id for row in rows))
    num_random = len(decodes) if temperature else 0
    assert peak <= step.forward_bytes(len(decodes), len(decodes), num_random)
    assert peak > 0.5 * step.forward_bytes(0, len(decodes), num_random)


def test_what_an_encode_keeps_is_an_upper_bound_and_not_far(case: Case) -> None:
    step = make_spec(read_blueprint(case.directory), torch.float32, CPU).step
    few, many = pictures(case.processor, 1), pictures(case.processor, 16)
    if not few:
        assert step.patch_bytes == step.slice_bytes == step.visual_token_bytes == 0
        return
    for items in (few, many):
        peak = peak_bytes(
            lambda items=items: case.execute(encodes=tuple(EncodeJob(item=item) for item in items))
        )
        case.execute(dropped_features=tuple(item.key for item in items))
        patches = sum(item.geometry.num_patches for item in items)
        tokens = sum(item.geometry.num_tokens for item in items)
        # features are copied out of the batch: that copy is what the cache of features counts
        kept = step.encode_bytes(patches, 2 * tokens)
        assert peak <= kept + step.slice_bytes
        assert peak > 0.5 * step.encode_bytes(patches, 0)


def forward_rows(case: Case, temperature: float = 1.0) -> Iterator[Row]:
    """A chunk of a prompt, and beside it decodes whose requests choose at random; all share the same blocks."""
    schedule = case.config.schedule
    token = next(token for token in range(50) if token not in case.processor.media_tokens.values())
    length = schedule.max_num_batched_tokens - schedule.max_num_seqs + 2
    prompt = case.processor.layout([(token,) * length])
    sampling = SamplingParams(temperature=temperature, top_p=0.9, top_k=50).resolved(SamplingParams())
    requests = tuple(
        Request(
            request_id=f"{temperature} {index}",
            prompt=prompt,
            sampling=sampling,
            max_tokens=4,
            stop_token_ids=frozenset(),
        )
        for index in range(schedule.max_num_seqs)
    )
    case.execute(admitted=requests)
    blocks = tuple(range(-(-length // BLOCK)))
    for index, request in enumerate(requests):
        start, count = (0, length - 1) if index == 0 else (length - 1, 1)
        yield Row(
            request_id=request.request_id, start=start, length=count, block_ids=blocks, has_sample=index > 0
        )
