"""What a task is given (Brief) and what it hands back (Drawing, Question)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from training.generator.canvas import Canvas
from training.generator.fonts import Face


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """An order for one drawing. All that is random in it comes from `random`, in a fixed sequence of draws."""

    random: Random
    grid: tuple[int, int]  # width, height in visual tokens
    level: float  # 0 easy .. 1 full difficulty
    faces: tuple[Face, ...]
    frames: int | None = None  # of a clip; None = drawn at random


class Question(NamedTuple):
    """`kind` groups questions in statistics and decides how the trainer treats the answer."""

    kind: str
    text: str
    answer: str


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
