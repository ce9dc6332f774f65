"""Slow grammars before the engine: they hold up nobody but one another, and end when nobody waits for them."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tapetum.core.chat import ChatInput, Message
from tapetum.core.errors import CapacityError, DeadlinePassed, InvalidParameter, Overloaded
from tapetum.core.request import Grammar, SamplingParams
from tapetum.engine.service import AsyncEngine
from tapetum.text import trial as trial_module
from tapetum.text.trial import Trials
from tests.cpu.engine_kit import SpeakingExecutor, close_engines, engine_with, files, spoken

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
CHAT = ChatInput(messages=(Message(role="user", content=("Hello",)),))


class SlowTrials:
    """Tries each grammar when it is let; refuses those of "bad"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.tried: list[str] = []
        monkeypatch.setattr(Trials, "_try", self._try)

    def _try(self, grammar: Grammar) -> None:
        assert self.is_open.wait(10)
        self.tried.append(grammar.source)
        if "bad" in grammar.source:
            raise InvalidParameter("it is bad")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowTrials:
    return SlowTrials(monkeypatch)


@pytest.fixture
async def service(slow: SlowTrials):
    engine = engine_with(SpeakingExecutor(lambda _: spoken("Hello")))
    engine.clock = time.monotonic
    async with AsyncEngine(engine) as service:
        yield service
        slow.is_open.set()


def saying(word: str) -> SamplingParams:
    return SamplingParams(grammar=Grammar(kind="choice", source=f'["{word}"]'))


async def test_a_stream_of_slow_grammars_does_not_delay_requests_without(service, slow) -> None:
    tasks = [asyncio.create_task(service.submit(CHAT, saying(f"Hello{number}"))) for number in range(100)]
    await asyncio.sleep(0.05)
    generations = await asyncio.wait_for(asyncio.gather(*[service.submit(CHAT) for _ in range(20)]), 5)
    for generation in generations:
        assert (await generation.output()).outputs[0].text == "Hello"
    assert not any(task.done() for task in tasks) and slow.tried == []
    for task in tasks[1:]:
        task.cancel()
    await asyncio.wait(tasks[1:])
    await asyncio.sleep(0.05)  # that they are gone is told by callbacks
    slow.is_open.set()
    await tasks[0]
    assert slow.tried == ['["Hello0"]'], "nobody waits for the others"


async def test_a_deadline_holds_while_a_grammar_waits(service, slow) -> None:
    first = asyncio.create_task(service.submit(CHAT, saying("Hello")))
    await asyncio.sleep(0)
    with pytest.raises(DeadlinePassed, match="its timeout_s"):
        await service.submit(CHAT, saying("late"), timeout_s=0.1)
    slow.is_open.set()
    await first
    assert slow.tried == ['["Hello"]']


async def test_a_grammar_that_several_wait_for_is_tried_once_and_a_bad_one_ends_each(service, slow) -> None:
    tasks = [asyncio.create_task(service.submit(CHAT, saying(word))) for word in ["Hello", "bad"] * 3]
    await asyncio.sleep(0.02)
    slow.is_open.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, InvalidParameter) for result in results] == [False, True] * 3
    assert slow.tried.count('["Hello"]') == 1


async def test_who_waits_too_long_is_told_to_come_back(service, slow, monkeypatch) -> None:
    monkeypatch.setattr(trial_module, "_MAX_WAIT_S", 0.1)
    with pytest.raises(Overloaded, match="other grammars"):
        await service.submit(CHAT, saying("Hello"))
    trials = Trials(files().tokenizer)
    with pytest.raises(Overloaded, match="other grammars"):
        trials.check(Grammar(kind="json_object"))
    slow.is_open.set()
    trials.close()


async def test_so_many_grammars_wait_and_no_more(service, slow, monkeypatch) -> None:
    monkeypatch.setattr(trial_module, "_MAX_WAITING", 2)
    tasks = [asyncio.create_task(service.submit(CHAT, saying(word))) for word in ("Hello", "Hell")]
    await asyncio.sleep(0.02)
    with pytest.raises(Overloaded, match="2 grammars wait"):
        await service.submit(CHAT, saying("Hel"))
    tasks[1].cancel()
    await asyncio.sleep(0.05)
    slow.is_open.set()
    await service.submit(CHAT, saying("Hello"))
    await tasks[0]


def test_closing_refuses_who_waits(slow) -> None:
    trials = Trials(files().tokenizer)
    outcomes: list[BaseException | None] = []

    def ask(number: int) -> None:
        try:
            trials.check(Grammar(kind="choice", source=f'["{number}"]'))
            outcomes.append(None)
        except CapacityError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(trials._waiting) < 4:
        time.sleep(0.005)
    closing = threading.Thread(target=trials.close)
    closing.start()
    while not trials._is_closing:
        time.sleep(0.005)
    slow.is_open.set()
    for thread in [*threads, closing]:
        thread.join(10)
    assert sum(outcome is None for outcome in outcomes) == 1 and len(outcomes) == 4
    trials.check(Grammar(kind="json_object"))
    trials.close()
