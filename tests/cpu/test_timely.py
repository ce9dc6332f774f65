"""Deadlines before the queue: no fetch and no decode for who would be too late, and answers without their pictures."""

from __future__ import annotations

import re
import time
from concurrent.futures import Future

import pytest

from tapetum.core.chat import ChatInput, Message
from tapetum.core.errors import (
    DeadlineOutOfReach,
    DeadlinePassed,
    InvalidParameter,
    MediaError,
    MediaTimeout,
)
from tapetum.core.media import Degradation
from tapetum.core.request import SamplingParams
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.messages import Failed, decode_report, encode
from tapetum.engine.service import AsyncEngine
from tapetum.engine.timely import LEFT_OUT, Timeliness
from tapetum.media.ingest import Ingest
from tapetum.sched.promise import Prospect
from tests.cpu.engine_kit import SpeakingExecutor, close_engines, engine_with, picture, spoken
from tests.cpu.server_kit import Script, TestServer, chat_body
from tests.cpu.test_server_errors import png

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
GREEDY = SamplingParams()
TEXT = "one two three"


@pytest.fixture
async def service():
    engine = engine_with(SpeakingExecutor(lambda _: spoken(TEXT)))
    engine.clock = time.monotonic
    async with AsyncEngine(engine) as service:
        yield service


class Loader:
    """The workers of an engine, but what is planned or decoded comes never, or fails; counts what was begun."""

    def __init__(self, real: Ingest, *, holds: str = "", fails: Exception | None = None) -> None:
        self._real = real
        self._holds = holds
        self._fails = fails
        self.begun: list[str] = []
        self.futures: list[Future] = []

    def plan(self, part, *, tenant):
        return self._begin("plan", lambda: self._real.plan(part, tenant=tenant))

    def decode(self, plan):
        return self._begin("decode", lambda: self._real.decode(plan))

    def _begin(self, stage, load):
        self.begun.append(stage)
        if stage != self._holds:
            return load()
        future = Future()
        if self._fails is not None:
            future.set_exception(self._fails)
        self.futures.append(future)
        return future


def chat(*content) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),))


def loader_of(service, monkeypatch, **options) -> Loader:
    loader = Loader(service._front._ingest, **options)
    monkeypatch.setattr(service._front.prompts, "_loader", loader)
    return loader


def foretell(service, monkeypatch, prospect_of) -> None:
    """Let the engine foretell what a test wants of a workload."""

    def forecast(workload: Workload) -> Forecast:
        media = len(workload.media_keys)
        return Forecast(
            encode_s=(0.0,) * media,
            sources=("miss",) * media,
            is_held=(False,) * media,
            prefill_s=0.0,
            queue_s=0.0,
            prospect=prospect_of(workload),
        )

    monkeypatch.setattr(service._front.prompts, "_timeliness", Timeliness(forecast, time.monotonic))


async def degradations(service) -> dict[str, float]:
    counts = {metric.name: metric.values for metric in await service.metrics()}["degradations"]
    return {reason: counts[reason] for reason in ("load", "timeout")}


@pytest.mark.parametrize("stage", ["plan", "decode"])
async def test_a_picture_that_does_not_come_is_left_out_where_that_was_asked_for(service, monkeypatch, stage):
    loader = loader_of(service, monkeypatch, holds=stage)
    generation = await service.submit(
        chat(picture(1), "What is it?", picture(2)), GREEDY, timeout_s=1.5, on_vision_timeout="text_only"
    )
    assert all(future.cancelled() for future in loader.futures), "nobody waits for them any more"
    output = await generation.output()
    assert output.outputs[0].text == TEXT
    words = service.tokenizer.decode(output.prompt_token_ids)
    assert words.count(LEFT_OUT["image"]) == 2 and "What is it?" in words
    assert [report.degraded for report in output.media] == [Degradation(reason="timeout")] * 2
    assert {report.visual_tokens for report in output.media} == {0}
    assert await degradations(service) == {"load": 0, "timeout": 2}


@pytest.mark.parametrize("wish", ["reject", "text_only"])
async def test_the_time_of_the_server_for_media_counts_as_well(service, monkeypatch, wish):
    """No deadline of the request: --media-timeout-s alone ends the fetch."""
    loader_of(service, monkeypatch, holds="plan", fails=MediaTimeout("picture took longer than 10 s"))
    if wish == "reject":
        with pytest.raises(MediaTimeout, match="took longer"):
            await service.submit(chat(picture(1), "x"), GREEDY)
        return
    generation = await service.submit(chat(picture(1), "x"), GREEDY, on_vision_timeout=wish)
    assert (await generation.output()).media[0].degraded == Degradation(reason="timeout")


async def test_only_time_is_forgiven(service, monkeypatch):
    loader_of(service, monkeypatch, holds="plan", fails=MediaError("the file is no picture"))
    with pytest.raises(MediaError, match="no picture"):
        await service.submit(chat(picture(1)), GREEDY, on_vision_timeout="text_only")


async def test_pictures_that_come_in_time_are_seen(service):
    generation = await service.submit(
        chat(picture(1), "x"), GREEDY, timeout_s=30.0, on_vision_timeout="text_only"
    )
    output = await generation.output()
    assert output.media[0].degraded is None and output.media[0].visual_tokens > 0
    assert await degradations(service) == {"load": 0, "timeout": 0}


async def test_nothing_is_fetched_for_who_could_not_even_be_answered_in_text(service, monkeypatch):
    loader = loader_of(service, monkeypatch)
    foretell(service, monkeypatch, lambda _: Prospect(queue_s=99.0, alone_s=1.0, within_s=100.0))
    for wish in ("reject", "text_only"):
        with pytest.raises(DeadlineOutOfReach, match="come back in") as caught:
            await service.submit(chat(picture(1)), GREEDY, timeout_s=60.0, on_vision_timeout=wish)
        assert caught.value.wait_s == pytest.approx(40.0, abs=1.0)
    assert loader.begun == []
    assert (await (await service.submit(chat(picture(1)), GREEDY)).output()).outputs[0].text == TEXT


@pytest.mark.parametrize("wish", ["reject", "text_only"])
async def test_who_is_refused_once_its_media_are_there_is_answered_in_text(service, monkeypatch, wish):
    """Others came while the picture was decoded: the scheduler knows of them, the forecast did not."""
    prospects = service._link._engine._scheduler._prospects
    check = prospects.check

    def refuse(request, now):
        if request.prompt.spans:
            raise DeadlineOutOfReach(
                "request would end after 90 s; come back", param="timeout_s", wait_s=30.0
            )
        return check(request, now)

    monkeypatch.setattr(prospects, "check", refuse)
    if wish == "reject":
        with pytest.raises(DeadlineOutOfReach, match="90 s"):
            await service.submit(chat(picture(1)), GREEDY, timeout_s=60.0)
    else:
        generation = await service.submit(
            chat(picture(1), "x"), GREEDY, timeout_s=60.0, on_vision_timeout=wish
        )
        output = await generation.output()
        assert output.outputs[0].text == TEXT
        assert LEFT_OUT["image"] in service.tokenizer.decode(output.prompt_token_ids)
        assert [report.degraded for report in output.media] == [Degradation(reason="timeout")]
        assert await degradations(service) == {"load": 0, "timeout": 1}
    assert not service._generations and (await service.stats()).num_waiting == 0


@pytest.mark.parametrize("wish", ["reject", "text_only"])
async def test_nothing_is_decoded_for_who_would_be_too_late_with_it(service, monkeypatch, wish):
    loader = loader_of(service, monkeypatch)
    foretell(
        service,
        monkeypatch,
        lambda workload: Prospect(alone_s=90.0 if workload.segments else 0.1, within_s=0.1),
    )
    if wish == "reject":
        with pytest.raises(DeadlinePassed, match=r"about 90.000 s on an idle engine"):
            await service.submit(chat(picture(1)), GREEDY, timeout_s=60.0)
    else:
        generation = await service.submit(chat(picture(1)), GREEDY, timeout_s=60.0, on_vision_timeout=wish)
        assert (await generation.output()).media[0].degraded == Degradation(reason="timeout")
    assert loader.begun == ["plan"]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"timeout_s": -1.0}, r"timeout_s is -1.0, allowed are numbers above 0 to 86400"),
        ({"timeout_s": float("nan")}, r"timeout_s is nan.*leave it out"),
        ({"timeout_s": float("inf")}, r"timeout_s is inf"),
        ({"timeout_s": 1e9}, r"timeout_s is 1000000000.0"),
        ({"priority": 10**6}, r"priority is 1000000, allowed are -1000 to 1000"),
        ({"on_vision_timeout": "hope"}, r"'hope', allowed are reject or text_only"),
    ],
)
async def test_terms_that_nobody_can_mean_are_refused(service, terms, message):
    with pytest.raises(InvalidParameter, match=message):
        await service.submit("x", GREEDY, **terms)


def test_when_to_come_back_crosses_between_processes() -> None:
    report = decode_report(encode(Failed(DeadlineOutOfReach("late", param="timeout_s", wait_s=12.5))))
    assert isinstance(report.error, DeadlineOutOfReach)
    assert (report.error.message, report.error.param, report.error.wait_s) == ("late", "timeout_s", 12.5)


def test_clients_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left out, in whole answers and streams; and when to come back."""
    part = {"type": "image_url", "image_url": {"url": png(56, 56)}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}]
    with TestServer(Script("Hi")) as server:

        def late(self: Ingest, plan: object) -> Future:
            future: Future = Future()
            future.set_exception(MediaTimeout("picture took longer"))
            return future

        with monkeypatch.context() as patched:
            patched.setattr(Ingest, "decode", late)
            assert server.chat(messages=messages).status_code == 408
            body = server.chat(messages=messages, on_vision_timeout="text_only").json()
        told = {"reason": "timeout", "requested": None, "rung": None}
        assert body["tapetum"]["degradations"] == [told]
        assert body["tapetum"]["media"][0]["degraded"] == told
        assert body["usage"]["prompt_tokens_details"]["visual_tokens"] == 0

        def refuse(*_: object, **__: object) -> None:
            raise DeadlineOutOfReach("request would end after about 50 s", param="timeout_s", wait_s=41.2)

        monkeypatch.setattr(AsyncEngine, "submit", refuse)
        reply = server.client.post("/v1/chat/completions", json=chat_body(timeout_s=9))
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "42")
        assert reply.json()["error"]["code"] == "deadline_out_of_reach"
        metrics = server.client.get("/metrics").text
        assert re.search(r'rejections_total{.*reason="deadline_out_of_reach".*} 1', metrics)
