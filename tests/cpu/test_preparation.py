"""The pool on which prompts are built: what becomes of work that nobody waits for any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tapetum.core.errors import Overloaded
from tapetum.engine.preparation import Preparation
from tapetum.engine.prompts import Loads


@pytest.fixture
def preparation() -> Iterator[Preparation]:
    made = Preparation(2)
    yield made
    made.close()


async def until_idle(preparation: Preparation) -> None:
    for _ in range(1000):
        if not preparation.num_running:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("a thread does not end")


@pytest.mark.parametrize("way", ["cancelled", "late"])
async def test_what_comes_of_work_that_was_given_up_is_wasted_once(
    preparation: Preparation, way: str
) -> None:
    go_on, wasted, loads = threading.Event(), [], Loads()

    def work() -> str:
        assert go_on.wait(10)
        return "made all the same"

    async def wait() -> str:
        async with asyncio.timeout(0.05 if way == "late" else None):
            return await preparation.run(work, loads, on_waste=wasted.append)

    running = asyncio.create_task(wait())
    await asyncio.sleep(0.02)
    if way == "cancelled":
        running.cancel()
    with pytest.raises(TimeoutError if way == "late" else asyncio.CancelledError):
        await running
    assert loads._is_cancelled
    assert wasted == []
    go_on.set()
    await until_idle(preparation)
    assert wasted == ["made all the same"]


async def test_work_that_fails_or_is_taken_wastes_nothing(
    preparation: Preparation, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, wasted = threading.Event(), []

    def work() -> None:
        assert go_on.wait(10)
        raise ValueError("not this time")

    running = asyncio.create_task(preparation.run(work, Loads(), on_waste=wasted.append))
    await asyncio.sleep(0.02)
    running.cancel()
    go_on.set()
    await until_idle(preparation)
    assert await preparation.run(lambda: "taken", Loads(), on_waste=wasted.append) == "taken"
    assert wasted == []
    assert caplog.records == []


async def test_beyond_the_limit_is_refused_until_a_thread_is_done(preparation: Preparation) -> None:
    go_on = threading.Event()

    def work() -> bool:
        return go_on.wait(10)

    running = [asyncio.create_task(preparation.run(work, Loads())) for _ in range(2)]
    await asyncio.sleep(0.02)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    with pytest.raises(Overloaded, match="2 prompts"):
        await preparation.run(work, Loads())
    go_on.set()
    await until_idle(preparation)
    assert await preparation.run(work, Loads())
