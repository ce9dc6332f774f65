"""Requests that wait for their blocks beside others that decode, over a device that checks what every row reads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from tapetum.cache.tiers import Store
from tapetum.cache.tiers_host import HostStore
from tapetum.core.cost import CostModel
from tapetum.core.request import SamplingParams
from tapetum.engine.engine import Engine
from tapetum.engine.overlap import Overlap
from tapetum.engine.tiers import Tiers
from tests.cpu.engine_kit import (
    Listener,
    SpeakingExecutor,
    assert_at_rest,
    close_engines,
    engine_with,
    picture,
    request_for,
    run_to_end,
    spoken,
)
from tests.faulty_store import FaultyStore

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ENCODE, MOVE = (1.0, 1e-3, 0.0), (0.0, 1e-12)
LONG = " ".join(WORDS * 12)


class Unlearning(CostModel):
    """Keeps to its prior, whatever the scripted device says."""

    def observe_step(self, *_: float) -> None: ...

    def observe_encode(self, *_: float) -> None: ...

    def observe_move(self, *_: float) -> None: ...


@pytest.fixture
def executor() -> SpeakingExecutor:
    return SpeakingExecutor(lambda name: spoken(LONG) * (4 if name == "long" else 1))


@pytest.fixture
def tiers_of() -> Iterator[list[Tiers]]:
    opened: list[Tiers] = []
    yield opened
    for tiers in opened:
        tiers.close()


def started(
    executor: SpeakingExecutor, store: Store, opened: list[Tiers], *, token_s: float = 1e-2, **options
) -> Engine:
    opened.append(Tiers({"kv": (store,)}))
    return engine_with(
        executor,
        cost=Unlearning((1e-2, 1e-2, 0.0, token_s, 0.0), ENCODE, MOVE),
        tiers=opened[-1],
        clock=time.monotonic,
        speculate="off",
        **options,
    )


def ask(engine: Engine, name: str, content: object, **sampling: object) -> None:
    engine.add(request_for(engine, name, content, SamplingParams(**{"max_tokens": 8, **sampling})))


def forget(engine: Engine, store: Store) -> None:
    """Until all that leaves is in the store, and none of it on the device."""
    until = time.monotonic() + 20
    while len(list(store.names())) < engine.stats.num_exported_blocks or engine.has_work:
        assert time.monotonic() < until
        engine.step()
    engine.reset_caches()
    while engine.has_work:
        engine.step()


def test_decodes_go_on_while_a_tier_hangs(executor: SpeakingExecutor, tiers_of: list[Tiers]) -> None:
    store = FaultyStore(timeout_s=30.0)
    engine, heard = started(executor, store, tiers_of), Listener()
    ask(engine, "first", LONG)
    run_to_end(engine)
    forget(engine, store)
    store.hang()
    ask(engine, "long", "Go.", max_tokens=300)
    heard.hear(engine.step())
    ask(engine, "again", LONG)
    while "long" not in heard.whole or heard.whole["long"].finish_reason is None:
        num_computed = executor.computed["long"]
        heard.hear(engine.step())
        assert executor.computed["long"] == num_computed + 1, "a decode in each step"
    assert "again" not in executor.request_ids
    store.go_on()
    run_to_end(engine, heard)
    assert_at_rest(engine, executor)


def test_what_has_come_when_patience_ends_is_used(executor: SpeakingExecutor, tiers_of: list[Tiers]) -> None:
    """Parts of 32 blocks: those in front came, the others hang."""
    store = FaultyStore(timeout_s=30.0)
    engine = started(executor, store, tiers_of, token_s=5e-4)
    ask(engine, "first", LONG * 4)
    run_to_end(engine)
    forget(engine, store)
    num_blocks = engine.stats.num_exported_blocks
    assert num_blocks > 64
    store.delay_s = 0.02
    store.calls.clear()
    ask(engine, "again", LONG * 4)
    while store.count("read") < 40:
        engine.step()
    store.hang()
    run_to_end(engine)
    store.go_on()
    assert 32 <= engine.stats.num_arrived_blocks < num_blocks
    assert executor.computed["again"] < executor.computed["first"] - 31 * 16
    assert_at_rest(engine, executor)


def test_a_new_prompt_asks_a_shared_tier_for_one_block(
    executor: SpeakingExecutor, tiers_of: list[Tiers]
) -> None:
    store = FaultyStore()
    engine = started(executor, store, tiers_of)
    ask(engine, "first", LONG)
    run_to_end(engine)
    assert store.count("read") == 1
    forget(engine, store)
    ask(engine, "again", LONG)
    run_to_end(engine)
    assert store.count("read") == 1 + engine.stats.num_arrived_blocks > 16


def test_a_picture_that_comes_with_its_blocks_is_not_encoded(
    executor: SpeakingExecutor, tiers_of: list[Tiers]
) -> None:
    store = HostStore(1 << 24)
    engine = started(executor, store, tiers_of)
    ask(engine, "first", (picture(1), LONG))
    run_to_end(engine)
    forget(engine, store)
    ask(engine, "again", (picture(1), LONG))
    (delta,) = [run_to_end(engine)["again"]]
    assert delta.stats is not None and delta.stats.media_sources == ("prefix",)
    assert executor.encoded.total() == 1 and executor.computed["again"] < 16 + 8


@pytest.mark.parametrize("kind", ["faults", "late_faults"])
def test_a_step_that_fails_is_made_up_for(
    executor: SpeakingExecutor, tiers_of: list[Tiers], kind: str
) -> None:
    """The pieces of it bring the blocks again; only the request at fault ends."""
    store = HostStore(1 << 24)
    engine, heard = started(executor, store, tiers_of), Listener()
    ask(engine, "first", LONG)
    run_to_end(engine)
    forget(engine, store)
    getattr(executor, kind)["bad"] = RuntimeError("the device stopped")
    ask(engine, "bad", LONG)
    ask(engine, "again", LONG)
    ends = run_to_end(engine, heard)
    assert (ends["bad"].finish_reason, ends["again"].finish_reason) == ("error", "length")
    assert executor.computed["again"] < 16 + 8


@pytest.mark.parametrize("seed", range(8))
def test_overlapped_steps_bring_the_same_answers(seed: int, tiers_of: list[Tiers]) -> None:
    """Talks over a small pool and a tier that forgets, whose turns come at any time."""
    rng, store = random.Random(seed), FaultyStore()
    answers = {
        f"t{talk}.{turn}": rng.choices(WORDS, k=rng.randint(1, 30)) for talk in range(4) for turn in range(4)
    }
    executor = SpeakingExecutor(lambda name: spoken(" ".join(answers[name])))
    engine = started(executor, store, tiers_of, num_blocks=rng.choice([150, 300]))
    heard, changed = Listener(), threading.Condition()
    overlap = Overlap(engine, changed, heard.hear)
    texts = [" ".join(rng.choices(WORDS, k=150)) for _ in range(4)]
    for turn in range(4):
        for talk in rng.sample(range(4), k=4):
            name = f"t{talk}.{turn}"
            ask(engine, name, (picture(talk), texts[talk]), max_tokens=150)
            for _ in range(rng.randint(0, 6)):
                overlap.turn()
            texts[talk] += " " + rng.choice(WORDS)
        while engine.has_work:
            overlap.turn()
        if rng.random() < 0.7:
            engine.reset_caches()
        store.is_forgetful = rng.random() < 0.3
    while engine.has_work:
        overlap.turn()
    overlap.close()
    for name, words in answers.items():
        assert heard.whole[name].text.split() == words, name
    assert engine.stats.num_exported_blocks > 0
    assert_at_rest(engine, executor)
