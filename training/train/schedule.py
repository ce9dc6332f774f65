"""What each step trains on. Every process asks with the same numbers and gets the same plan."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from training.generator import EXTRA_TASKS, GRIDS, TASKS
from training.train.settings import Settings

Kind = Literal["single", "pair", "clip", "easyvqa"]

# Shares of the tasks among samples of one picture, where all of them have room; elsewhere text and shapes are alone.
MIXTURE = {
    "text": 0.16,
    "receipt": 0.14,
    "table": 0.28,
    "form": 0.11,
    "chart": 0.2,
    "shapes": 0.14,
    "turns": 0.07,
}
ROOMY_SHARE = 0.8  # of the pictures that have room for all tasks
FIRST_LETTERS = 0.08  # the part of the run that teaches nothing but characters and figures, mostly from pages
_PICTURES = {"single": 1, "pair": 2, "clip": 2.6, "easyvqa": 1}  # of a sample, in cost


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    kind: Kind
    grid: tuple[int, int]
    num_samples: int  # of each process
    level: float  # difficulty, 0 .. 1
    is_joint: bool  # the language model trains too
    relations: float = 1.0  # weight of all that vision is taught beyond characters and figures


def draw_task(random: Random, plan: StepPlan) -> str:
    if plan.kind != "single":
        return plan.kind
    pages = 4.0 if plan.relations == 0 else 0.7
    mixture = MIXTURE if plan.is_joint else MIXTURE | {"page": pages}
    tasks = {task: share for task, share in mixture.items() if _fits(task, plan.grid)}
    return random.choices(list(tasks), list(tasks.values()))[0]


def _fits(task: str, grid: tuple[int, int]) -> bool:
    return (TASKS | EXTRA_TASKS)[task].fits(grid)


def plan_step(settings: Settings, step: int, progress: float, is_joint: bool) -> StepPlan:
    """`progress` is the part of the run that is over, `is_joint` whether the time of vision alone is over."""
    random = Random(f"plan{settings.seed}-{step}")
    kind: Kind = "single"
    if is_joint and progress > 0.35:
        draw = random.random()
        kind = "pair" if draw < 0.07 else "clip" if draw < 0.11 else "easyvqa" if draw < 0.17 else "single"
    # Some steps of the joint part train the vision tower alone, at less than half the price.
    share = 0.5 if progress < 0.95 else 0
    is_vision_only = not is_joint or (kind == "single" and random.random() < share)
    limit = _max_cells(progress, is_joint)
    grids = [grid for grid in GRIDS if _cells(grid) <= limit]
    if random.random() < ROOMY_SHARE:
        grids = [grid for grid in grids if all(_fits(task, grid) for task in MIXTURE)]
    if kind != "single":
        grids = [grid for grid in GRIDS if _fits(kind, grid) and _cells(grid) <= 100]
    grid = random.choice(grids)
    budget = settings.visual_tokens * (0.6 if progress < 0.15 else 0.8 if progress < 0.4 else 1)
    budget *= 1.5 if is_vision_only and progress > 0.15 else 1
    return StepPlan(
        kind=kind,
        grid=grid,
        num_samples=int(max(2, min(16, budget / (_cells(grid) * _PICTURES[kind])))),
        level=1.0 if is_vision_only or random.random() < 2 * progress - 0.4 else 0.4,
        is_joint=not is_vision_only,
        relations=min(1.0, max(0.0, (progress - FIRST_LETTERS) / 0.03)),
    )


def _cells(grid: tuple[int, int]) -> int:
    return grid[0] * grid[1]


def _max_cells(progress: float, is_joint: bool) -> int:
    """Small pictures first: their lessons are as good and cost less."""
    if not is_joint:
        return 80
    return 80 if progress < 0.45 else 120 if progress < 0.65 else 256


def learning_rate(settings: Settings, step: int, progress: float) -> float:
    """A short warm-up, whole for the first letters, then seven tenths, falling straight with the time that is left.

    At the whole rate the tower finds its first letters soonest, and then no longer gains: it stayed at half the words.
    """
    warm_up = 12 if settings.init else 40
    rate = 1.0 if progress < FIRST_LETTERS else 0.7 * (1 - progress) / (1 - FIRST_LETTERS)
    return max(0.01, min(1.0, (step + 1) / warm_up) * rate)


def averaging(settings: Settings, step: int, progress: float) -> float:
    """How much of the averaged weights stays: little in the first steps and in the last tenth."""
    return min(settings.averaging, 1 - 1 / (step + 10) if progress < 0.9 else 0.99)


def guidance(settings: Settings, progress: float) -> float:
    """Weight of the attention guidance: whole until the last tenth, then down to nothing."""
    return settings.guidance * min(1.0, max(0.0, 10 - 10 * progress))
