"""Where the text of questions and answers is printed in a sample's pictures.

The trainer guides attention with it: to these cells the network should look. A cell is the number of a visual token,
counted over all pictures of the sample; NOWHERE where nothing is known.
"""

from __future__ import annotations

from typing import NamedTuple

from training.generator import Question, Sample
from training.generator.figures import SHAPES
from training.generator.labels import IGNORED, Labels

NOWHERE = -1

# Kinds of questions whose answers are printed in the picture.
PRINTED = frozenset(
    (
        "read",
        "line",
        "next",
        "word",
        "kind",
        "total",
        "price",
        "which",
        "store",
        "qty",
        "date",
        "tax",
        "row",
        "cell",
        "col",
        "title",
        "readrow",
        "field",
        "high",
        "low",
        "value",
        "max",
        "bycolor",
    )
)
_PLACED = ("color", "shape", "where")  # kinds about one figure of a scene

Offsets = list[tuple[int, int]]  # where tokens begin and end in their text


class Place(NamedTuple):
    """The cell of a character and its rank in the cell's reading order."""

    cell: int
    rank: int = IGNORED


class _Figure(NamedTuple):
    shape: str
    color: str
    cell: int
    x: float


class PrintedText:
    """All printed text of a sample in the order of printing, with the place of every character."""

    def __init__(self, sample: Sample, labels: list[Labels], grid: tuple[int, int]) -> None:
        self.text = ""
        self.places: list[Place] = []
        for number, (canvas, label) in enumerate(zip(sample.canvases, labels, strict=True)):
            first_cell = number * grid[0] * grid[1]
            for text, index in canvas.runs:
                self._append(text, index, label, first_cell)
        self.words: dict[str, list[int]] = {}  # word -> where it begins
        start = 0
        for word in self.text.split(" "):
            self.words.setdefault(word.rstrip(":"), []).append(start)
            start += len(word) + 1
        self.figures = _figures(sample, labels) if sample.task == "shapes" else []

    def _append(self, text: str, index: int, label: Labels, first_cell: int) -> None:
        self.text += text + " "
        for character in text + " ":
            if character == " ":
                self.places.append(Place(NOWHERE))
            else:
                cell = first_cell + label.character_cells[index]
                self.places.append(Place(cell, label.character_ranks[index]))
                index += 1

    def answer(self, question: Question, offsets: Offsets) -> list[Place]:
        """Where each token of an answer is to be seen; empty if unknown."""
        if self.figures and question.kind in _PLACED:
            return self._one_figure(question, len(offsets))
        if self.figures and question.kind == "desc":
            return self._figures_in_order(question.answer, offsets)
        if question.kind not in PRINTED:
            return []
        start = self._find(question.answer, takes_last=question.kind == "total")
        return [] if start is None else [self._token(question.answer, span, start) for span in offsets]

    def question(self, text: str, offsets: Offsets) -> list[int]:
        """For each token of a question, the cell that shows the same word or the figure it names."""
        cells = [NOWHERE] * len(offsets)
        for word in dict.fromkeys(piece.strip('?.,"') for piece in text.split(" ")):
            starts = self.words.get(word, [])
            first = text.find(word)
            if len(starts) == 1 and len(word) > 1:
                for number, (begin, _) in enumerate(offsets):
                    begin += begin < len(text) and text[begin] in ' "'
                    if first <= begin < first + len(word):
                        cells[number] = self.places[starts[0] + begin - first].cell
                continue
            named = [figure for figure in self.figures if word in figure[:2]]
            if len(named) == 1:
                for number, (begin, _) in enumerate(offsets):
                    if first - 1 <= begin < first + len(word):
                        cells[number] = named[0].cell
        return cells

    def _find(self, text: str, takes_last: bool) -> int | None:
        """Where a whole text is printed, if once only; of several the last, if wanted."""
        text, padded = text.replace("\n", " "), " " + self.text
        hits, at = [], padded.find(" " + text)
        while at >= 0:
            if padded[at + 1 + len(text)] in " :":
                hits.append(at)
            at = padded.find(" " + text, at + 1)
        return hits[-1] if len(hits) == 1 or (hits and takes_last) else None

    def _token(self, text: str, span: tuple[int, int], start: int) -> Place:
        begin, end = span
        while begin < end and text[begin] in " \n":
            begin += 1
        return self.places[start + begin] if begin < end else Place(NOWHERE)

    def _one_figure(self, question: Question, count: int) -> list[Place]:
        named = [
            figure
            for figure in self.figures
            if figure.shape in question.text or (question.kind != "color" and figure.color in question.text)
        ]
        return [Place(named[0].cell)] * count if len(named) == 1 else []

    def _figures_in_order(self, answer: str, offsets: Offsets) -> list[Place]:
        """A description names the figures from left to right: look at each until its shape is said."""
        across = sorted(self.figures, key=lambda figure: figure.x)
        places, said = [], 0
        for begin, end in offsets:
            places.append(Place(across[min(said, len(across) - 1)].cell))
            said += answer[begin:end].strip() in SHAPES
        return places


def _figures(sample: Sample, labels: list[Labels]) -> list[_Figure]:
    things = zip(sample.canvases[0].things, labels[0].thing_cells, strict=True)
    return [_Figure(thing.shape or "", thing.color, cell, thing.x) for thing, cell in things]
