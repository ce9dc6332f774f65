"""The accuracy tables of the model card, from reports of `tapetum evaluate --json`: its figures are the evaluator's.

    python -m training.card REPORT.json... --out MODEL_CARD.md

replaces what stands between the lines `<!-- accuracy -->` and `<!-- /accuracy -->`. Reports add up: each may hold other
conditions or other tasks, of the same model; a task that two of them hold under one condition is an error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from tapetum.evaluation.report import auroc

START, END = "<!-- accuracy -->", "<!-- /accuracy -->"
MUSTS = {
    "text": 0.80,
    "form": 0.80,
    "receipt": 0.80,
    "table": 0.75,
    "chart": 0.70,
    "shapes": 0.90,
    "pair": 0.70,
    "turns": 0.70,
    "clip": 0.60,
    "absent": 0.80,
    "easyvqa": 0.95,
}
MAX_DROP = 8.0  # points, under each condition
LEAST_AUROC = 0.75
ASKED = {
    "text": "lines of text",
    "form": "forms and tickets",
    "receipt": "receipts",
    "table": "tables",
    "chart": "bar charts",
    "shapes": "scenes of shapes",
    "pair": "two pictures",
    "turns": "a question after earlier turns",
    "clip": "short clips",
    "absent": "absent things refused, present things not refused",
    "easyvqa": "test split of easy-vqa, made by others; capitals do not count",
}
CONDITIONS = {
    "jpeg": "JPEG quality 40",
    "blur": "blur of radius 0.8",
    "rotate": "turned by 3°",
    "fonts": "unseen fonts",
}
_Figures = dict[str, Any]  # of a task, as in a report


@dataclass(slots=True)
class Measured:
    """What all reports say of one condition."""

    tasks: dict[str, _Figures] = field(default_factory=dict)
    right: list[float] = field(default_factory=list)  # confidences of right answers
    wrong: list[float] = field(default_factory=list)

    def add(self, condition: str, report: Mapping[str, Any]) -> None:
        twice = self.tasks.keys() & report["tasks"].keys()
        if twice:
            raise ValueError(
                f"two reports hold {', '.join(sorted(twice))} under condition {condition}; give one"
            )
        self.tasks |= report["tasks"]
        self.right += report["confidences"]["right"]
        self.wrong += report["confidences"]["wrong"]

    def rows(self) -> list[tuple[str, _Figures]]:
        """Tasks in the order of the card."""
        known = [task for task in MUSTS if task in self.tasks]
        return [(task, self.tasks[task]) for task in [*known, *sorted(self.tasks.keys() - set(known))]]


def merge(reports: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, Measured]]:
    """How it was measured, and the figures of each condition."""
    settings: set[str] = set()
    conditions: dict[str, Measured] = {}
    for report in reports:
        settings.add(f"{report['dtype']} on {report['device']}")
        for condition, content in report["conditions"].items():
            conditions.setdefault(condition, Measured()).add(condition, content)
    if "clean" not in conditions:
        raise ValueError("no report holds condition clean, which the card compares the others with")
    return " and ".join(sorted(settings)), conditions


def accuracy(reports: Iterable[Mapping[str, Any]]) -> str:
    """All tables, as Markdown."""
    settings, conditions = merge(reports)
    clean = conditions["clean"]
    parts = [
        f"Exact match of the whole answer, greedy, {settings}; one question to a sample, intervals after Wilson.",
        _table(["task", "what is asked", "exact match", "95 % interval", "n", "must"], _task_rows(clean)),
        "By kind of question, exact match in % (number of questions):",
        _table(["task", "kinds"], _kind_rows(clean)),
    ]
    if len(conditions) > 1:
        parts += [
            "Damaged pictures and unseen fonts, exact match in % "
            f"(must: at most {MAX_DROP:g} points lower than clean), {_sizes(conditions)} questions to a task:",
            _condition_table(conditions),
            *_drops(conditions),
        ]
    return "\n\n".join([*parts, *_confidence_lines(conditions)])


def _task_rows(clean: Measured) -> Iterator[list[str]]:
    for task, figures in clean.rows():
        low, high = (f"{100 * bound:.1f}" for bound in figures["interval"])
        must, verdict = MUSTS.get(task), "–"
        if must is not None:
            verdict = f"{100 * must:.0f} %: {'met' if figures['exact'] >= must else 'missed'}"
        exact = f"{100 * figures['exact']:.1f} %"
        yield [task, ASKED.get(task, task), exact, f"{low} to {high}", str(figures["n"]), verdict]


def _kind_rows(clean: Measured) -> Iterator[list[str]]:
    for task, figures in clean.rows():
        kinds = [f"{kind} {100 * one['exact']:.0f} ({one['n']})" for kind, one in figures["kinds"].items()]
        yield [task, ", ".join(kinds)]


def _condition_table(conditions: Mapping[str, Measured]) -> str:
    others = [name for name in CONDITIONS if name in conditions]
    rows = []
    for task, figures in conditions["clean"].rows():
        found = [conditions[name].tasks.get(task) for name in others]
        cells = [f"{100 * one['exact']:.1f}" if one else "–" for one in (figures, *found)]
        rows.append([task, *cells])
    return _table(["task", "clean", *(CONDITIONS[name] for name in others)], rows)


def _sizes(conditions: Mapping[str, Measured]) -> str:
    """How many questions the tasks of the conditions have, other than clean."""
    found = {one["n"] for name in CONDITIONS if name in conditions for one in conditions[name].tasks.values()}
    return " or ".join(str(n) for n in sorted(found))


def _drops(conditions: Mapping[str, Measured]) -> Iterator[str]:
    """How much lower each condition is, over all tasks and at worst."""
    clean = conditions["clean"].tasks
    lines = []
    for name, what in CONDITIONS.items():
        tasks = conditions[name].tasks if name in conditions else {}
        drops = {
            task: 100 * (clean[task]["exact"] - one["exact"]) for task, one in tasks.items() if task in clean
        }
        if drops:
            worst = max(drops, key=lambda task: drops[task])
            average = mean(drops.values())
            met = "met" if drops[worst] <= MAX_DROP else "met on average" if average <= MAX_DROP else "missed"
            lines.append(
                f"- {what}: {average:.1f} points lower on average, at most {drops[worst]:.1f} ({worst}): {met}"
            )
    if lines:
        yield "\n".join(lines)


def _confidence_lines(conditions: Mapping[str, Measured]) -> Iterator[str]:
    """Only of clean pictures: that is what the must is about."""
    clean = conditions["clean"]
    value = auroc(clean.right, clean.wrong)
    if value is not None:
        met = "met" if value >= LEAST_AUROC else "missed"
        yield (
            f"The mean token probability of an answer tells right from wrong with AUROC {value:.3f}, over "
            f"{len(clean.right) + len(clean.wrong)} answers (must: {LEAST_AUROC}: {met})."
        )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def filled(card: str, text: str) -> str:
    """The card with the text between its markers."""
    before, start, rest = card.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the card lacks the lines {START} and {END}, between which its tables go")
    return f"{before}{START}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill the accuracy tables of a model card.")
    parser.add_argument("reports", type=Path, nargs="+", help="written by tapetum evaluate --json")
    parser.add_argument("--out", type=Path, required=True, help="the card to fill")
    options = parser.parse_args()
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in options.reports]
    try:
        card = filled(options.out.read_text(encoding="utf-8"), accuracy(reports))
    except ValueError as error:
        parser.error(str(error))
    options.out.write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
