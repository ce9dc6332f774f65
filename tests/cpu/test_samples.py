"""The choice of sample pictures: every task, different kinds of questions, and what the files then say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from tapetum.evaluate import FIRST_SEEDS, Answer, draw_case, load_generator
from training.samples import MAX_BYTES, NUM_WRONG, RIGHT, choose, tasks_of


def answer(task: str, kind: str, *, seed: int | None = None, got: str = "") -> Answer:
    seed = FIRST_SEEDS[task] if seed is None else seed
    drawn = draw_case(load_generator(), task, seed)
    return Answer(
        task=task,
        kind=kind,
        seed=seed,
        question=drawn.question,
        expected=drawn.expected,
        got=got or drawn.expected,
    )


class Recalling:
    """Says to every question what was answered before."""

    def __init__(self, answers: list[Answer]) -> None:
        self.said = {one.question: one.got for one in answers}

    def chat(self, messages: list[dict], _: object) -> list[SimpleNamespace]:
        text = messages[0]["content"][-1]["text"]
        return [SimpleNamespace(outputs=[SimpleNamespace(text=self.said[text])])]


def test_twelve_right_pictures_are_of_six_tasks() -> None:
    assert len(RIGHT) == 12
    assert RIGHT[::2] == RIGHT[1::2] == ["text", "receipt", "table", "form", "chart", "shapes"]


def test_wrong_pictures_are_of_the_tasks_that_have_some() -> None:
    wrong = [answer("chart", "value"), answer("text", "read"), answer("table", "count")]
    assert tasks_of(wrong) == ["text", "chart", "text", "chart"]  # a count shows too little
    assert tasks_of([]) == []
    assert NUM_WRONG == 4


def test_rows_say_what_the_files_hold(tmp_path: Path) -> None:
    answers = [
        answer("receipt", "count"),
        answer("receipt", "price", seed=FIRST_SEEDS["receipt"] + 1),
        answer("shapes", "color", got="mauve"),
    ]
    rows = choose(Recalling(answers), answers, ["receipt", "receipt", "shapes"], tmp_path, "ok")
    assert [row["image"] for row in rows] == ["ok-01-receipt.jpg", "ok-02-shapes.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [row["image"] for row in rows]
    assert [row["correct"] for row in rows] == [True, False]
    assert "model_answer" not in rows[0] and rows[1]["model_answer"] == "mauve"
    for row in rows:
        path = tmp_path / str(row["image"])
        assert path.stat().st_size <= MAX_BYTES
        drawn = draw_case(load_generator(), str(row["task"]), int(str(row["seed"])))
        assert (drawn.question, drawn.expected) == (row["question"], row["expected"])
        with Image.open(path) as image:
            assert image.size == drawn.images[0].size
