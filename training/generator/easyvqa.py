"""Pictures and questions of easy-VQA, a public data set of one shape on a 64x64 picture (Victor Zhou, 2019).

It comes with the package `easy-vqa`, which is imported here alone and only when asked for. `draw_easyvqa` shows
pictures of the train split, so that the test split stays for evaluation.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageOps

from training.generator.brief import Brief, Drawing, Question, chance
from training.generator.canvas import Canvas

Split = Literal["train", "test"]
MAX_QUESTIONS = 8


class Entry(NamedTuple):
    """A question as the data have it: in lower case, its answer one word."""

    image: Path
    question: str
    answer: str
    image_id: int


def load(split: Split) -> list[Entry]:
    """All questions of a split, in the order of the data."""
    try:
        import easy_vqa
    except ImportError as error:
        raise ModuleNotFoundError("task easyvqa needs its data: pip install easy-vqa") from error
    if split == "train":
        paths, questions = easy_vqa.get_train_image_paths(), easy_vqa.get_train_questions()
    else:
        paths, questions = easy_vqa.get_test_image_paths(), easy_vqa.get_test_questions()
    return [
        Entry(Path(paths[image_id]), text, answer, image_id)
        for text, answer, image_id in zip(*questions, strict=True)
    ]


def spoken(answer: str) -> str:
    """An answer as the model gives it: Yes and No are capitalised."""
    return answer.capitalize() if answer in ("yes", "no") else answer


def draw_easyvqa(brief: Brief) -> Drawing:
    """A picture of the train split, enlarged to the whole canvas.

    Half of them are mirrored: no answer changes, as no question tells left from right.
    """
    random = brief.random
    if brief.grid[0] != brief.grid[1]:
        raise ValueError(f"task easyvqa has square pictures, grid is {brief.grid}; give one like (8, 8)")
    entries = random.choice(_by_image("train"))
    with Image.open(entries[0].image) as file:
        picture = file.convert("RGB")
    if chance(random, 0.5):
        picture = ImageOps.mirror(picture)
    canvas = Canvas(random, brief.grid, (255, 255, 255))
    canvas.picture = picture.resize((canvas.width, canvas.height), Image.Resampling.BICUBIC)
    chosen = random.sample(entries, min(MAX_QUESTIONS, len(entries)))
    questions = [Question("easyvqa", entry.question, spoken(entry.answer)) for entry in chosen]
    return Drawing(canvases=[canvas], questions=questions)


@cache
def _by_image(split: Split) -> list[list[Entry]]:
    grouped: dict[int, list[Entry]] = {}
    for entry in load(split):
        grouped.setdefault(entry.image_id, []).append(entry)
    return [grouped[image_id] for image_id in sorted(grouped)]
