"""Which questions are asked: the same for ever for a task, a number and a condition.

Owns seeds, the choice of a question about each sample, and the two tests that are no task of the generator: `absent`
(are things that are not there refused, and others not?) and `easyvqa`, the official test split of that package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from PIL import Image

from tapetum.core.errors import ConfigError, InvalidParameter
from tapetum.evaluation.conditions import CONDITIONS, damaged

TASKS = ("text", "form", "receipt", "table", "chart", "shapes")  # one picture, one question
ALL_TASKS = (*TASKS, "pair", "turns", "clip", "absent", "easyvqa")
# Where the seeds of each task of the generator begin. Training takes 60-bit numbers and all but never one of these.
FIRST_SEEDS = {task: 5_000_000 + 100_000 * i for i, task in enumerate((*TASKS, "pair", "turns", "clip"))}
FIRST_SEED_OF_ABSENT = 7_000_000
MAX_TRIES = 1_000  # seeds that a case of `absent` has, to find a question of its sort
_EASYVQA_SIZE = (224, 224)
_KINDS_OF_EASYVQA = {
    "yes": "yesno",
    "no": "yesno",
    "circle": "shape",
    "rectangle": "shape",
    "triangle": "shape",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One question about one sample: a picture, two pictures, or the frames of a clip; perhaps after earlier turns."""

    task: str
    kind: str  # of question
    seed: int
    question: str
    expected: str
    images: tuple[Image.Image, ...]
    before: tuple[tuple[str, str], ...] = ()  # questions and answers of earlier turns

    @property
    def messages(self) -> list[dict[str, object]]:
        """The conversation; pictures come with its first turn."""
        media: list[dict[str, object]] = [{"type": "image", "image": image} for image in self.images]
        if self.task == "clip":
            media = [{"type": "video", "video": list(self.images)}]
        first, *others = chain(*self.before, [self.question])
        messages: list[dict[str, object]] = [
            {"role": "user", "content": [*media, {"type": "text", "text": first}]}
        ]
        for index, text in enumerate(others):
            messages.append({"role": "user" if index % 2 else "assistant", "content": text})
        return messages


def draw_cases(
    tasks: Sequence[str], n: int, condition: str = "clean", fonts: str | Path | None = None
) -> Iterator[Case]:
    """`n` cases of each task, drawn as they are needed: one question at random about each sample.

    `fonts` is a folder with the faces that training held out, which the condition of that name draws with.
    """
    unknown = [task for task in tasks if task not in ALL_TASKS]
    if unknown or not tasks:
        names = ", ".join(unknown) or "nothing"
        raise InvalidParameter(f"--tasks names {names}, known are {', '.join(ALL_TASKS)}", param="tasks")
    if n < 1:
        raise InvalidParameter(f"--n is {n}, must be at least 1", param="n")
    if condition not in CONDITIONS:
        raise InvalidParameter(
            f"--condition names {condition}, known are {', '.join(CONDITIONS)}", param="condition"
        )
    generator = load_generator()
    faces = _load_faces(fonts) if condition == "fonts" else None
    streams = [
        _cases_of(generator, task, n, faces)
        for task in tasks
        if not (task == "easyvqa" and condition == "fonts")  # its pictures have no text
    ]
    return (_under(condition, number, case) for cases in streams for number, case in enumerate(cases))


def _cases_of(generator: ModuleType, task: str, n: int, faces: object) -> Iterator[Case]:
    if task == "easyvqa":
        return _draw_easyvqa(_load("training.generator.easyvqa"), n)
    if task == "absent":
        return (_draw_absent(generator, number, faces) for number in range(n))
    return (draw_case(generator, task, FIRST_SEEDS[task] + number, faces) for number in range(n))


def draw_case(generator: ModuleType, task: str, seed: int, faces: object = None) -> Case:
    """The case of a seed. Of the task of several turns it is one that has earlier turns."""
    sample = _sample(generator, task, seed, faces)
    questions = [asked for asked in sample.questions if task != "turns" or asked.before]
    return _case(task, seed, sample, Random(f"q{seed}").choice(questions))


def _sample(generator: ModuleType, task: str, seed: int, faces: object) -> Any:
    _, grid = generator.pick(seed, task)
    return generator.sample(seed, task, grid, faces=faces)


def _case(task: str, seed: int, sample: Any, asked: Any) -> Case:
    before: list[tuple[str, str]] = []
    earlier = asked.before
    while earlier:
        before.insert(0, (earlier.text, earlier.answer))
        earlier = earlier.before
    return Case(
        task=task,
        kind=asked.kind,
        seed=seed,
        question=asked.text,
        expected=asked.answer,
        images=tuple(sample.images),
        before=tuple(before),
    )


def _draw_absent(generator: ModuleType, number: int, faces: object) -> Case:
    """In turn a question about something absent and one about something present, of all tasks of one picture."""
    task, is_absent = TASKS[number // 2 % len(TASKS)], number % 2 == 0
    first = FIRST_SEED_OF_ABSENT + number * MAX_TRIES
    for seed in range(first, first + MAX_TRIES):
        sample = _sample(generator, task, seed, faces)
        questions = [asked for asked in sample.questions if (asked.kind == "neg") == is_absent]
        if questions:
            asked = Random(f"q{seed}").choice(questions)
            return Case(
                task="absent",
                kind="absent" if is_absent else "present",
                seed=seed,
                question=asked.text,
                expected=asked.answer,
                images=tuple(sample.images),
            )
    raise ConfigError(f"the generator asks for nothing absent in {MAX_TRIES} samples of task {task}")


def _draw_easyvqa(easyvqa: ModuleType, n: int) -> Iterator[Case]:
    """The first questions of the test split in a fixed shuffled order; pictures are enlarged to 8 x 8 visual tokens."""
    try:
        entries = easyvqa.load("test")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}; or name other --tasks") from error
    Random("easyvqa").shuffle(entries)
    return (
        Case(
            task="easyvqa",
            kind=_KINDS_OF_EASYVQA.get(entry.answer, "color"),
            seed=entry.image_id,
            question=entry.question,
            expected=easyvqa.spoken(entry.answer),
            images=(_enlarged(entry.image),),
        )
        for entry in entries[:n]
    )


def _enlarged(path: Path) -> Image.Image:
    with Image.open(path) as file:
        return file.convert("RGB").resize(_EASYVQA_SIZE, Image.Resampling.BICUBIC)


def _under(condition: str, number: int, case: Case) -> Case:
    if condition in ("clean", "fonts"):
        return case
    return replace(case, images=tuple(damaged(image, condition, number) for image in case.images))


def load_generator() -> ModuleType:
    """`training.generator` of the checkout that this package lies in."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "training" / "generator" / "__init__.py").is_file():
            break
    else:
        raise ConfigError(
            "evaluate draws its questions with training/generator, which the installed package does not hold; "
            "clone the repository and run `pip install -e .[train]` there"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return _load("training.generator")


def _load_faces(fonts: str | Path | None) -> object:
    if fonts is None:
        raise InvalidParameter(
            "--condition fonts needs --fonts FOLDER, where the held-out faces are", param="fonts"
        )
    module = _load("training.generator.fonts")
    try:
        return module.extra_faces(Path(fonts), module.HELD_OUT_FILES)
    except FileNotFoundError as error:
        raise InvalidParameter(f"--fonts: {error}", param="fonts") from error


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the generator cannot be loaded: {error}; run `pip install -e .[train]`"
        ) from error
