"""`tapetum evaluate`: the right questions, honest scoring, and the answers of transformers.

Oracles: the samples recorded with the bundled model, and transformers through `training.evaluate_reference`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tapetum import LLM, SamplingParams, evaluate
from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.core.errors import ConfigError, InvalidParameter
from tapetum.evaluate import Case, Rate, draw_case, draw_cases, load_generator, score
from tapetum.evaluation import cases
from tapetum.evaluation.conditions import border_color, damaged
from tapetum.evaluation.report import auroc, side_by_side
from training.evaluate_reference import Reference

SAMPLES = json.loads((SAMPLES_DIR / "samples.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", threads=1) as model:
        yield model


@dataclass
class Logprob:
    logprob: float


@dataclass
class Completion:
    text: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[Mapping[int, Logprob]] | None = None


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


def case(task: str, kind: str, question: str, expected: str = "yes", **options: object) -> Case:
    return Case(
        task=task,
        kind=kind,
        seed=0,
        question=question,
        expected=expected,
        images=(Image.new("RGB", (28, 28)),) * (2 if task in ("pair", "clip") else 1),
        **options,
    )


def test_rates_count_right_answers_by_task_and_kind() -> None:
    asked = [
        case("text", "read", "a"),
        case("text", "read", "b"),
        case("text", "word", "c"),
        case("form", "field", "d"),
    ]
    model = FakeLLM({"a": "yes", "b": "no", "c": " yes\n", "d": "Yes"})
    report = evaluate.evaluate(model, asked)
    assert report.tasks == ["text", "form"]
    assert report.rate("text") == Rate(2, 3)
    assert report.rate("text", "read") == Rate(1, 2)
    assert report.rate("text", "word") == Rate(1, 1)  # space around an answer does not count
    assert report.rate("form") == Rate(0, 1)  # case does
    text_line, form_line = report.table().splitlines()[1:]
    assert report.auroc is None  # this model does not say how sure it is
    assert "66.7 %" in text_line and "read 50 (2), word 100 (1)" in text_line
    assert "0.0 %" in form_line and "field 0 (1)" in form_line
    content = report.as_json()
    assert content["tasks"]["text"]["exact"] == 0.6667
    assert content["tasks"]["text"]["kinds"]["read"]["n"] == 2
    assert [(wrong["question"], wrong["got"]) for wrong in content["wrong"]] == [("b", "no"), ("d", "Yes")]


def test_questions_go_out_in_batches_greedy_with_the_pictures_first() -> None:
    count = evaluate.BATCH_SIZE + 3
    asked = [case("text", "read", str(i)) for i in range(count)]
    asked += [case("pair", "same", "two"), case("clip", "shape", "frames")]
    model = FakeLLM({one.question: "yes" for one in asked})
    report = evaluate.evaluate(model, iter(asked))
    assert len(report.answers) == len(asked)
    assert [len(batch) for batch in model.batches] == [evaluate.BATCH_SIZE, 5]
    assert all(sampling.temperature == 0 and sampling.max_tokens == 96 for sampling in model.samplings)
    single, pair, clip = ([part["type"] for part in batch[0]["content"]] for batch in model.batches[1][-3:])
    assert single == ["image", "text"]
    assert pair == ["image", "image", "text"]
    assert clip == ["video", "text"]
    assert len(model.batches[1][-1][0]["content"][0]["video"]) == 2


def test_earlier_turns_stand_before_the_question_and_pictures_before_them() -> None:
    talk = case("turns", "which", "And then?", before=(("What?", "This."), ("Why?", "So.")))
    assert [message["role"] for message in talk.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    first, *others = [message["content"] for message in talk.messages]
    assert [part["type"] for part in first] == ["image", "text"] and first[1]["text"] == "What?"
    assert others == ["This.", "Why?", "So.", "And then?"]


def test_absent_things_must_be_refused_and_present_ones_not() -> None:
    absent = case("absent", "absent", "How much is Tea?", "There is no Tea.")
    present = case("absent", "present", "How much is Jam?", "3.50")
    assert score(absent, "There is no Tea.").is_right
    assert not score(absent, "There is no Jam.").is_right
    assert not score(absent, "3.50").is_right
    assert score(present, "3.60").is_right  # whether it is read rightly is asked elsewhere
    assert not score(present, "There is no Jam.").is_right


def test_only_the_foreign_test_is_lax_about_capitals() -> None:
    assert score(case("easyvqa", "yesno", "is there a circle?", "Yes"), "yes").is_right
    assert not score(case("shapes", "yesno", "Is there a circle?", "Yes"), "yes").is_right


def test_confidence_is_the_mean_probability_of_the_tokens() -> None:
    said = {
        "sure": Completion("yes", (7, 2), [{7: Logprob(log(0.9))}, {9: Logprob(-9.0), 2: Logprob(log(0.4))}]),
        "unsure": Completion("no", (8,), [{8: Logprob(log(0.5))}]),
    }
    asked = [case("text", "read", question) for question in said]
    model = SimpleNamespace(chat=lambda *_, **__: [Output([one]) for one in said.values()])
    report = evaluate.evaluate(model, asked)
    assert [answer.confidence for answer in report.answers] == pytest.approx([exp(log(0.36) / 2), 0.5])
    assert report.auroc == 1.0
    assert "AUROC 1.000" in report.table()
    assert report.as_json()["confidences"] == {"right": [0.6], "wrong": [0.5]}


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ([0.9, 0.8], [0.1], 1.0),
        ([0.1], [0.9, 0.8], 0.0),
        ([0.5, 0.5], [0.5], 0.5),
        ([0.9, 0.5, 0.2], [0.5, 0.1], 4.5 / 6),
        ([], [0.5], None),
        ([0.5], [], None),
    ],
)
def test_auroc_counts_pairs_in_order_and_half_of_ties(
    right: list[float], wrong: list[float], expected: float | None
) -> None:
    assert auroc(right, wrong) == (expected if expected is None else pytest.approx(expected))


def test_auroc_is_that_of_all_pairs() -> None:
    random = np.random.default_rng(3)
    right, wrong = random.integers(0, 20, 83).tolist(), random.integers(0, 15, 41).tolist()
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in right for b in wrong]
    assert auroc(right, wrong) == pytest.approx(sum(pairs) / len(pairs))


def test_conditions_stand_side_by_side() -> None:
    good, bad = (
        evaluate.evaluate(FakeLLM({"a": said}), [case("text", "read", "a")]) for said in ("yes", "no")
    )
    lines = side_by_side({"clean": good, "blur": bad, "fonts": evaluate.Report(())}).splitlines()
    assert lines[0].split()[:4] == ["task", "clean", "blur", "fonts"]
    assert lines[1].split() == ["text", "100.0", "0.0", "–"]


def test_each_condition_damages_pictures_in_its_own_way() -> None:
    picture = Image.new("RGB", (112, 84), (250, 240, 200))
    ImageDraw.Draw(picture).rectangle((0, 40, 111, 43), fill=(0, 0, 0))
    assert border_color(picture) == (250, 240, 200)
    for name in ("clean", "fonts"):
        assert damaged(picture, name, 0) is picture
    for name in ("jpeg", "blur"):
        assert damaged(picture, name, 0).size == picture.size
        assert damaged(picture, name, 0).tobytes() == damaged(picture, name, 1).tobytes() != picture.tobytes()
    left, right = (damaged(picture, "rotate", number) for number in (0, 1))
    assert left.width > 112 and left.height > 84  # nothing is cut off
    assert left.getpixel((0, 0)) == right.getpixel((0, 0)) == (250, 240, 200)
    dark_at_left = [int(np.asarray(image.convert("L"))[:, 6].argmin()) for image in (left, right)]
    assert dark_at_left[0] > dark_at_left[1] + 3  # turned to the left, its left end goes down


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


@pytest.mark.parametrize("task", evaluate.FIRST_SEEDS)
def test_every_task_of_the_generator_is_asked_the_same_for_ever(task: str) -> None:
    first, again = ([(c.seed, c.question, c.expected, c.before) for c in draw_cases([task], 3)] for _ in "12")
    assert first == again
    assert [seed for seed, *_ in first] == [evaluate.FIRST_SEEDS[task] + i for i in range(3)]
    assert all(bool(before) == (task == "turns") for *_, before in first)


def test_half_of_the_questions_about_absence_are_about_something_present() -> None:
    found = list(draw_cases(["absent"], 12))
    assert Counter(one.kind for one in found) == {"absent": 6, "present": 6}
    for one in found:
        assert one.expected.startswith("There is no ") == (one.kind == "absent"), one.question
    assert [one.question for one in draw_cases(["absent"], 4)] == [one.question for one in found[:4]]


def test_the_foreign_test_is_its_test_split_in_a_fixed_order() -> None:
    easy_vqa = pytest.importorskip("easy_vqa")
    known = set(zip(*easy_vqa.get_test_questions(), strict=True))
    found = list(draw_cases(["easyvqa"], 40))
    for one in found:
        assert (one.question, one.expected.lower(), one.seed) in known
        assert [image.size for image in one.images] == [(224, 224)]
    assert len({one.seed for one in found}) > 30
    assert {one.kind for one in found} == {"yesno", "shape", "color"}
    assert [one.question for one in draw_cases(["easyvqa"], 5)] == [one.question for one in found[:5]]


def test_conditions_change_pictures_but_not_questions() -> None:
    (clean,) = draw_cases(["form"], 1)
    for condition in ("jpeg", "blur", "rotate"):
        (other,) = draw_cases(["form"], 1, condition)
        assert (other.question, other.expected) == (clean.question, clean.expected)
        assert other.images[0].tobytes() != clean.images[0].tobytes()


def test_unseen_fonts_are_those_of_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from training.generator import fonts

    with pytest.raises(InvalidParameter, match="needs --fonts"):
        draw_cases(["text"], 1, "fonts")
    with pytest.raises(InvalidParameter, match=r"--fonts: .*holds no"):
        draw_cases(["text"], 1, "fonts", tmp_path)
    source = Path(fonts.default_faces()[0].path).parent / "DejaVuSerif.ttf"
    (tmp_path / "Serif.ttf").write_bytes(source.read_bytes())
    monkeypatch.setattr(fonts, "HELD_OUT_FILES", {"Serif.ttf": 1})
    (clean,), (other,) = draw_cases(["text"], 1), draw_cases(["text"], 1, "fonts", tmp_path)
    assert clean.images[0].tobytes() != other.images[0].tobytes()
    assert list(draw_cases(["easyvqa"], 3, "fonts", tmp_path)) == []


def test_tasks_and_numbers_are_checked_before_anything_is_drawn() -> None:
    with pytest.raises(InvalidParameter, match=r"poems.*known are text, form"):
        draw_cases(["text", "poems"], 10)
    with pytest.raises(InvalidParameter, match="nothing"):
        draw_cases([], 10)
    with pytest.raises(InvalidParameter, match="--n is 0"):
        draw_cases(["text"], 0)
    with pytest.raises(InvalidParameter, match="--condition names fog"):
        draw_cases(["text"], 1, "fog")


def test_without_a_checkout_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cases, "__file__", str(tmp_path / "tapetum" / "evaluation" / "cases.py"))
    with pytest.raises(ConfigError, match="clone the repository"):
        draw_cases(["text"], 1)


def test_the_engine_answers_as_transformers_does(llm: LLM) -> None:
    asked = list(draw_cases(["text", "receipt", "shapes", "pair", "turns", "clip"], 3))
    report = evaluate.evaluate(llm, asked)
    reference = Reference(MODEL_DIR)
    for one, answer in zip(asked, report.answers, strict=True):
        assert answer == score(one, reference.ask(one))
        assert answer.confidence is not None and 0 < answer.confidence <= 1


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


def test_run_prints_tables_and_writes_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    reports = evaluate.run(None, 2, ["shapes"], "float32", path, ["clean", "jpeg"])
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["model"], content["dtype"], content["device"]) == ("tapetum-mini", "float32", "cpu")
    assert list(content["conditions"]) == list(reports) == ["clean", "jpeg"]
    assert content["conditions"]["jpeg"]["tasks"]["shapes"]["n"] == 2 == len(reports["jpeg"].answers)
    out = capsys.readouterr().out
    assert all(report.table() in out for report in reports.values())
    assert side_by_side(reports) in out
