"""How often a model is right: greedy answers to questions of the generator in `training/`, compared to the letter.

Owns the choice of held-out questions, the scoring and the report. The questions are those of the bundled model's card,
so that its table can be compared line by line. The generator is part of a source checkout, not of the package.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from math import sqrt
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Protocol

import click
from PIL import Image
from tqdm import tqdm

from tapetum.core.errors import ConfigError, InvalidParameter
from tapetum.core.request import SamplingParams

# Where the seeds of each task begin. Training takes 60-bit numbers and all but never one of these. Two tasks may share
# seeds: the card was measured in two halves of three tasks, and its questions are to be asked again.
FIRST_SEEDS = {
    "text": 5_000_000,
    "receipt": 5_001_000,
    "table": 5_002_000,
    "form": 5_000_000,
    "chart": 5_001_000,
    "shapes": 5_002_000,
    "pair": 5_003_000,
    "clip": 5_004_000,
}
TASKS = ("text", "receipt", "table", "form", "chart", "shapes")  # those of the card
SAMPLING = SamplingParams(temperature=0.0, max_tokens=96)
BATCH_SIZE = 64  # questions handed to the model at once; bounds the pictures in memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One question about one sample: a picture, two pictures, or the frames of a clip."""

    task: str
    kind: str  # of question
    seed: int
    question: str
    expected: str
    images: tuple[Image.Image, ...]

    @property
    def messages(self) -> list[dict[str, object]]:
        if self.task == "clip":
            media: list[dict[str, object]] = [{"type": "video", "video": list(self.images)}]
        else:
            media = [{"type": "image", "image": image} for image in self.images]
        return [{"role": "user", "content": [*media, {"type": "text", "text": self.question}]}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model said to a case."""

    task: str
    kind: str
    seed: int
    question: str
    expected: str
    got: str

    @property
    def is_right(self) -> bool:
        return self.got.strip() == self.expected


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of how many were right."""

    right: int
    total: int

    @property
    def share(self) -> float:
        return self.right / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval after Wilson (1927), which holds for few questions and for shares near 0 and 1."""
        if not self.total:
            return 0.0, 1.0
        z, n, p = 1.96, self.total, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class Report:
    answers: tuple[Answer, ...]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(answer.task for answer in self.answers))

    def kinds(self, task: str) -> list[str]:
        return sorted({answer.kind for answer in self.answers if answer.task == task})

    def rate(self, task: str, kind: str | None = None) -> Rate:
        """Of a task, or of one kind of question in it."""
        found = [a.is_right for a in self.answers if a.task == task and kind in (None, a.kind)]
        return Rate(sum(found), len(found))

    def table(self) -> str:
        lines = ["task      exact   95 % interval      n  kinds of questions: exact in % (n)"]
        for task in self.tasks:
            rate = self.rate(task)
            low, high = rate.interval
            kinds = [(kind, self.rate(task, kind)) for kind in self.kinds(task)]
            detail = ", ".join(f"{kind} {100 * one.share:.0f} ({one.total})" for kind, one in kinds)
            numbers = f"{100 * rate.share:5.1f} %   {100 * low:4.1f} to {100 * high:5.1f} %  {rate.total:5d}"
            lines.append(f"{task:8s} {numbers}  {detail}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        tasks = {}
        for task in self.tasks:
            kinds = {kind: _rate_json(self.rate(task, kind)) for kind in self.kinds(task)}
            tasks[task] = {**_rate_json(self.rate(task)), "kinds": kinds}
        return {"tasks": tasks, "wrong": [asdict(answer) for answer in self.answers if not answer.is_right]}


def _rate_json(rate: Rate) -> dict[str, object]:
    return {"exact": round(rate.share, 4), "interval": [round(x, 4) for x in rate.interval], "n": rate.total}


class _Completion(Protocol):
    @property
    def text(self) -> str: ...


class _Output(Protocol):
    @property
    def outputs(self) -> Sequence[_Completion]: ...


class ChatModel(Protocol):
    """The part of `LLM` that an evaluation needs."""

    def chat(
        self, messages: object, sampling_params: SamplingParams, *, use_tqdm: bool | None = None
    ) -> Sequence[_Output]: ...


def run(
    model: str | None = None,
    n: int = 100,
    tasks: Sequence[str] = TASKS,
    dtype: str = "auto",
    json_path: str | Path | None = None,
) -> Report:
    """Evaluate a model by name, print the table and, where wanted, write the figures and the wrong answers."""
    from tapetum.engine.llm import LLM

    cases = draw_cases(tasks, n)  # complains about tasks and checkout before a model is loaded
    with LLM(model, dtype=dtype) as llm:
        report = evaluate(llm, cases, total=n * len(tasks))
        settings = {"model": model or "tapetum-mini", "dtype": llm.facts.dtype}
    click.echo(report.table())
    if json_path:
        content = json.dumps(settings | report.as_json(), indent=1, ensure_ascii=False)
        Path(json_path).write_text(content + "\n", encoding="utf-8")
    return report


def evaluate(llm: ChatModel, cases: Iterable[Case], *, total: int | None = None) -> Report:
    """Ask every case and score the answers; `total` is for the progress bar."""
    answers: list[Answer] = []
    cases = iter(cases)
    with tqdm(total=total, unit="question") as bar:
        while batch := list(islice(cases, BATCH_SIZE)):
            outputs = llm.chat([case.messages for case in batch], SAMPLING, use_tqdm=False)
            answers += [score(case, out.outputs[0].text) for case, out in zip(batch, outputs, strict=True)]
            bar.update(len(batch))
    return Report(tuple(answers))


def score(case: Case, got: str) -> Answer:
    return Answer(
        task=case.task,
        kind=case.kind,
        seed=case.seed,
        question=case.question,
        expected=case.expected,
        got=got,
    )


def draw_cases(tasks: Sequence[str], n: int) -> Iterator[Case]:
    """`n` cases of each task, drawn as they are needed: one question at random about each sample."""
    unknown = [task for task in tasks if task not in FIRST_SEEDS]
    if unknown or not tasks:
        names = ", ".join(unknown) or "nothing"
        raise InvalidParameter(f"--tasks names {names}, known are {', '.join(FIRST_SEEDS)}", param="tasks")
    if n < 1:
        raise InvalidParameter(f"--n is {n}, must be at least 1", param="n")
    generator = load_generator()
    return (draw_case(generator, task, FIRST_SEEDS[task] + i) for task in tasks for i in range(n))


def draw_case(generator: ModuleType, task: str, seed: int) -> Case:
    sample = generator.make(seed, task)
    kind, question, expected = Random(f"q{seed}").choice(sample.questions)
    return Case(
        task=task,
        kind=kind,
        seed=seed,
        question=question,
        expected=expected,
        images=tuple(sample.images),
    )


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
    try:
        return importlib.import_module("training.generator")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the generator cannot be loaded: {error}; run `pip install -e .[train]`"
        ) from error
