"""Task `page`: a page full of words in many faces and sizes. No questions; it teaches the vision tower characters."""

from __future__ import annotations

from random import Random

from training.generator.brief import Brief, Drawing, chance
from training.generator.canvas import Canvas
from training.generator.fonts import MIN_TYPE, Face, pick_face, text_width
from training.generator.labels import CHARACTERS
from training.generator.palette import RGB, ink_and_ground
from training.generator.words import code, date, number, price, word


def draw_page(brief: Brief) -> Drawing:
    random = brief.random
    ink, ground = ink_and_ground(random)
    canvas = Canvas(random, brief.grid, ground)
    face, y = pick_face(random, brief.faces), float(random.randint(0, 8))
    fixed = _any_size(random) if chance(random, 0.4) else None
    while True:
        size = fixed or _any_size(random)
        if y + size * 1.2 > canvas.height:
            if fixed or y + 14 > canvas.height:
                return Drawing(canvases=[canvas], questions=[])
            size = MIN_TYPE
        if not fixed and chance(random, 0.5):
            face = pick_face(random, brief.faces)
        _fill_line(canvas, y, face, size, ink)
        y += size * random.uniform(1.12, 1.4)


def _any_size(random: Random) -> int:
    return int(MIN_TYPE * 2.1 ** random.random())


def _fill_line(canvas: Canvas, y: float, face: Face, size: int, ink: RGB) -> None:
    random = canvas.random
    x = float(random.randint(1, 12))
    while True:
        piece = _piece(random)
        width = text_width(face, size, piece)
        if x + width > canvas.width - 1:
            return
        canvas.text(x, y, piece, face, size, ink)
        x += width + size * (random.uniform(0.25, 0.5) if chance(random, 0.85) else random.uniform(0.8, 3))


def _piece(random: Random) -> str:
    sort = random.random()
    if sort < 0.45:
        return word(random)
    if sort < 0.8:
        return random.choice([price, date, code, number, number])(random)
    pool = CHARACTERS if sort < 0.9 else "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "".join(random.choice(pool) for _ in range(random.randint(1, 6)))
