"""The eight shapes as polygons."""

from __future__ import annotations

from collections.abc import Iterable
from math import cos, pi, sin

SHAPES = ["circle", "square", "triangle", "star", "diamond", "cross", "hexagon", "heart"]
Points = list[tuple[float, float]]

# Corners as (angle, distance in radii).
_CORNERS: dict[str, list[tuple[float, float]]] = {
    "square": [(pi / 4 + i * pi / 2, 1.2) for i in range(4)],
    "diamond": [(i * pi / 2, distance) for i, distance in enumerate([0.72, 1.15] * 2)],
    "triangle": [(-pi / 2 + i * 2 * pi / 3, 1.15) for i in range(3)],
    "hexagon": [(i * pi / 3, 1) for i in range(6)],
    "star": [(-pi / 2 + i * pi / 5, distance) for i, distance in enumerate([1.15, 0.47] * 5)],
}


def outline(kind: str, x: float, y: float, radius: float, turn: float) -> Points:
    """The corners of any shape but a circle. `turn` in radians; a heart stays upright."""
    if kind == "cross":
        return _cross(x, y, radius, turn)
    if kind == "heart":
        return [(x + a * radius / 16, y + b * radius / 15) for a, b in _heart()]
    return [
        (x + radius * distance * cos(angle + turn), y + radius * distance * sin(angle + turn))
        for angle, distance in _CORNERS[kind]
    ]


def _cross(x: float, y: float, radius: float, turn: float) -> Points:
    far, near = radius, radius * 0.36
    quarter = [(-near, -far), (near, -far), (near, -near)]
    corners: Points = []
    for _ in range(4):
        corners += quarter
        quarter = [(-b, a) for a, b in quarter]
    c, s = cos(turn), sin(turn)
    return [(x + a * c - b * s, y + a * s + b * c) for a, b in corners]


def _heart() -> Iterable[tuple[float, float]]:
    for i in range(28):
        t = 2 * pi * i / 28
        yield 16 * sin(t) ** 3, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t))
