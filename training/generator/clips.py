"""Task `clip`: four, six or eight frames in which one shape moves and up to two others rest."""

from __future__ import annotations

from random import Random

from training.generator.brief import Brief, Drawing, Question, chance
from training.generator.canvas import CELL, Canvas
from training.generator.figures import SHAPES
from training.generator.palette import RGB, random_rgb, stand_out
from training.generator.shapes import Figure, with_article

DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}


def draw_clip(brief: Brief) -> Drawing:
    random = brief.random
    num_frames = brief.frames or random.choice([4, 6, 8])
    ground = random_rgb(random, 215, 255) if chance(random, 0.8) else random_rgb(random, 0, 50)
    colors = stand_out(ground, 130)
    width, height = brief.grid[0] * CELL, brief.grid[1] * CELL
    shape, color = random.choice(SHAPES), random.choice(colors)
    direction = random.choice(list(DIRECTIONS))
    dx, dy = DIRECTIONS[direction]
    radius = random.uniform(11, min(width, height) * 0.18)
    room_x, room_y = width - 2.5 * radius, height - 2.5 * radius
    share = random.uniform(0.45, 0.95)
    x = radius * 1.25 + _start(random, room_x, dx, share)
    y = radius * 1.25 + _start(random, room_y, dy, share)
    resting = _resting(random, shape, colors, width, height)
    canvases = []
    for i in range(num_frames):
        done = i / (num_frames - 1) * share
        mover = Figure(shape, color, x + dx * room_x * done, y + dy * room_y * done, radius)
        canvases.append(_frame(brief, ground, [*resting, mover]))
    questions = _questions(random, shape, color, direction, 1 + len(resting))
    return Drawing(canvases=canvases, questions=questions)


def _start(random: Random, room: float, step: int, share: float) -> float:
    """Where on one axis the way begins, so that `share` of the room lies ahead in the direction `step`."""
    if step > 0:
        return room * (1 - share) * random.random()
    if step < 0:
        return room * (1 - (1 - share) * random.random())
    return room * random.random()


def _resting(random: Random, mover: str, colors: list[str], width: int, height: int) -> list[Figure]:
    others = [shape for shape in SHAPES if shape != mover]
    return [
        Figure(
            random.choice(others),
            random.choice(colors),
            random.uniform(14, width - 14),
            random.uniform(14, height - 14),
            11,
        )
        for _ in range(random.choice([0, 0, 1, 2]))
    ]


def _frame(brief: Brief, ground: RGB, figures: list[Figure]) -> Canvas:
    canvas = Canvas(brief.random, brief.grid, ground, oversample=2)
    canvas.resize(brief.grid[0] * CELL, brief.grid[1] * CELL)
    canvas.has_effects = False
    for figure in figures:
        canvas.shape(*figure)
    return canvas


def _questions(random: Random, shape: str, color: str, direction: str, count: int) -> list[Question]:
    direction_wordings = [
        f"In which direction does the {shape} move?",
        f"Which way is the {shape} moving?",
        "In which direction does the shape move?",
        f"Where does the {shape} go?",
    ]
    count_wordings = ["How many objects are there?", "How many shapes are in the video?"]
    describe_wordings = ["Describe the video.", "What happens in the video?"]
    sentence = f"{with_article(color).capitalize()} {shape} moves {direction}."
    return [
        Question("direction", random.choice(direction_wordings), direction),
        Question("count", random.choice(count_wordings), str(count)),
        Question("color", "What color is the moving shape?", color),
        Question("shape", "What shape is moving?", shape),
        Question("desc", random.choice(describe_wordings), sentence),
    ]
