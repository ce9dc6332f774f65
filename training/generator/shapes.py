"""Task `shapes`: one to six coloured shapes on a plain ground, and what can be asked about a scene."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from random import Random
from typing import NamedTuple

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas
from training.generator.figures import SHAPES
from training.generator.palette import COLOR_NAMES, COLORS, random_rgb, stand_out, vary
from training.generator.vocabulary import DESCRIBE

NEAR, FAR = 0.38, 0.62  # where the named parts of a picture end
DETAILED = [*DESCRIBE, "What objects are in the image?", "Which shapes are there?"]


class Figure(NamedTuple):
    shape: str
    color: str
    x: float
    y: float
    radius: float

    @property
    def name(self) -> str:
        return f"{self.color} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Figures on a canvas; `ground` is the name of its colour where it has one."""

    canvas: Canvas
    figures: list[Figure]
    ground: str | None = None

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Shapes and colours, whatever their places."""
        return sorted((figure.shape, figure.color) for figure in self.figures)

    def can_be_described(self) -> bool:
        """No two figures share a column, so that their order from left to right is clear."""
        xs = sorted(figure.x for figure in self.figures)
        return all(right - left > 9 for left, right in pairwise(xs))

    def where(self, figure: Figure) -> str | None:
        """The part of the picture that a figure is in, None near a border between parts."""
        x, y = figure.x / self.canvas.width, figure.y / self.canvas.height
        if any(min(abs(value - NEAR), abs(value - FAR)) <= 0.045 for value in (x, y)):
            return None
        column = "left" if x < NEAR else "right" if x > FAR else "center"
        row = "top" if y < NEAR else "bottom" if y > FAR else "center"
        if "center" in (row, column):
            return column if row == "center" else row
        return f"{row} {column}"


def draw_shapes(brief: Brief) -> Drawing:
    scene = draw_scene(brief, max_figures=6 if brief.level > 0.5 else 3)
    return Drawing(canvases=[scene.canvas], questions=_questions(brief.random, scene))


def draw_scene(brief: Brief, max_figures: int) -> Scene:
    random = brief.random
    name = None
    if chance(random, 0.75):
        name = random.choice(["white", "white", "white", "gray", "black", *COLOR_NAMES])
    ground = vary(random, COLORS[name], 6) if name else random_rgb(random, 200, 255)
    is_small = brief.grid[0] * brief.grid[1] <= 100
    canvas = Canvas(random, brief.grid, ground, oversample=2 if is_small else 1)
    figures = _place_figures(canvas, max_figures)
    for figure in figures:
        turn = random.uniform(-0.15, 0.15) if chance(random, 0.25) else 0.0
        canvas.shape(*figure, turn=turn)
    return Scene(canvas=canvas, figures=figures, ground=name)


def _place_figures(canvas: Canvas, max_figures: int) -> list[Figure]:
    random = canvas.random
    colors = stand_out(canvas.ground, 110)
    count = random.choices(range(1, max_figures + 1), [3, 4, 4, 3, 2, 2][:max_figures])[0]
    has_favourite, favourite = chance(random, 0.25), random.choice(SHAPES)
    share = min(canvas.width, canvas.height) * (0.3 if count < 3 else 0.2)
    figures: list[Figure] = []
    for _ in range(60):
        radius = random.uniform(14, max(15, min(44, share)))
        x = random.uniform(radius * 1.25, canvas.width - radius * 1.25)
        y = random.uniform(radius * 1.25, canvas.height - radius * 1.25)
        if any(hypot(x - o.x, y - o.y) <= (radius + o.radius) * 1.28 for o in figures):
            continue
        shape = favourite if has_favourite and chance(random, 0.8) else random.choice(SHAPES)
        figures.append(Figure(shape, random.choice(colors), x, y, radius))
        if len(figures) == count:
            break
    return figures


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(shape: str) -> str:
    return "crosses" if shape == "cross" else f"{shape}s"


def describe(figures: list[Figure]) -> str:
    """A sentence that names all figures from left to right."""
    names = [with_article(figure.name) for figure in sorted(figures, key=lambda figure: figure.x)]
    text = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return text.capitalize() + "."


def _questions(random: Random, scene: Scene) -> list[Question]:
    spelling = random.choice(["color", "color", "colour"])
    figures = scene.figures
    single_shapes = _singles(SHAPES, [figure.shape for figure in figures])
    single_colors = _singles(COLOR_NAMES, [figure.color for figure in figures])
    return [
        *_count(random, figures),
        *_about_single_shapes(random, scene, single_shapes, spelling),
        *_about_single_colors(random, scene, single_colors),
        *_is_there(random, figures),
        *_description(random, scene),
        *_about_missing(random, figures, spelling),
        *_outermost(random, figures),
        *_largest(random, figures),
        *_relation(random, figures, single_shapes),
        *_about_ground(random, scene, spelling),
    ]


def _singles(names: list[str], present: list[str]) -> list[str]:
    return [name for name in names if present.count(name) == 1]


def _of_shape(figures: list[Figure], shape: str) -> Figure:
    return next(figure for figure in figures if figure.shape == shape)


def _of_color(figures: list[Figure], color: str) -> Figure:
    return next(figure for figure in figures if figure.color == color)


def _count(random: Random, figures: list[Figure]) -> list[Question]:
    wordings = [
        "How many shapes are there?",
        "How many objects are in the image?",
        "Count the shapes.",
        "How many shapes do you see?",
        "How many objects are there?",
        "How many shapes can you see?",
    ]
    questions = [Question("count", random.choice(wordings), str(len(figures)))]
    shapes, colors = [figure.shape for figure in figures], [figure.color for figure in figures]
    if chance(random, 0.6):
        shape = random.choice(shapes if chance(random, 0.75) else SHAPES)
        text = f"How many {plural(shape)} are there?"
        questions.append(Question("count", text, str(shapes.count(shape))))
    if chance(random, 0.5):
        color = random.choice(colors if chance(random, 0.75) else COLOR_NAMES)
        text = f"How many {color} shapes are there?"
        questions.append(Question("count", text, str(colors.count(color))))
    return questions


def _about_single_shapes(random: Random, scene: Scene, shapes: list[str], spelling: str) -> list[Question]:
    if not shapes:
        return []
    shape = random.choice(shapes)
    wordings = [
        f"What {spelling} is the {shape}?",
        f"What is the {spelling} of the {shape}?",
        f"Which {spelling} does the {shape} have?",
    ]
    questions = [Question("color", random.choice(wordings), _of_shape(scene.figures, shape).color)]
    shape = random.choice(shapes)
    place = scene.where(_of_shape(scene.figures, shape))
    if place:
        wordings = [f"Where is the {shape}?", f"In which part of the image is the {shape}?"]
        questions.append(Question("where", random.choice(wordings), place))
    return questions


def _about_single_colors(random: Random, scene: Scene, colors: list[str]) -> list[Question]:
    if not colors:
        return []
    color = random.choice(colors)
    wordings = [
        f"What shape is {color}?",
        f"Which shape is {color}?",
        f"What is the {color} shape?",
        f"What is the shape of the {color} object?",
    ]
    questions = [Question("shape", random.choice(wordings), _of_color(scene.figures, color).shape)]
    color = random.choice(colors)
    place = scene.where(_of_color(scene.figures, color))
    if place:
        questions.append(Question("where", f"Where is the {color} shape?", place))
    return questions


def _is_there(random: Random, figures: list[Figure]) -> list[Question]:
    questions = []
    if chance(random, 0.8):
        if chance(random, 0.5):
            name = with_article(random.choice(figures).name)
            wordings = [f"Is there {name}?", f"Is there {name} in the image?", f"Do you see {name}?"]
            questions.append(Question("yesno", random.choice(wordings), "Yes"))
        else:
            shape, color = random.choice(SHAPES), random.choice(COLOR_NAMES)
            if chance(random, 0.5):
                shape, color = random.choice(figures).shape, random.choice(figures).color
            is_there = any((figure.shape, figure.color) == (shape, color) for figure in figures)
            text = f"Is there {with_article(color)} {shape}?"
            questions.append(Question("yesno", text, "Yes" if is_there else "No"))
    if chance(random, 0.35):
        shape = random.choice(SHAPES)
        is_there = any(figure.shape == shape for figure in figures)
        questions.append(Question("yesno", f"Is there {with_article(shape)}?", "Yes" if is_there else "No"))
    return questions


def _description(random: Random, scene: Scene) -> list[Question]:
    if len(scene.figures) > 4 or not scene.can_be_described() or not chance(random, 0.8):
        return []
    return [Question("desc", random.choice(DETAILED), describe(scene.figures))]


def _about_missing(random: Random, figures: list[Figure], spelling: str) -> list[Question]:
    if not chance(random, 0.4):
        return []
    present = {figure.shape for figure in figures}
    shape = random.choice([shape for shape in SHAPES if shape not in present])
    wordings = [
        f"What {spelling} is the {shape}?",
        f"Where is the {shape}?",
        f"What is the {spelling} of the {shape}?",
    ]
    return [Question("neg", random.choice(wordings), absent(shape))]


def _outermost(random: Random, figures: list[Figure]) -> list[Question]:
    if len(figures) < 2 or not chance(random, 0.5):
        return []
    across = sorted(figures, key=lambda figure: figure.x)
    if across[1].x - across[0].x > 12 and chance(random, 0.5):
        wordings = ["Which shape is furthest to the left?", "What is the leftmost shape?"]
        return [Question("extreme", random.choice(wordings), across[0].name)]
    if across[-1].x - across[-2].x > 12:
        wordings = ["Which shape is furthest to the right?", "What is the rightmost shape?"]
        return [Question("extreme", random.choice(wordings), across[-1].name)]
    return []


def _largest(random: Random, figures: list[Figure]) -> list[Question]:
    if len(figures) < 2 or not chance(random, 0.4):
        return []
    by_size = sorted(figures, key=lambda figure: -figure.radius)
    if by_size[0].radius <= by_size[1].radius * 1.3:
        return []
    wording = random.choice(["Which shape is the largest?", "What is the biggest shape?"])
    return [Question("big", wording, by_size[0].name)]


def _relation(random: Random, figures: list[Figure], shapes: list[str]) -> list[Question]:
    if not shapes or not chance(random, 0.5) or len(shapes) < 2:
        return []
    one, other = random.sample(shapes, 2)
    a, b = _of_shape(figures, one), _of_shape(figures, other)
    if abs(a.x - b.x) > 14 and chance(random, 0.5):
        side = random.choice(["left", "right"])
        is_so = (a.x < b.x) == (side == "left")
        return [Question("rel", f"Is the {one} to the {side} of the {other}?", "Yes" if is_so else "No")]
    if abs(a.y - b.y) > 14:
        side = random.choice(["above", "below"])
        is_so = (a.y < b.y) == (side == "above")
        return [Question("rel", f"Is the {one} {side} the {other}?", "Yes" if is_so else "No")]
    return []


def _about_ground(random: Random, scene: Scene, spelling: str) -> list[Question]:
    if not scene.ground or not chance(random, 0.4):
        return []
    wordings = [f"What {spelling} is the background?", f"What is the background {spelling}?"]
    return [Question("bg", random.choice(wordings), scene.ground)]
