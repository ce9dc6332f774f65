"""Traces that are drawn: mixes of shapes and the people who send them, at rates in shares of what an engine can do.

Arrivals are those of many people (exponential pauses), shapes come in shuffled rounds of a hundred, so that every
trace of some length holds them in the shares that the mix says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from tapetum.bench.simulate.trace import Arrival, Medium, Shape

_PICTURE = Medium(width=1920, height=1080)
_CLIP = Medium(kind="video", width=640, height=360, frames=32)
_INTERACTIVE = -1

TEXT = Shape(name="text", prompt_tokens=512, output_tokens=128)
QUESTION = Shape(name="question", prompt_tokens=64, output_tokens=64)
PICTURE = Shape(name="picture", prompt_tokens=64, output_tokens=128, media=(_PICTURE,))
THUMBNAIL = Shape(
    name="small picture", prompt_tokens=64, output_tokens=32, media=(Medium(width=640, height=480),)
)
PICTURES = Shape(name="4 pictures", prompt_tokens=64, output_tokens=128, media=(_PICTURE,) * 4)
CLIP = Shape(name="clip", prompt_tokens=64, output_tokens=128, media=(_CLIP,))
_MIXED = {TEXT: 60, PICTURE: 30, PICTURES: 8, CLIP: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """People who send requests of a mix. `rate` is relative to those of the other sources."""

    mix: Mapping[Shape, int]  # in parts of a hundred
    rate: float = 1.0
    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """`load`: how much comes, relative to what the plain engine of `baseline` can do of the same.

    `is_timed`: whether requests say how long their senders will wait, which is as long as they were promised.
    """

    sources: tuple[Source, ...]
    load: float
    about: str
    is_timed: bool = False


PRESETS: Mapping[str, Preset] = {
    "mixed": Preset(
        sources=(Source(mix=_MIXED),),
        load=1.2,
        about="60 % text, 30 % a picture, 8 % four pictures, 2 % clips of 32 frames, a little more than can be done",
    ),
    "overload": Preset(
        sources=(Source(mix=_MIXED),),
        load=3.0,
        about="the same, three times what can be done, by senders who wait as long as they were promised",
        is_timed=True,
    ),
    "pictures": Preset(
        sources=(
            Source(mix={QUESTION: 100}, rate=1.0, priority=_INTERACTIVE),
            Source(mix={PICTURE: 80, PICTURES: 20}, rate=1.0),
        ),
        load=0.9,
        about="short interactive questions beside as many requests with large pictures",
    ),
    "streams": Preset(
        sources=(
            Source(mix={TEXT: 100}, rate=10.0, priority=_INTERACTIVE),
            Source(mix={PICTURE: 80, PICTURES: 20}, rate=1.0),
        ),
        load=0.8,
        about="streams of interactive text beside a few requests with large pictures",
    ),
    "tenants": Preset(
        sources=(
            Source(mix={THUMBNAIL: 100}, rate=1.0, tenant="small"),
            Source(mix={THUMBNAIL: 100}, rate=10.0, tenant="large"),
        ),
        load=12.0,
        about="two tenants, of whom one sends ten times the pictures of the other, and each more than its half",
    ),
    "text": Preset(sources=(Source(mix={TEXT: 100}),), load=0.9, about="text alone"),
}


def arrivals(preset: Preset, rate: float, count: int, seed: int) -> tuple[Arrival, ...]:
    """So many requests at so many per second, from all sources together."""
    return tuple(islice(stream(preset, rate, seed), count))


def stream(preset: Preset, rate: float, seed: int) -> Iterator[Arrival]:
    """The same without an end."""
    shapes = [
        _shapes(source, random.Random(f"{seed} {index}")) for index, source in enumerate(preset.sources)
    ]
    weights = [source.rate for source in preset.sources]
    clock, at_s = random.Random(f"{seed} pauses"), 0.0
    while True:
        at_s += clock.expovariate(rate)
        index = clock.choices(range(len(weights)), weights)[0]
        source = preset.sources[index]
        yield Arrival(at_s=at_s, shape=next(shapes[index]), tenant=source.tenant, priority=source.priority)


def _shapes(source: Source, order: random.Random) -> Iterator[Shape]:
    shapes = [shape for shape, parts in source.mix.items() for _ in range(parts)]
    while True:
        order.shuffle(shapes)
        yield from shapes
