"""The generator: seeds keep their questions and pictures, and what it says of a picture is what the picture shows.

Oracles: digests of the samples that the bundled model was made and measured with, and the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests import golden_seeds
from training.generator import EXTRA_TASKS, GRIDS, MAX_CELLS, TASKS, Question, draw, make, sample
from training.generator.brief import Brief
from training.generator.canvas import CELL, FLAGS, Run, Thing
from training.generator.figures import SHAPES
from training.generator.fonts import HELD_OUT_FILES, MIN_TYPE, TRAINING_FILES, default_faces, extra_faces
from training.generator.labels import (
    CHARACTER_ID,
    IGNORED,
    MAX_LINES,
    MAX_ORDER,
    MAX_PLACES,
    NO_WORD,
    NUM_SHARES,
    NUM_TRAITS,
    label,
    word_ids,
)
from training.generator.palette import COLOR_NAMES, COLORS
from training.generator.vocabulary import known_words

GREY_TOLERANCE = 6
PRINTED = [task for task in (*TASKS, "page") if task not in ("shapes", "clip")]
SEEDS = range(3, 43)


def grids_of(task: str) -> list[tuple[int, int]]:
    return [grid for grid in GRIDS if (TASKS | EXTRA_TASKS)[task].fits(grid)]


def turns_of(questions: list[Question]) -> Iterator[Question]:
    """All questions, earlier turns among them."""
    for question in questions:
        if question.before:
            yield question.before
        yield question


@pytest.mark.parametrize(("task", "seed", "size", "digest", "grey"), golden_seeds.GOLDEN)
def test_seeds_keep_their_questions_and_pictures(
    task: str, seed: int, size: tuple[int, int], digest: str, grey: str
) -> None:
    drawn = make(seed, task)
    assert golden_seeds.digest(drawn) == digest
    assert drawn.images[-1].size == size
    wanted = np.frombuffer(bytes.fromhex(grey), np.uint8).astype(int)
    assert np.abs(golden_seeds.grey(drawn.images[-1]).astype(int) - wanted).max() <= GREY_TOLERANCE


def test_every_task_has_golden_seeds() -> None:
    assert {row[0] for row in golden_seeds.GOLDEN} == set(TASKS)


@pytest.mark.parametrize("task", ["clip", "turns"])
def test_a_sample_is_the_same_however_many_were_drawn_before(task: str) -> None:
    first = make(5, task)
    make(6)
    again = make(5, task)
    told = [[(q.text, q.answer) for q in turns_of(one.questions)] for one in (first, again)]
    assert told[0] == told[1]
    assert [image.tobytes() for image in first.images] == [image.tobytes() for image in again.images]


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_that_is_printed_spells_what_it_is_read_from(task: str) -> None:
    counts = dict.fromkeys(("print", "look", "count"), 0)
    for seed in SEEDS:
        drawing = draw(seed, task, Random(seed).choice(grids_of(task)))
        assert drawing.questions or task == "turns"
        for question in turns_of(drawing.questions):
            runs = [spot.text for spot in question.source if isinstance(spot, Run)]
            if question.how == "print":
                assert question.answer.split() == " ".join(runs).split(), question.text
                assert len(runs) == len(question.source)
                counts["print"] += 1
            elif question.how == "count" and question.answer.isdigit():
                assert question.answer == str(len(question.source)), question.text
                counts["count"] += 1
            elif question.how == "look":
                is_absent = question.answer == "No" or question.answer.startswith("There is no ")
                assert question.source or is_absent, question.text
                counts["look"] += 1
    assert counts["look"] > 10
    assert counts["print"] > 10 or task in ("shapes", "clip", "chart", "pair")


@pytest.mark.parametrize("task", TASKS)
def test_a_question_names_what_its_keys_say_and_shows_it_in_its_pictures(task: str) -> None:
    for seed in SEEDS:
        drawing = draw(seed, task, Random(seed).choice(grids_of(task)))
        spots = {id(spot) for canvas in drawing.canvases for spot in (canvas, *canvas.runs, *canvas.things)}
        texts = [question.text for question in drawing.questions]
        assert len(texts) == len(set(texts)), "a question is asked once"
        for question in turns_of(drawing.questions):
            assert question.answer.strip() == question.answer != ""
            assert all(phrase in question.text for phrase, _ in question.keys), question
            shown = [*question.source, *(spot for _, found in question.keys for spot in found)]
            assert {id(spot) for spot in shown} <= spots, question


def test_what_is_refused_is_not_printed() -> None:
    num_refused = 0
    for seed in SEEDS:
        for task in ("text", "receipt", "table", "form", "chart"):
            drawing = draw(seed, task, (10, 8))
            printed = " ".join(run.text for canvas in drawing.canvases for run in canvas.runs).lower().split()
            for question in drawing.questions:
                if question.kind != "neg" or not question.keys:
                    continue
                missing = [phrase for phrase, found in question.keys if not found]
                assert question.answer.startswith("There is no ") and missing
                assert not any(phrase.lower() in printed for phrase in missing), question
                num_refused += 1
    assert num_refused > 50


@pytest.mark.parametrize("level", [0.3, 1.0])
@pytest.mark.parametrize("task", PRINTED)
def test_no_print_is_smaller_than_can_be_read_nor_outside(task: str, level: float) -> None:
    assert MIN_TYPE == 24
    num_runs = 0
    for grid in grids_of(task):
        for canvas in draw(f"{grid}", task, grid, level=level).canvases:
            for run in canvas.runs:
                assert run.size >= MIN_TYPE, run.text
                assert run.x >= -1 and run.end <= canvas.width + 1, run.text
                assert run.y >= -2 and run.y + run.size <= canvas.height + 2, run.text
                num_runs += 1
    assert num_runs > 10


@pytest.mark.parametrize("task", TASKS)
def test_pictures_have_about_the_size_that_was_asked_for(task: str) -> None:
    for seed in SEEDS[:10]:
        drawn = make(seed, task)
        for image, canvas in zip(drawn.images, drawn.canvases, strict=True):
            width, height = canvas.grid
            assert width * height <= MAX_CELLS
            assert abs(image.width - width * CELL) <= 12 and abs(image.height - height * CELL) <= 12


def test_labels_say_which_character_stands_where() -> None:
    drawn = sample(3, "page", (8, 6))
    canvas, labels = drawn.canvases[0], label(drawn.canvases[0])
    assert len(canvas.characters) > 20
    for character, cell, rank in zip(
        canvas.characters, labels.character_cells, labels.character_ranks, strict=True
    ):
        if rank < MAX_ORDER:
            assert labels.order[cell, rank] == CHARACTER_ID[character.text]


@pytest.mark.parametrize("task", ["text", "receipt", "table", "form"])
def test_labels_say_of_which_word_row_and_column_a_cell_is(task: str) -> None:
    """Wherever all characters of a cell belong to one run of one word."""
    numbers, num_cells, num_labelled = word_ids(), 0, 0
    for seed in SEEDS[:12]:
        drawn = sample(seed, task, (10, 8))
        canvas, labels = drawn.canvases[0], label(drawn.canvases[0])
        has_lines = any(run.line or run.place for run in canvas.runs)  # a lone word has no place
        runs_of: dict[int, set[int]] = {}
        for number, run in enumerate(canvas.runs):
            count = len(run.text.replace(" ", ""))
            for cell in labels.character_cells[run.first : run.first + count]:
                runs_of.setdefault(cell, set()).add(number)
        for cell, found in runs_of.items():
            run = canvas.runs[min(found)]
            if len(found) > 1 or " " in run.text:
                continue
            assert labels.word[cell] == numbers.get(run.text.rstrip(":"), IGNORED)
            assert labels.line[cell] == (min(run.line, MAX_LINES - 1) if has_lines else IGNORED)
            assert labels.place[cell] == (min(run.place, MAX_PLACES - 1) if has_lines else IGNORED)
            for other, given in ((run.row, labels.row[cell]), (run.column, labels.column[cell])):
                if other is None:
                    assert given == NO_WORD
                else:
                    words = [numbers.get(word.rstrip(":")) for word in other.text.split()]
                    assert given == next((word for word in words if word is not None), IGNORED)
                    num_labelled += given >= 0
            num_cells += 1
    assert num_cells > 100
    assert num_labelled > 30 or task == "text"


def test_labels_say_how_long_the_bar_of_a_cell_is_and_which_is_the_highest() -> None:
    for seed in range(12):
        canvas = draw(seed, "chart", (12, 10)).canvases[0]
        labels = label(canvas)
        lengths = {}
        for thing, cell in zip(canvas.things, labels.thing_cells, strict=True):
            lengths[cell] = (round(thing.box[2] - thing.box[0]), round(thing.box[3] - thing.box[1]))
            assert thing.label is not None and thing.share == thing.label.share
        is_lying = len({height for _, height in lengths.values()}) == 1
        by_length = sorted(lengths, key=lambda cell: lengths[cell][0 if is_lying else 1])
        assert labels.flags[by_length[-1], FLAGS.index("highest")] == 1
        assert labels.flags[by_length[0], FLAGS.index("lowest")] == 1
        assert labels.share[by_length[-1]] == NUM_SHARES - 1
        shares = [labels.share[cell] for cell in by_length]
        assert shares == sorted(shares) and min(shares) >= 0


def test_labels_say_which_shape_of_which_colour_has_its_middle_in_a_cell() -> None:
    for seed in SEEDS[:12]:
        drawn = sample(seed, "shapes", (8, 6))
        canvas, labels = drawn.canvases[0], label(drawn.canvases[0])
        assert canvas.things
        for thing, cell in zip(canvas.things, labels.thing_cells, strict=True):
            middles = labels.traits[cell, NUM_TRAITS:]
            assert middles[SHAPES.index(str(thing.shape))] == 1
            assert middles[len(SHAPES) + COLOR_NAMES.index(thing.color)] == 1
        assert labels.traits[:, NUM_TRAITS:].sum() <= 2 * len(canvas.things)


def test_labels_name_the_colour_of_a_cell_that_shows_the_ground_alone() -> None:
    named = 0
    for seed in range(20):
        drawn = sample(seed, "shapes", (8, 6))
        canvas, labels = drawn.canvases[0], label(drawn.canvases[0])
        if canvas.ground_name is None:
            assert labels.ground_color == IGNORED
            continue
        named += 1
        picture = np.asarray(drawn.images[0].convert("RGB").resize((8 * CELL, 6 * CELL)), np.float32)
        row, column = divmod(labels.ground_cell, 8)
        cell = picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL].mean((0, 1))
        distances = {name: np.abs(cell - color).sum() for name, color in COLORS.items()}
        assert min(distances, key=distances.__getitem__) == COLOR_NAMES[labels.ground_color]
    assert named > 10


def test_labelled_cells_hold_ink_and_blank_cells_do_not() -> None:
    drawn = sample(2, "table", (10, 8))
    labels = label(drawn.canvases[0])
    image = drawn.images[0].convert("L").resize((10 * CELL, 8 * CELL))
    contrast = np.asarray(image, np.float32).reshape(8, CELL, 10, CELL).std(axis=(1, 3)).ravel()
    has_text = labels.order[:, 0] > 0
    assert has_text.sum() >= 10
    assert np.median(contrast[has_text]) > 3 * np.median(contrast[~has_text])


@pytest.mark.parametrize("direction", ["left", "right", "up", "down"])
def test_what_moves_in_a_clip_moves_as_the_answer_says(direction: str) -> None:
    axis, sign = {"left": ("x", -1), "right": ("x", 1), "up": ("y", -1), "down": ("y", 1)}[direction]
    found = [
        drawing for seed in range(60) if (drawing := draw(seed, "clip", (6, 6))) and _says(drawing, direction)
    ]
    assert len(found) > 5
    for drawing in found:
        movers: list[Thing] = [canvas.things[-1] for canvas in drawing.canvases]
        steps = np.diff([sign * getattr(thing, axis) for thing in movers])
        assert (steps > 0).all()
        for rest in zip(*(canvas.things[:-1] for canvas in drawing.canvases), strict=True):
            assert len({(thing.x, thing.y, thing.color) for thing in rest}) == 1


def _says(drawing: object, direction: str) -> bool:
    return any(q.kind == "direction" and q.answer == direction for q in drawing.questions)  # type: ignore[attr-defined]


def test_a_second_turn_follows_another_question_about_the_same_picture() -> None:
    kinds = set()
    for seed in SEEDS:
        drawing = draw(seed, "turns", (10, 8))
        for question in drawing.questions:
            assert question.before is not None and question.before.before is None
            assert question.text != question.before.text
            if question.text.startswith(("And ", "What about ")):
                (phrase, _), *_ = question.keys
                assert phrase in question.text
                kinds.add(question.how)
    assert kinds == {"print", "look"}


def test_every_known_word_is_short_enough_for_large_print() -> None:
    words = known_words()
    assert len(words) == len(set(words)) == NO_WORD
    assert max(map(len, words)) <= 9 and all(word.isalnum() for word in words)


def test_faces_that_are_held_out_are_no_training_faces(tmp_path: Path) -> None:
    training = {*TRAINING_FILES, *(Path(face.path).name for face in default_faces())}
    assert len(HELD_OUT_FILES) >= 3 and not training & set(HELD_OUT_FILES)
    families = {name.split("-")[0] for name in training}
    assert not families & {name.split("-")[0].split(".")[0] for name in HELD_OUT_FILES}
    for name in (*TRAINING_FILES, *HELD_OUT_FILES):
        (tmp_path / name).touch()
    assert {Path(face.path).name for face in extra_faces(tmp_path)} == set(TRAINING_FILES)
    assert {Path(face.path).name for face in extra_faces(tmp_path, HELD_OUT_FILES)} == set(HELD_OUT_FILES)
    (tmp_path / "Roboto-Bold.ttf").unlink()
    with pytest.raises(FileNotFoundError, match=r"Roboto-Bold\.ttf"):
        extra_faces(tmp_path)


def test_pictures_of_the_foreign_test_are_no_training_pictures() -> None:
    pytest.importorskip("easy_vqa")
    from training.generator.easyvqa import load

    splits = [{entry.image for entry in load(split)} for split in ("train", "test")]
    train, test = ({path.read_bytes() for path in paths} for paths in splits)
    assert len(train) > 3000 and len(test) > 500 and not train & test


def test_foreign_pictures_are_those_of_the_training_split() -> None:
    pytest.importorskip("easy_vqa")
    from training.generator.easyvqa import load, spoken

    known = {(entry.question, spoken(entry.answer)) for entry in load("train")}
    for seed in range(10):
        drawn = sample(seed, "easyvqa", (8, 8))
        assert 0 < len(drawn.questions) <= 8
        assert {(question.text, question.answer) for question in drawn.questions} <= known
        assert abs(drawn.images[0].width - 8 * CELL) <= 12
    with pytest.raises(ValueError, match=r"square pictures, grid is \(8, 6\)"):
        EXTRA_TASKS["easyvqa"].draw(Brief(random=Random(1), grid=(8, 6), level=1.0, faces=default_faces()))
