"""Training targets of a finished canvas: what each visual token shows and what that belongs to.

Shapes: h, w grid of visual tokens; a token has 2 x 6 slots for characters, in rows. -100 marks what must not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import cos, sin

import numpy as np

from training.generator.canvas import CELL, FLAGS, Canvas, Run, Thing
from training.generator.figures import SHAPES
from training.generator.palette import COLOR_NAMES
from training.generator.vocabulary import known_words

SLOTS_X, SLOTS_Y = 6, 2
SLOTS = SLOTS_X * SLOTS_Y
MAX_ORDER = 6  # characters of a token that are taught in reading order
CHARACTERS = "".join(chr(code) for code in range(33, 127)) + "€£"
CHARACTER_ID = {character: i + 1 for i, character in enumerate(CHARACTERS)}
NUM_CHARACTERS = len(CHARACTERS) + 1  # with 0 for a blank
NUM_TRAITS = len(SHAPES) + len(COLOR_NAMES)
MAX_ORDINAL, MAX_LINES, MAX_PLACES = 16, 16, 6
NUM_REGIONS = 9  # thirds of the picture, row by row
NUM_SHARES = 12  # steps of a bar's length, the longest is 1
IGNORED = -100
_BORDER = 0.03  # things as near to the border of a third belong to neither

Projection = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Arrays over the tokens of the grid; then the tokens of the characters, runs and things of the canvas."""

    characters: np.ndarray  # int64 [h * w, SLOTS]
    traits: (
        np.ndarray
    )  # float32 [h * w, 2 * NUM_TRAITS]: shapes and colours that cover it; whose middle it holds
    flags: np.ndarray  # float32 [h * w, len(FLAGS)]
    order: np.ndarray  # int64 [h * w, MAX_ORDER]: its characters in reading order
    word: np.ndarray  # int64 [h * w]: number of the known word that most of it shows
    row: np.ndarray  # int64 [h * w]: number of the known word that labels this, NO_WORD = none
    column: np.ndarray  # int64 [h * w]: the same of the header
    ordinal: np.ndarray  # int64 [h * w]: number of its first character in the word
    line: np.ndarray  # int64 [h * w]
    place: np.ndarray  # int64 [h * w]
    region: np.ndarray  # int64 [h * w]: which third of the picture holds the middle of the thing
    share: np.ndarray  # int64 [h * w]: length of the bar that it is the middle, label or value of
    character_cells: list[int]
    character_ranks: list[int]  # place of each character in the reading order of its token
    thing_cells: list[int]
    ground_cell: int  # one that shows nothing but the ground
    ground_color: int  # IGNORED where it has no name


@cache
def word_ids() -> dict[str, int]:
    return {word: i for i, word in enumerate(known_words())}


NO_WORD = len(known_words())


def label(canvas: Canvas) -> Labels:
    project = _projection(canvas)
    points = [project(character.x, character.y) for character in canvas.characters]
    cells = [_cell(canvas.grid, x, y) for x, y in points]
    order, ranks = _reading_order(canvas, points, cells)
    runs = _RunLabels(canvas, cells, ranks)
    things = _ThingLabels(canvas, project)
    flags = runs.flags + things.flags
    return Labels(
        characters=_slots(canvas, points),
        traits=things.traits,
        flags=np.minimum(flags, 1),
        order=order,
        word=runs.arrays["word"],
        row=np.where(things.row >= 0, things.row, runs.arrays["row"]),
        column=runs.arrays["column"],
        ordinal=runs.arrays["ordinal"],
        line=runs.arrays["line"],
        place=runs.arrays["place"],
        region=things.region,
        share=np.where(things.share >= 0, things.share, runs.arrays["share"]),
        character_cells=cells,
        character_ranks=ranks,
        thing_cells=things.cells,
        ground_cell=int(things.traits.any(1).argmin()),
        ground_color=COLOR_NAMES.index(canvas.ground_name) if canvas.ground_name else IGNORED,
    )


def _projection(canvas: Canvas) -> Projection:
    """From pixels as drawn to pixels of the rotated picture, resized to whole tokens."""
    scale_x, scale_y = canvas.grid[0] * CELL / canvas.width, canvas.grid[1] * CELL / canvas.height
    c, s = cos(canvas.angle), sin(canvas.angle)
    middle_x, middle_y = canvas.width / 2, canvas.height / 2

    def project(x: float, y: float) -> tuple[float, float]:
        right, down = x - middle_x, y - middle_y
        return (middle_x + right * c + down * s) * scale_x, (middle_y - right * s + down * c) * scale_y

    return project


def _column_and_row(grid: tuple[int, int], x: float, y: float) -> tuple[int, int]:
    return min(grid[0] - 1, max(0, int(x / CELL))), min(grid[1] - 1, max(0, int(y / CELL)))


def _cell(grid: tuple[int, int], x: float, y: float) -> int:
    column, row = _column_and_row(grid, x, y)
    return row * grid[0] + column


def _slots(canvas: Canvas, points: list[tuple[float, float]]) -> np.ndarray:
    width, height = canvas.grid
    slots = np.zeros((height * SLOTS_Y, width * SLOTS_X), np.int64)
    taken: set[tuple[int, int]] = set()
    for character, (x, y) in zip(canvas.characters, points, strict=True):
        slot_x, slot_y = x * SLOTS_X / CELL, y * SLOTS_Y / CELL
        i, j = int(slot_y), int(slot_x)
        if not _is_inside(slots, i, j):
            continue
        is_free = slots[i, j] <= 0 and (i, j) not in taken
        slots[i, j] = CHARACTER_ID.get(character.text, 0) if is_free else IGNORED
        taken.add((i, j))
        # Just beside a border either slot would do.
        for a, b in ((i, _neighbour(j, slot_x - j, 0.25)), (_neighbour(i, slot_y - i, 0.2), j)):
            if _is_inside(slots, a, b) and slots[a, b] == 0:
                slots[a, b] = IGNORED
    by_token = slots.reshape(height, SLOTS_Y, width, SLOTS_X).transpose(0, 2, 1, 3)
    return by_token.reshape(height * width, SLOTS)


def _is_inside(slots: np.ndarray, i: int, j: int) -> bool:
    return 0 <= i < len(slots) and 0 <= j < len(slots[0])


def _neighbour(index: int, offset: float, margin: float) -> int:
    """The slot across the border that is nearer than `margin`, else the slot itself."""
    if offset < margin:
        return index - 1
    return index + 1 if offset > 1 - margin else index


def _reading_order(
    canvas: Canvas, points: list[tuple[float, float]], cells: list[int]
) -> tuple[np.ndarray, list[int]]:
    members: dict[int, list[tuple[int, float, int]]] = {}
    for number, ((x, y), cell) in enumerate(zip(points, cells, strict=True)):
        members.setdefault(cell, []).append((int(y * SLOTS_Y / CELL), x, number))
    order = np.zeros((canvas.grid[0] * canvas.grid[1], MAX_ORDER), np.int64)
    ranks = [0] * len(points)
    for cell, found in members.items():
        for rank, (_, _, number) in enumerate(sorted(found)):
            ranks[number] = min(rank, MAX_ORDER)
            if rank < MAX_ORDER:
                order[cell, rank] = CHARACTER_ID.get(canvas.characters[number].text, 0)
    return order, ranks


@dataclass(frozen=True, slots=True)
class _Letter:
    """A character with the word it stands in and its number there."""

    run: Run
    word: str
    ordinal: int
    rank: int  # in the reading order of its token


class _RunLabels:
    """What a token shows of the runs: of several words the one that has most characters in it."""

    def __init__(self, canvas: Canvas, cells: list[int], ranks: list[int]) -> None:
        size = canvas.grid[0] * canvas.grid[1]
        names = ("word", "row", "column", "ordinal", "line", "place", "share")
        self.arrays = {name: np.full(size, IGNORED, np.int64) for name in names}
        self.flags = np.zeros((size, len(FLAGS)), np.float32)
        self.has_lines = any(run.line or run.place for run in canvas.runs)
        letters: dict[int, list[_Letter]] = {}
        for run in canvas.runs:
            for index, (word, ordinal) in enumerate(_letters(run.text), start=run.first):
                letters.setdefault(cells[index], []).append(_Letter(run, word, ordinal, ranks[index]))
        for cell, found in letters.items():
            self._fill(cell, found)

    def _fill(self, cell: int, found: list[_Letter]) -> None:
        (run_id, word), _ = Counter((id(one.run), one.word) for one in found).most_common(1)[0]
        first = min(
            (one for one in found if id(one.run) == run_id and one.word == word), key=lambda one: one.rank
        )
        run, arrays = first.run, self.arrays
        arrays["word"][cell] = word_ids().get(word.rstrip(":"), IGNORED)
        arrays["row"][cell] = _label_word(run.row)
        arrays["column"][cell] = _label_word(run.column)
        arrays["ordinal"][cell] = min(first.ordinal, MAX_ORDINAL - 1)
        if self.has_lines:
            arrays["line"][cell] = min(run.line, MAX_LINES - 1)
            arrays["place"][cell] = min(run.place, MAX_PLACES - 1)
        arrays["share"][cell] = _share(run.share)
        for flag in run.flags:
            self.flags[cell, FLAGS.index(flag)] = 1


def _letters(text: str) -> list[tuple[str, int]]:
    """Of every character but spaces: its word, its number in that."""
    return [(word, i) for word in text.split(" ") for i in range(len(word))]


def _label_word(run: Run | None) -> int:
    """The first known word of a label; NO_WORD without label, IGNORED where no word of it is known."""
    if run is None:
        return NO_WORD
    known = (word_ids().get(word.rstrip(":"), IGNORED) for word in run.text.split(" "))
    return next((number for number in known if number >= 0), IGNORED)


@dataclass(slots=True)
class _ThingLabels:
    """What a token shows of shapes and bars."""

    canvas: Canvas
    project: Projection
    traits: np.ndarray = field(init=False)
    flags: np.ndarray = field(init=False)
    row: np.ndarray = field(init=False)
    region: np.ndarray = field(init=False)
    share: np.ndarray = field(init=False)
    cells: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        width, height = self.canvas.grid
        self.traits = np.zeros((height, width, 2 * NUM_TRAITS), np.float32)
        self.flags = np.zeros((height, width, len(FLAGS)), np.float32)
        self.row = np.full((height, width), IGNORED, np.int64)
        self.region = np.full((height, width), IGNORED, np.int64)
        self.share = np.full((height, width), IGNORED, np.int64)
        for thing in self.canvas.things:
            self._add(thing)
        self.traits = self.traits.reshape(width * height, -1)
        self.flags = self.flags.reshape(width * height, -1)
        self.row, self.region = self.row.reshape(-1), self.region.reshape(-1)
        self.share = self.share.reshape(-1)

    def _add(self, thing: Thing) -> None:
        width, height = self.canvas.grid
        x0, y0 = self.project(*thing.box[:2])
        x1, y1 = self.project(*thing.box[2:])
        x, y = self.project(thing.x, thing.y)
        left, right = max(0, round(x0 / CELL)), min(width, round(x1 / CELL))
        top, bottom = max(0, round(y0 / CELL)), min(height, round(y1 / CELL))
        column, row = _column_and_row(self.canvas.grid, x, y)
        self.cells.append(row * width + column)
        for trait in _trait_ids(thing):
            self.traits[top:bottom, left:right, trait] = 1
            self.traits[row, column, trait] = 1
            self.traits[row, column, NUM_TRAITS + trait] = 1
        for flag in thing.flags:
            self.flags[row, column, FLAGS.index(flag)] = 1
        region = _region(x / (width * CELL), y / (height * CELL))
        self.region[top:bottom, left:right] = region
        self.region[row, column] = region
        self.share[row, column] = _share(thing.share)
        if thing.label is not None:
            self.row[row, column] = _label_word(thing.label)


def _share(share: float | None) -> int:
    return IGNORED if share is None else min(NUM_SHARES - 1, int(share * NUM_SHARES))


def _region(x: float, y: float) -> int:
    thirds = []
    for value in (y, x):
        if any(abs(value - border) < _BORDER for border in (0.38, 0.62)):
            return IGNORED
        thirds.append(int(value > 0.38) + int(value > 0.62))
    return thirds[0] * 3 + thirds[1]


def _trait_ids(thing: Thing) -> list[int]:
    color = len(SHAPES) + COLOR_NAMES.index(thing.color)
    return [color] if thing.shape is None else [SHAPES.index(thing.shape), color]
