"""Task `shapes`: one to six coloured shapes on a plain ground, and what can be asked about a scene."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from random import Random
from typing import NamedTuple

from training.generator.brief import Brief, Drawing, Question, absent, chance
from training.generator.canvas import Canvas, Thing
from training.generator.figures import SHAPES
from training.generator.palette import COLOR_NAMES, COLORS, random_rgb, stand_out, vary
from training.generator.vocabulary import DESCRIBE

MIN_RADIUS = 16
NEAR, FAR = 0.38, 0.62  # where the named parts of a picture end
DETAILED = [*DESCRIBE, "What objects are in the image?", "Which shapes are there?"]
MAX_QUESTIONS = 11


class Figure(NamedTuple):
    """A shape to be drawn."""

    shape: str
    color: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A canvas with shapes; `ground` is the name of its colour where it has one."""

    canvas: Canvas
    figures: list[Figure]
    ground: str | None = None

    @property
    def things(self) -> list[Thing]:
        return self.canvas.things

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Shapes and colours, whatever their places."""
        return sorted((figure.shape, figure.color) for figure in self.figures)

    def of(self, *, shape: str | None = None, color: str | None = None) -> tuple[Thing, ...]:
        """All things of a shape, of a colour, or of both."""
        return tuple(
            thing for thing in self.things if shape in (None, thing.shape) and color in (None, thing.color)
        )

    def single_shapes(self) -> list[Thing]:
        """The things that no other shares its shape with."""
        return [thing for thing in self.things if len(self.of(shape=thing.shape)) == 1]

    def single_colors(self) -> list[Thing]:
        return [thing for thing in self.things if len(self.of(color=thing.color)) == 1]

    def can_be_described(self) -> bool:
        """No two figures share a column, so that their order from left to right is clear."""
        xs = sorted(thing.x for thing in self.things)
        return all(right - left > 9 for left, right in pairwise(xs))

    def where(self, thing: Thing) -> str | None:
        """The part of the picture that a thing is in, None near a border between parts."""
        x, y = thing.x / self.canvas.width, thing.y / self.canvas.height
        if any(min(abs(value - NEAR), abs(value - FAR)) <= 0.045 for value in (x, y)):
            return None
        column = "left" if x < NEAR else "right" if x > FAR else "center"
        row = "top" if y < NEAR else "bottom" if y > FAR else "center"
        if "center" in (row, column):
            return column if row == "center" else row
        return f"{row} {column}"


def draw_shapes(brief: Brief) -> Drawing:
    is_large = brief.grid[0] * brief.grid[1] > 64
    most = 3 if brief.level <= 0.5 else 6 if is_large else 5
    scene = draw_scene(brief, max_figures=most)
    return Drawing(canvases=[scene.canvas], questions=ask_about(brief.random, scene))


def draw_scene(brief: Brief, max_figures: int) -> Scene:
    random = brief.random
    name = None
    if chance(random, 0.75):
        name = random.choice(["white", "white", "white", "gray", "black", *COLOR_NAMES])
    ground = vary(random, COLORS[name], 6) if name else random_rgb(random, 200, 255)
    is_small = brief.grid[0] * brief.grid[1] <= 100
    canvas = Canvas(random, brief.grid, ground, oversample=2 if is_small else 1)
    canvas.ground_name = name
    figures = _place_figures(canvas, max_figures)
    for figure in figures:
        turn = random.uniform(-0.15, 0.15) if chance(random, 0.25) else 0.0
        canvas.shape(*figure, turn=turn)
    _flag(canvas.things)
    return Scene(canvas=canvas, figures=figures, ground=name)


def _place_figures(canvas: Canvas, max_figures: int) -> list[Figure]:
    random = canvas.random
    colors = stand_out(canvas.ground, 110)
    count = random.choices(range(1, max_figures + 1), [3, 4, 4, 3, 2, 2][:max_figures])[0]
    has_favourite, favourite = chance(random, 0.25), random.choice(SHAPES)
    share = min(canvas.width, canvas.height) * (0.3 if count < 3 else 0.2)
    largest = max(MIN_RADIUS + 4, min(56, share))
    figures: list[Figure] = []
    for _ in range(60):
        radius = random.uniform(MIN_RADIUS, largest)
        x = random.uniform(radius * 1.25, canvas.width - radius * 1.25)
        y = random.uniform(radius * 1.25, canvas.height - radius * 1.25)
        if any(hypot(x - o.x, y - o.y) <= (radius + o.radius) * 1.28 for o in figures):
            continue
        shape = favourite if has_favourite and chance(random, 0.8) else random.choice(SHAPES)
        figures.append(Figure(shape, random.choice(colors), x, y, radius))
        if len(figures) == count:
            break
    return figures


def _flag(things: list[Thing]) -> None:
    """Mark the largest, smallest and outermost of several things where nobody would doubt it."""
    if len(things) < 2:
        return
    by_size = sorted(things, key=_width)
    if _width(by_size[-1]) > _width(by_size[-2]) * 1.3:
        by_size[-1].flags.add("largest")
    if _width(by_size[1]) > _width(by_size[0]) * 1.3:
        by_size[0].flags.add("smallest")
    across = sorted(things, key=lambda thing: thing.x)
    if across[1].x - across[0].x > 14:
        across[0].flags.add("leftmost")
    if across[-1].x - across[-2].x > 14:
        across[-1].flags.add("rightmost")


def _width(thing: Thing) -> float:
    return thing.box[2] - thing.box[0]


def name_of(thing: Thing | Figure) -> str:
    return f"{thing.color} {thing.shape}"


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural(shape: str) -> str:
    return "crosses" if shape == "cross" else f"{shape}s"


def ask_about(random: Random, scene: Scene) -> list[Question]:
    """Up to `MAX_QUESTIONS` about one scene, no text twice."""
    spelling = random.choice(["color", "color", "colour"])
    questions = [
        *_count(random, scene),
        *_about_single_shapes(random, scene, spelling),
        *_about_single_colors(random, scene),
        *_is_there(random, scene),
        *_description(random, scene),
        *_about_missing(random, scene, spelling),
        *_extremes(random, scene),
        *_relation(random, scene),
        *_about_ground(random, scene, spelling),
    ]
    questions = list({question.text: question for question in questions}.values())
    return random.sample(questions, min(len(questions), MAX_QUESTIONS))


def _count(random: Random, scene: Scene) -> list[Question]:
    wordings = [
        "How many shapes are there?",
        "How many shapes are in the image?",
        "Count the shapes.",
        "How many shapes do you see?",
        "How many shapes can you see?",
    ]
    questions = [_how_many(random.choice(wordings), "shapes", scene.of())]
    if chance(random, 0.6):
        shape = random.choice(scene.figures).shape if chance(random, 0.75) else random.choice(SHAPES)
        noun = plural(shape)
        wordings = [f"How many {noun} are there?", f"How many {noun} do you see?", f"Count the {noun}."]
        questions.append(_how_many(random.choice(wordings), noun, scene.of(shape=shape)))
    if chance(random, 0.5):
        color = random.choice(scene.figures).color if chance(random, 0.75) else random.choice(COLOR_NAMES)
        wordings = [f"How many {color} shapes are there?", f"How many shapes are {color}?"]
        questions.append(_how_many(random.choice(wordings), color, scene.of(color=color)))
    return questions


def _how_many(text: str, phrase: str, things: tuple[Thing, ...]) -> Question:
    return Question("count", text, str(len(things)), "count", things, ((phrase, things),))


def _about_single_shapes(random: Random, scene: Scene, spelling: str) -> list[Question]:
    singles, questions = scene.single_shapes(), []
    for thing in random.sample(singles, min(2, len(singles))):
        shape = str(thing.shape)
        wordings = [
            f"What {spelling} is the {shape}?",
            f"What is the {spelling} of the {shape}?",
            f"Which {spelling} does the {shape} have?",
        ]
        text = random.choice(wordings)
        questions.append(Question("color", text, thing.color, "look", (thing,), ((shape, (thing,)),)))
    for thing in random.sample(singles, min(1, len(singles))):
        shape, place = str(thing.shape), scene.where(thing)
        if place:
            wordings = [f"Where is the {shape}?", f"In which part of the image is the {shape}?"]
            text = random.choice(wordings)
            questions.append(Question("where", text, place, "look", (thing,), ((shape, (thing,)),)))
    return questions


def _about_single_colors(random: Random, scene: Scene) -> list[Question]:
    singles, questions = scene.single_colors(), []
    for thing in random.sample(singles, min(2, len(singles))):
        color = thing.color
        wordings = [
            f"What shape is {color}?",
            f"Which shape is {color}?",
            f"What is the {color} shape?",
            f"What is the shape of the {color} object?",
        ]
        text = random.choice(wordings)
        questions.append(Question("shape", text, str(thing.shape), "look", (thing,), ((color, (thing,)),)))
    for thing in random.sample(singles, min(1, len(singles))):
        color, place = thing.color, scene.where(thing)
        if place:
            text = f"Where is the {color} shape?"
            questions.append(Question("where", text, place, "look", (thing,), ((color, (thing,)),)))
    return questions


def _is_there(random: Random, scene: Scene) -> list[Question]:
    questions = []
    if chance(random, 0.8):
        shape, color = _some_kind(random, scene)
        name = with_article(f"{color} {shape}")
        things = scene.of(shape=shape, color=color)
        wordings = [f"Is there {name}?", f"Is there {name} in the image?", f"Do you see {name}?"]
        keys = ((color, scene.of(color=color)), (shape, scene.of(shape=shape)))
        answer = "Yes" if things else "No"
        questions.append(Question("yesno", random.choice(wordings), answer, "look", things, keys))
    if chance(random, 0.4):
        shape = random.choice(scene.figures).shape if chance(random, 0.4) else random.choice(SHAPES)
        name, things = with_article(shape), scene.of(shape=shape)
        wordings = [f"Is there {name}?", f"Do you see {name}?"]
        answer = "Yes" if things else "No"
        questions.append(
            Question("yesno", random.choice(wordings), answer, "look", things, ((shape, things),))
        )
    return questions


def _some_kind(random: Random, scene: Scene) -> tuple[str, str]:
    """Shape and colour of one that is there, or of one that is not but shares one of them with one that is."""
    figure = random.choice(scene.figures)
    if chance(random, 0.5):
        return figure.shape, figure.color
    if chance(random, 0.5):
        return figure.shape, random.choice(COLOR_NAMES)
    return random.choice(SHAPES), figure.color


def _description(random: Random, scene: Scene) -> list[Question]:
    if len(scene.things) > 4 or not scene.can_be_described() or not chance(random, 0.8):
        return []
    return [describe(random.choice(DETAILED), scene.things)]


def describe(text: str, things: list[Thing]) -> Question:
    """A sentence that names all things from left to right."""
    ordered = sorted(things, key=lambda thing: thing.x)
    names = [with_article(name_of(thing)) for thing in ordered]
    sentence = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return Question("desc", text, f"{sentence.capitalize()}.", "look", tuple(ordered))


def _about_missing(random: Random, scene: Scene, spelling: str) -> list[Question]:
    if not chance(random, 0.7):
        return []
    present = {figure.shape for figure in scene.figures}
    shape = random.choice([shape for shape in SHAPES if shape not in present])
    if chance(random, 0.75):
        wordings = [
            f"What {spelling} is the {shape}?",
            f"Where is the {shape}?",
            f"What is the {spelling} of the {shape}?",
        ]
        return [Question("neg", random.choice(wordings), absent(shape), "look", (), ((shape, ()),))]
    color = random.choice(scene.figures).color
    text = f"Where is the {color} {shape}?"
    keys = ((color, scene.of(color=color)), (shape, ()))
    return [Question("neg", text, absent(f"{color} {shape}"), "look", (), keys)]


def _extremes(random: Random, scene: Scene) -> list[Question]:
    wordings = {
        "leftmost": ["Which shape is furthest to the left?", "What is the leftmost shape?"],
        "rightmost": ["Which shape is furthest to the right?", "What is the rightmost shape?"],
        "largest": [
            "Which shape is the largest?",
            "What is the biggest shape?",
            "What is the largest shape?",
        ],
        "smallest": ["Which shape is the smallest?", "What is the smallest shape?"],
    }
    questions = []
    for flag, texts in wordings.items():
        things = tuple(thing for thing in scene.things if flag in thing.flags)
        if things and chance(random, 0.45):
            kind = "big" if flag in ("largest", "smallest") else "extreme"
            questions.append(Question(kind, random.choice(texts), name_of(things[0]), "look", things))
    return questions


def _relation(random: Random, scene: Scene) -> list[Question]:
    singles = scene.single_shapes()
    if len(singles) < 2 or not chance(random, 0.5):
        return []
    one, other = random.sample(singles, 2)
    if abs(one.x - other.x) > 18 and chance(random, 0.5):
        side = random.choice(["left", "right"])
        is_so = (one.x < other.x) == (side == "left")
        text = f"Is the {one.shape} to the {side} of the {other.shape}?"
    elif abs(one.y - other.y) > 18:
        side = random.choice(["above", "below"])
        is_so = (one.y < other.y) == (side == "above")
        text = f"Is the {one.shape} {side} the {other.shape}?"
    else:
        return []
    keys = ((str(one.shape), (one,)), (str(other.shape), (other,)))
    return [Question("rel", text, "Yes" if is_so else "No", "look", (one, other), keys)]


def _about_ground(random: Random, scene: Scene, spelling: str) -> list[Question]:
    if not scene.ground or not chance(random, 0.4):
        return []
    wordings = [f"What {spelling} is the background?", f"What is the background {spelling}?"]
    return [Question("bg", random.choice(wordings), scene.ground, "look", (scene.canvas,))]
