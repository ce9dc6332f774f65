"""A picture of a run: losses, what vision names rightly, how many answers of each task are right throughout.

python -m training.plot run/log.jsonl run.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_LOSSES = ("language", "characters", "patch_characters", "word", "row", "column", "match", "field", "look")
_SHARES = (
    "characters_right",
    "patch_characters_right",
    "word_right",
    "row_right",
    "column_right",
    "line_right",
)
Record = dict[str, object]


def plot(records: list[Record], path: Path) -> None:
    figure, (losses, vision, answers) = plt.subplots(3, 1, figsize=(9, 12), sharex=True)
    for name in _LOSSES:
        _curve(losses, records, name)
    losses.set(ylabel="loss", yscale="log", title="Losses")
    for name in (*_SHARES, "region_right", "shapes_right"):
        _curve(vision, records, name)
    vision.set(ylabel="share right", ylim=(0, 1), title="What the vision tower names")
    for task in sorted({name for record in records for name in _exact(record) if "/" not in name}):
        points = [
            (record["progress"], _exact(record)[task][0]) for record in records if task in _exact(record)
        ]
        answers.plot(*zip(*points, strict=True), label=task)
    answers.set(xlabel="part of the run", ylabel="share right", ylim=(0, 1), title="Answers right throughout")
    for axes in (losses, vision, answers):
        axes.legend(fontsize=7, ncol=3)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _curve(axes: Axes, records: list[Record], name: str) -> None:
    points = [(record["progress"], record[name]) for record in records if name in record]
    if points:
        axes.plot(*zip(*points, strict=True), label=name)


def _exact(record: Record) -> dict[str, tuple[float, int]]:
    exact = record["exact"]
    assert isinstance(exact, dict)
    return exact


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the log of a run.")
    parser.add_argument("log", type=Path, help="log.jsonl of a run")
    parser.add_argument("picture", type=Path, help="picture file to write, such as run.png")
    options = parser.parse_args()
    records = [json.loads(line) for line in options.log.read_text(encoding="utf-8").splitlines()]
    plot(records, options.picture)


if __name__ == "__main__":
    main()
