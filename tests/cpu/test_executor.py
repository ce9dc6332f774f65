"""LocalExecutor: isolation of a bad picture, what it forgets, and the configuration it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tapetum.assets import MODEL_DIR
from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from tapetum.core.errors import ConfigError
from tapetum.core.media import Geometry, MediaItem, Span
from tapetum.core.plan import BatchPlan, EncodeJob, Row
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.runtime.executor import LocalExecutor, load_executor, resolve_device, resolve_dtype
from tests.checkpoints import write_checkpoint

CPU = torch.device("cpu")
PICTURE_TOKEN = 1022


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
    token_ids = (11, 12, 13) if item is None else (11, *(PICTURE_TOKEN,) * 4, 13)
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
        logprobs[name] = executor.execute(plan_of(step, [request], [picture])).tokens[name].logprob
    assert logprobs["c"] != logprobs["d"]


def test_facts_name_dtype_sizes_and_identity(executor: LocalExecutor) -> None:
    facts = executor.facts
    assert facts.kv_bytes_per_token == 2 * 6 * 4 * 32 * 4
    assert facts.feature_bytes_per_token == 256 * 4
    half = load_executor(MODEL_DIR, EngineConfig(model=ModelConfig(dtype="bfloat16")))
    assert half.facts.weights_fingerprint != facts.weights_fingerprint
    assert half.facts.encoder_fingerprint != facts.encoder_fingerprint


def test_the_pool_holds_at_least_one_longest_request() -> None:
    config = EngineConfig(
        model=ModelConfig(dtype="float32"), cache=CacheConfig(block_size=16, kv_cache_bytes=100_000)
    )
    with pytest.raises(ConfigError, match=r"--kv-cache-memory holds \d+ tokens .* lower --max-model-len"):
        load_executor(MODEL_DIR, config)


def test_a_context_longer_than_the_checkpoint_allows_is_refused() -> None:
    with pytest.raises(ConfigError, match="made for at most 2048"):
        load_executor(MODEL_DIR, make_config(max_model_len=4096))


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
