"""What was answered, how often that was right, and whether the model knew it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt

REFUSAL = "There is no "  # how answers about something absent begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model said to a case. `confidence` is the mean probability of its tokens, where known."""

    task: str
    kind: str
    seed: int
    question: str
    expected: str
    got: str
    confidence: float | None = field(default=None, compare=False)

    @property
    def is_right(self) -> bool:
        """To the letter; but of things present it only counts that they are not denied, and foreign tests tell
        nothing about capitals."""
        got = self.got.strip()
        if self.task == "absent" and self.kind == "present":
            return not got.startswith(REFUSAL)
        if self.task == "easyvqa":
            return got.casefold() == self.expected.casefold()
        return got == self.expected


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

    def confidences(self, *, of_right: bool) -> list[float]:
        """Of all answers that are right, or of all that are wrong."""
        return [
            answer.confidence
            for answer in self.answers
            if answer.confidence is not None and answer.is_right == of_right
        ]

    @property
    def auroc(self) -> float | None:
        """How well confidence tells right answers from wrong ones; None where all are alike."""
        return auroc(self.confidences(of_right=True), self.confidences(of_right=False))

    def table(self) -> str:
        lines = ["task      exact   95 % interval      n  kinds of questions: exact in % (n)"]
        for task in self.tasks:
            rate = self.rate(task)
            low, high = rate.interval
            kinds = [(kind, self.rate(task, kind)) for kind in self.kinds(task)]
            detail = ", ".join(f"{kind} {100 * one.share:.0f} ({one.total})" for kind, one in kinds)
            numbers = f"{100 * rate.share:5.1f} %   {100 * low:4.1f} to {100 * high:5.1f} %  {rate.total:5d}"
            lines.append(f"{task:8s} {numbers}  {detail}")
        if self.auroc is not None:
            lines.append(f"mean token probability, right against wrong answers: AUROC {self.auroc:.3f}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        tasks = {}
        for task in self.tasks:
            kinds = {kind: _rate_json(self.rate(task, kind)) for kind in self.kinds(task)}
            tasks[task] = {**_rate_json(self.rate(task)), "kinds": kinds}
        confidences = {
            name: [round(value, 5) for value in self.confidences(of_right=name == "right")]
            for name in ("right", "wrong")
        }
        wrong = [asdict(answer) for answer in self.answers if not answer.is_right]
        return {"tasks": tasks, "auroc": self.auroc, "confidences": confidences, "wrong": wrong}


def _rate_json(rate: Rate) -> dict[str, object]:
    return {"exact": round(rate.share, 4), "interval": [round(x, 4) for x in rate.interval], "n": rate.total}


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """The share of pairs of a right and a wrong answer where the right one is surer; a tie is half a pair.

    Mann and Whitney (1947), by the sum of ranks.
    """
    if not right or not wrong:
        return None
    pooled = sorted([*((value, True) for value in right), *((value, False) for value in wrong)])
    rank_sum, start = 0.0, 0
    while start < len(pooled):
        end = start
        while end < len(pooled) and pooled[end][0] == pooled[start][0]:
            end += 1
        middle_rank = (start + 1 + end) / 2  # ranks from 1; equal values share the mean of theirs
        rank_sum += middle_rank * sum(is_right for _, is_right in pooled[start:end])
        start = end
    return (rank_sum - len(right) * (len(right) + 1) / 2) / (len(right) * len(wrong))


def side_by_side(reports: Mapping[str, Report]) -> str:
    """One line for each task, one column for each condition: exact answers in %."""
    lines = ["task     " + " ".join(f"{condition:>7s}" for condition in reports) + "   exact answers in %"]
    for task in dict.fromkeys(task for report in reports.values() for task in report.tasks):
        rates = [report.rate(task) for report in reports.values()]
        lines.append(
            f"{task:8s} " + " ".join(f"{100 * r.share:7.1f}" if r.total else f"{'–':>7s}" for r in rates)
        )
    return "\n".join(lines)
