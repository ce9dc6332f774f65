"""Pictures encoded once: every way back to the device gives the answers of an engine that knows no way back."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tapetum.media.plan
from tapetum.cache.tiers import Store
from tapetum.cache.tiers_disk import DiskStore
from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, TierConfig
from tapetum.core.cost import CostModel
from tapetum.core.request import SamplingParams
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.llm import LLM
from tapetum.engine.output import RequestOutput
from tapetum.engine.service import AsyncEngine
from tapetum.engine.tiers import Tiers
from tapetum.runtime.executor import LocalExecutor, load_executor
from tests.checkpoints import write_checkpoint
from tests.faulty_store import FaultyStore
from tests.mini import LEAST_TOKENS
from tests.tier_servers import REDIS, redis_server

SEEDS = (1, 2, 1, 3)
GREEDY = SamplingParams(max_tokens=6, temperature=0)
needs_redis = pytest.mark.skipif(REDIS is None, reason="there is no redis-server on this machine")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiers"), "qwen2_vl")


@pytest.fixture(scope="module")
def truth(checkpoint: Path) -> dict[int, tuple[int, ...]]:
    """The answers of an engine without any cache behind the device."""
    engine, _ = build(checkpoint)
    with LLM(engine) as llm:
        return {seed: tokens(ask(llm, seed)) for seed in set(SEEDS)}


class DearEncodes(CostModel):
    """So that a load pays whatever else the machine does: an encode of seconds, say what it may take."""

    def __init__(self) -> None:
        super().__init__(encode=(3.0, 1e-4, 0.0))

    def observe_encode(self, patches: float, squares: float, seconds: float) -> None:
        """Nothing is learned."""


class Counting:
    """An executor, and how many pictures it has encoded."""

    def __init__(self, inner: LocalExecutor) -> None:
        self.inner = inner
        self.num_encodes = 0
        self.num_prefilled = 0
        self._begin = inner._encoder._begin
        inner._encoder._begin = self._counted  # type: ignore[method-assign, assignment]

    def _counted(self, *arguments: object) -> object:
        self.num_encodes += 1
        return self._begin(*arguments)  # type: ignore[arg-type]

    def execute(self, plan):
        self.num_prefilled += sum(row.length for row in plan.rows if not row.is_decode)
        return self.inner.execute(plan)


def build(
    checkpoint: Path,
    *urls: str,
    stores: tuple[Store, ...] | None = None,
    feature_tokens: int = 1000,
    is_caching: bool = False,
    cost: CostModel | None = None,
) -> tuple[Engine, Counting]:
    """`stores` instead of what the URLs name."""
    config = EngineConfig(
        model=ModelConfig(model=str(checkpoint), dtype="float32", pack_cache=""),
        cache=CacheConfig(
            kv_cache_bytes=1 << 24, feature_cache_bytes=512 * feature_tokens, has_prefix_caching=is_caching
        ),
        device=DeviceConfig(threads=1),
        tiers=TierConfig(feature_tiers=urls),
    )
    executor = load_executor(checkpoint, config)
    counting = Counting(executor)
    tiers = None
    if urls:
        from tapetum.engine.build import open_tiers

        tiers = open_tiers(config.tiers) if stores is None else Tiers({"features": stores, "alias": stores})
    engine = Engine(
        config,
        executor=counting,
        facts=executor.facts,
        files=ModelFiles.load(checkpoint),
        cost=cost or DearEncodes(),
        tiers=tiers,
    )
    if tiers is not None:
        engine.at_end.callback(tiers.close)
    return engine, counting


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (112, 112, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def message(seed: int) -> list[object]:
    parts = [{"type": "image", "image": png(seed)}, {"type": "text", "text": "What is it?"}]
    return [{"role": "user", "content": parts}]


def ask(llm: LLM, seed: int) -> RequestOutput:
    return llm.chat(message(seed), GREEDY)[0]


def tokens(output: RequestOutput) -> tuple[int, ...]:
    return tuple(output.outputs[0].token_ids)


def told(llm: LLM, truth: dict[int, tuple[int, ...]], seeds: tuple[int, ...] = SEEDS) -> list[str | None]:
    """Where the picture of each question came from; the answers are right."""
    sources = []
    for seed in seeds:
        output = ask(llm, seed)
        assert tokens(output) == truth[seed]
        sources.append(output.media[0].cache)
    return sources


def assert_at_rest(engine: Engine) -> None:
    visual = engine._scheduler.visual
    assert (visual.reserve.num_requests, visual.reserve.num_bytes, visual.num_pinned) == (0, 0, 0)
    assert (engine._promotion.num_leases, engine._promotion.num_searches) == (0, 0)
    assert engine._reservations.num_open == 0 and not engine._promotion.is_holding


@pytest.fixture
def num_decodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Grows by one with every picture that is decoded."""
    decoded: list[int] = []
    inner = tapetum.media.plan.decode

    def counted(*arguments, **options):
        decoded.append(1)
        return inner(*arguments, **options)

    monkeypatch.setattr(tapetum.media.plan, "decode", counted)
    yield decoded


def test_the_device_and_the_host_give_back_what_was_encoded(checkpoint, truth):
    engine, counting = build(checkpoint, "host:?max=16MiB", feature_tokens=LEAST_TOKENS)  # one picture
    with LLM(engine) as llm:
        assert told(llm, truth) == ["miss", "miss", "host", "miss"]
        assert told(llm, truth) == ["host"] * 4 and told(llm, truth, (3,)) == ["device"]
    assert counting.num_encodes == 3
    assert_at_rest(engine)


def test_after_a_restart_the_disk_gives_it_back_and_nothing_is_decoded(
    checkpoint, truth, tmp_path, num_decodes
):
    url = f"disk:{tmp_path}?max=16MiB"
    for expected, num_encodes in (
        (["miss", "miss", "device", "miss"], 3),
        (["disk", "disk", "device", "disk"], 0),
    ):
        num_decodes.clear()
        engine, counting = build(checkpoint, url)
        with LLM(engine) as llm:
            assert told(llm, truth) == expected
        assert (counting.num_encodes, len(num_decodes)) == (num_encodes, num_encodes)
        assert_at_rest(engine)


def test_other_weights_and_other_types_find_nothing(checkpoint, tmp_path, tmp_path_factory):
    url = f"disk:{tmp_path}?max=16MiB"
    other = write_checkpoint(tmp_path_factory.mktemp("other"), "qwen2_vl", seed=7)
    for place in (checkpoint, other):
        engine, counting = build(place, url)
        with LLM(engine) as llm:
            assert ask(llm, 1).media[0].cache == "miss"
        assert counting.num_encodes == 1


async def test_another_tenant_and_another_size_find_nothing(checkpoint, tmp_path):
    engine, counting = build(checkpoint, f"disk:{tmp_path}?max=16MiB")
    async with AsyncEngine(engine) as service:
        chat = message(1)
        small = [
            {
                "role": "user",
                "content": [{**chat[0]["content"][0], "max_pixels": 3136}, chat[0]["content"][1]],
            }
        ]
        for prompt, tenant in ((chat, "a"), (chat, "b"), (small, "a")):
            output = await (await service.submit(prompt, GREEDY, tenant=tenant)).output()
            assert output.media[0].cache == "miss"
        output = await (await service.submit(chat, GREEDY, tenant="b")).output()
        assert output.media[0].cache == "device"
    assert counting.num_encodes == 3
    assert_at_rest(engine)


def test_a_second_identical_question_encodes_nothing_and_prefills_the_last_block(checkpoint):
    engine, counting = build(checkpoint, is_caching=True)
    with LLM(engine) as llm:
        first = ask(llm, 1)
        before, counting.num_prefilled = counting.num_encodes, 0
        second = ask(llm, 1)
    assert tokens(first) == tokens(second) and second.media[0].cache in ("prefix", "device")
    assert counting.num_encodes == before == 1
    assert 0 < counting.num_prefilled <= engine.facts.block_size


@needs_redis
async def test_fifty_who_ask_two_engines_at_once_cost_one_encode(checkpoint, truth, tmp_path):
    with redis_server(tmp_path) as server:
        built = [build(checkpoint, server.url()) for _ in range(2)]
        async with AsyncEngine(built[0][0]) as one, AsyncEngine(built[1][0]) as other:
            generations = await asyncio.gather(
                *((one, other)[index % 2].submit(message(1), GREEDY) for index in range(50))
            )
            outputs = await asyncio.gather(*(generation.output() for generation in generations))
            assert {tokens(output) for output in outputs} == {truth[1]}
            assert sum(counting.num_encodes for _, counting in built) == 1
            again = await (await other.submit(message(2), GREEDY)).output()
            theirs = await (await one.submit(message(2), GREEDY)).output()
        assert (again.media[0].cache, theirs.media[0].cache) == ("miss", "remote")
        assert tokens(again) == tokens(theirs) == truth[2]
        for engine, _ in built:
            assert_at_rest(engine)


@needs_redis
async def test_a_server_that_is_killed_in_between_is_done_without(checkpoint, truth, tmp_path):
    with redis_server(tmp_path) as server:
        engine, _ = build(checkpoint, server.url("?timeout_s=0.2"))
        async with AsyncEngine(engine) as service:
            first = await (await service.submit(message(1), GREEDY)).output()
            server.kill()
            running = await asyncio.gather(*(service.submit(message(seed), GREEDY) for seed in SEEDS))
            outputs = [await generation.output() for generation in running]
        assert tokens(first) == truth[1]
        assert [tokens(output) for output in outputs] == [truth[seed] for seed in SEEDS]
        assert_at_rest(engine)


FAULTS = {
    "corrupt": {"flips_bit": 8000},
    "cut": {"cuts_to": 100},
    "forgetful": {"is_forgetful": True},
    "full": {"is_full": True},
    "dead": {"is_dead": True},
    "slow": {"delay_s": 0.02},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_at_fault_costs_time_and_no_answer(checkpoint, truth, tmp_path, fault):
    healthy, _ = build(checkpoint, f"disk:{tmp_path}?max=16MiB")
    with LLM(healthy) as llm:
        assert told(llm, truth, (1, 2)) == ["miss", "miss"]
    store = FaultyStore(DiskStore(tmp_path, 2**24))
    engine, _ = build(checkpoint, "redis://127.0.0.1:1/0", stores=(store,), feature_tokens=LEAST_TOKENS)
    for name, value in FAULTS[fault].items():
        setattr(store, name, value)
    with LLM(engine) as llm:
        sources = told(llm, truth)
        counts = engine._tiers.counts()[0].events
    assert sources == (["remote", "remote", "remote", "miss"] if fault in ("slow", "full") else ["miss"] * 4)
    assert (counts["corrupt", "features"] > 0) == (fault in ("corrupt", "cut"))
    assert_at_rest(engine)


def test_a_load_that_takes_longer_than_an_encode_is_not_begun_again(checkpoint, truth, tmp_path):
    first, _ = build(checkpoint, f"disk:{tmp_path}?max=16MiB")
    with LLM(first) as llm:
        told(llm, truth)
    store = FaultyStore(DiskStore(tmp_path, 2**24))
    engine, _ = build(
        checkpoint, "redis://127.0.0.1:1/0", stores=(store,), cost=CostModel(encode=(1e-3, 0.0, 0.0))
    )
    store.delay_s = 0.05
    with LLM(engine) as llm:
        assert told(llm, truth, (1, 2, 3))[1:] == ["miss", "miss"]
        store.calls.clear()
        engine.reset_caches()
        assert told(llm, truth, (1,)) == ["miss"]
        assert store.count("read") <= 1, "of an alias at most"
    assert_at_rest(engine)


def test_a_store_that_hangs_is_left_behind(checkpoint, truth):
    store = FaultyStore(timeout_s=0.2)
    engine, counting = build(checkpoint, "redis://127.0.0.1:1/0", stores=(store,))
    store.hang()
    with LLM(engine) as llm:
        assert told(llm, truth) == ["miss", "miss", "device", "miss"]
        store.go_on()
    assert counting.num_encodes == 3
    assert_at_rest(engine)
