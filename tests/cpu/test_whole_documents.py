"""Documents that are read whole: the order of the requests, what they carry on, what they cost, how they end early."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tapetum.core.chat import ChatInput, DocumentPart, Message
from tapetum.core.errors import DeadlineOutOfReach, DeadlinePassed
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Grammar, SamplingParams
from tapetum.engine.documents import read_whole
from tapetum.engine.llm import LLM
from tapetum.engine.service import AsyncEngine
from tapetum.text.reasoning import Thinking
from tests.cpu.documents_kit import PAGES, SMALL, ask, part, seen, written
from tests.cpu.engine_kit import STEP_S, Clock, SpeakingExecutor, engine_with, spoken
from tests.cpu.server_kit import Script, TestServer, eventually
from tests.documents import pdf

FILE = pdf(PAGES[:20])
WHOLE = {"mode": "map_reduce"}


@pytest.fixture
def script() -> Script:
    return Script("Seven boats so far.")


@pytest.fixture
def server(script: Script) -> Iterator[TestServer]:
    with TestServer(script) as running:
        yield running
        assert eventually(lambda: running.is_at_rest)


def test_all_pages_are_read_before_the_question_is_asked(server: TestServer, script: Script) -> None:
    answer = ask(server, part(FILE, **WHOLE), text="List all towns").json()
    (pages,) = answer["tapetum"]["pages"]
    assert pages["pages"] == list(range(1, 21))
    assert pages["chosen_by"] == "all"
    texts = [written(request) for request in script.seen]
    assert len(texts) == 4
    for text, (first, last) in zip(texts, ((1, 8), (9, 16), (17, 20)), strict=False):
        assert f"Page {first} of 20:" in text
        assert f"Page {last} of 20:" in text
        assert f"Page {last + 1} of 20:" not in text
        assert "List all towns" in text
        assert ("Seven boats so far." in text) == (first > 1), "the notes go on"
    assert "Seven boats so far." in texts[3]
    assert "Page" not in texts[3].replace("pages", "")
    assert [len(request.prompt.spans) for request in script.seen] == [8, 8, 4, 0]
    assert answer["choices"][0]["message"]["content"] == "Seven boats so far."
    usage = answer["usage"]
    num_answer = len(spoken("Seven boats so far.")) + 1
    assert usage["prompt_tokens"] == sum(request.num_prompt_tokens for request in script.seen)
    assert usage["completion_tokens"] == 4 * num_answer
    assert usage["prompt_tokens_details"]["visual_tokens"] == 20 * 70


def test_a_stream_has_the_last_answer_alone(server: TestServer) -> None:
    body = ask(server, part(FILE, **WHOLE), stream=True, stream_options={"include_usage": True}).text
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "Seven boats so far."
    assert chunks[0]["tapetum"]["pages"][0]["pages"] == list(range(1, 21))
    assert chunks[-1]["usage"]["completion_tokens"] > 3 * len(spoken(text))


def test_only_the_pages_that_were_asked_for_are_read(server: TestServer, script: Script) -> None:
    chosen = [2, 3, 5, 7, 11, 13, 17, 19, 20]
    assert seen(ask(server, part(FILE, pages=chosen, max_pages=4, **WHOLE))) == chosen
    assert [len(request.prompt.spans) for request in script.seen] == [4, 4, 1, 0]


def test_no_page_is_passed_over_though_it_fills_a_window(server: TestServer, script: Script) -> None:
    pages = [f"{text} {'and more ' * 100}" for text in PAGES[:6]]
    pages[2] += "and more " * 450
    assert seen(ask(server, part(pdf(pages), page_text=True, **WHOLE))) == [1, 2, 3, 4, 5, 6]
    assert [len(request.prompt.spans) for request in script.seen] == [2, 2, 2, 0], (
        "the third waits for its own"
    )


def test_documents_that_are_read_whole_stand_beside_others(server: TestServer, script: Script) -> None:
    response = ask(
        server,
        part(FILE, max_pages=2),
        part(pdf(PAGES[:3]), **WHOLE),
        part(FILE, max_pages=1),
        text="town 17",
    )
    told = response.json()["tapetum"]["pages"]
    assert [pages["document"] for pages in told] == [0, 1, 2]
    assert [len(pages["pages"]) for pages in told] == [2, 3, 1]
    assert len(script.seen) == 2


@pytest.mark.parametrize("mode", ["map_reduce", "retrieve"])
def test_documents_may_stand_in_a_system_message(server: TestServer, script: Script, mode: str) -> None:
    """A window shows its own document alone, whatever else the system was told."""
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}, part(FILE, mode=mode)]}
    user = {"role": "user", "content": [part(pdf(PAGES[:3]), **WHOLE), {"type": "text", "text": "town 17"}]}
    response = server.client.post("/v1/chat/completions", json={"messages": [system, user], **SMALL})
    assert response.status_code == 200, response.text
    told = response.json()["tapetum"]["pages"]
    assert [len(pages["pages"]) for pages in told] == [20 if mode == "map_reduce" else 8, 3]
    assert len(script.seen) == (5 if mode == "map_reduce" else 2)
    assert all("Be brief." in written(request) for request in script.seen)


def test_a_format_is_that_of_the_last_answer(server: TestServer, script: Script) -> None:
    ask(server, part(FILE, **WHOLE), stop=["Zebra"], max_tokens=5, logprobs=True)
    assert [request.sampling.stop for request in script.seen] == [(), (), (), ("Zebra",)]
    assert [request.max_tokens for request in script.seen] == [256, 256, 256, 5]


def test_it_cannot_be_foretold(server: TestServer) -> None:
    body = {"messages": [{"role": "user", "content": [part(FILE, **WHOLE)]}]}
    for path in ("/v1/estimate", "/tokenize"):
        response = server.client.post(path, json=body)
        assert response.status_code == 400
        assert "map_reduce" in response.json()["error"]["message"]


def test_a_failure_on_the_way_is_that_of_the_whole(server: TestServer, script: Script) -> None:
    script.fail_at = 2
    response = ask(server, part(FILE, **WHOLE))
    assert response.status_code == 500
    assert len(script.seen) == 1


def chat(data: bytes = FILE) -> ChatInput:
    options = SMALL["mm_processor_kwargs"]
    document = DocumentPart(source=data, mode="map_reduce", is_trusted=True, options=options)
    return ChatInput(messages=(Message(role="user", content=(document, "List all towns")),))


def slow_engine(step_s: float) -> tuple[AsyncEngine, SpeakingExecutor]:
    executor = SpeakingExecutor(lambda _: spoken("notes " * 20))
    real = executor.execute

    def execute(plan: BatchPlan) -> StepResult:
        time.sleep(step_s)
        return real(plan)

    executor.execute = execute
    return AsyncEngine(engine_with(executor)), executor


async def test_who_leaves_on_the_way_leaves_nothing_behind() -> None:
    engine, executor = slow_engine(0.02)
    async with engine:
        task = asyncio.ensure_future(engine.submit(chat()))
        while not executor.plans:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(500):
            stats = await engine.stats()
            if (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0):
                break
            await asyncio.sleep(0.01)
        assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)


async def test_one_deadline_holds_for_all_requests_together() -> None:
    """Each of the four would be within it."""
    whole_s = 0.0
    for share in (None, 0.7):
        executor = SpeakingExecutor(lambda _: spoken("notes " * 60), clock=Clock())
        start_s = executor.clock.now
        async with AsyncEngine(engine_with(executor, speculate="off")) as engine:
            if share is None:
                await (await engine.submit(chat())).output()
                whole_s = executor.clock.now - start_s
                assert len(_admitted(executor)) == 4
                continue
            with pytest.raises((DeadlinePassed, DeadlineOutOfReach)):
                await engine.submit(chat(), timeout_s=share * whole_s)
            assert executor.clock.now - start_s <= share * whole_s + 10 * STEP_S
            assert 1 < len(_admitted(executor)) < 4


def _admitted(executor: SpeakingExecutor) -> set[str]:
    return {request.request_id for plan in executor.plans for request in plan.admitted}


@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        ("perhaps", "<think>secret</think> Seven boats."),
        ("open", "secret</think>Seven boats."),
        ("never", "Seven boats."),
    ],
)
def test_what_a_model_thought_is_no_note(thinking: Thinking, said: str) -> None:
    with LLM(engine_with(SpeakingExecutor(lambda _: spoken("x")))) as llm:
        document = {"type": "file", "file": FILE, "pages": list(range(1, 9))}
        (output,) = llm.chat([{"role": "user", "content": [document, "List all towns"]}])
    output = replace(
        output,
        outputs=(replace(output.outputs[0], text=said),),
        pages=(replace(output.pages[0], pages=tuple(range(1, 9))),),
    )
    reading = read_whole(chat(), SamplingParams(), 2048, lambda _: thinking)
    next(reading)
    document, words = reading.send(output).chat.messages[-1].content
    assert document.first_page == 9
    assert "Seven boats." in words
    assert "secret" not in words


def test_notes_are_asked_for_without_what_the_answer_looks_like() -> None:
    sampling = SamplingParams(
        temperature=0.5, seed=3, max_tokens=9, min_tokens=2, logprobs=1, grammar=Grammar(kind="json_object")
    )
    errand = next(read_whole(chat(), sampling, 2048, lambda _: "never"))
    assert errand.sampling == SamplingParams(temperature=0.5, seed=3, max_tokens=256)
    (document, words) = errand.chat.messages[-1].content
    assert (document.mode, document.first_page) == ("retrieve", 1)
    assert "List all towns" in words
