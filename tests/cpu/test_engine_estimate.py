"""An estimate tells from headers what the request will then really take."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.errors import MediaError, PromptTooLong
from tapetum.core.request import SamplingParams
from tapetum.engine.service import AsyncEngine
from tests.cpu.engine_kit import SpeakingExecutor, close_engines, engine_with, spoken

__all__ = ["close_engines"]
pytestmark = pytest.mark.usefixtures("close_engines")
SHORT = SamplingParams(temperature=0.0, max_tokens=4)


def picture(width: int, height: int, seed: int = 0, **options: object) -> MediaPart:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return MediaPart(kind="image", source=file.getvalue(), options=options)


def chat(*content: str | MediaPart) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),))


@pytest.fixture
async def service():
    engine = engine_with(SpeakingExecutor(lambda request_id: spoken("yes")))
    async with AsyncEngine(engine) as service:
        yield service


async def test_it_counts_what_the_request_then_has(service):
    prompt = chat(picture(300, 170), "and", picture(64, 500, 1), "What is it?")
    estimate = await service.estimate(prompt, SHORT)
    generation = await service.submit(prompt, SHORT)
    assert estimate.prompt_tokens == len(generation.prompt.token_ids)
    assert [item.used for item in estimate.media] == [report.used for report in generation.media]
    assert [item.visual_tokens for item in estimate.media] == [
        report.visual_tokens for report in generation.media
    ]
    assert estimate.visual_tokens == sum(report.visual_tokens for report in generation.media)
    assert estimate.kv_bytes == (estimate.prompt_tokens + 3) * service.facts.kv_bytes_per_token
    assert (estimate.admissible, estimate.reason, estimate.queue_s) == (True, None, 0.0)
    await generation.output()


async def test_an_answer_of_no_stated_length_counts_as_long_as_it_may_be(service):
    estimate = await service.estimate(chat("Hello"))
    generation = await service.submit(chat("Hello"))
    longest = generation._request.max_tokens
    assert longest > 1
    assert estimate.kv_bytes == (estimate.prompt_tokens + longest - 1) * service.facts.kv_bytes_per_token
    await generation.output()


async def test_what_is_on_the_device_takes_no_encode(service):
    prompt = chat(picture(120, 120), "What is it?")
    before = (await service.estimate(prompt)).media[0]
    assert before.cache == "miss"
    assert before.encode_s > 0
    await (await service.submit(prompt, SHORT)).output()
    after = (await service.estimate(prompt)).media[0]
    assert (after.cache, after.encode_s) == ("device", 0.0)
    assert replace(after, cache="miss", encode_s=before.encode_s) == before
    await service.reset_caches()
    assert (await service.estimate(prompt)).media[0].cache == "miss"


async def test_a_larger_picture_takes_longer(service):
    small, large = [(await service.estimate(chat(picture(side, side), "x"))).media[0] for side in (112, 448)]
    assert large.patches > small.patches
    assert large.encode_s > small.encode_s


async def test_what_can_never_be_served_says_why(service):
    many = chat(*(picture(448, 448, seed) for seed in range(40)), "How many?")
    estimate = await service.estimate(many, SHORT)
    assert not estimate.admissible
    assert f"prompt has {estimate.prompt_tokens} tokens" in estimate.reason
    assert "limit 2048" in estimate.reason
    with pytest.raises(PromptTooLong):
        await service.submit(many, SHORT)


async def test_a_reference_that_cannot_be_read_is_an_error(service):
    with pytest.raises(MediaError):
        await service.estimate(chat(MediaPart(kind="image", source=b"no picture"), "x"))


async def test_no_pixel_is_decoded(service, monkeypatch):
    def fail(*arguments: object) -> None:
        raise AssertionError("a picture was decoded")

    monkeypatch.setattr("tapetum.media.plan.decode", fail)
    estimate = await service.estimate(chat(picture(300, 170), "What?"))
    assert estimate.visual_tokens > 0
