"""Training targets of a finished canvas: what each visual token shows.

Shapes: h, w grid of visual tokens; a token has 2 x 6 slots for characters, in rows. -100 marks what must not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, sin

import numpy as np

from training.generator.canvas import CELL, Canvas, Thing
from training.generator.figures import SHAPES
from training.generator.palette import COLOR_NAMES

SLOTS_X, SLOTS_Y = 6, 2
SLOTS = SLOTS_X * SLOTS_Y
MAX_ORDER = 6  # characters of a token that are taught in reading order
CHARACTERS = "".join(chr(code) for code in range(33, 127)) + "€£"
CHARACTER_ID = {character: i + 1 for i, character in enumerate(CHARACTERS)}
NUM_CHARACTERS = len(CHARACTERS) + 1  # with 0 for a blank
NUM_TRAITS = len(SHAPES) + len(COLOR_NAMES)
IGNORED = -100

Projection = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Arrays over the grid, then lists over the characters and things of the canvas."""

    characters: np.ndarray  # int64 [h, w, SLOTS]
    traits: (
        np.ndarray
    )  # float32 [h, w, 2 * NUM_TRAITS]: shapes and colours that cover a token; whose middle it holds
    order: np.ndarray  # int64 [h * w, MAX_ORDER]: a token's characters in reading order
    character_cells: list[int]  # token number of each character
    character_ranks: list[int]  # its place in the reading order of that token
    thing_cells: list[int]  # token number of each thing's middle


def label(canvas: Canvas) -> Labels:
    project = _projection(canvas)
    points = [project(character.x, character.y) for character in canvas.characters]
    cells = [_cell(canvas.grid, x, y) for x, y in points]
    order, ranks = _reading_order(canvas, points, cells)
    traits, thing_cells = _traits(canvas, project)
    return Labels(
        characters=_slots(canvas, points),
        traits=traits,
        order=order,
        character_cells=cells,
        character_ranks=ranks,
        thing_cells=thing_cells,
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
    return by_token.reshape(height, width, SLOTS)


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


def _traits(canvas: Canvas, project: Projection) -> tuple[np.ndarray, list[int]]:
    width, height = canvas.grid
    traits = np.zeros((height, width, 2 * NUM_TRAITS), np.float32)
    cells = []
    for thing in canvas.things:
        x0, y0 = project(*thing.box[:2])
        x1, y1 = project(*thing.box[2:])
        x, y = project(thing.x, thing.y)
        left, right = max(0, round(x0 / CELL)), min(width, round(x1 / CELL))
        top, bottom = max(0, round(y0 / CELL)), min(height, round(y1 / CELL))
        column, row = _column_and_row(canvas.grid, x, y)
        cells.append(row * width + column)
        for trait in _trait_ids(thing):
            traits[top:bottom, left:right, trait] = 1
            traits[row, column, trait] = 1
            traits[row, column, NUM_TRAITS + trait] = 1
    return traits, cells


def _trait_ids(thing: Thing) -> list[int]:
    color = len(SHAPES) + COLOR_NAMES.index(thing.color)
    return [color] if thing.shape is None else [SHAPES.index(thing.shape), color]
