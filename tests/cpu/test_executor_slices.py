"""Encodes under way in the executor: continued, restarted, dropped, broken, and run again by halves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tapetum.assets import MODEL_DIR
from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from tapetum.core.media import Geometry, MediaItem
from tapetum.core.plan import BatchPlan, EncodeJob, StepResult
from tapetum.engine.isolate import execute_apart
from tapetum.models.encoding import Encoding
from tapetum.runtime.executor import LocalExecutor, load_executor

SIDE = 24  # patches: 576 in all, nine quanta


@pytest.fixture(scope="module")
def executor() -> LocalExecutor:
    config = EngineConfig(
        model=ModelConfig(dtype="float32"),
        cache=CacheConfig(block_size=16, kv_cache_bytes=None),
        device=DeviceConfig(device="cpu", threads=1),
    )
    return load_executor(MODEL_DIR, config)


@pytest.fixture(autouse=True)
def forgets_all(executor: LocalExecutor):
    yield
    keys = tuple(executor.feature_keys | executor.encode_keys)
    executor.execute(BatchPlan(step=0, dropped_features=keys))
    assert not executor.feature_keys | executor.encode_keys


def make_item(name: str, width: int = 588) -> MediaItem:
    geometry = Geometry(
        kind="image",
        original=(14 * SIDE, 14 * SIDE),
        used=(14 * SIDE, 14 * SIDE),
        frames=1,
        grid_thw=(1, SIDE, SIDE),
        num_tokens=SIDE * SIDE // 4,
        segments=(SIDE * SIDE,),
    )
    patches = np.random.default_rng(list(name.encode())).integers(0, 256, (SIDE**2, width), dtype=np.uint8)
    return MediaItem(key=name.encode().ljust(32), geometry=geometry, patches=patches)


def encode(executor: LocalExecutor, *jobs: EncodeJob) -> StepResult:
    return executor.execute(BatchPlan(step=1, encodes=jobs))


def whole_features(executor: LocalExecutor, item: MediaItem) -> torch.Tensor:
    encode(executor, EncodeJob(item=item))
    features = executor.features_of(item.key)
    executor.execute(BatchPlan(step=1, dropped_features=(item.key,)))
    return features


def test_features_come_with_the_last_slice_and_are_those_of_the_whole(executor: LocalExecutor) -> None:
    item, other = make_item("one"), make_item("two")
    wanted = whole_features(executor, item)
    done = 0.0
    while done < 1:
        assert item.key not in executor.feature_keys
        job = EncodeJob(item=item, start=done, end=min(1.0, done + 0.11))
        result = encode(executor, job, EncodeJob(item=other))  # whole ones run beside it
        assert job.end <= result.encoded[item.key] < job.end + 0.05 or result.encoded[item.key] == 1
        assert result.encoded[other.key] == 1 and not result.failed_features
        done = result.encoded[item.key]
        assert executor.encode_keys == (frozenset((item.key,)) if done < 1 else frozenset())
    torch.testing.assert_close(executor.features_of(item.key), wanted, rtol=1e-4, atol=1e-4)


def test_an_encode_that_is_dropped_is_gone_and_may_begin_again(executor: LocalExecutor) -> None:
    item = make_item("one")
    wanted = whole_features(executor, item)
    encode(executor, EncodeJob(item=item, end=0.6))
    executor.execute(BatchPlan(step=2, dropped_features=(item.key,)))
    assert not executor.encode_keys
    assert 0.1 <= encode(executor, EncodeJob(item=item, end=0.1)).encoded[item.key] < 0.3
    encode(executor, EncodeJob(item=item, start=0.1))
    torch.testing.assert_close(executor.features_of(item.key), wanted, rtol=1e-4, atol=1e-4)


def test_an_encode_that_is_lost_begins_anew(executor: LocalExecutor) -> None:
    item = make_item("one")
    wanted = whole_features(executor, item)
    assert encode(executor, EncodeJob(item=item, start=0.5, end=0.7)).encoded[item.key] >= 0.7
    encode(executor, EncodeJob(item=item, start=0.7))
    torch.testing.assert_close(executor.features_of(item.key), wanted, rtol=1e-4, atol=1e-4)


def test_a_slice_that_breaks_ends_its_encode_and_no_other(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, other = make_item("one"), make_item("two")
    encode(executor, EncodeJob(item=item, end=0.3))
    advance = Encoding.advance

    def broken(self: Encoding, share: float) -> float:
        if share < 1:
            advance(self, share)
            raise RuntimeError("out of memory")
        return advance(self, share)

    monkeypatch.setattr(Encoding, "advance", broken)
    result = encode(executor, EncodeJob(item=item, start=0.3, end=0.6), EncodeJob(item=other))
    assert set(result.failed_features) == {item.key} and set(result.encoded) == {other.key}
    assert "out of memory" in str(result.failed_features[item.key])
    assert not executor.encode_keys and executor.feature_keys == {other.key}


@pytest.mark.parametrize("end", [0.5, 1.0])
def test_a_slice_that_runs_again_in_pieces_is_not_done_twice(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch, end: float
) -> None:
    """The step broke behind it: the same share is reached, with nothing left to do for it."""
    item = make_item("one")
    wanted = whole_features(executor, item)
    first = encode(executor, EncodeJob(item=item, end=0.2)).encoded[item.key]
    job = EncodeJob(item=item, start=first, end=end)
    reached = encode(executor, job).encoded[item.key]
    with monkeypatch.context() as patch:
        patch.setattr(Encoding, "_run_some", lambda self, work: pytest.fail("computed again"))
        result = execute_apart(executor, BatchPlan(step=1, encodes=(job,)))
    assert result.encoded == {item.key: reached} and not result.failed_features
    if end < 1:
        encode(executor, EncodeJob(item=item, start=reached))
    torch.testing.assert_close(executor.features_of(item.key), wanted, rtol=1e-4, atol=1e-4)


def test_a_picture_of_a_wrong_shape_fails_with_its_first_slice(executor: LocalExecutor) -> None:
    bad = make_item("bad", width=99)
    result = encode(executor, EncodeJob(item=bad, end=0.1))
    assert set(result.failed_features) == {bad.key} and not executor.encode_keys
