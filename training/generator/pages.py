"""Task `page`: a page full of words in many faces and sizes. No questions; it teaches the vision tower characters."""

from __future__ import annotations

from random import Random

from training.generator.brief import Brief, Drawing, chance
from training.generator.canvas import Canvas
from training.generator.fonts import MIN_TYPE, pick_face
from training.generator.labels import CHARACTERS
from training.generator.palette import ink_and_ground
from training.generator.words import (
    MAX_TYPE,
    PITCH,
    Style,
    clock,
    code,
    date,
    number,
    percent,
    price,
    pseudo,
    word,
)


def draw_page(brief: Brief) -> Drawing:
    random = brief.random
    ink, ground = ink_and_ground(random)
    canvas = Canvas(random, brief.grid, ground)
    face, y, line = pick_face(random, brief.faces), float(random.randint(0, 8)), 0
    fixed = _any_size(random) if chance(random, 0.4) else None
    while True:
        size = fixed or _any_size(random)
        if y + size * PITCH > canvas.height:
            if y + MIN_TYPE * PITCH > canvas.height or fixed:
                return Drawing(canvases=[canvas], questions=[])
            size = MIN_TYPE
        if not fixed and chance(random, 0.5):
            face = pick_face(random, brief.faces)
        line += _fill_line(canvas, y, Style(face, size, ink), line)
        y += size * random.uniform(PITCH, 1.6)


def _any_size(random: Random) -> int:
    return int(MIN_TYPE + (MAX_TYPE + 1 - MIN_TYPE) * random.random() ** 1.4)


def _fill_line(canvas: Canvas, y: float, style: Style, line: int) -> bool:
    """Whether anything found room."""
    random = canvas.random
    x, place = float(random.randint(1, 12)), 0
    while True:
        piece = _piece(random)
        width = style.width(piece)
        if x + width > canvas.width - 1:
            return place > 0
        canvas.text(x, y, piece, style.face, style.size, style.ink, line=line, place=place)
        place += 1
        x += width + style.size * (
            random.uniform(0.3, 0.6) if chance(random, 0.85) else random.uniform(0.8, 3)
        )


def _piece(random: Random) -> str:
    sort = random.random()
    if sort < 0.58:
        return word(random)
    if sort < 0.62:
        return pseudo(random)
    if sort < 0.85:
        return random.choice([price, date, code, number, number, clock, percent])(random)
    pool = CHARACTERS if sort < 0.94 else "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"
    return "".join(random.choice(pool) for _ in range(random.randint(1, 6)))
