"""The asynchronous front over an engine without a model: streams, cancellation, back-pressure, death, draining."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from unittest.mock import patch

import pytest

from tapetum.core.chat import ChatInput, MediaPart, Message, TextInput
from tapetum.core.errors import (
    CapacityError,
    DeadlinePassed,
    EngineDead,
    EngineError,
    InvalidParameter,
    MediaError,
    Overloaded,
    PromptTooLong,
)
from tapetum.core.request import SamplingParams
from tapetum.engine import link as link_module
from tapetum.engine import loop as loop_module
from tapetum.engine import pace
from tapetum.engine.output import Delta
from tapetum.engine.service import AsyncEngine
from tests.cpu.engine_kit import SpeakingExecutor, assert_at_rest, close_engines, engine_with, picture, spoken

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
GREEDY = SamplingParams()
TEXT = "one two three four five six seven eight nine ten"


class PacedExecutor(SpeakingExecutor):
    """Waits before each step for a permit, when `gate` is set; answers are `TEXT` unless told otherwise."""

    def __init__(self, answers=lambda _: spoken(TEXT)) -> None:
        super().__init__(answers)
        self.gate: threading.Semaphore | None = None

    def execute(self, plan):
        if self.gate is not None:
            assert self.gate.acquire(timeout=20)
        return super().execute(plan)


@pytest.fixture(autouse=True)
def _has_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps have a thread of their own here; in tests/cpu/test_engine_process.py they have none on few cores."""
    monkeypatch.setattr(pace, "has_core_to_spare", lambda device, threads: True)


@pytest.fixture
def executor() -> PacedExecutor:
    return PacedExecutor()


@pytest.fixture
async def service(executor):
    engine = engine_with(executor)
    engine.clock = time.monotonic
    async with AsyncEngine(engine) as service:
        yield service


def chat(*content) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),))


def named(*names: str):
    """Requests get these names, in the order in which they are handed in, while the result is entered."""
    return patch("tapetum.engine.service.new_request_id", iter(names).__next__)


async def held(service: AsyncEngine, executor: PacedExecutor, *names: str):
    """Generations that have been accepted and go on only with permits."""
    executor.gate = threading.Semaphore(0)
    with named(*names):
        tasks = [asyncio.create_task(service.submit(chat(name), GREEDY)) for name in names]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.01)
            executor.gate.release()
    return [await task for task in tasks]


async def at_rest(service: AsyncEngine, executor: SpeakingExecutor) -> None:
    engine = service._link._engine
    for _ in range(200):
        if not engine.has_work:
            break
        await asyncio.sleep(0.005)
    assert_at_rest(engine, executor)
    assert service._generations == {}


async def test_a_stream_joins_to_the_answer(service, executor):
    generation = await service.submit(chat("Look: ", picture(1, 112, 140)), GREEDY)
    deltas = [delta async for delta in generation]
    assert "".join(delta.text for delta in deltas) == TEXT
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == "stop"
    assert generation.media[0].cache == "miss"
    assert generation.media[0].visual_tokens == 20
    timing = generation.timing
    assert timing.ttft_s >= timing.fetch_s + timing.decode_s > 0
    await at_rest(service, executor)


async def test_output_is_the_whole(service):
    again = await (await service.submit(chat("Look: ", picture(1)), GREEDY)).output()
    assert again.outputs[0].text == TEXT
    assert again.outputs[0].token_ids[:-1] == spoken(TEXT)


async def test_many_clients_at_once_each_get_their_own(service, executor):
    executor.answers = lambda name: spoken(f"answer for {name}")
    with named(*(f"c{i}" for i in range(40))):
        generations = await asyncio.gather(
            *(service.submit(chat(f"Q{i} ", picture(i % 4)), GREEDY) for i in range(40))
        )
    outputs = await asyncio.gather(*(generation.output() for generation in generations))
    assert [output.outputs[0].text for output in outputs] == [f"answer for c{i}" for i in range(40)]
    await at_rest(service, executor)


async def test_a_slow_reader_holds_nobody_up_and_loses_nothing(service, executor):
    executor.answers = lambda name: spoken(TEXT * 8)
    slow = await service.submit(chat("slow"), SamplingParams(max_tokens=400))
    quick = await service.submit(chat("quick"), SamplingParams(max_tokens=400))
    assert (await quick.output()).outputs[0].text == TEXT * 8
    await at_rest(service, executor)  # the engine is done with the slow one, too, though nobody has read it
    deltas = [delta async for delta in slow]
    assert len(deltas) == 1, "unread news is one delta"
    assert deltas[0].text == TEXT * 8
    assert len(deltas[0].tokens) == len(spoken(TEXT * 8)) + 1


async def test_cancel_frees_within_one_step(service, executor):
    [generation] = await held(service, executor, "x")
    generation.cancel()
    num_steps = len(executor.plans)
    executor.gate.release(1000)
    deltas = [delta async for delta in generation]
    assert deltas[-1].finish_reason == "abort"
    await at_rest(service, executor)
    assert len(executor.plans) <= num_steps + 2  # the step under way, and the one that tells the executor
    generation.cancel()  # nothing happens


async def test_a_cancelled_reader_cancels_its_request(service, executor):
    [generation] = await held(service, executor, "x")
    task = asyncio.create_task(generation.output())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    num_steps = len(executor.plans)
    executor.gate.release(1000)
    await at_rest(service, executor)
    assert len(executor.plans) <= num_steps + 2


async def test_refusal_and_acceptance_do_not_wait_for_the_step(service, executor):
    executor.gate = threading.Semaphore(0)
    generation = await asyncio.wait_for(service.submit(chat("x"), GREEDY), 5)
    assert generation.media == ()
    executor.gate.release(1000)
    assert (await generation.output()).outputs[0].text == TEXT


async def test_acceptance_does_not_wait_for_the_step_of_others(service, executor):
    executor.gate = threading.Semaphore(0)
    with named("first", "second"):
        first = await service.submit(chat("first"), GREEDY)
        second = await asyncio.wait_for(service.submit(chat("second"), GREEDY), 5)
    executor.gate.release(1000)
    for generation in (first, second):
        assert (await generation.output()).outputs[0].text == TEXT
    await at_rest(service, executor)


async def test_a_client_that_leaves_while_it_waits_for_acceptance(service, executor):
    executor.gate = threading.Semaphore(0)
    first = await service.submit(chat("first"), GREEDY)
    with patch.object(service._link._engine, "_hear"):  # the loop has no time for its inbox
        second = asyncio.create_task(service.submit(chat("second"), GREEDY))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    executor.gate.release(1000)
    assert (await first.output()).outputs[0].text == TEXT
    await at_rest(service, executor)


class HeldLoader:
    """Loads that only their canceller ends."""

    def __init__(self) -> None:
        self.futures: list[Future] = []

    def plan(self, part, *, tenant):
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def loader(service, monkeypatch) -> HeldLoader:
    loader = HeldLoader()
    monkeypatch.setattr(service._front.prompts, "_loader", loader)
    return loader


async def until(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it does not come")


async def test_a_client_that_leaves_while_its_pictures_load_stops_their_loads(service, executor, loader):
    task = asyncio.create_task(service.submit(chat(*(picture(i) for i in range(6))), GREEDY))
    await until(lambda: len(loader.futures) == 6)
    assert service._preparation.num_running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(future.cancelled() for future in loader.futures)
    await until(lambda: service._preparation.num_running == 0)
    await at_rest(service, executor)


def slow_drafts(service, monkeypatch):
    """(set when a draft has begun, to be set to let it go on)"""
    begun, may_end = threading.Event(), threading.Event()
    draft = service._front.prompts.draft

    def slow_draft(*args):
        begun.set()
        assert may_end.wait(10)
        return draft(*args)

    monkeypatch.setattr(service._front.prompts, "draft", slow_draft)
    return begun, may_end


async def test_a_preparation_counts_until_its_thread_is_done(service, monkeypatch):
    begun, may_end = slow_drafts(service, monkeypatch)
    task = asyncio.create_task(service.submit(chat("x"), GREEDY))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert service._preparation.num_running == 1
    may_end.set()
    await until(lambda: service._preparation.num_running == 0)


async def test_loads_given_up_before_they_begin_end_when_they_do(service, loader, monkeypatch):
    begun, may_end = slow_drafts(service, monkeypatch)
    task = asyncio.create_task(service.submit(chat(picture(1)), GREEDY))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    await until(lambda: service._preparation.num_running == 0)
    assert [future.cancelled() for future in loader.futures] == [True]


async def test_so_many_prompts_are_prepared_and_no_more(executor, monkeypatch):
    engine = engine_with(executor, max_queue_len=2)
    loader = HeldLoader()
    async with AsyncEngine(engine) as service:
        monkeypatch.setattr(service._front.prompts, "_loader", loader)
        tasks = [asyncio.create_task(service.submit(chat(picture(i)), GREEDY)) for i in range(2)]
        await until(lambda: len(loader.futures) == 2)
        with pytest.raises(Overloaded, match="2 prompts are being prepared, the limit"):
            await service.submit(chat("x"), GREEDY)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: service._preparation.num_running == 0)
        assert (await (await service.submit(chat("x"), GREEDY)).output()).outputs[0].text == TEXT


async def test_prompts_that_wait_for_pictures_keep_none_without_waiting(service, executor, loader):
    tasks = [asyncio.create_task(service.submit(chat(picture(i)), GREEDY)) for i in range(100)]
    await until(lambda: len(loader.futures) >= 32)
    async with asyncio.timeout(2):
        assert (await (await service.submit(chat("x"), GREEDY)).output()).outputs[0].text == TEXT
        assert (await service.prompt(chat("x"))).token_ids
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: service._preparation.num_running == 0)
    await at_rest(service, executor)


async def test_a_step_that_hangs_is_seen(service, executor, monkeypatch):
    monkeypatch.setattr(loop_module, "MAX_STEP_S", 0.2)
    executor.gate = threading.Semaphore(0)
    generation = await service.submit(chat("x"), GREEDY)
    await until(lambda: not service.is_healthy)
    executor.gate.release(1000)
    assert (await generation.output()).outputs[0].text == TEXT
    await until(lambda: service.is_healthy)


@pytest.mark.parametrize(
    ("prompt", "sampling", "error"),
    [
        (TextInput(prompt="word " * 3000), GREEDY, PromptTooLong),
        (TextInput(prompt="x", media=(picture(1),)), GREEDY, InvalidParameter),
        (TextInput(prompt="x"), SamplingParams(max_tokens=5000), InvalidParameter),
        (chat(MediaPart(kind="image", source=b"junk")), GREEDY, MediaError),
        (chat(MediaPart(kind="image", source="file:///etc/passwd")), GREEDY, MediaError),
        (chat(picture(1, 10, 4000)), GREEDY, MediaError),
    ],
    ids=["too long", "no place", "max_tokens", "junk", "local file", "aspect"],
)
async def test_bad_input_is_refused_by_submit_and_the_engine_goes_on(
    service, executor, prompt, sampling, error
):
    with pytest.raises(error):
        await service.submit(prompt, sampling)
    assert service.is_healthy
    assert executor.plans == []
    await at_rest(service, executor)
    assert (await (await service.submit(chat("x"), GREEDY)).output()).outputs[0].text == TEXT


async def test_a_failing_request_raises_from_its_iteration_alone(service, executor):
    bad, good = await held(service, executor, "bad", "good")
    executor.faults["bad"] = RuntimeError("nan")
    executor.gate.release(1000)
    with pytest.raises(EngineError, match="nan"):
        await bad.output()
    assert (await good.output()).outputs[0].text == TEXT
    assert service.is_healthy
    await at_rest(service, executor)


async def test_a_timeout_ends_the_request(service, executor):
    executor.gate = threading.Semaphore(2)
    generation = await service.submit(chat("x"), GREEDY, timeout_s=0.2)
    await asyncio.sleep(0.25)
    executor.gate.release(1000)
    with pytest.raises(DeadlinePassed, match="timeout_s"):
        await generation.output()
    await at_rest(service, executor)


async def test_death_reaches_everyone_and_is_seen(service, executor):
    generations = await held(service, executor, "a", "b", "c")
    generations[0].cancel()
    executor.forget_fault = RuntimeError("device lost")
    executor.gate.release(1000)
    for generation in generations[1:]:
        with pytest.raises(EngineDead, match="device lost"):
            await generation.output()
    assert not service.is_healthy
    with pytest.raises(EngineDead, match="device lost"):
        await service.submit(chat("x"), GREEDY)
    assert service._generations == {}


async def test_before_the_start_nothing_is_served(executor):
    service = AsyncEngine(engine_with(executor))
    assert not service.is_healthy
    with pytest.raises(CapacityError, match="loading"):
        await service.submit(chat("x"), GREEDY)
    await service.stop()


async def test_stopped_while_loading_it_does_not_start(executor, monkeypatch):
    loading, loaded = threading.Event(), threading.Event()
    engine = engine_with(executor)

    def build(config):
        loading.set()
        assert loaded.wait(10)
        return engine

    monkeypatch.setattr(link_module, "build_engine", build)
    service = AsyncEngine()
    starting = asyncio.create_task(service.start())
    await asyncio.to_thread(loading.wait, 10)
    await service.stop()
    loaded.set()
    await starting
    assert not service.is_healthy
    assert not [thread for thread in threading.enumerate() if thread.name == "tapetum-engine"]


async def test_stop_drains_what_runs_and_takes_nothing_new(executor):
    service = AsyncEngine(engine_with(executor))
    await service.start()
    executor.gate = threading.Semaphore(0)
    generation = await service.submit(chat("x"), GREEDY)
    stopping = asyncio.create_task(service.stop(grace_s=1e6))
    await asyncio.sleep(0.05)
    with pytest.raises(CapacityError, match="shutting down"):
        await service.submit(chat("y"), GREEDY)
    executor.gate.release(1000)
    await stopping
    assert (await generation.output()).outputs[0].text == TEXT
    assert not service.is_healthy


async def test_stop_without_grace_aborts(executor):
    service = AsyncEngine(engine_with(executor))
    await service.start()
    executor.gate = threading.Semaphore(1)
    generation = await service.submit(chat("x"), GREEDY)
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0.05)
    executor.gate.release(1000)
    await stopping
    whole = Delta()
    async for delta in generation:
        whole = whole.then(delta)
    assert whole.finish_reason == "abort"
    assert len(whole.tokens) < len(spoken(TEXT))


async def test_idle_engine_is_healthy_and_counts(service):
    await (await service.submit(chat("x"), GREEDY)).output()
    metrics = {metric.name: metric.values for metric in await service.metrics()}
    assert metrics["request_success"] == {"stop": 1}
    assert metrics["engine_heartbeat_seconds"][""] < 5
    assert service.is_healthy
    assert service.model_names == ("tapetum-mini",)
    assert service.facts.max_model_len == 2048


async def test_messages_and_strings_are_prompts_too(service):
    conversation = [{"role": "user", "content": "Hello"}]
    from_messages = await service.submit(conversation)
    from_records = await service.submit(chat("Hello"), SamplingParams())
    written = await service.submit("Hello")
    assert from_messages.prompt.token_ids == from_records.prompt.token_ids
    assert len(written.prompt.token_ids) < len(from_messages.prompt.token_ids)
    for generation in (from_messages, from_records, written):
        assert (await generation.output()).outputs[0].text == TEXT
    with pytest.raises(InvalidParameter, match="message is"):
        await service.submit(["Hello"])


async def test_the_deadline_holds_while_pictures_load(service, loader):
    started_s = time.monotonic()
    with pytest.raises(DeadlinePassed, match=r"prepare .*raise timeout_s"):
        await service.submit(chat(picture(1)), GREEDY, timeout_s=0.1)
    assert time.monotonic() - started_s < 5
    assert all(future.cancelled() for future in loader.futures)
