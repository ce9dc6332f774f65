"""`tapetum evaluate`: the right questions, honest scoring, and the answers of transformers.

Oracles: the samples recorded with the bundled model, its card, and transformers through `training.evaluate_reference`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from tapetum import LLM, SamplingParams, evaluate
from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.core.errors import ConfigError, InvalidParameter
from tapetum.evaluate import Case, Rate, draw_case, draw_cases, load_generator, score
from training.evaluate_reference import Reference

SAMPLES = json.loads((SAMPLES_DIR / "samples.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", threads=1) as model:
        yield model


@dataclass
class Completion:
    text: str


@dataclass
class Output:
    outputs: list[Completion]


class FakeLLM:
    """Answers from a table of questions; keeps what it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.batches: list[list[list[dict]]] = []
        self.samplings: list[SamplingParams] = []

    def chat(
        self, messages: list[list[dict]], sampling_params: SamplingParams, *, use_tqdm: bool | None = None
    ) -> Sequence[Output]:
        self.batches.append(messages)
        self.samplings.append(sampling_params)
        texts = [one[0]["content"][-1]["text"] for one in messages]
        return [Output([Completion(self.answers[text])]) for text in texts]


def case(task: str, kind: str, question: str, expected: str = "yes") -> Case:
    return Case(
        task=task,
        kind=kind,
        seed=0,
        question=question,
        expected=expected,
        images=(Image.new("RGB", (28, 28)),) * (2 if task in ("pair", "clip") else 1),
    )


def test_rates_count_right_answers_by_task_and_kind() -> None:
    cases = [
        case("text", "read", "a"),
        case("text", "read", "b"),
        case("text", "word", "c"),
        case("form", "field", "d"),
    ]
    model = FakeLLM({"a": "yes", "b": "no", "c": " yes\n", "d": "Yes"})
    report = evaluate.evaluate(model, cases)
    assert report.tasks == ["text", "form"]
    assert report.rate("text") == Rate(2, 3)
    assert report.rate("text", "read") == Rate(1, 2)
    assert report.rate("text", "word") == Rate(1, 1)  # space around an answer does not count
    assert report.rate("form") == Rate(0, 1)  # case does
    text_line, form_line = report.table().splitlines()[1:]
    assert "66.7 %" in text_line and "read 50 (2), word 100 (1)" in text_line
    assert "0.0 %" in form_line and "field 0 (1)" in form_line
    content = report.as_json()
    assert content["tasks"]["text"]["exact"] == 0.6667
    assert content["tasks"]["text"]["kinds"]["read"]["n"] == 2
    assert [(wrong["question"], wrong["got"]) for wrong in content["wrong"]] == [("b", "no"), ("d", "Yes")]


def test_questions_go_out_in_batches_greedy_with_the_pictures_first() -> None:
    count = evaluate.BATCH_SIZE + 3
    cases = [case("text", "read", str(i)) for i in range(count)]
    cases += [case("pair", "same", "two"), case("clip", "shape", "frames")]
    model = FakeLLM({one.question: "yes" for one in cases})
    report = evaluate.evaluate(model, iter(cases))
    assert len(report.answers) == len(cases)
    assert [len(batch) for batch in model.batches] == [evaluate.BATCH_SIZE, 5]
    assert all(sampling.temperature == 0 and sampling.max_tokens == 96 for sampling in model.samplings)
    single, pair, clip = ([part["type"] for part in batch[0]["content"]] for batch in model.batches[1][-3:])
    assert single == ["image", "text"]
    assert pair == ["image", "image", "text"]
    assert clip == ["video", "text"]
    assert len(model.batches[1][-1][0]["content"][0]["video"]) == 2


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (106, 300, 0.3014, 0.4090)],
)
def test_intervals_are_those_of_wilson(right: int, total: int, low: float, high: float) -> None:
    assert Rate(right, total).interval == pytest.approx((low, high), abs=2e-4)


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample["image"] for sample in SAMPLES])
def test_seeds_give_the_questions_of_the_recorded_samples(sample: dict) -> None:
    drawn = draw_case(load_generator(), sample["task"], sample["seed"])
    assert (drawn.question, drawn.expected) == (sample["question"], sample["expected"])


@pytest.mark.parametrize("task", ["form", "chart"])
def test_questions_are_those_that_the_card_counts(task: str) -> None:
    card = (MODEL_DIR / "MODEL_CARD.md").read_text(encoding="utf-8")
    row = re.findall(rf"^\| {task} \| (\S+ \d+ \(.*) \|$", card, flags=re.MULTILINE)[0]
    counts = {kind: int(count) for kind, count in re.findall(r"(\w+) \d+ \((\d+)\)", row)}
    assert sum(counts.values()) == 300
    assert Counter(one.kind for one in draw_cases([task], 300)) == counts


def test_tasks_and_numbers_are_checked_before_anything_is_drawn() -> None:
    with pytest.raises(InvalidParameter, match=r"poems.*known are text, receipt"):
        draw_cases(["text", "poems"], 10)
    with pytest.raises(InvalidParameter, match="nothing"):
        draw_cases([], 10)
    with pytest.raises(InvalidParameter, match="--n is 0"):
        draw_cases(["text"], 0)


def test_without_a_checkout_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evaluate, "__file__", str(tmp_path / "tapetum" / "evaluate.py"))
    with pytest.raises(ConfigError, match="clone the repository"):
        draw_cases(["text"], 1)


def test_the_engine_answers_as_transformers_does(llm: LLM) -> None:
    cases = list(draw_cases(["text", "receipt", "shapes", "pair", "clip"], 3))
    report = evaluate.evaluate(llm, cases)
    reference = Reference(MODEL_DIR)
    for one, answer in zip(cases, report.answers, strict=True):
        shown = {"video": one.images} if one.task == "clip" else {"images": one.images}
        assert answer == score(one, reference.ask(one.question, **shown))


def test_the_bundled_model_answers_its_samples_as_recorded(llm: LLM) -> None:
    conversations = [
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": SAMPLES_DIR / sample["image"]},
                    {"type": "text", "text": sample["question"]},
                ],
            }
        ]
        for sample in SAMPLES
    ]
    outputs = llm.chat(conversations, evaluate.SAMPLING)
    for sample, output in zip(SAMPLES, outputs, strict=True):
        wanted = sample["expected"] if sample["correct"] else sample["model_answer"]
        assert output.outputs[0].text == wanted, sample["image"]


def test_run_prints_a_table_and_writes_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    report = evaluate.run(None, 2, ["shapes"], "float32", path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["model"] == "tapetum-mini" and content["dtype"] == "float32"
    assert content["tasks"]["shapes"]["n"] == 2 == len(report.answers)
    assert report.table() in capsys.readouterr().out
