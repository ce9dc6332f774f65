"""Choose sample pictures: some that a model answers rightly, of every task, and a few that it does not.

    python -m training.samples --model DIRECTORY --out samples --n 110

writes small picture files and samples.json. Each is asked again from its file, since a JPEG may change the answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random

from PIL import Image

from tapetum.assets import MODEL_DIR
from tapetum.engine.llm import LLM
from tapetum.evaluate import SAMPLING, TASKS, Answer, draw_cases, evaluate
from training.generator import make

MAX_BYTES = 34_000
RIGHT = [task for task in ("text", "receipt", "table", "form", "chart", "shapes") for _ in range(2)]
NUM_WRONG = 4
DULL = frozenset(("yesno", "count", "neg", "type"))  # kinds of questions whose answers show little
JPEG_TASKS = frozenset(("receipt", "table"))  # what is photographed or scanned; the others are PNG
Row = dict[str, object]


def choose(llm: LLM, answers: Sequence[Answer], tasks: Sequence[str], folder: Path, prefix: str) -> list[Row]:
    """One sample for each task named, kinds of questions as different as can be; files go to the folder."""
    rows: list[Row] = []
    used: set[tuple[str, str]] = set()
    for task in tasks:
        for answer in _candidates(answers, task, used):
            stem = folder / f"{prefix}-{len(rows) + 1:02d}-{task}"
            path = _save(make(answer.seed, task).images[0], stem, task)
            got = _ask(llm, path, answer.question)
            is_right = got.strip() == answer.expected
            if path.stat().st_size <= MAX_BYTES and is_right == answer.is_right:
                used.add((task, answer.kind))
                rows.append(_row(answer, path, got))
                break
            path.unlink()
    return rows


def tasks_of(wrong: Sequence[Answer]) -> list[str]:
    """Which tasks the wrong pictures are of: those with wrong answers, and these again where they are few."""
    found = [
        task for task in TASKS if any(answer.task == task and answer.kind not in DULL for answer in wrong)
    ]
    return list(islice(cycle(found), NUM_WRONG))


def _candidates(answers: Sequence[Answer], task: str, used: set[tuple[str, str]]) -> Iterator[Answer]:
    for answer in answers:
        if answer.task == task and answer.kind not in DULL and (task, answer.kind) not in used:
            yield answer


def _save(image: Image.Image, stem: Path, task: str) -> Path:
    if task in JPEG_TASKS:
        path = stem.with_suffix(".jpg")
        image.save(path, quality=85)
    else:
        path = stem.with_suffix(".png")
        image.save(path, optimize=True)
    return path


def _ask(llm: LLM, path: Path, question: str) -> str:
    content = [{"type": "image", "image": path}, {"type": "text", "text": question}]
    return llm.chat([{"role": "user", "content": content}], SAMPLING)[0].outputs[0].text


def _row(answer: Answer, path: Path, got: str) -> Row:
    row: Row = {
        "image": path.name,
        "question": answer.question,
        "expected": answer.expected,
        "task": answer.task,
        "seed": answer.seed,
        "correct": answer.is_right,
    }
    return row if answer.is_right else row | {"model_answer": got}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write sample pictures that a model answers, and some it does not."
    )
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--n", type=int, default=110, help="questions of each task to choose from")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with LLM(options.model, dtype="float32") as llm:
        report = evaluate(llm, draw_cases(TASKS, options.n), total=options.n * len(TASKS))
        answers = Random(5).sample(report.answers, len(report.answers))
        right, wrong = ([a for a in answers if a.is_right is wanted] for wanted in (True, False))
        rows = choose(llm, right, RIGHT, options.out, "ok")
        rows += choose(llm, wrong, tasks_of(wrong), options.out, "wrong")
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (options.out / "samples.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
