"""Where attention is taught to look: from tokens of questions and answers to what the pictures show of them.

A cell is the number of a visual token, counted over all pictures of a sample (over the pairs of frames of a clip).
SINK stands for a place that shows nothing: there a look goes for what is not in the pictures.
"""

from __future__ import annotations

from typing import NamedTuple

from training.generator import Question, Sample
from training.generator.brief import Spot
from training.generator.canvas import Run
from training.generator.figures import SHAPES
from training.generator.labels import IGNORED, Labels

SINK = -1
Offsets = list[tuple[int, int]]  # where tokens begin and end in their text
Cells = tuple[int, ...]


class Look(NamedTuple):
    """Cells to look at; `is_spread`: evenly at each. `rank`: which character of the cell is wanted."""

    cells: Cells
    is_spread: bool = False
    rank: int = IGNORED


class AnswerLooks(NamedTuple):
    """For each token of an answer: the whole of what it is read from, the very place; None where unknown."""

    field: list[Look | None]
    place: list[Look | None]


class Looks:
    """All spots of a sample with their cells."""

    def __init__(self, sample: Sample, labels: list[Labels], grid: tuple[int, int]) -> None:
        self.run_cells: dict[int, list[int]] = {}  # by id: of every character but spaces
        self.run_ranks: dict[int, list[int]] = {}
        self.thing_cells: dict[int, int] = {}
        size = grid[0] * grid[1]
        for number, (canvas, label) in enumerate(zip(sample.canvases, labels, strict=True)):
            first = (number // 2 if sample.task == "clip" else number) * size
            for run in canvas.runs:
                span = slice(run.first, run.first + len(run.text.replace(" ", "")))
                self.run_cells[id(run)] = [first + cell for cell in label.character_cells[span]]
                self.run_ranks[id(run)] = label.character_ranks[span]
            for thing, cell in zip(canvas.things, label.thing_cells, strict=True):
                self.thing_cells[id(thing)] = first + cell
            self.thing_cells[id(canvas)] = first + label.ground_cell

    def question(self, question: Question, text: str, offsets: Offsets) -> list[tuple[int, Look]]:
        """For the last token of each key phrase, where it is printed or drawn: (number of the token, look)."""
        found = []
        for phrase, spots in question.keys:
            begin = text.find(phrase)
            if begin < 0:
                continue
            end = begin + len(phrase)
            number = max(i for i, (first, _) in enumerate(offsets) if first < end)
            found.append((number, Look(self._cells(spots))))
        return found

    def answer(self, question: Question, offsets: Offsets) -> AnswerLooks:
        nothing: list[Look | None] = [None] * len(offsets)
        if question.how == "print":
            return self._printed(question, offsets)
        if question.how == "count":
            counted = dict.fromkeys((*self._cells(question.source, all_of=False), SINK))
            looks: list[Look | None] = [Look(tuple(counted), is_spread=True)]
            return AnswerLooks(looks * len(offsets), looks * len(offsets))
        if question.how == "look":
            if question.kind == "desc":
                looks = self._figures_in_order(question, offsets)
            else:
                looks = [Look(self._cells(question.source))] * len(offsets)
            return AnswerLooks(looks, looks)
        return AnswerLooks(nothing, nothing)

    def _cells(self, spots: tuple[Spot, ...], all_of: bool = True) -> Cells:
        cells = []
        for spot in spots:
            if isinstance(spot, Run):
                cells += self.run_cells[id(spot)] if all_of else self.run_cells[id(spot)][:1]
            else:
                cells.append(self.thing_cells[id(spot)])
        return tuple(dict.fromkeys(cells)) or (SINK,)

    def _printed(self, question: Question, offsets: Offsets) -> AnswerLooks:
        places = self._characters(question)
        field: list[Look | None] = []
        place: list[Look | None] = []
        for begin, end in offsets:
            while begin < end and question.answer[begin] in " \n":
                begin += 1
            seen = [places[i] for i in range(begin, end)]
            if not seen:  # the white space between two words: look ahead to what comes next
                seen = [places[end]]
            run = seen[0][0]
            field.append(Look(tuple(dict.fromkeys(self.run_cells[id(run)]))))
            cells = tuple(dict.fromkeys(cell for _, cell, _ in seen))
            place.append(Look(cells, rank=seen[0][2] if end - begin == 1 else IGNORED))
        return AnswerLooks(field, place)

    def _characters(self, question: Question) -> dict[int, tuple[Run, int, int]]:
        """Of every printed character of an answer, by its place in it: run, cell, rank."""
        found: dict[int, tuple[Run, int, int]] = {}
        at = 0
        for run in question.source:
            assert isinstance(run, Run)
            if question.answer[at : at + len(run.text)] != run.text:
                raise ValueError(f"the answer {question.answer!r} does not spell {run.text!r} at {at}")
            number = 0
            for i, character in enumerate(run.text):
                if character != " ":
                    cell, rank = self.run_cells[id(run)][number], self.run_ranks[id(run)][number]
                    found[at + i] = (run, cell, rank)
                    number += 1
            at += len(run.text) + 1
        return found

    def _figures_in_order(self, question: Question, offsets: Offsets) -> list[Look | None]:
        """A description names one figure after another: look at each until its shape is said."""
        looks: list[Look | None] = []
        said = 0
        for begin, end in offsets:
            spot = question.source[min(said, len(question.source) - 1)]
            looks.append(Look(self._cells((spot,))))
            said += question.answer[begin:end].strip() in SHAPES
        return looks
