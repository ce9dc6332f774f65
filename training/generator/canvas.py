"""A picture being drawn, with a record of what was drawn where.

Owns the pixels and the lists of characters, runs and things that `labels` turns into training targets. Sizes are in
pixels of the finished picture; with `oversample` 2 it is drawn twice as large and reduced at the end.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import cache
from math import radians
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from training.generator.figures import outline
from training.generator.fonts import Face, advance, load_font
from training.generator.palette import COLORS, RGB, vary

CELL = 28  # pixels of a visual token, per side
FLAGS = ["highest", "lowest", "largest", "smallest", "leftmost", "rightmost"]  # of runs and things


@dataclass(frozen=True, slots=True)
class Character:
    """A printed character and the middle of its body."""

    text: str
    x: float
    y: float


@dataclass(eq=False, slots=True, kw_only=True)
class Run:
    """A text printed in one piece. What it belongs to is known, so that the network can be taught it."""

    text: str
    first: int  # index of its first character in the canvas
    size: int
    x: float
    y: float  # top
    end: float
    line: int = 0  # from the top
    place: int = 0  # in its line, from the left
    row: Run | None = None  # its label: name of the field, item, row, bar
    column: Run | None = None  # the header of its column
    flags: set[str] = field(default_factory=set)
    share: float | None = None  # of the length of the longest bar


@dataclass(eq=False, slots=True, kw_only=True)
class Thing:
    """A coloured shape or bar: its kind (None for a bar), colour, middle and box (x0, y0, x1, y1)."""

    shape: str | None
    color: str
    x: float
    y: float
    box: tuple[float, float, float, float]
    label: Run | None = None
    flags: set[str] = field(default_factory=set)
    share: float | None = None  # of the length of the longest bar


class Canvas:
    """One picture of about `grid` visual tokens; half of them are a few pixels off, to be resized later."""

    def __init__(self, random: Random, grid: tuple[int, int], ground: RGB, oversample: int = 1) -> None:
        self.random = random
        self.grid = grid
        self.ground = ground
        self.ground_name: str | None = None  # of its colour, where it has one
        self.oversample = oversample
        self.characters: list[Character] = []
        self.things: list[Thing] = []
        self.runs: list[Run] = []
        self.has_effects = True
        self.angle = 0.0  # radians, set by finish
        is_odd = random.random() < 0.5
        width = grid[0] * CELL + (random.randint(-12, 12) if is_odd else 0)
        height = grid[1] * CELL + (random.randint(-12, 12) if is_odd else 0)
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Start again on a blank ground of this size."""
        self.width, self.height = width, height
        self.picture = Image.new("RGB", (width * self.oversample, height * self.oversample), self.ground)
        self.pen = ImageDraw.Draw(self.picture)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        face: Face,
        size: int,
        ink: RGB,
        anchor: str = "left",
        *,
        line: int = 0,
        place: int = 0,
        row: Run | None = None,
        column: Run | None = None,
    ) -> Run:
        """Print a text whose left end, middle or right end is at x, its top at y."""
        font = load_font(face, size)
        total = font.getlength(text)
        x -= {"left": 0, "middle": total / 2, "right": total}[anchor]
        self.pen.text((x, y), text, font=font, fill=ink)
        first = len(self.characters)
        middle = y + font.getmetrics()[0] - 0.33 * size
        widths = [advance(face, size, character) for character in text]
        stretch, done = total / max(1e-6, sum(widths)), 0.0
        for character, width in zip(text, widths, strict=True):
            if character != " ":
                self.characters.append(Character(character, x + (done + width / 2) * stretch, middle))
            done += width
        run = Run(
            text=text,
            first=first,
            size=size,
            x=x,
            y=y,
            end=x + total,
            line=line,
            place=place,
            row=row,
            column=column,
        )
        self.runs.append(run)
        return run

    def line(self, points: list[tuple[float, float]], ink: RGB) -> None:
        k = self.oversample
        self.pen.line([(x * k, y * k) for x, y in points], fill=ink, width=k)

    def shape(self, kind: str, color: str, x: float, y: float, radius: float, turn: float = 0.0) -> Thing:
        fill = vary(self.random, COLORS[color], 14)
        X, Y, R = x * self.oversample, y * self.oversample, radius * self.oversample
        if kind == "circle":
            self.pen.ellipse([X - R, Y - R, X + R, Y + R], fill=fill)
        else:
            self.pen.polygon(outline(kind, X, Y, R, turn), fill=fill)
        box = (x - radius, y - radius, x + radius, y + radius)
        return self._keep(Thing(shape=kind, color=color, x=x, y=y, box=box))

    def bar(self, x0: float, y0: float, x1: float, y1: float, color: str, label: Run | None = None) -> Thing:
        k = self.oversample
        self.pen.rectangle([x0 * k, y0 * k, x1 * k, y1 * k], fill=COLORS[color])
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        return self._keep(Thing(shape=None, color=color, x=x, y=y, box=(x0, y0, x1, y1), label=label))

    def _keep(self, thing: Thing) -> Thing:
        self.things.append(thing)
        return thing

    def finish(self) -> Image.Image:
        """The picture, reduced and, unless switched off, a little damaged as scans and photographs are."""
        picture, random = self.picture, self.random
        if self.oversample > 1:
            picture = picture.resize((self.width, self.height), Image.Resampling.BOX)
        if not self.has_effects:
            return picture
        if random.random() < 0.2:
            degrees = random.uniform(-3.2, 3.2)
            self.angle = radians(degrees)
            picture = picture.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=self.ground)
        if random.random() < 0.18:
            picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.2, 0.9)))
        if random.random() < 0.22:
            picture = _add_noise(random, picture)
        if random.random() < 0.35:
            picture = _recompress(picture, random.randint(38, 92))
        return picture


def _recompress(picture: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def _add_noise(random: Random, picture: Image.Image) -> Image.Image:
    pixels = np.asarray(picture, dtype=np.float32)
    height, width = pixels.shape[:2]
    y, x = random.randint(0, 512 - min(height, 512)), random.randint(0, 512 - min(width, 512))
    noise = _noise_field()[y : y + height, x : x + width]
    if random.random() < 0.5:
        noise = noise[..., :1]
    noisy = np.clip(pixels + noise * random.uniform(2, 10), 0, 255)
    return Image.fromarray(noisy.astype(np.uint8))


@cache
def _noise_field() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((512, 512, 3)).astype(np.float32)
