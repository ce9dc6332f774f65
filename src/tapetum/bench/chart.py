"""A chart of the goals as SVG: how long Tapetum takes where a peer takes 1, with the bounds of each goal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tapetum.bench.goals import Standing

_WIDTH, _LEFT, _ROW, _TOP = 860, 380, 26, 40
_SCALE = 300.0  # pixels of a ratio of 1
_MAX_RATIO = 1.5  # longer bars are cut
_COLOURS = {"aim": "#2a7f4f", "must": "#6aa84f", "missed": "#c0504d", "no peer": "#999999"}


def chart(rows: Sequence[Standing]) -> str:
    """Rows without a peer are not drawn; of figures where more is better, the inverse is."""
    drawn = [row for row in rows if row.ratio]
    height = _TOP + _ROW * len(drawn) + 12
    one = _LEFT + _SCALE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18">Tapetum, where the peer takes 1 (shorter is better; ticks: must, aim)</text>',
    ]
    for number, row in enumerate(drawn):
        parts += _bar(row, _TOP + _ROW * number)
    parts += [
        f'<line x1="{one:g}" x2="{one:g}" y1="{_TOP - 8}" y2="{height - 8}" stroke="black" '
        'stroke-dasharray="4 3"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(row: Standing, top: int) -> list[str]:
    goal = row.goal
    assert row.ratio is not None, "rows without a peer are not drawn"
    ratio = 1 / row.ratio if goal.is_more_better else row.ratio
    width = _SCALE * min(ratio, _MAX_RATIO)
    title = escape(f"{goal.row} {goal.what.removesuffix(', s')} / {goal.peer}")
    parts = [
        f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end" font-size="11">{title}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="18" fill="{_COLOURS[row.word]}"/>',
        f'<text x="{_LEFT + width + 6:.1f}" y="{top + 14}">{ratio:.2f}</text>',
    ]
    if goal.is_absolute:
        return parts
    for bound in (goal.must, goal.aim):
        x = _LEFT + _SCALE * (1 / bound if goal.is_more_better else bound)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 2}" y2="{top + 20}" stroke="black"/>')
    return parts
