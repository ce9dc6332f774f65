"""What each step trains on. Every process asks with the same numbers and gets the same plan."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from training.generator import GRIDS, MAX_CELLS
from training.train.settings import Settings

Kind = Literal["single", "pair", "clip"]

# Shares of the tasks among samples of one picture.
MIXTURE = {"text": 0.29, "receipt": 0.19, "table": 0.15, "form": 0.12, "chart": 0.06, "shapes": 0.19}
_PICTURES = {"single": 1, "pair": 2, "clip": 2.6}  # of a sample, in cost


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    kind: Kind
    grid: tuple[int, int]
    num_samples: int  # of each process
    level: float  # difficulty, 0 .. 1
    is_joint: bool  # the language model trains too


def plan_step(settings: Settings, step: int, progress: float, is_joint: bool) -> StepPlan:
    """`progress` is the part of the run that is over, `is_joint` whether the time of vision alone is over."""
    random = Random(f"plan{settings.seed}-{step}")
    kind: Kind = "single"
    if settings.has_several and is_joint and progress > 0.6:
        draw = random.random()
        kind = "pair" if draw < 0.08 else "clip" if draw < 0.13 else "single"
    limit = _max_cells(progress, is_joint) if kind == "single" else 30
    grids = [grid for grid in GRIDS if _cells(grid) <= limit]
    weights = [1.0 if _cells(grid) >= 24 else 0.5 for grid in grids]
    grid = random.choices(grids, weights)[0]
    num_samples = int(max(3, min(16, settings.visual_tokens / (_cells(grid) * _PICTURES[kind]))))

    # Some steps of the joint part train the vision tower alone, at a third of the price.
    share = 0.4 if progress < 0.5 else 0.2 if progress < 0.9 else 0
    is_vision_only = not is_joint or (kind == "single" and random.random() < share)
    if is_vision_only:
        grid = random.choice([grid for grid in GRIDS if 20 <= _cells(grid) <= 64])
        num_samples = int(max(3, settings.visual_tokens * 1.8 / _cells(grid)))
    return StepPlan(
        kind=kind,
        grid=grid,
        num_samples=num_samples,
        level=min(1.0, 0.3 + 1.2 * max(0.0, progress - 0.18)) if is_joint else 1.0,
        is_joint=not is_vision_only,
    )


def _cells(grid: tuple[int, int]) -> int:
    return grid[0] * grid[1]


def _max_cells(progress: float, is_joint: bool) -> int:
    if not is_joint:
        return 64
    return 40 if progress < 0.5 else 60 if progress < 0.7 else MAX_CELLS


def learning_rate(settings: Settings, step: int, progress: float) -> float:
    """A short warm-up from the first step of this run, then straight down with the time that is left."""
    warm_up = 12 if settings.init else 40
    return max(0.01, min(1.0, (step + 1) / warm_up) * (1 - progress))


def averaging(settings: Settings, step: int, progress: float) -> float:
    """How much of the averaged weights stays: little in the first steps and in the last tenth."""
    return min(settings.averaging, 1 - 1 / (step + 10) if progress < 0.9 else 0.99)


def guidance(settings: Settings, progress: float) -> float:
    """Weight of the attention guidance: whole until the last sixth, then down to nothing."""
    return settings.guidance * min(1.0, max(0.0, 6 - 6 * progress))
