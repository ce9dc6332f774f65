"""The goals of the CPU engine, and how a run stands against them.

Each row compares one figure of Tapetum with the same figure of one peer in the same run. `must` and `aim` bound the
ratio, ours over theirs, or ours alone where `is_absolute`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tapetum.bench.record import Column

OURS = "Tapetum bf16"
_VLLM, _LLAMA, _PILLOW = "vLLM bf16", "llama.cpp bf16", "transformers Pillow"
_SHAPES = {512: "mini", 1536: "2b"}  # by hidden size, of the checkpoints that the goals are set for

Columns = Mapping[tuple[str, str], Column]  # by peer and workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    row: str
    what: str
    shape: str
    workload: str
    figure: str
    peer: str
    must: float
    aim: float
    ours: str = OURS
    is_more_better: bool = False
    is_absolute: bool = False  # both bounds are values
    aim_s: float | None = None  # an aim that is a value beside a must that is a ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    goal: Goal
    ours: float
    theirs: float | None
    is_clean: bool  # whether others let both be measured

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def word(self) -> str:
        """`aim`, `must`, `missed`, or `no peer`."""
        goal = self.goal
        value = self.ours if goal.is_absolute else self.ratio
        if value is None:
            return "no peer"
        if self.ours <= goal.aim_s if goal.aim_s is not None else _reaches(value, goal.aim, goal):
            return "aim"
        return "must" if _reaches(value, goal.must, goal) else "missed"


def shape_of(checkpoint: Path) -> str | None:
    """Which of the two shapes of the goals a checkpoint has; None for any other."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    return _SHAPES.get(config.get("hidden_size")) if config.get("model_type") == "qwen2_vl" else None


def standings(columns: Columns, shape: str | None) -> tuple[Standing, ...]:
    """The goals of a shape for which Tapetum has been measured."""
    found = []
    for goal in GOALS:
        ours = columns.get((goal.ours, goal.workload))
        if goal.shape != shape or ours is None or goal.figure not in ours.figures:
            continue
        theirs = columns.get((goal.peer, goal.workload))
        standing = Standing(
            goal=goal,
            ours=ours.figures[goal.figure],
            theirs=theirs.figures.get(goal.figure) if theirs else None,
            is_clean=ours.num_clean > 0 and (theirs is None or theirs.num_clean > 0),
        )
        found.append(standing)
    return tuple(found)


def _reaches(value: float, bound: float, goal: Goal) -> bool:
    return value >= bound if goal.is_more_better else value <= bound


def _goal(
    row: str, what: str, shape: str, source: tuple[str, str], peer: str, bounds: tuple[float, float]
) -> Goal:
    workload, figure = source
    must, aim = bounds
    return Goal(
        row=row, what=what, shape=shape, workload=workload, figure=figure, peer=peer, must=must, aim=aim
    )


def _patches(shape: str, mode: str, bounds: tuple[float, float]) -> Goal:
    goal = _goal("P11", f"12 MP JPEG to patches, {mode}, s", shape, ("P11", "patches_s"), _PILLOW, bounds)
    return replace(goal, ours=f"Tapetum {mode}")


GOALS: tuple[Goal, ...] = (
    replace(
        _goal(
            "P1",
            "longest gap of text beside large pictures, s",
            "mini",
            ("W4", "gap_max_s"),
            _VLLM,
            (0.3, 0.1),
        ),
        is_absolute=True,
    ),
    replace(
        _goal("P1", "TTFT of text beside large pictures, s", "mini", ("W4", "ttft_s"), _VLLM, (0.5, 0.2)),
        is_absolute=True,
    ),
    _goal("P2", "TTFT of the large pictures, s", "mini", ("W4", "large_ttft_s"), _VLLM, (0.7, 0.45)),
    _goal("P3", "TTFT with a picture, s", "mini", ("W1", "ttft_s"), _VLLM, (0.8, 0.68)),
    _goal("P4", "TTFT with a picture, s", "2b", ("W1", "ttft_s"), _VLLM, (0.95, 0.87)),
    _goal("P5", "TPOT of text, s", "mini", ("T1", "tpot_s"), _LLAMA, (0.9, 0.8)),
    _goal("P5", "TPOT after a picture, s", "mini", ("W1", "tpot_s"), _LLAMA, (0.9, 0.8)),
    _goal("P6", "TPOT of text, s", "2b", ("T1", "tpot_s"), _LLAMA, (0.95, 0.87)),
    _goal("P6", "TPOT after a picture, s", "2b", ("W1", "tpot_s"), _LLAMA, (0.95, 0.87)),
    replace(
        _goal("P7", "requests per second of 8 clients", "mini", ("W2", "requests_per_s"), _VLLM, (1.3, 1.5)),
        is_more_better=True,
    ),
    _goal("P8", "TTFT of turns 2 to 4, s", "mini", ("W3", "later_turns_ttft_s"), _VLLM, (0.6, 0.45)),
    _goal("P9", "TTFT of later windows, s", "mini", ("W5", "later_windows_ttft_s"), _VLLM, (0.75, 0.6)),
    replace(
        _goal("P10", "start to first token, s", "2b", ("P10", "first_token_s"), _LLAMA, (0.5, 0.5)), aim_s=3.0
    ),
    *(_patches(shape, "exact", (0.75, 0.6)) for shape in ("mini", "2b")),
    *(_patches(shape, "fast", (0.35, 0.25)) for shape in ("mini", "2b")),
)
