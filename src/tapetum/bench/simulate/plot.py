"""A plot of a study as SVG: of each kind of request, how long the first token took, over what was promised.

One panel a kind; a point (x, y) of a line says that x of its requests had their first token within y times the promise.
Refused requests end a line early. The scale is logarithmic; below the dashed line promises are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from tapetum.bench.simulate.study import Study
from tapetum.bench.simulate.summary import Kind, Summary

_WIDTH, _HEIGHT, _GAP, _LEFT, _TOP = 250, 200, 50, 56, 64
_LOW, _HIGH = 1e-2, 1e3  # times the promise
_COLOURS = ("#2a7f4f", "#c0504d", "#4f6fb0", "#999999")


def plot(study: Study) -> str:
    names = [kind.name for kind in study.ours.kinds]
    width = _LEFT + (_WIDTH + _GAP) * len(names)
    height = _TOP + _HEIGHT + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18">Time to the first token, times what was promised, by share of requests: '
        f"{escape(study.trace)}, {escape(study.coefficients)}</text>",
        *_legend(study),
    ]
    for number, name in enumerate(names):
        left = _LEFT + (_WIDTH + _GAP) * number
        parts += _panel(name, left)
        parts += [
            _line(kind, left, colour)
            for run, colour in zip(study.runs, _COLOURS, strict=False)
            if (kind := _kind(run, name)) and kind.slowdown
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(study: Study) -> Iterator[str]:
    left = _LEFT
    for run, colour in zip(study.runs, _COLOURS, strict=False):
        text = f"{run.name}: {run.num_good} of {run.num_requests} good"
        yield f'<rect x="{left}" y="28" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 18}" y="39">{escape(text)}</text>'
        left += 40 + 7 * len(text)


def _panel(name: str, left: int) -> Iterator[str]:
    bottom = _TOP + _HEIGHT
    yield f'<text x="{left}" y="{_TOP - 6}">{escape(name)}</text>'
    yield f'<rect x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#cccccc"/>'
    for times in (0.01, 0.1, 1, 10, 100, 1000):
        yield f'<text x="{left - 6}" y="{_y(times) + 4:.1f}" text-anchor="end" font-size="10">{times:g}</text>'
    yield (
        f'<line x1="{left}" x2="{left + _WIDTH}" y1="{_y(1):.1f}" y2="{_y(1):.1f}" stroke="black" '
        'stroke-dasharray="4 3"/>'
    )
    for share in (0, 50, 100):
        x = left + _WIDTH * share / 100
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" font-size="10">{share} %</text>'


def _line(kind: Kind, left: int, colour: str) -> str:
    """Requests without an answer lie beyond its end."""
    reach = _WIDTH * kind.num_answered / kind.num_requests / (len(kind.slowdown) - 1)
    points = " ".join(
        f"{left + reach * place:.1f},{_y(times):.1f}" for place, times in enumerate(kind.slowdown)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _kind(run: Summary, name: str) -> Kind | None:
    return next((kind for kind in run.kinds if kind.name == name), None)


def _y(times: float) -> float:
    share = math.log(min(max(times, _LOW), _HIGH) / _LOW) / math.log(_HIGH / _LOW)
    return _TOP + _HEIGHT * (1 - share)
