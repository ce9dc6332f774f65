"""Endless synthetic pictures with questions and short answers, the same for the same seed.

    sample = make(seed=1, task="table")
    sample.images, sample.questions

`make` draws the size too, as evaluation wants it; `sample` and `draw` take a given grid, as training wants it.
Needs numpy and Pillow, and matplotlib for its fonts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from PIL import Image

from training.generator.brief import Brief, Drawing, Question, chance
from training.generator.canvas import Canvas
from training.generator.charts import draw_chart
from training.generator.clips import draw_clip
from training.generator.easyvqa import draw_easyvqa
from training.generator.fonts import Face, default_faces
from training.generator.forms import draw_form
from training.generator.pages import draw_page
from training.generator.pairs import draw_pair
from training.generator.receipts import draw_receipt
from training.generator.shapes import draw_shapes
from training.generator.tables import draw_table
from training.generator.text import draw_text
from training.generator.turns import draw_turns

__all__ = [
    "EXTRA_TASKS",
    "GRIDS",
    "MAX_CELLS",
    "TASKS",
    "Question",
    "Sample",
    "draw",
    "make",
    "pick",
    "sample",
]

MAX_CELLS = 256  # largest picture in visual tokens
MAX_CELLS_OF_SEVERAL = 48  # where a sample has several pictures


@dataclass(frozen=True, slots=True)
class Task:
    draw: Callable[[Brief], Drawing]
    smallest: tuple[int, int] = (5, 4)  # grid
    noun: str | None = None  # answer to "What kind of image is this?"
    has_several: bool = False  # pictures in a sample
    is_square: bool = False

    def fits(self, grid: tuple[int, int]) -> bool:
        if self.is_square and grid[0] != grid[1]:
            return False
        most = MAX_CELLS_OF_SEVERAL if self.has_several else MAX_CELLS
        return grid[0] >= self.smallest[0] and grid[1] >= self.smallest[1] and grid[0] * grid[1] <= most


TASKS = {
    "text": Task(draw_text, (6, 4), "text"),
    "receipt": Task(draw_receipt, (10, 6), "a receipt"),
    "table": Task(draw_table, (10, 6), "a table"),
    "form": Task(draw_form, (10, 6), "a form"),
    "chart": Task(draw_chart, (8, 6), "a bar chart"),
    "shapes": Task(draw_shapes, (5, 4), "shapes"),
    "pair": Task(draw_pair, (6, 4), has_several=True),
    "turns": Task(draw_turns, (10, 6)),
    "clip": Task(draw_clip, (5, 4), has_several=True),
}
# Asked for by training alone: pages without questions, and the training pictures of somebody else's data set.
EXTRA_TASKS = {"page": Task(draw_page), "easyvqa": Task(draw_easyvqa, is_square=True)}

# Width and height in visual tokens.
GRIDS = [
    *(
        (5, 4),
        (6, 4),
        (6, 5),
        (8, 4),
        (7, 5),
        (6, 6),
        (8, 5),
        (7, 6),
        (10, 4),
        (6, 8),
        (8, 6),
        (10, 5),
        (9, 6),
    ),
    *(
        (8, 7),
        (10, 6),
        (8, 8),
        (11, 6),
        (9, 8),
        (12, 6),
        (10, 8),
        (8, 10),
        (12, 7),
        (10, 9),
        (12, 8),
        (10, 10),
    ),
    *(
        (12, 9),
        (9, 12),
        (14, 8),
        (12, 10),
        (11, 11),
        (16, 8),
        (14, 10),
        (12, 12),
        (10, 14),
        (16, 10),
        (14, 12),
    ),
    *((12, 15), (14, 14), (16, 12), (16, 14), (16, 16)),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Finished pictures (two of a pair, the frames of a clip), what is asked about them, how they were drawn."""

    task: str
    images: list[Image.Image]
    questions: list[Question]
    canvases: list[Canvas]


def make(seed: int, task: str | None = None) -> Sample:
    """One sample of a size that its seed picks."""
    task, grid = pick(seed, task)
    return sample(seed, task, grid)


def pick(seed: int, task: str | None = None) -> tuple[str, tuple[int, int]]:
    """The task, unless given, and the grid of a seed."""
    random = Random(f"grid{seed}")
    task = task or random.choice(list(TASKS))
    grids = [grid for grid in GRIDS if TASKS[task].fits(grid)]
    return task, random.choice(grids)


def sample(
    seed: int | str,
    task: str,
    grid: tuple[int, int],
    *,
    level: float = 1.0,
    faces: tuple[Face, ...] | None = None,
    frames: int | None = None,
) -> Sample:
    """One sample on a grid of visual tokens."""
    drawing = draw(seed, task, grid, level=level, faces=faces, frames=frames)
    images = [canvas.finish() for canvas in drawing.canvases]
    return Sample(task=task, images=images, questions=drawing.questions, canvases=drawing.canvases)


def draw(
    seed: int | str,
    task: str,
    grid: tuple[int, int],
    *,
    level: float = 1.0,
    faces: tuple[Face, ...] | None = None,
    frames: int | None = None,
) -> Drawing:
    """A sample before its pictures are finished."""
    random = Random(seed)
    chosen = EXTRA_TASKS[task] if task in EXTRA_TASKS else TASKS[task]
    faces = faces or default_faces()
    drawing = chosen.draw(Brief(random=random, grid=grid, level=level, faces=faces, frames=frames))
    if chosen.noun and chance(random, 0.12):
        wordings = [
            "What kind of image is this?",
            "What type of image is this?",
            "What does this image show?",
        ]
        drawing.questions.append(Question("type", random.choice(wordings), chosen.noun))
    return drawing
