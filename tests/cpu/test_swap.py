"""KV of preempted requests in host memory, on a real model: the same answers."""

from __future__ import annotations

from tapetum import LLM, SamplingParams
from tapetum.core.stats import SchedulerStats
from tapetum.engine.build import build_engine
from tapetum.engine.options import config_from

OPTIONS: dict[str, object] = {
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "max_model_len": 192,
    "has_prefix_caching": False,
}


def _answers(**options: object) -> tuple[list[tuple[int, ...]], SchedulerStats]:
    engine = build_engine(config_from(None, {**OPTIONS, **options}))
    with LLM(engine) as llm:
        asked = [f"Count to {number} and tell me of each number what it is." for number in range(6)]
        outputs = llm.generate(asked, SamplingParams(max_tokens=90, ignore_eos=True), use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs], engine.stats


def test_greedy_answers_are_the_same_whether_requests_were_swapped_or_never_preempted() -> None:
    wanted, stats = _answers(kv_cache_bytes=64 << 20)
    assert stats.num_preemptions == 0
    few = 256 * build_engine(config_from(None, OPTIONS)).facts.kv_bytes_per_token
    found, stats = _answers(kv_cache_bytes=few, swap_bytes=64 << 20)
    assert stats.num_preemptions > 0 and stats.num_loaded_blocks > 0
    assert stats.num_host_blocks == stats.num_held_blocks == 0
    assert found == wanted
    found, stats = _answers(kv_cache_bytes=few, swap_bytes=0)
    assert stats.num_preemptions > 0 == stats.num_saved_blocks
    assert found == wanted
