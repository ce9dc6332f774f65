"""Choose sample pictures: some that a model answers rightly, of every task, and a few that it does not.

    python -m training.samples --model DIRECTORY --out samples --n 110

writes small picture files and samples.json. Each is asked again from its file, since a JPEG may change the answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from PIL import Image

from tapetum.assets import MODEL_DIR
from tapetum.engine.llm import LLM
from tapetum.evaluate import SAMPLING, TASKS, Answer, draw_cases, evaluate
from training.generator import make

MAX_PNG_BYTES = 24_000  # noisy pictures above this become JPEG
MAX_BYTES = 34_000
RIGHT = "text text receipt receipt table table form chart chart shapes shapes shapes"
WRONG = "text table chart shapes"
# Kinds of questions that show something: not yes or no, not how many.
TELLING = frozenset(
    (
        "read",
        "line",
        "word",
        "kind",
        "total",
        "price",
        "cell",
        "which",
        "field",
        "value",
        "high",
        "desc",
        "color",
        "shape",
        "store",
        "date",
        "where",
    )
)
Row = dict[str, object]


def choose(llm: LLM, answers: Sequence[Answer], tasks: Sequence[str], folder: Path, prefix: str) -> list[Row]:
    """One sample for each task named, kinds of questions as different as can be; files go to the folder."""
    rows: list[Row] = []
    used: set[tuple[str, str]] = set()
    for task in tasks:
        for answer in _candidates(answers, task, used):
            stem = folder / f"{prefix}-{len(rows) + 1:02d}-{task}"
            path = _save(make(answer.seed, task).images[0], stem)
            got = _ask(llm, path, answer.question)
            is_right = got.strip() == answer.expected
            if path.stat().st_size <= MAX_BYTES and is_right == answer.is_right:
                used.add((task, answer.kind))
                rows.append(_row(answer, path, got))
                break
            path.unlink()
    return rows


def _candidates(answers: Sequence[Answer], task: str, used: set[tuple[str, str]]) -> Iterator[Answer]:
    for answer in answers:
        if answer.task == task and answer.kind in TELLING and (task, answer.kind) not in used:
            yield answer


def _save(image: Image.Image, stem: Path) -> Path:
    path = stem.with_suffix(".png")
    image.save(path, optimize=True)
    if path.stat().st_size > MAX_PNG_BYTES:
        path.unlink()
        path = stem.with_suffix(".jpg")
        image.save(path, quality=85)
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
        rows = choose(llm, right, RIGHT.split(), options.out, "ok")
        rows += choose(llm, wrong, WRONG.split(), options.out, "wrong")
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    (options.out / "samples.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
