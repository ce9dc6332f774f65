"""LocalExecutor: isolation of a bad picture, what it forgets, and the configuration it refuses."""

from __future__ import annotations

import dataclasses
import os
import re
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch

from tapetum.assets import MODEL_DIR
from tapetum.core.config import (
    GIB,
    USUAL_CONTEXTS,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
    ScheduleConfig,
    TierConfig,
)
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import StepMemory
from tapetum.core.media import Geometry, MediaItem, Span
from tapetum.core.plan import BatchPlan, EncodeJob, Row
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.models.base import ModelSpec
from tapetum.native.library import load
from tapetum.ops.table import torch_table
from tapetum.runtime import executor as executor_module
from tapetum.runtime.executor import LocalExecutor, load_executor, resolve_device, resolve_dtype
from tapetum.runtime.memory import (
    Room,
    host_available_bytes,
    plan_blocks,
    plan_host_slots,
    room_of,
    token_bytes,
)
from tapetum.runtime.store import KVStore
from tests.checkpoints import write_checkpoint
from tests.mini import CONFIG, IMAGE_TOKEN, KV_VALUES, LEAST_TOKENS, MAX_MODEL_LEN

CPU = torch.device("cpu")
LEAST_BYTES = LEAST_TOKENS * CONFIG["hidden_size"] * 4  # of the features of the smallest picture
LEAST_GIB = ceil(LEAST_BYTES / GIB * 1e6) / 1e6


def make_config(**model: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(dtype="float32", **model),
        cache=CacheConfig(block_size=4, kv_cache_bytes=None),
        device=DeviceConfig(device="cpu"),
    )


@pytest.fixture
def executor() -> LocalExecutor:
    return load_executor(MODEL_DIR, make_config())


def make_item(name: str, *, width: int = 588) -> MediaItem:
    geometry = Geometry(
        kind="image",
        original=(56, 56),
        used=(56, 56),
        frames=1,
        grid_thw=(1, 4, 4),
        num_tokens=4,
        segments=(16,),
    )
    seed = np.frombuffer(name.encode(), np.uint8).tolist()
    patches = np.random.default_rng(seed).integers(0, 256, (16, width), dtype=np.uint8)
    return MediaItem(key=name.encode().ljust(32), geometry=geometry, patches=patches)


def make_request(name: str, item: MediaItem | None = None) -> Request:
    token_ids = (11, 12, 13) if item is None else (11, *(IMAGE_TOKEN,) * 4, 13)
    spans = () if item is None else (Span(start=1, end=5, item=item, placement=(1, 2, 2)),)
    positions = np.tile(np.arange(len(token_ids)), (3, 1))
    prompt = Prompt(token_ids=token_ids, spans=spans, position_ids=positions, position_delta=0)
    sampling = SamplingParams(temperature=0.0).resolved(SamplingParams())
    return Request(
        request_id=name, prompt=prompt, sampling=sampling, max_tokens=8, stop_token_ids=frozenset()
    )


def make_row(request: Request, first_block: int) -> Row:
    length = request.num_prompt_tokens
    blocks = (first_block, first_block + 1)
    return Row(request_id=request.request_id, start=0, length=length, block_ids=blocks, has_sample=True)


def plan_of(step: int, requests: list[Request], items: list[MediaItem]) -> BatchPlan:
    return BatchPlan(
        step=step,
        admitted=tuple(requests),
        encodes=tuple(EncodeJob(item=item) for item in items),
        rows=tuple(make_row(request, 2 * index) for index, request in enumerate(requests)),
    )


def test_a_picture_that_cannot_be_encoded_fails_alone(executor: LocalExecutor) -> None:
    good, bad = make_item("good"), make_item("bad", width=99)
    requests = [make_request("a", good), make_request("b", bad), make_request("c")]
    result = executor.execute(plan_of(1, requests, [good, bad]))
    assert set(result.failed_features) == {bad.key}
    assert set(result.tokens) == {"a", "c"}
    alone = load_executor(MODEL_DIR, make_config()).execute(plan_of(1, [requests[0]], [good]))
    assert result.tokens["a"] == alone.tokens["a"]


def test_released_requests_and_dropped_features_are_forgotten(executor: LocalExecutor) -> None:
    item = make_item("one")
    executor.execute(plan_of(1, [make_request("a", item), make_request("b")], [item]))
    assert executor.num_requests == 2 and executor.feature_keys == {item.key}
    executor.execute(BatchPlan(step=2, released=("a", "b"), dropped_features=(item.key,)))
    assert executor.num_requests == 0 and executor.feature_keys == frozenset()


def test_a_row_with_features_from_an_earlier_step(executor: LocalExecutor) -> None:
    item = make_item("one")
    together = executor.execute(plan_of(1, [make_request("a", item)], [item])).tokens["a"]
    later = executor.execute(plan_of(2, [make_request("b", item)], [])).tokens["b"]
    assert together == later
    other = make_item("two")
    logprobs = {}
    for step, (name, picture) in enumerate((("c", item), ("d", other)), start=3):
        request = make_request(name, picture)
        sampling = SamplingParams(temperature=0.0, logprobs=1).resolved(SamplingParams())
        request = Request(
            request_id=name,
            prompt=request.prompt,
            sampling=sampling,
            max_tokens=8,
            stop_token_ids=frozenset(),
        )
        logprobs[name] = executor.execute(plan_of(step, [request], [picture])).tokens[name][0].logprob
    assert logprobs["c"] != logprobs["d"]


def test_facts_name_dtype_sizes_and_identity(executor: LocalExecutor) -> None:
    facts = executor.facts
    assert facts.kv_bytes_per_token == KV_VALUES * 4
    assert facts.feature_bytes_per_token == CONFIG["hidden_size"] * 4
    half = load_executor(MODEL_DIR, EngineConfig(model=ModelConfig(dtype="bfloat16")))
    assert half.facts.weights_fingerprint != facts.weights_fingerprint
    assert half.facts.encoder_fingerprint != facts.encoder_fingerprint


def test_the_pool_holds_at_least_one_longest_request() -> None:
    config = EngineConfig(
        model=ModelConfig(dtype="float32"), cache=CacheConfig(block_size=16, kv_cache_bytes=100_000)
    )
    with pytest.raises(
        ConfigError, match=r"--kv-cache-memory holds \d+ tokens .* lower --max-model-len"
    ) as caught:
        load_executor(MODEL_DIR, config)
    remedy = re.search(r"give --kv-cache-memory ([\d.]+)", str(caught.value))
    assert remedy is not None
    enough = dataclasses.replace(
        config, cache=CacheConfig(block_size=16, kv_cache_bytes=int(float(remedy[1]) * 1024**3))
    )
    assert load_executor(MODEL_DIR, enough).facts.num_blocks >= MAX_MODEL_LEN // 16


@pytest.mark.parametrize("kv_cache_bytes", [None, 10**15])
def test_the_pool_is_never_larger_than_all_rows_can_use(kv_cache_bytes: int | None) -> None:
    config = EngineConfig(
        model=ModelConfig(dtype="float32", max_model_len=64),
        cache=CacheConfig(kv_cache_bytes=kv_cache_bytes),
        schedule=ScheduleConfig(max_num_seqs=3),
    )
    assert load_executor(MODEL_DIR, config).facts.num_blocks == 3 * 64 // 16


def test_available_memory_counts_the_file_cache() -> None:
    meminfo = "MemTotal:       24000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n"
    assert host_available_bytes(meminfo) == 9000 * 1024
    assert host_available_bytes("") > 0


def test_a_container_may_have_less_than_its_machine() -> None:
    meminfo, stat = "MemAvailable: 9000 kB\n", "anon 3000\nfile 500000\nshmem 1000\n"
    assert host_available_bytes(meminfo, "max\n", stat) == 9000 * 1024
    assert host_available_bytes(meminfo, "5000000\n", stat) == 5000000 - 4000
    assert host_available_bytes(meminfo, "3500\n", stat) == 0


def test_memory_of_a_gpu_leaves_room_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dataclasses.replace(make_spec(), device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * GIB, 100 * GIB))
    config = EngineConfig(
        device=DeviceConfig(gpu_memory_utilization=0.8), cache=CacheConfig(feature_cache_bytes=GIB)
    )
    room = room_of(spec, config, step_bytes=3 * GIB)
    assert room.kv_bytes == pytest.approx((50 - 1 - 3) * GIB, abs=16)
    assert room.usual_bytes == room.kv_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_that_leave_arrive_with_the_same_bits_wherever_there_is_room(dtype: torch.dtype) -> None:
    spec = dataclasses.replace(make_spec(), dtype=dtype)
    store = KVStore(spec, num_blocks=6, block_size=16)
    for layer in store.layers:
        layer.copy_(torch.randn(layer.shape))
    before = [layer.clone() for layer in store.layers]
    payloads = store.export([4, 1])
    assert [payload.shape for payload in payloads] == 2 * [(spec.num_layers, *before[0][:, 0].shape)]
    assert sum(memoryview(payload.data).nbytes for payload in payloads) == store.num_bytes(2)
    for layer in store.layers:
        layer[:, [1, 4]] = 0  # what was copied out is apart from what is here
    store.arrive([5, 0], payloads)
    for layer, old in zip(store.layers, before, strict=True):
        assert torch.equal(layer[:, [5, 0]], old[:, [4, 1]])
        assert torch.equal(layer[:, [2, 3]], old[:, [2, 3]])
    with pytest.raises(ValueError, match=r"1 payloads of .* have \d+ bytes, not \d+"):
        store.arrive([0], [dataclasses.replace(payloads[0], data=memoryview(payloads[0].data)[:-4])])


def test_swap_space_and_tiers_of_a_cpu_take_of_the_same_memory() -> None:
    spec = make_spec()
    tiers = TierConfig(feature_tiers=("host:?max=1GiB", "disk:somewhere"), kv_tiers=("host:?max=2GiB",))
    config = EngineConfig(cache=CacheConfig(swap_bytes=2 * GIB), tiers=tiers)
    num_slots = plan_host_slots(spec, 2**16, config)
    room = room_of(spec, config, step_bytes=0, num_host_slots=num_slots)
    assert room.host_bytes == num_slots * 16 * token_bytes(spec) + 3 * GIB
    assert room.kv_bytes == room.free_bytes - room.feature_bytes - room.host_bytes
    assert "--swap-space and host: tiers" in str(room)
    gpu = dataclasses.replace(spec, device=torch.device("cuda"))
    assert plan_host_slots(gpu, 2**16, config) == num_slots


def test_kv_of_a_small_model_that_nobody_sized_stays_small() -> None:
    room = Room(free_bytes=64 * GIB, step_bytes=0, feature_bytes=0, usual_limit=4 * GIB)
    longest = 128 // 16
    assert plan_blocks(make_spec(), 128, EngineConfig(), room) == USUAL_CONTEXTS * longest
    asked = EngineConfig(cache=CacheConfig(kv_cache_bytes=GIB))
    assert plan_blocks(make_spec(), 128, asked, room) == asked.schedule.max_num_seqs * longest


def test_kv_that_leaves_no_room_for_a_step_is_refused_with_numbers() -> None:
    room = Room(free_bytes=3 * GIB, step_bytes=2 * GIB, feature_bytes=GIB // 2, usual_limit=GIB)
    config = EngineConfig(cache=CacheConfig(kv_cache_bytes=GIB))
    spec = dataclasses.replace(make_spec(), num_layers=2000)
    with pytest.raises(
        ConfigError, match=r"asks for 1023 MiB, there is room for 512 MiB \(3 GiB may be used, .*lower it"
    ):
        plan_blocks(spec, 128, config, room)
    enough = EngineConfig(cache=CacheConfig(kv_cache_bytes=GIB // 2))
    block_bytes = token_bytes(spec) * 16
    assert plan_blocks(spec, 128, enough, room) == GIB // 2 // block_bytes
    assert plan_blocks(spec, 128, EngineConfig(), room) == GIB // 2 // block_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cache": CacheConfig(feature_cache_bytes=1000)},
            rf"{LEAST_TOKENS} visual tokens with {LEAST_BYTES} bytes.*at least {LEAST_GIB:.6f}",
        ),
        (
            {"model": ModelConfig(dtype="float32", max_model_len=16)},
            f"--max-model-len is 16; give at least {LEAST_TOKENS + 2}",
        ),
    ],
)
def test_a_budget_that_holds_no_picture_is_refused_unless_none_is_allowed(
    changes: dict[str, object], message: str
) -> None:
    config = dataclasses.replace(EngineConfig(model=ModelConfig(dtype="float32")), **changes)
    with pytest.raises(ConfigError, match=f"the smallest picture has .*{message}.*--limit-mm-per-prompt 0"):
        load_executor(MODEL_DIR, config)
    load_executor(MODEL_DIR, dataclasses.replace(config, media=MediaConfig(limit_per_prompt=0)))


def make_spec() -> ModelSpec:
    return ModelSpec(
        model_type="qwen2_vl",
        vocab_size=1000,
        hidden_size=64,
        num_layers=2,
        num_kv_heads=2,
        head_dim=16,
        max_model_len=128,
        dtype=torch.float32,
        device=CPU,
        feature_size=64,
        step=StepMemory(
            token_bytes=1, score_bytes=1, choice_bytes=1, patch_bytes=1, visual_token_bytes=1, slice_bytes=1
        ),
        key_frequencies=((1.0,) * 8,) * 2,
    )


def test_threads_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    config = EngineConfig(device=DeviceConfig(device="cpu", threads=3))
    load_executor(MODEL_DIR, config)
    library = load()
    assert seen == [3 if library is None else 1]  # torch's threads would take the cores from the library's
    assert library is None or library.tpt_num_threads() == 3
    if library is not None:
        library.tpt_set_num_threads(len(os.sched_getaffinity(0)))
    monkeypatch.setattr(executor_module, "choose_table", torch_table)
    load_executor(MODEL_DIR, config)
    assert seen[-1] == 3


def test_the_device_seed_decides_unseeded_draws() -> None:
    answers = []
    for seed in (1, 1, 2):
        executor = load_executor(
            MODEL_DIR, dataclasses.replace(make_config(), device=DeviceConfig(seed=seed))
        )
        sampling = SamplingParams(temperature=50.0).resolved(SamplingParams())
        requests = [dataclasses.replace(make_request(name), sampling=sampling) for name in "abcdefgh"]
        tokens = executor.execute(plan_of(1, requests, [])).tokens
        answers.append([tokens[name][0].token_id for name in "abcdefgh"])
    assert answers[0] == answers[1] != answers[2]


def test_a_picture_does_not_keep_its_batch_in_memory(executor: LocalExecutor) -> None:
    items = [make_item("one"), make_item("two")]
    executor.execute(BatchPlan(step=1, encodes=tuple(EncodeJob(item=item) for item in items)))
    for item in items:
        features = executor.features_of(item.key)
        assert features.untyped_storage().nbytes() == features.numel() * features.element_size()


def test_a_context_longer_than_the_checkpoint_allows_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"made for at most {MAX_MODEL_LEN}"):
        load_executor(MODEL_DIR, make_config(max_model_len=2 * MAX_MODEL_LEN))


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "meta", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--device is '{name}'"):
        resolve_device(name)


def test_auto_dtype_follows_the_checkpoint_where_the_processor_can(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "qwen2_vl")
    assert resolve_dtype("auto", directory, CPU) == torch.float32
    wanted = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    assert resolve_dtype("auto", MODEL_DIR, CPU) == wanted
    with pytest.raises(ConfigError, match="--dtype is 'int3'"):
        resolve_dtype("int3", MODEL_DIR, CPU)
