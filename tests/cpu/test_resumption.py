"""Conversations that go on after their keys and values have left the device: same tokens, no encode, little prefill.

Over the bundled model, with tiers that work, that fail in every way, and after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tapetum import LLM, SamplingParams
from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.cache.tiers import Name, Store
from tapetum.cache.tiers_disk import DiskStore
from tapetum.cache.tiers_host import HostStore
from tapetum.core.config import EngineConfig
from tapetum.core.plan import BatchPlan, Executor, StepResult
from tapetum.core.request import Request
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.inputs import chat_input
from tapetum.engine.options import config_from
from tapetum.engine.prompts import Terms
from tapetum.engine.tiers import Tiers
from tapetum.runtime.executor import LocalExecutor, load_executor
from tests.faulty_store import FaultyStore

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
DTYPES = ("float32", "bfloat16")
Turns = list[tuple[int, ...]]


class Counting(Executor):
    """What an engine executes, counted."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.num_encodes = self.num_tokens = 0

    def execute(self, plan: BatchPlan) -> StepResult:
        self.num_encodes += len(plan.encodes)
        self.num_tokens += sum(row.length for row in plan.rows)
        return self._executor.execute(plan)


@cache
def loaded(dtype: str) -> LocalExecutor:
    """On which engines follow each other as if each had its own: none knows what another left."""
    return load_executor(MODEL_DIR, config_of(dtype))


@cache
def files() -> ModelFiles:
    return ModelFiles.load(MODEL_DIR)


def config_of(dtype: str) -> EngineConfig:
    options = {"device": "cpu", "threads": 1, "kv_cache_bytes": 13 << 20, "dtype": dtype}
    return config_from(None, options)


class Talk:
    """Two turns on a picture, with nothing kept on the device between them."""

    def __init__(self, engine: Engine, counts: Counting) -> None:
        self.engine = engine
        self.counts = counts
        self.llm = LLM(engine)
        self.said: list[dict[str, object]] = []

    def turn(self, question: str = "What does it say?", *, is_forgotten: bool = True) -> tuple[int, ...]:
        picture = [{"type": "image", "image": SAMPLES_DIR / "ok-03-receipt.jpg"}] if not self.said else []
        self.said.append({"role": "user", "content": [*picture, {"type": "text", "text": question}]})
        (output,) = self.llm.chat(self.said, GREEDY, use_tqdm=False)
        if is_forgotten:
            self.forget()
        self.said.append({"role": "assistant", "content": output.outputs[0].text})
        return tuple(output.outputs[0].token_ids)

    def forget(self) -> None:
        self.engine.reset_caches()
        while self.engine.has_work:
            self.engine.step()

    def both(self) -> Turns:
        return [self.turn(), self.turn("And what else?")]


@contextmanager
def talk(dtype: str, *stores: Store) -> Iterator[Talk]:
    counts = Counting(loaded(dtype))
    tiers = Tiers({"kv": stores}) if stores else None
    executor = loaded(dtype)
    engine = Engine(config_of(dtype), executor=counts, facts=executor.facts, files=files(), tiers=tiers)
    if tiers is not None:
        engine.at_end.callback(tiers.close)
    found = Talk(engine, counts)
    try:
        yield found
        stats = engine.stats
        assert stats.num_held_blocks == stats.num_running == stats.num_waiting == 0
        assert executor.num_requests == 0
    finally:
        found.llm.close()


@cache
def without(dtype: str) -> Turns:
    with talk(dtype) as plain:
        return plain.both()


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def wait_for_saves(kept: Talk, store: Store) -> None:
    wait_for(lambda: len(list(store.names())) == kept.engine.stats.num_exported_blocks > 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_second_turn_after_eviction_computes_little(dtype: str, tmp_path: Path) -> None:
    for store in (HostStore(2**28), DiskStore(tmp_path, 2**28)):
        with talk(dtype, store) as kept:
            first = kept.turn()
            wait_for_saves(kept, store)
            num_encodes, num_tokens = kept.counts.num_encodes, kept.counts.num_tokens
            assert num_encodes == 1
            assert [first, kept.turn("And what else?")] == without(dtype)
            assert kept.counts.num_encodes == num_encodes
            assert kept.counts.num_tokens - num_tokens < 64 + GREEDY.max_tokens
            assert kept.engine.stats.num_arrived_blocks > 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_conversation_goes_on_after_a_restart(dtype: str, tmp_path: Path) -> None:
    with talk(dtype, DiskStore(tmp_path, 2**28)) as before:
        first = before.turn()
    store = DiskStore(tmp_path, 2**28)
    with talk(dtype, store) as after:
        after.said = before.said
        wait_for(lambda: store.holdings().num_bytes["kv"] > 0)
        assert [first, after.turn("And what else?")] == without(dtype)
        assert after.counts.num_encodes == 0
        assert after.counts.num_tokens < 64 + GREEDY.max_tokens


def test_another_number_format_finds_nothing(tmp_path: Path) -> None:
    with talk("float32", DiskStore(tmp_path, 2**28)) as before:
        before.turn()
    store = DiskStore(tmp_path, 2**28)
    with talk("bfloat16", store) as after:
        wait_for(lambda: store.holdings().num_bytes["kv"] > 0)
        assert after.both() == without("bfloat16")
        assert after.counts.num_encodes >= 1


def _dead(store: FaultyStore) -> None:
    store.is_dead = True


def _forgetful(store: FaultyStore) -> None:
    store.is_forgetful = True


def _flipped(store: FaultyStore) -> None:
    store.flips_bit = 20_011


def _cut(store: FaultyStore) -> None:
    store.cuts_to = 3000


def _slow(store: FaultyStore) -> None:
    store.delay_s = 0.4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", [_dead, _forgetful, _flipped, _cut, _slow, FaultyStore.hang])
def test_a_tier_that_fails_costs_time_and_changes_nothing(dtype: str, fault: Callable) -> None:
    store = FaultyStore(timeout_s=2.0)
    with talk(dtype, store) as kept:
        first = kept.turn()
        wait_for_saves(kept, store)
        fault(store)
        assert [first, kept.turn("And what else?")] == without(dtype)
        store.go_on()


def test_a_full_or_dead_tier_from_the_start_changes_nothing() -> None:
    for fault in ("is_full", "is_dead"):
        store = FaultyStore()
        setattr(store, fault, True)
        with talk("float32", store) as kept:
            assert kept.both() == without("float32")
            assert kept.engine.stats.num_arrived_blocks == 0


def test_what_a_tier_has_lost_is_saved_again() -> None:
    store = HostStore(2**28)
    with talk("float32", store) as kept:
        kept.turn(is_forgotten=False)
        wait_for_saves(kept, store)
        num_lost = kept.engine.stats.num_exported_blocks
        for listed in list(store.names()):
            store.remove(listed.name)
        kept.turn("And what else?", is_forgotten=False)
        kept.forget()  # which lets everything leave
        num_saved = kept.engine.stats.num_exported_blocks - num_lost
        assert num_saved > num_lost, "what was lost, and the second turn"
        wait_for(lambda: len(list(store.names())) == num_saved)
        kept.turn("Is that all?")
        assert kept.engine.stats.num_arrived_blocks == num_saved, "from the first block on"


def test_what_is_used_on_the_device_is_used_in_the_tiers(tmp_path: Path) -> None:
    """Or the first blocks of a talk, saved at its first turn, would be the oldest, and all others of no use."""
    for store in (HostStore(2**28), DiskStore(tmp_path, 2**28)):
        used: list[Name] = []
        count_use = store.use

        def use(names: Sequence[Name], count_use=count_use, used=used) -> None:
            count_use(names)
            used.extend(names)

        store.use = use
        with talk("float32", store) as kept:
            kept.turn(is_forgotten=False)
            wait_for_saves(kept, store)
            first = {listed.name for listed in store.names()}
            assert not used
            kept.turn("And what else?", is_forgotten=False)
            wait_for(lambda used=used, first=first: first <= set(used))


def _crowd(llm: LLM) -> list[Turns]:
    """Three turns of each of several talks, each round as one batch."""
    samples = sorted(path for path in SAMPLES_DIR.glob("ok-*") if path.suffix in (".png", ".jpg"))[:7]
    chats: list[list[dict[str, object]]] = [
        [{"role": "user", "content": [{"type": "image", "image": path}, {"type": "text", "text": "Well?"}]}]
        for path in samples
    ]
    said: list[Turns] = []
    for _ in range(3):
        outputs = llm.chat(chats, GREEDY, use_tqdm=False)
        said.append([tuple(output.outputs[0].token_ids) for output in outputs])
        for chat, output in zip(chats, outputs, strict=True):
            chat += [
                {"role": "assistant", "content": output.outputs[0].text},
                {"role": "user", "content": "And then?"},
            ]
    return said


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_talks_over_few_blocks(dtype: str) -> None:
    with talk(dtype) as plain:
        wanted = _crowd(plain.llm)
    store = FaultyStore()
    with talk(dtype, store) as kept:
        assert _crowd(kept.llm) == wanted
        kept.forget()
        store.flips_bit = 9_001  # of what comes from here on
        assert _crowd(kept.llm) == wanted
        assert kept.engine.stats.num_exported_blocks > 0


def test_entries_of_another_form_are_thrown_away() -> None:
    store = HostStore(2**28)
    with talk("float32", store) as kept:
        first = kept.turn()
        wait_for_saves(kept, store)
        kept.engine._resumption._tiers._block_bytes += 1  # as if this model had larger blocks
        assert [first, kept.turn("And what else?")] == without("float32")
        assert kept.engine.stats.num_arrived_blocks == 0


def test_who_waits_for_blocks_can_be_aborted() -> None:
    store = FaultyStore(timeout_s=30.0)
    with talk("float32", store) as kept:
        kept.turn()
        wait_for_saves(kept, store)
        store.hang()
        kept.said.append({"role": "user", "content": "And?"})
        request = _request(kept)
        kept.engine.add(request)
        kept.engine.step()
        assert kept.engine.has_work and not kept.engine.stats.num_waiting
        kept.engine.abort(request.request_id)
        news = kept.engine.step()
        assert news[request.request_id].finish_reason == "abort"
        assert not kept.engine.has_work
        store.go_on()


def _request(kept: Talk) -> Request:
    prompts = kept.llm._front.prompts
    return prompts.build(
        chat_input(kept.said), GREEDY, Terms(request_id="late", arrival_s=kept.engine.clock())
    )


def test_counts_are_on_the_metrics() -> None:
    store = HostStore(2**28)
    with talk("float32", store) as kept:
        kept.turn()
        wait_for_saves(kept, store)
        kept.turn("And what else?")
        found = {metric.name: metric.values for metric in kept.engine.metrics(0.0)}
        moved: Sequence[float] = list(found["kv_tier_blocks"].values())
        assert all(count > 0 for count in moved)
