"""Task `clip`: four, six or eight frames in which one shape moves and up to two others rest."""

from __future__ import annotations

from math import hypot
from random import Random

from training.generator.brief import Brief, Drawing, Question, chance
from training.generator.canvas import CELL, Canvas, Thing
from training.generator.figures import SHAPES
from training.generator.palette import RGB, random_rgb, stand_out
from training.generator.shapes import MIN_RADIUS, Figure, name_of, with_article

DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
EDGE = 1.25  # radii that the middle of a figure keeps from the border


def draw_clip(brief: Brief) -> Drawing:
    random = brief.random
    num_frames = brief.frames or random.choice([4, 6, 8])
    ground = random_rgb(random, 215, 255) if chance(random, 0.8) else random_rgb(random, 0, 50)
    colors = stand_out(ground, 130)
    width, height = brief.grid[0] * CELL, brief.grid[1] * CELL
    direction = random.choice(list(DIRECTIONS))
    path = _path(random, direction, colors, width, height, num_frames)
    resting = _resting(random, path, colors, width, height)
    canvases = [_frame(brief, ground, [*resting, mover]) for mover in path]
    return Drawing(canvases=canvases, questions=_questions(random, canvases, direction))


def _path(
    random: Random, direction: str, colors: list[str], width: int, height: int, num_frames: int
) -> list[Figure]:
    """The moving figure in every frame."""
    shape, color = random.choice(SHAPES), random.choice(colors)
    dx, dy = DIRECTIONS[direction]
    radius = random.uniform(MIN_RADIUS, max(MIN_RADIUS + 2, min(width, height) * 0.18))
    room_x, room_y = width - 2 * EDGE * radius, height - 2 * EDGE * radius
    share = random.uniform(0.45, 0.95)
    x = radius * EDGE + _start(random, room_x, dx, share)
    y = radius * EDGE + _start(random, room_y, dy, share)
    steps = [i / (num_frames - 1) * share for i in range(num_frames)]
    return [Figure(shape, color, x + dx * room_x * done, y + dy * room_y * done, radius) for done in steps]


def _start(random: Random, room: float, step: int, share: float) -> float:
    """Where on one axis the way begins, so that `share` of the room lies ahead in the direction `step`."""
    if step > 0:
        return room * (1 - share) * random.random()
    if step < 0:
        return room * (1 - (1 - share) * random.random())
    return room * random.random()


def _resting(random: Random, path: list[Figure], colors: list[str], width: int, height: int) -> list[Figure]:
    """Up to two figures of other shapes, clear of the whole way of the moving one; fewer where there is no room."""
    others = [shape for shape in SHAPES if shape != path[0].shape]
    wanted = random.choice([0, 0, 1, 1, 2])
    figures: list[Figure] = []
    for _ in range(30):
        if len(figures) == wanted:
            break
        radius, edge = MIN_RADIUS, MIN_RADIUS * EDGE
        x, y = random.uniform(edge, width - edge), random.uniform(edge, height - edge)
        if all(hypot(x - o.x, y - o.y) > (radius + o.radius) * EDGE for o in [*path, *figures]):
            figures.append(Figure(random.choice(others), random.choice(colors), x, y, radius))
    return figures


def _frame(brief: Brief, ground: RGB, figures: list[Figure]) -> Canvas:
    canvas = Canvas(brief.random, brief.grid, ground, oversample=2)
    canvas.resize(brief.grid[0] * CELL, brief.grid[1] * CELL)
    canvas.has_effects = False
    for figure in figures:
        canvas.shape(*figure)
    return canvas


def _questions(random: Random, canvases: list[Canvas], direction: str) -> list[Question]:
    everything = tuple(canvases[-1].things)
    mover: Thing = everything[-1]
    ends = (canvases[0].things[-1], mover)
    shape = str(mover.shape)
    named = ((shape, ends),)
    sentence = f"{with_article(name_of(mover)).capitalize()} moves {direction}."
    direction_wordings = [
        f"In which direction does the {shape} move?",
        f"Which way is the {shape} moving?",
        f"Where does the {shape} go?",
    ]
    general = random.choice(["In which direction does the shape move?", "Which way does the shape move?"])
    count_wordings = [
        "How many shapes are there?",
        "How many shapes are in the video?",
        "How many shapes do you see?",
    ]
    color_wordings = ["What color is the moving shape?", "What is the color of the moving shape?"]
    shape_wordings = ["What shape is moving?", "Which shape is moving?", "What moves in the video?"]
    describe_wordings = ["Describe the video.", "What happens in the video?"]
    count = str(len(everything))
    shapes = (("shapes", everything),)
    return [
        Question("direction", random.choice(direction_wordings), direction, "look", ends, named),
        Question("direction", general, direction, "look", ends),
        Question("count", random.choice(count_wordings), count, "count", everything, shapes),
        Question("color", random.choice(color_wordings), mover.color, "look", (mover,)),
        Question("shape", random.choice(shape_wordings), shape, "look", (mover,)),
        Question("desc", random.choice(describe_wordings), sentence, "look", ends),
    ]
