"""What a task is given (Brief) and what it hands back (Drawing, Question)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from training.generator.canvas import Canvas, Run, Thing
from training.generator.fonts import Face

Spot = Run | Thing | Canvas  # of a canvas its bare ground
How = Literal["print", "look", "count", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """An order for one drawing. All that is random in it comes from `random`, in a fixed sequence of draws."""

    random: Random
    grid: tuple[int, int]  # width, height in visual tokens
    level: float  # 0 easy .. 1 full difficulty
    faces: tuple[Face, ...]
    frames: int | None = None  # of a clip; None = drawn at random


@dataclass(frozen=True, slots=True)
class Question:
    """`kind` groups questions in statistics; the rest says where a reader of the picture has to look.

    how: "print" = the answer is the text of the sources, in their order; "look" = all sources together tell it, and
    none at all mean that the thing asked for is not there; "count" = it is their number; "none" = nothing is known.
    """

    kind: str
    text: str
    answer: str
    how: How = "none"
    source: tuple[Spot, ...] = ()
    keys: tuple[tuple[str, tuple[Spot, ...]], ...] = ()  # phrases of `text`, and where they are seen
    before: Question | None = None  # an earlier turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Canvases (two of a pair, one per frame of a clip) and the questions about them."""

    canvases: list[Canvas]
    questions: list[Question]


def chance(random: Random, probability: float) -> bool:
    return random.random() < probability


def absent(thing: str) -> str:
    """The answer about something that the picture does not show."""
    return f"There is no {thing}."
