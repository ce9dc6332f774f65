"""Pictures that need no decode, from the front's process to the engine's: promised, sent without pixels, let go of."""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tapetum.media.plan
from tapetum.core.chat import ChatInput, DocumentPart, MediaPart, Message
from tapetum.core.config import EngineConfig, TierConfig
from tapetum.core.errors import InvalidParameter, MediaError
from tapetum.core.request import SamplingParams
from tapetum.engine.remote import ProcessLink
from tapetum.engine.reservations import Wanted
from tapetum.engine.service import AsyncEngine
from tapetum.media.document_process import DocumentProcesses
from tests.cpu.process_kit import ANSWER, build
from tests.documents import pdf

GREEDY = SamplingParams(temperature=0.0)


def picture(shade: int) -> MediaPart:
    buffer = io.BytesIO()
    Image.fromarray(np.full((56, 56, 3), shade, np.uint8)).save(buffer, "PNG")
    return MediaPart(kind="image", source=buffer.getvalue(), is_trusted=True)


def chat(*content: str | MediaPart) -> ChatInput:
    return ChatInput(messages=(Message(role="user", content=content),))


async def text_of(service: AsyncEngine, *content: str | MediaPart, sampling: SamplingParams = GREEDY) -> str:
    return (await (await service.submit(chat(*content), sampling)).output()).outputs[0].text


@pytest.fixture
def num_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    decoded: list[int] = []
    inner = tapetum.media.plan.decode

    def counted(*arguments, **options):
        decoded.append(1)
        return inner(*arguments, **options)

    monkeypatch.setattr(tapetum.media.plan, "decode", counted)
    return decoded


def config_of(folder: Path) -> EngineConfig:
    return EngineConfig(tiers=TierConfig(feature_tiers=(f"disk:{folder}?max=16MiB",)))


def link_to(folder: Path) -> ProcessLink:
    return ProcessLink(config_of(folder), builder="tests.cpu.process_kit:build", arena_bytes=1 << 20)


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Where an engine has left a picture of shade 77."""
    async with AsyncEngine(build(config_of(tmp_path))) as before:
        assert await text_of(before, picture(77), "Hello") == "pixel 77"
    return tmp_path


@pytest.fixture
async def known(folder: Path) -> AsyncIterator[AsyncEngine]:
    """A service over that folder; an engine of this process."""
    async with AsyncEngine(build(config_of(folder))) as service:
        yield service


async def reserved_by(service: AsyncEngine) -> int:
    """Bytes that the engine keeps within reach."""
    return (await service.stats()).reserved_bytes


@pytest.mark.parametrize("is_apart", [False, True])
async def test_a_picture_of_an_earlier_engine_comes_without_pixels_and_without_a_decode(
    folder, num_decodes, is_apart
):
    num_decodes.clear()
    async with AsyncEngine(link_to(folder) if is_apart else build(config_of(folder))) as known:
        assert await text_of(known, picture(77), "Hello") == "features"
        assert await text_of(known, picture(77), "Hello again") == "features"
        assert not num_decodes
        assert await text_of(known, picture(78), "Hello") == "pixel 78"
        assert len(num_decodes) == 1
        assert await reserved_by(known) == 0


async def test_what_a_picture_was_called_is_told_again_when_the_tiers_have_lost_it(folder, num_decodes):
    num_decodes.clear()
    async with AsyncEngine(build(config_of(folder))) as service:
        assert await text_of(service, picture(78), "Hello") == "pixel 78"
        while len(list(folder.glob("alias/*/*"))) < 2:
            await asyncio.sleep(0.001)
        shutil.rmtree(folder / "alias")
        await service.reset_caches()
        await text_of(service, picture(78), "Hello")
        assert len(num_decodes) == 2
    num_decodes.clear()
    async with AsyncEngine(build(config_of(folder))) as known:
        assert await text_of(known, picture(78), "Hello") == "features"
    assert not num_decodes


async def test_several_answers_need_nothing_of_the_first_once_that_has_ended(known, num_decodes):
    num_decodes.clear()
    await known.reset_caches()
    asked = replace(chat(picture(77), "Hello"), num_choices=3)
    generation = await known.submit(asked, SamplingParams(temperature=0.0, max_tokens=1))
    assert len(num_decodes) == 1, "its features may be gone when the others begin"
    while known._generations:
        await asyncio.sleep(0.001)
    await known.reset_caches()
    choices = known.choices(generation)
    assert {index async for index, _ in choices} == {0, 1, 2}
    assert choices.finish_reasons == ("length",) * 3
    assert await reserved_by(known) == 0


async def test_a_prompt_that_fails_behind_its_reservation_lets_go(known, num_decodes):
    broken = MediaPart(kind="image", source=picture(5).source[:70], is_trusted=True)
    num_decodes.clear()
    with pytest.raises(MediaError, match="media 2 of 2"):
        await text_of(known, picture(77), broken)
    assert len(num_decodes) == 1
    with pytest.raises(InvalidParameter):
        await text_of(known, picture(77), "Hello", sampling=SamplingParams(max_tokens=100_000))
    assert await reserved_by(known) == 0
    assert await text_of(known, "Hello") == ANSWER


async def test_a_client_that_leaves_lets_go(known):
    generation = await known.submit(chat(picture(77), "Hello"), GREEDY)
    generation.cancel()
    await generation.output()
    task = asyncio.ensure_future(known.submit(chat(picture(77), "Hello"), GREEDY))
    await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(200):
        if await reserved_by(known) == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("something is still reserved")


async def test_what_is_asked_about_a_prompt_reserves_nothing(known):
    estimate = await known.estimate(chat(picture(77), picture(78), "Hello"))
    assert [medium.cache for medium in estimate.media] == ["disk", "miss"]
    assert estimate.media[0].encode_s == 0.0 < estimate.media[1].encode_s
    prompt = await known.prompt(chat(picture(77), "Hello"))
    assert not prompt.spans[0].item.is_reserved
    assert await reserved_by(known) == 0


async def test_an_engine_that_does_not_answer_in_time_has_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.setattr("tapetum.engine.session.PATIENCE_S", 0.0)
    async with AsyncEngine(link_to(tmp_path)) as service:
        wanted = Wanted(alias=b"a", key=None, num_tokens=4, segments=(16,))
        assert await asyncio.to_thread(service._link.reserve, "r", (wanted,)) == (None,)
        assert await text_of(service, picture(3), "Hello") == "pixel 3"


async def test_pages_of_a_document_need_not_be_drawn_again_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    real = DocumentProcesses.render

    def render(processes: DocumentProcesses, file: object, page: int, *rest: object) -> bytearray:
        drawn.append(page)
        return real(processes, file, page, *rest)

    monkeypatch.setattr(DocumentProcesses, "render", render)
    data = pdf([f"town {number}" for number in range(1, 21)])
    document = DocumentPart(source=data, is_trusted=True, max_pages=2)
    sources = []
    for _ in range(2):
        async with AsyncEngine(build(config_of(tmp_path))) as service:
            generation = await service.submit(chat(document, "town 7"), GREEDY)
            await generation.output()
            sources.append({media.cache for media in generation.media})
            assert 7 in generation.pages[0].pages
    assert len(drawn) == 2, "only before the restart"
    assert sources[1] == {"disk"}
