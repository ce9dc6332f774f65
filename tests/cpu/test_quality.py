"""Pictures that are made smaller under load: whose, how far, and that their answers say so."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tapetum.core.chat import ChatInput, MediaPart, Message, TextInput
from tapetum.core.config import EngineConfig, MediaConfig, ScheduleConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import InvalidParameter, MediaError
from tapetum.core.media import Degradation
from tapetum.core.request import SamplingParams
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.prompts import PromptBuilder, PromptLimits, Terms
from tapetum.engine.quality import Quality
from tapetum.engine.service import AsyncEngine
from tapetum.evaluate import FIRST_SEEDS, load_generator
from tapetum.media.density import is_dense
from tapetum.media.ingest import Ingest
from tests.cpu.engine_kit import Clock, SpeakingExecutor, close_engines, engine_with, files, spoken

__all__ = ["close_engines"]
pytestmark = pytest.mark.usefixtures("close_engines")
TARGET_S = 1.0
TERMS = Terms(request_id="r", arrival_s=0.0, priority=-1)
SIZE = (448, 448)


class Foretold:
    """An engine that says how long its queue is and what it holds."""

    def __init__(self) -> None:
        self.queue_s = 0.0
        self.resident: set[bytes] = set()
        self.held: set[bytes] = set()
        self.num_asked = 0
        self._cost = CostModel(step=(0.0, 0.0, 0.0, 1e-3, 0.0), encode=(0.0, 1e-4, 0.0))

    def __call__(self, workload: Workload) -> Forecast:
        self.num_asked += 1
        is_resident = tuple(key in self.resident for key in workload.media_keys)
        length = workload.num_tokens
        return Forecast(
            encode_s=tuple(
                0.0 if is_here else self._cost.encode_seconds(sum(sizes), 0.0)
                for sizes, is_here in zip(workload.segments, is_resident, strict=True)
            ),
            sources=tuple("device" if is_here else "miss" for is_here in is_resident),
            is_held=tuple(key in self.resident | self.held for key in workload.media_keys),
            prefill_s=self._cost.step_seconds(0, 0, length, chunk_context(0, length)),
            queue_s=self.queue_s,
        )


@pytest.fixture
def foretold():
    return Foretold()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ingest():
    made = Ingest(files().processor, MediaConfig(), workers=2)
    yield made
    made.close()


@pytest.fixture
def builder(ingest, foretold, clock):
    limits = PromptLimits(max_model_len=2048, max_media=8)
    return PromptBuilder(files(), ingest, limits, Quality(TARGET_S, foretold, clock))


def scene(seed: int = 0, size: tuple[int, int] = SIZE, **options: object) -> MediaPart:
    """Soft colours: nothing to read. The bundled model may see all of it."""
    options = {"max_pixels": SIZE[0] * SIZE[1], **options}
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return _part(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC), options)


def page(text: str = "Read all of this.", **options: object) -> MediaPart:
    picture = Image.new("RGB", SIZE, "white")
    font = ImageFont.load_default(16)
    ImageDraw.Draw(picture).multiline_text((8, 8), f"{text}\n" * 20, fill="black", font=font)
    return _part(picture, options)


def _part(picture: Image.Image, options: dict[str, object]) -> MediaPart:
    out = BytesIO()
    picture.save(out, "PNG")
    return MediaPart(kind="image", source=out.getvalue(), options=options)


def chat(*content: str | MediaPart, budget: int | None = None) -> ChatInput:
    message = Message(role="user", content=(*content, "What is it?"))
    return ChatInput(messages=(message,), max_visual_tokens=budget)


def seen(builder: PromptBuilder, *content: MediaPart, budget: int | None = None, terms: Terms = TERMS):
    """The items of the prompt that is built."""
    request = builder.build(chat(*content, budget=budget), SamplingParams(max_tokens=2), terms)
    return [span.item for span in request.prompt.spans]


def rungs(items) -> list[str]:
    return [item.degraded.rung if item.degraded else "high" for item in items]


def test_without_load_everything_stays_as_it_is(builder, foretold):
    (item,) = seen(builder, scene())
    assert (item.geometry.used, item.degraded) == (SIZE, None)
    assert foretold.num_asked == 1, "one question to the engine"


def test_the_rung_follows_the_queue_and_the_answer_says_so(builder, foretold, clock):
    areas, told = [], []
    for number, queue_s in enumerate((0.0, 0.7, 0.85, 0.93, 50.0)):
        clock.now += 100  # long quiet
        foretold.queue_s = queue_s
        (item,) = seen(builder, scene(number))
        areas.append(item.geometry.used[0] * item.geometry.used[1])
        told += rungs([item])
        if item.degraded:
            assert item.degraded == Degradation(reason="load", requested=SIZE, rung=told[-1])
    assert told == ["high", "medium", "low", "thumbnail", "thumbnail"]
    whole = areas[0]
    assert areas == sorted(areas, reverse=True)
    for area, parts in zip(areas, (1, 2, 4, 16, 16), strict=True):
        assert area <= whole / parts


def test_a_degraded_picture_shares_nothing_with_the_whole_one(builder, foretold, clock):
    (whole,) = seen(builder, scene(1))
    clock.now += 100
    foretold.queue_s = 50.0
    (small,) = seen(builder, scene(1))
    assert small.degraded is None, "the whole one is kept: a hit"
    (other,) = seen(builder, scene(2))
    foretold.queue_s = 0.0
    clock.now += 100
    (again,) = seen(builder, scene(2))
    assert other.degraded and again.degraded is None
    assert other.key != again.key and whole.key != again.key


def test_what_is_pinned_is_left_alone(builder, foretold):
    foretold.queue_s = 50.0
    for options in (
        {"min_pixels": 784},
        {"max_visual_tokens": 200},
        {"detail": "high"},
        {"least_rung": "high"},
    ):
        assert rungs(seen(builder, scene(3, **options))) == ["high"], options
    assert rungs(seen(builder, scene(3), budget=200)) == ["high"]
    for options in ({}, {"detail": "auto"}, {"max_pixels": 200_000}):
        assert rungs(seen(builder, scene(4, **options))) == ["thumbnail"], options


def test_a_floor_is_kept_by_each_picture_of_its_own(builder, foretold):
    foretold.queue_s = 50.0
    items = seen(
        builder, scene(5), scene(6, least_rung="medium"), scene(7, least_rung="low"), scene(8, detail="high")
    )
    assert rungs(items) == ["thumbnail", "medium", "low", "high"]
    with pytest.raises(InvalidParameter, match="least_rung is 'tiny', must be high, medium"):
        seen(builder, scene(9, least_rung="tiny"))


def test_text_stays_whole_unless_the_caller_says_how_far(builder, foretold):
    foretold.queue_s = 50.0
    assert rungs(seen(builder, page(), scene(10))) == ["high", "thumbnail"]
    assert rungs(seen(builder, page("Read it if you can.", least_rung="low"))) == ["low"]


def test_what_is_there_already_is_not_made_smaller(builder, foretold, ingest, clock):
    (whole,) = seen(builder, scene(11))
    foretold.queue_s = 50.0
    assert rungs(seen(builder, scene(11))) == ["high"], "kept in front of the engine"
    ingest._kept._items.clear()  # as many others push it out
    ingest._kept.num_bytes = 0
    for name in ("resident", "held"):  # as features, as keys and values
        setattr(foretold, name, {whole.key})
        assert rungs(seen(builder, scene(11), scene(12))) == ["high", "thumbnail"], name
        setattr(foretold, name, set())
        ingest._kept._items.clear()
    assert rungs(seen(builder, scene(11))) == ["thumbnail"]


def test_a_picture_goes_no_further_down_than_to_what_is_there(builder, foretold, clock):
    foretold.queue_s = 0.7
    (medium,) = seen(builder, scene(14))
    foretold.queue_s = 50.0
    (again,) = seen(builder, scene(14))
    assert (medium.degraded.rung, again.degraded.rung, again.key) == ("medium", "medium", medium.key)
    foretold.queue_s = 0.0
    clock.now += 100
    assert rungs(seen(builder, scene(14))) == ["high"], "nobody asked for less than the whole"


def test_economy_gives_way_first_and_interactive_last(builder, foretold, clock):
    foretold.queue_s = 0.33
    told = []
    for number, priority in enumerate((-1, 0, 1, 2)):
        told += rungs(seen(builder, scene(20 + number), terms=replace(TERMS, priority=priority)))
    assert told == ["high", "high", "medium", "thumbnail"]


def test_prompts_that_are_still_built_count_as_queued(builder, monkeypatch):
    """Of many that come at once, not all see an empty queue."""
    told = []
    inner, coming = PromptBuilder._decoded, iter((31, 32, 33))

    def decoded(self, draft, plans, terms, loads):
        for seed in coming:
            told.extend(rungs(seen(builder, scene(seed))))
        return inner(self, draft, plans, terms, loads)

    monkeypatch.setattr(PromptBuilder, "_decoded", decoded)
    told += rungs(seen(builder, scene(30)))
    assert told == ["thumbnail", "medium", "high", "high"], "the last that came first"
    assert builder._quality._underway_s == pytest.approx(0.0)


def test_a_prompt_that_fails_is_under_way_no_more(builder, ingest):
    broken = replace(scene(40), source=scene(40).source[:200])
    with pytest.raises(MediaError):
        seen(builder, scene(41), broken)
    assert builder._quality._underway_s == pytest.approx(0.0)


def test_a_broken_picture_is_named_as_without_the_ladder(builder, foretold):
    foretold.queue_s = 50.0
    with pytest.raises(MediaError, match=r"media 2 of 2: .*cannot be decoded"):
        seen(builder, scene(42), replace(scene(43), source=scene(43).source[:200]))


def test_a_small_picture_and_a_prompt_of_text_are_left_alone(builder, foretold):
    foretold.queue_s = 50.0
    (small,) = seen(builder, scene(44, size=(56, 56)))
    assert small.degraded is None
    asked = foretold.num_asked
    builder.build(TextInput(prompt="Hello"), SamplingParams(), TERMS)
    assert foretold.num_asked == asked


def test_a_clip_gives_way_too(builder, foretold):
    foretold.queue_s = 50.0
    frames = [Image.fromarray(np.full((*SIZE, 3), value, np.uint8)) for value in (10, 200)]
    options = {"max_pixels": SIZE[0] * SIZE[1]}
    (clip,) = seen(builder, MediaPart(kind="video", source=frames, options=options, is_trusted=True))
    assert clip.degraded == Degradation(reason="load", requested=SIZE, rung="thumbnail")
    assert clip.geometry.frames == 2


def test_an_estimate_tells_what_would_be_left_and_counts_nobody(builder, foretold):
    foretold.queue_s = 50.0
    prompt = chat(scene(45))
    asked_for = builder.plan(prompt, SamplingParams())
    now = builder.plan(prompt, SamplingParams(), priority=-1)
    assert [plan.degraded for plan in asked_for.media] == [None]
    assert [plan.degraded.rung for plan in now.media] == ["thumbnail"]
    assert now.num_tokens < asked_for.num_tokens
    assert builder._quality._ladder._tenants._asked == {}


async def test_an_engine_discloses_counts_and_estimates():
    engine = engine_with(SpeakingExecutor(lambda request_id: spoken("yes")), quality_ladder_s=0.02)
    prompt = chat(scene(50))
    async with AsyncEngine(engine) as service:
        estimate = await service.estimate(prompt)
        generation = await service.submit(prompt, SamplingParams(max_tokens=2))
        output = await generation.output()
        metrics = {metric.name: metric.values for metric in await service.metrics()}
    (report,) = output.media
    assert report.degraded == Degradation(reason="load", requested=SIZE, rung=report.degraded.rung)
    assert report.used != SIZE
    assert estimate.media[0].degraded == report.degraded and estimate.media[0].used == report.used
    assert (metrics["degradations"]["load"], metrics["degradations"]["timeout"]) == (1, 0)


def test_the_ladder_is_off_by_default():
    assert EngineConfig().schedule.quality_ladder_s is None
    assert ScheduleConfig(quality_ladder_s=2.0).quality_ladder_s == 2.0


def test_the_pictures_of_the_generator_are_told_apart():
    """Pages, receipts, tables and forms are there to be read; shapes and clips are not."""
    generator = load_generator()
    shares = {}
    for task, first in FIRST_SEEDS.items():
        pictures = [generator.make(first + index, task).images[0] for index in range(40)]
        shares[task] = sum(map(is_dense, pictures)) / len(pictures)
    assert shares["text"] >= 0.9, "but for single words on an empty ground"
    assert shares["receipt"] == shares["table"] == shares["form"] == 1.0
    assert shares["chart"] >= 0.8
    assert shares["shapes"] == shares["clip"] == 0.0
