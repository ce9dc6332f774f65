"""How often a model is right: greedy answers to questions of the generator in `training/`, compared to the letter.

Owns asking in batches and what is printed and written; `tapetum.evaluation` owns the questions and the scoring. The
questions are those of the bundled model's card, so that its table can be compared line by line. The generator is part
of a source checkout, not of the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import exp
from pathlib import Path
from typing import Protocol

import click
from tqdm import tqdm

from tapetum.core.request import SamplingParams
from tapetum.evaluation.cases import (
    ALL_TASKS,
    FIRST_SEEDS,
    TASKS,
    Case,
    draw_case,
    draw_cases,
    load_generator,
)
from tapetum.evaluation.report import Answer, Rate, Report, side_by_side

__all__ = [
    "ALL_TASKS",
    "BATCH_SIZE",
    "FIRST_SEEDS",
    "SAMPLING",
    "TASKS",
    "Answer",
    "Case",
    "Rate",
    "Report",
    "draw_case",
    "draw_cases",
    "evaluate",
    "load_generator",
    "run",
    "score",
]

SAMPLING = SamplingParams(temperature=0.0, max_tokens=96, logprobs=0)
BATCH_SIZE = 256  # questions handed to the model at once; bounds the pictures in memory


class _Logprob(Protocol):
    @property
    def logprob(self) -> float: ...


class _Completion(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[Mapping[int, _Logprob]] | None: ...


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
    tasks: Sequence[str] = ALL_TASKS,
    dtype: str = "auto",
    json_path: str | Path | None = None,
    conditions: Sequence[str] = ("clean",),
    fonts: str | Path | None = None,
) -> dict[str, Report]:
    """Evaluate a model by name under each condition, print the tables and, where wanted, write the figures."""
    from tapetum.engine.llm import LLM

    # Complains about tasks, conditions and checkout before a model is loaded.
    drawn = {condition: draw_cases(tasks, n, condition, fonts) for condition in conditions}
    reports: dict[str, Report] = {}
    with LLM(model, dtype=dtype) as llm:
        settings = {"model": model or "tapetum-mini", "dtype": llm.facts.dtype, "device": llm.facts.device}
        for condition, cases in drawn.items():
            reports[condition] = evaluate(llm, cases, total=n * len(tasks))
            click.echo(f"{condition}\n{reports[condition].table()}\n")
    if len(reports) > 1:
        click.echo(side_by_side(reports))
    if json_path:
        figures = {condition: report.as_json() for condition, report in reports.items()}
        content = json.dumps(settings | {"conditions": figures}, indent=1, ensure_ascii=False)
        Path(json_path).write_text(content + "\n", encoding="utf-8")
    return reports


def evaluate(llm: ChatModel, cases: Iterable[Case], *, total: int | None = None) -> Report:
    """Ask every case and score the answers; `total` is for the progress bar."""
    answers: list[Answer] = []
    cases = iter(cases)
    with tqdm(total=total, unit="question") as bar:
        while batch := list(islice(cases, BATCH_SIZE)):
            outputs = llm.chat([case.messages for case in batch], SAMPLING, use_tqdm=False)
            for case, output in zip(batch, outputs, strict=True):
                said = output.outputs[0]
                answers.append(score(case, said.text, _confidence(said)))
            bar.update(len(batch))
    return Report(tuple(answers))


def score(case: Case, got: str, confidence: float | None = None) -> Answer:
    return Answer(
        task=case.task,
        kind=case.kind,
        seed=case.seed,
        question=case.question,
        expected=case.expected,
        got=got,
        confidence=confidence,
    )


def _confidence(said: _Completion) -> float | None:
    """The geometric mean of the probabilities of the tokens, the one that ends the answer among them."""
    if not said.logprobs:
        return None
    logprobs = [row[token_id].logprob for token_id, row in zip(said.token_ids, said.logprobs, strict=True)]
    return exp(sum(logprobs) / len(logprobs))
