"""An engine whose steps run on a thread of their own: the news of one that does one thing after the other."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import SamplingParams
from tapetum.engine.engine import Engine
from tapetum.engine.overlap import Overlap
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

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
WORDS = "one two three four five six seven eight nine ten eleven twelve"


class GatedExecutor(SpeakingExecutor):
    """With a gate a step waits for a permit; `begun` counts steps."""

    def __init__(self, text: str = WORDS) -> None:
        super().__init__(lambda _: spoken(text))
        self.gate: threading.Semaphore | None = None
        self.begun = threading.Semaphore(0)

    def execute(self, plan: BatchPlan) -> StepResult:
        self.begun.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=20)
        return super().execute(plan)


class Loop:
    """An overlap and what it told; `turn` in the test's own thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.heard = Listener()
        self.changed = threading.Condition()
        self.overlap = Overlap(engine, self.changed, self.heard.hear)

    def add(self, name: str, **sampling: object) -> None:
        self.engine.add(request_for(self.engine, name, sampling=SamplingParams(**sampling)))
        with self.changed:
            self.changed.notify()

    def close_gate(self) -> None:
        """From here on a step waits for permits; the one that runs ahead of the loop is seen to its end before."""
        while not all(flight.is_over for flight in self.overlap._flights):
            time.sleep(0.001)
        executor = self.engine._executor
        executor.gate = threading.Semaphore(0)
        while executor.begun.acquire(blocking=False):
            pass

    def run(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                return
            self.overlap.turn()
        raise AssertionError("the engine does not come to rest")


@pytest.fixture
def executor() -> GatedExecutor:
    return GatedExecutor()


@pytest.fixture
def loop(executor: GatedExecutor) -> Iterator[Loop]:
    loop = Loop(engine_with(executor, speculate="off"))
    yield loop
    loop.overlap.close()


@pytest.mark.parametrize("seed", range(12))
def test_news_are_those_of_an_engine_that_steps(seed: int) -> None:
    rng = random.Random(seed)
    options = {"num_blocks": rng.choice([16, 256]), "speculate": rng.choice(["auto", "off"])}
    texts = {f"r{index}": " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 40))) for index in range(6)}
    stops = {name: rng.choice([(), (), ("two",)]) for name in texts}
    pictures = {name: rng.random() < 0.3 for name in texts}

    def started() -> Engine:
        engine = engine_with(SpeakingExecutor(lambda name: spoken(texts[name])), **options)
        for name in texts:
            content = (picture(1), "Read.") if pictures[name] else "Speak."
            engine.add(request_for(engine, name, content, SamplingParams(stop=stops[name])))
        return engine

    wanted = run_to_end(started())
    loop = Loop(started())
    loop.run()
    loop.overlap.close()
    for name, whole in wanted.items():
        told = loop.heard.whole[name]
        assert (told.text, told.tokens, told.stop_reason) == (whole.text, whole.tokens, whole.stop_reason)
        assert told.finish_reason == whole.finish_reason
    assert_at_rest(loop.engine, loop.engine._executor)


def test_the_next_step_begins_without_the_loop(loop: Loop, executor: GatedExecutor) -> None:
    loop.add("a")
    for _ in range(3):
        loop.overlap.turn()
    loop.close_gate()
    loop.overlap.turn()
    (flight,) = loop.overlap._flights
    while not flight.outcome.running():
        time.sleep(0.001)
    executor.gate.release(1000)
    loop.run()
    assert loop.heard.whole["a"].text == WORDS


def test_a_row_that_has_ended_is_not_executed_again(loop: Loop, executor: GatedExecutor) -> None:
    loop.add("a")
    loop.run()
    rows = [row for plan in executor.plans for row in plan.rows]
    assert sum(row.has_sample for row in rows) == len(spoken(WORDS)) + 1
    assert_at_rest(loop.engine, executor)


def test_who_comes_while_a_step_runs_is_in_the_next(loop: Loop, executor: GatedExecutor) -> None:
    loop.add("a")
    for _ in range(4):
        loop.overlap.turn()
    loop.close_gate()
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert executor.begun.acquire(timeout=20)
    loop.add("b")
    while "b" not in loop.heard.whole:  # accepted within the step
        assert thread.is_alive()
    num_before = len(executor.plans)
    executor.gate.release(1000)
    thread.join(20)
    plans = executor.plans[num_before:]
    assert "b" in {row.request_id for plan in plans[:2] for row in plan.rows}
    assert {name: whole.text for name, whole in loop.heard.whole.items()} == {"a": WORDS, "b": WORDS}


def test_who_leaves_while_a_step_runs_gets_nothing_of_it(loop: Loop, executor: GatedExecutor) -> None:
    loop.add("a")
    loop.add("b")
    for _ in range(4):
        loop.overlap.turn()
    loop.engine.abort("a")
    loop.run()
    assert loop.heard.whole["a"].finish_reason == "abort"
    assert WORDS.startswith(loop.heard.whole["a"].text)
    assert loop.heard.whole["b"].text == WORDS
    assert_at_rest(loop.engine, executor)


def test_a_lost_device_ends_what_was_in_flight(loop: Loop, executor: GatedExecutor) -> None:
    loop.add("a")
    for _ in range(3):
        loop.overlap.turn()
    executor.faults["a"] = SystemExit("lost")
    with pytest.raises(SystemExit):
        for _ in range(3):
            loop.overlap.turn()
    loop.heard.hear(loop.engine.abort_all())
    assert loop.heard.whole["a"].finish_reason == "error"
    assert loop.engine.stats.num_held_blocks == 0


def test_a_failing_request_leaves_its_neighbours_alone(loop: Loop, executor: GatedExecutor) -> None:
    loop.add("a")
    loop.add("b")
    for _ in range(3):
        loop.overlap.turn()
    executor.faults["a"] = RuntimeError("it fails")
    loop.run()
    assert loop.heard.whole["a"].finish_reason == "error"
    assert loop.heard.whole["b"].text == WORDS
    assert_at_rest(loop.engine, executor)
