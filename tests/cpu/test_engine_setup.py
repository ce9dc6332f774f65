"""From options to an engine: which are taken, where a model is found, and a profile that leaves no trace."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tapetum import LLM, SamplingParams
from tapetum.assets import MODEL_DIR
from tapetum.core.config import DeviceConfig, EngineConfig, MediaConfig, ModelConfig, ScheduleConfig
from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.engine.options import config_from
from tapetum.engine.profile import profile
from tapetum.runtime.executor import load_executor
from tests.mini import LEAST_TOKENS


def test_options_find_their_records():
    config = config_from(
        Path("somewhere"),
        {
            "dtype": "float32",
            "max_model_len": 77,
            "enable_prefix_caching": False,
            "kv_cache_bytes": 1000,
            "schedule": "interactive",
            "itl_target_ms": 20,
            "threads": 2,
            "limit_per_prompt": 3,
            "served_model_names": ["a", "b"],
            "allowed_local_path": Path("/srv"),
        },
    )
    assert config.model == ModelConfig(
        model="somewhere", dtype="float32", max_model_len=77, served_model_names=("a", "b")
    )
    assert (config.cache.has_prefix_caching, config.cache.kv_cache_bytes) == (False, 1000)
    assert config.schedule == ScheduleConfig(schedule="interactive", itl_target_ms=20)
    assert config.device == DeviceConfig(threads=2)
    assert (config.media.limit_per_prompt, config.media.allowed_local_path) == (3, "/srv")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_model_length", 5, "max_model_length is no option; did you mean max_model_len"),
        ("colour", 5, "colour is no option; known are .*block_size"),
        ("dtype", "float17", "dtype is 'float17'"),
        ("schedule", "slow", "schedule is 'slow'"),
        ("max_num_seqs", "8", "--max-num-seqs is '8', must be int"),
        ("max_num_seqs", True, "--max-num-seqs is True"),
        ("max_model_len", 0, "--max-model-len is 0, allowed are 2"),
        ("enable_prefix_caching", 1, "has_prefix_caching is 1, must be bool"),
        ("block_size", 12, "block-size is 12"),
        ("alpha_ground", (1, 2), "alpha_ground is"),
    ],
)
def test_options_that_are_none_or_of_another_kind_are_refused(option, value, message):
    with pytest.raises(ConfigError, match=message):
        config_from(None, {option: value})


def test_a_ready_config_takes_no_options():
    config = EngineConfig()
    assert config_from(config, {}) is config
    with pytest.raises(ConfigError, match="dtype"):
        config_from(config, {"dtype": "float32"})


def test_models_are_found_or_refused(tmp_path, monkeypatch):
    assert find_model(ModelConfig()) == MODEL_DIR
    with pytest.raises(CheckpointError, match=r"config\.json"):
        find_model(ModelConfig(model=str(tmp_path)))
    shutil.copy(MODEL_DIR / "config.json", tmp_path)
    assert find_model(ModelConfig(model=str(tmp_path))) == tmp_path
    for name in ("./nowhere", "/no/such/dir", "name with spaces", "a/b/c"):
        with pytest.raises(ConfigError, match=r"neither a directory, nor a \.gguf file, nor a hub id"):
            find_model(ModelConfig(model=name))


def test_the_profile_teaches_and_leaves_no_trace():
    config = EngineConfig(model=ModelConfig(dtype="float32"), device=DeviceConfig(threads=1))
    executor = load_executor(MODEL_DIR, config)
    steps = []
    execute = executor.execute
    executor.execute = lambda plan: (steps.append(plan), execute(plan))[1]
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    cost = profile(executor, executor.facts, ModelFiles.load(MODEL_DIR).processor, config, clock)
    assert executor.num_requests == 0
    assert executor.feature_keys == executor.encode_keys == frozenset()
    slices = [job for plan in steps for job in plan.encodes if not job.is_whole]
    assert slices and all(job.end < 1 for job in slices)
    assert len(steps) < 30
    assert all(plan.step < 0 for plan in steps), "the steps of the scheduler come after"
    widths = {len(plan.rows) for plan in steps}
    assert {1, 4, 16} <= widths
    # What it has learned is in the order of what it has seen, not of the prior.
    chunk = next(plan for plan in steps if plan.rows and plan.rows[0].length > 100)
    seconds = execute_again(execute, executor, chunk, steps)
    assert seconds / 10 < cost.step_seconds(0, 0, chunk.rows[0].length, 0.0) < seconds * 10


def execute_again(execute, executor, plan, steps) -> float:
    admitted = next(step for step in steps if step.admitted)
    execute(admitted)
    result = execute(plan)
    execute(next(step for step in steps if step.released))
    return result.forward_s


@pytest.mark.parametrize("max_model_len", [2, 3, LEAST_TOKENS + 1, LEAST_TOKENS + 2, 100])
@pytest.mark.parametrize("max_num_batched_tokens", [1, 17])
def test_the_profile_stays_within_small_limits(max_model_len, max_num_batched_tokens):
    config = EngineConfig(
        model=ModelConfig(dtype="float32", max_model_len=max_model_len),
        device=DeviceConfig(threads=1),
        schedule=ScheduleConfig(
            max_num_seqs=9,
            max_num_batched_tokens=max_num_batched_tokens,
            encoder_budget_tokens=LEAST_TOKENS + 4,
        ),
        media=MediaConfig(limit_per_prompt=0 if max_model_len < LEAST_TOKENS + 2 else 1),
    )
    executor = load_executor(MODEL_DIR, config)
    plans = []
    execute = executor.execute
    executor.execute = lambda plan: (plans.append(plan), execute(plan))[1]
    profile(executor, executor.facts, ModelFiles.load(MODEL_DIR).processor, config, lambda: 0.0)
    assert executor.num_requests == 0
    assert any(plan.rows for plan in plans)
    for plan in plans:
        assert sum(row.length for row in plan.rows) <= max_num_batched_tokens
        assert len(plan.rows) <= 9
        assert all(row.end < max_model_len for row in plan.rows)
        assert all(
            job.item.geometry.num_tokens <= min(LEAST_TOKENS + 4, max_model_len) for job in plan.encodes
        )


def test_an_engine_with_the_smallest_context_answers():
    with LLM(max_model_len=2, dtype="float32", threads=1, limit_mm_per_prompt=0) as llm:
        [output] = llm.generate("a", SamplingParams(ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 1


def test_the_profile_stops_when_steps_are_slow():
    config = EngineConfig(model=ModelConfig(dtype="float32"), device=DeviceConfig(threads=1))
    executor = load_executor(MODEL_DIR, config)
    plans = []
    execute = executor.execute
    executor.execute = lambda plan: (plans.append(plan), execute(plan))[1]
    now = 0.0

    def slow_clock() -> float:
        nonlocal now
        now += 0.2
        return now

    profile(executor, executor.facts, ModelFiles.load(MODEL_DIR).processor, config, slow_clock)
    assert len([plan for plan in plans if plan.has_work]) == 4, "one of each kind"
    assert executor.num_requests == 0
