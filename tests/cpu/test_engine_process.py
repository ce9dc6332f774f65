"""An engine in a process of its own: the same answers as beside its front, and clean ends on both sides."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import zmq

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.config import EngineConfig, ModelConfig, ScheduleConfig
from tapetum.core.errors import CapacityError, CheckpointError, EngineDead, EngineError, TapetumError
from tapetum.core.request import SamplingParams
from tapetum.engine.child import start_child
from tapetum.engine.remote import ProcessLink
from tapetum.engine.service import AsyncEngine
from tests.cpu.process_kit import ANSWER

KIT = "tests.cpu.process_kit"
GREEDY = SamplingParams(temperature=0.0)


def picture(shade: int) -> MediaPart:
    return MediaPart(kind="image", source=np.full((56, 56, 3), shade, np.uint8), is_trusted=True)


def several(count: int, *content: str | MediaPart) -> ChatInput:
    return replace(chat(*content), num_choices=count)


def chat(*content: str | MediaPart) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),))


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def link() -> AsyncIterator[ProcessLink]:
    made = ProcessLink(EngineConfig(), builder=f"{KIT}:build_slow", arena_bytes=1 << 20)
    yield made
    await asyncio.to_thread(made.stop, 0.0)


@pytest.fixture
async def service(link: ProcessLink) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(link) as service:
        yield service


async def text_of(service: AsyncEngine, *content: str | MediaPart, sampling: SamplingParams = GREEDY) -> str:
    generation = await service.submit(chat(*content), sampling)
    return (await generation.output()).outputs[0].text


async def test_text_and_pixels_cross_over_and_nothing_is_held_afterwards(service, link):
    assert await text_of(service, "Hello") == ANSWER
    assert await text_of(service, picture(77), "Hello") == "pixel 77"
    assert link.num_shared_bytes == 0
    assert len(await service.media_keys()) == 1
    assert service._front._ingest.cached_bytes > 0
    await service.reset_caches()
    assert await service.media_keys() == ()
    assert service._front._ingest.cached_bytes == 0
    stats = await service.stats()
    assert (stats.num_running, stats.num_held_blocks, stats.num_cached_blocks) == (0, 0, 0)


async def test_a_picture_larger_than_the_arena_crosses_over_all_the_same(service, link):
    large = MediaPart(kind="image", source=np.full((840, 840, 3), 9, np.uint8), is_trusted=True)
    assert 840 * 840 * 3 > 1 << 20
    assert await text_of(service, large, "Hello") == "pixel 9"


async def test_requests_with_one_picture_hold_it_once(service, link):
    async def ask():
        return await service.submit(chat(picture(5), "Hello"), GREEDY)

    generations = [await ask()]
    held = link.num_shared_bytes
    assert held >= 56 * 56 * 3
    generations += await asyncio.gather(*(ask() for _ in range(3)))
    assert link.num_shared_bytes == held
    for generation in generations:
        await generation.output()
    assert link.num_shared_bytes == 0


async def test_a_client_that_leaves_lets_go_of_its_patches(service, link):
    generation = await service.submit(chat(picture(5), "Hello"), replace(GREEDY, ignore_eos=True))
    assert link.num_shared_bytes > 0
    shared = {metric.name: metric.values for metric in await service.metrics()}["shared_patch_bytes"]
    assert shared == {"": link.num_shared_bytes}
    generation.cancel()
    async for _ in generation:
        pass
    assert link.num_shared_bytes == 0
    metrics = {metric.name: metric.values for metric in await service.metrics()}
    assert metrics["prompt_tokens"][""] == 0, "only what was answered counts"


async def test_errors_keep_their_type_on_the_way(service):
    with pytest.raises(TapetumError) as caught:
        await service.submit(chat("word " * 600), replace(GREEDY, max_tokens=10_000))
    assert caught.value.http_status == 400


async def test_numbers_are_those_of_the_engine(service):
    await text_of(service, "Hello")
    metrics = {metric.name: metric.values for metric in await service.metrics()}
    assert metrics["request_success"] == {"stop": 1}
    assert metrics["generation_tokens"][""] > 3
    assert metrics["time_to_first_token_seconds"][""].count == 1
    assert metrics["rejections"] == {}


async def test_several_answers_come_from_one_prompt(service):
    generation = await service.submit(several(3, picture(3), "Hello"), replace(GREEDY, seed=1))
    choices = service.choices(generation)
    texts = {0: "", 1: "", 2: ""}
    async for index, delta in choices:
        texts[index] += delta.text
    assert set(texts.values()) == {"pixel 3"}
    metrics = {metric.name: metric.values for metric in await service.metrics()}
    assert metrics["mm_cache_hits"], "the others must not encode the picture again"
    assert metrics["prompt_tokens"][""] == len(generation.prompt.token_ids), (
        "one prompt, however many answers"
    )
    assert metrics["generation_tokens"][""] == choices.num_tokens
    assert choices.num_tokens == 3 * len(service.tokenizer.encode_plain("pixel 3")) + 3


async def test_several_answers_are_all_ended_when_their_reader_leaves(service):
    generation = await service.submit(several(4, "Hello"), replace(GREEDY, ignore_eos=True))
    choices = service.choices(generation)
    seen = set()
    async for index, _ in choices:
        seen.add(index)
        if len(seen) == 4:
            break
    choices.cancel()
    await until(lambda: not service._generations)
    stats = await service.stats()
    assert (stats.num_running, stats.finished) == (0, {"abort": 4})


async def test_the_golden_request_makes_it_ready(service):
    assert not service.is_ready
    await service.prove()
    assert service.is_ready


async def test_the_front_needs_no_torch_for_it():
    code = """
import asyncio, sys
from tapetum.core.config import EngineConfig
from tapetum.engine.remote import ProcessLink
from tapetum.engine.service import AsyncEngine

async def main():
    async with AsyncEngine(ProcessLink(EngineConfig(), builder="tests.cpu.process_kit:build")) as engine:
        generation = await engine.submit([{"role": "user", "content": "Hello"}])
        print((await generation.output()).outputs[0].text, "torch" in sys.modules)

asyncio.run(main())
"""
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == f"{ANSWER} False\n", ended.stderr


async def test_a_killed_engine_fails_its_waiters_and_is_noticed(service, link):
    running = await service.submit(chat(picture(1), "x"), replace(GREEDY, ignore_eos=True))
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(EngineDead, match="SIGKILL"):
        await running.output()
    assert not service.is_healthy
    with pytest.raises(EngineDead):
        await service.submit(chat("x"), GREEDY)
    with pytest.raises(EngineDead):
        await service.stats()


async def test_nobody_waits_for_an_engine_that_has_gone_to_take_a_command(service, link):
    """Until its end is noticed commands go nowhere, and the event loop must not stand still for that."""
    generation = await service.submit(chat("Hello"), replace(GREEDY, ignore_eos=True))
    os.kill(link.pid, signal.SIGKILL)

    def aborts():
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            link.abort("anybody")
            time.sleep(0.001)

    await asyncio.wait_for(asyncio.to_thread(aborts), 5)
    with pytest.raises(EngineDead):
        await asyncio.wait_for(generation.output(), 5)


async def test_an_engine_whose_loop_ends_is_dead_with_its_reason():
    async with AsyncEngine(ProcessLink(EngineConfig(), builder=f"{KIT}:build_broken")) as service:
        generation = await service.submit(chat("x"), GREEDY)
        with pytest.raises(TapetumError):
            await generation.output()
        await until(lambda: not service.is_healthy)
        with pytest.raises(EngineDead, match="device is lost"):
            await service.submit(chat("x"), GREEDY)


async def test_a_dead_engine_is_started_again_as_often_as_allowed(link):
    service = AsyncEngine(link, restarts=1)
    await service.start()
    await service.prove()
    first = link.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: not service.is_ready)
    await until(lambda: service.is_ready, 30)
    assert link.pid != first
    assert await text_of(service, picture(8), "Hello") == "pixel 8"
    os.kill(link.pid, signal.SIGKILL)
    await until(lambda: not service.is_healthy)
    await asyncio.sleep(1.5)
    assert not service.is_healthy
    await service.stop()


async def test_a_start_that_fails_is_one_of_the_restarts_and_not_the_last(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILURES", str(tmp_path))
    link = ProcessLink(EngineConfig(), builder=f"{KIT}:build_in_the_end")
    service = AsyncEngine(link, restarts=2)
    await service.start()
    await service.prove()
    (tmp_path / "once").touch()
    os.kill(link.pid, signal.SIGKILL)
    await until(lambda: not service.is_ready)
    await until(lambda: service.is_ready, 30)
    assert list(tmp_path.iterdir()) == []
    assert await text_of(service, "Hello") == ANSWER
    await service.stop()


@pytest.mark.parametrize(
    ("builder", "kind", "words"),
    [
        ("build_nothing", CheckpointError, "checkpoint is incomplete"),
        ("build_badly", EngineError, "ZeroDivisionError"),
        ("build_unknown", EngineError, "build_unknown"),
    ],
)
async def test_what_keeps_an_engine_from_starting_is_told(builder, kind, words):
    service = AsyncEngine(ProcessLink(EngineConfig(), builder=f"{KIT}:{builder}"))
    with pytest.raises(kind, match=words):
        await service.start()
    assert not service.is_healthy
    await service.stop()


@pytest.mark.parametrize("builder", ["build_late", "build_nothing"])
async def test_files_that_the_front_cannot_read_end_the_process_too(tmp_path, builder):
    (tmp_path / "config.json").write_text("{}")
    link = ProcessLink(EngineConfig(model=ModelConfig(model=str(tmp_path))), builder=f"{KIT}:{builder}")
    service = AsyncEngine(link)
    with pytest.raises(CheckpointError, match="has model_type None"):
        await service.start()
    assert link.pid is not None and not is_alive(link.pid)
    assert not service.is_healthy
    await service.stop()


async def test_stopped_while_it_loads_it_ends_at_once():
    link = ProcessLink(EngineConfig(), builder=f"{KIT}:build_late")
    service = AsyncEngine(link)
    starting = asyncio.create_task(service.start())
    await until(lambda: link.pid is not None)
    began_s = time.monotonic()
    await service.stop(30.0)
    with pytest.raises((CapacityError, EngineDead)):
        await starting
    assert time.monotonic() - began_s < 10
    assert not is_alive(link.pid)


async def test_stop_lets_what_runs_finish(link):
    service = AsyncEngine(link)
    await service.start()
    generation = await service.submit(chat("Hello"), GREEDY)
    await service.stop(30.0)
    assert (await generation.output()).outputs[0].text == ANSWER
    assert not is_alive(link.pid)


async def test_stop_without_grace_aborts(link):
    service = AsyncEngine(link)
    await service.start()
    generation = await service.submit(chat("Hello"), replace(GREEDY, ignore_eos=True))
    await service.stop(0.0)
    deltas = [delta async for delta in generation]
    assert deltas[-1].finish_reason == "abort"
    assert not is_alive(link.pid)


async def test_an_engine_that_hangs_while_it_is_stopped_fails_its_waiters(link, monkeypatch):
    monkeypatch.setattr("tapetum.engine.session._END_S", 0.2)
    service = AsyncEngine(link)
    await service.start()
    generation = await service.submit(chat("Hello"), replace(GREEDY, ignore_eos=True))
    os.kill(link.pid, signal.SIGSTOP)
    await service.stop(0.0)
    with pytest.raises(EngineDead, match="SIGKILL"):
        await asyncio.wait_for(generation.output(), 5)
    assert not is_alive(link.pid)


async def test_an_engine_that_cannot_be_heard_is_dead(service, link, monkeypatch):
    generation = await service.submit(chat("Hello"), replace(GREEDY, ignore_eos=True))

    def garbled(message: bytes) -> None:
        raise ValueError("garbled")

    monkeypatch.setattr("tapetum.engine.session.decode_report", garbled)
    with pytest.raises(EngineDead, match="garbled"):
        await asyncio.wait_for(generation.output(), 5)
    assert not service.is_healthy and not is_alive(link.pid)


async def test_a_process_that_cannot_be_started_leaves_nothing_behind(tmp_path, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    num_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineError, match="temporarily unavailable"):
        await AsyncEngine(ProcessLink(EngineConfig())).start()
    assert list(tmp_path.iterdir()) == []
    await until(lambda: len(os.listdir("/proc/self/fd")) <= num_files)


async def test_a_step_that_takes_too_long_is_seen_though_the_process_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr("tapetum.engine.session.MAX_STEP_S", 1.0)
    async with AsyncEngine(ProcessLink(EngineConfig(), builder=f"{KIT}:build_stuck")) as service:
        await service.submit(chat("Hello"), replace(GREEDY, max_tokens=1))
        await until(lambda: not service.is_healthy, 5)
        await until(lambda: service.is_healthy, 5)


async def test_a_question_that_is_open_when_the_engine_dies_is_answered(service, link):
    os.kill(link.pid, signal.SIGSTOP)
    asked = asyncio.create_task(service.stats())
    await asyncio.sleep(0.1)
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(EngineDead, match="SIGKILL"):
        await asyncio.wait_for(asked, 5)


async def test_a_request_that_is_refused_once_it_is_ready_holds_nothing(service, link, monkeypatch):
    prepare = link.prepare

    def prepare_and_close(request):
        prepare(request)
        assert link.num_shared_bytes > 0
        service._refusal = CapacityError("closed meanwhile")

    monkeypatch.setattr(link, "prepare", prepare_and_close)
    with pytest.raises(CapacityError, match="closed meanwhile"):
        await service.submit(chat(picture(5), "Hello"), GREEDY)
    assert link.num_shared_bytes == 0


async def test_a_request_that_cannot_cross_over_holds_nothing(service, link):
    with patch("tapetum.engine.service.check_terms"), pytest.raises(OverflowError):
        await service.submit(chat(picture(5), "Hello"), GREEDY, priority=1 << 80)
    assert link.num_shared_bytes == 0
    assert service._generations == {}


def test_what_a_process_reports_arrives_though_it_ends_at_once(tmp_path):
    code = """
import os, sys
from tapetum.core.errors import EngineError
from tapetum.engine.messages import Failed
from tapetum.engine.process import _Reports

reports = _Reports(sys.argv[1])
reports.send(Failed(EngineError("why " * 2**24)))
reports.close()
os._exit(0)
"""
    with zmq.Context() as sockets, sockets.socket(zmq.PULL) as socket:
        socket.bind(f"ipc://{tmp_path}/reports")
        subprocess.run([sys.executable, "-c", code, f"ipc://{tmp_path}/reports"], timeout=60, check=True)
        assert socket.poll(2000)
        assert len(socket.recv()) > 2**26


async def test_the_engine_ignores_the_signals_that_its_front_drains_on(service, link):
    generation = await service.submit(chat("Hello"), GREEDY)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(link.pid, number)
    assert (await generation.output()).outputs[0].text == ANSWER


async def test_an_engine_that_stands_still_is_not_healthy(service, link, monkeypatch):
    monkeypatch.setattr("tapetum.engine.session._MAX_SILENCE_S", 1.5)
    assert service.is_healthy
    os.kill(link.pid, signal.SIGSTOP)
    try:
        await until(lambda: not service.is_healthy)
    finally:
        os.kill(link.pid, signal.SIGCONT)
    await until(lambda: service.is_healthy)


async def test_questions_to_an_engine_that_stands_still_keep_nobody_else_waiting(service, link, monkeypatch):
    monkeypatch.setattr("tapetum.engine.session._MAX_SILENCE_S", 2.0)
    os.kill(link.pid, signal.SIGSTOP)
    try:
        questions = [asyncio.ensure_future(service.metrics()) for _ in range(40)]
        await asyncio.sleep(0.1)
        await asyncio.wait_for(asyncio.to_thread(int), 1)
        await until(lambda: not service.is_healthy)
        with pytest.raises(EngineDead, match="hangs"):
            await asyncio.wait_for(service.metrics(), 1)
    finally:
        os.kill(link.pid, signal.SIGCONT)
    outcomes = await asyncio.gather(*questions, return_exceptions=True)
    assert sum(not isinstance(outcome, TapetumError) for outcome in outcomes) >= 4


def test_a_front_that_is_killed_takes_its_engine_along_and_leaves_nothing_behind(tmp_path):
    code = f"""
import asyncio, os, signal
from tapetum.core.config import EngineConfig
from tapetum.engine.remote import ProcessLink
from tapetum.engine.service import AsyncEngine

async def main():
    link = ProcessLink(EngineConfig(), builder="{KIT}:build")
    await AsyncEngine(link).start()
    print(link.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    front = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    pid = int(front.stdout)
    assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, "the engine process outlives its front"
        time.sleep(0.05)


async def test_so_many_wait_as_the_engine_says():
    config = EngineConfig(schedule=ScheduleConfig(max_num_seqs=1))
    async with AsyncEngine(ProcessLink(config, builder=f"{KIT}:build_slow")) as service:
        sampling = replace(GREEDY, ignore_eos=True, max_tokens=200)
        generations = [await service.submit(chat("x"), sampling) for _ in range(3)]
        await until(lambda: service.num_waiting == 2)
        assert service.backlog_s > 0
        for generation in generations:
            generation.cancel()
        await until(lambda: service.num_waiting == 0)
        assert service.backlog_s == 0


def test_a_process_that_is_never_told_what_to_be_ends():
    child = start_child(1 << 20, imports=())
    child.process.stdin.close()
    assert child.process.wait(20) == 1
    os.close(child.arena_file)


async def test_a_process_that_was_started_before_becomes_the_engine():
    link = ProcessLink(EngineConfig(), builder=f"{KIT}:build", child=start_child(1 << 20, imports=(KIT,)))
    pid = link._child.process.pid
    async with AsyncEngine(link) as service:
        assert link.pid == pid
        assert (await (await service.submit("Hello")).output()).outputs[0].text
