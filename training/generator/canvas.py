"""A picture being drawn, with a record of what was drawn where.

Owns the pixels and the lists of characters and objects that `labels` turns into training targets. Sizes are in pixels
of the finished picture; with `oversample` 2 it is drawn twice as large and reduced at the end.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from math import radians
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from training.generator.figures import outline
from training.generator.fonts import Face, advance, load_font
from training.generator.palette import COLORS, RGB, vary

CELL = 28  # pixels of a visual token, per side


@dataclass(frozen=True, slots=True)
class Character:
    """A printed character and the middle of its body."""

    text: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Thing:
    """A coloured shape or bar: its kind (None for a bar), colour, middle and box (x0, y0, x1, y1)."""

    shape: str | None
    color: str
    x: float
    y: float
    box: tuple[float, float, float, float]


class Canvas:
    """One picture of about `grid` visual tokens; half of them are a few pixels off, to be resized later."""

    def __init__(self, random: Random, grid: tuple[int, int], ground: RGB, oversample: int = 1) -> None:
        self.random = random
        self.grid = grid
        self.ground = ground
        self.oversample = oversample
        self.characters: list[Character] = []
        self.things: list[Thing] = []
        self.runs: list[tuple[str, int]] = []  # text, index of its first character
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
        self, x: float, y: float, text: str, face: Face, size: int, ink: RGB, anchor: str = "left"
    ) -> float:
        """Print a line whose left end, middle or right end is at x, its top at y. Returns where it ends."""
        font = load_font(face, size)
        total = font.getlength(text)
        x -= {"left": 0, "middle": total / 2, "right": total}[anchor]
        self.pen.text((x, y), text, font=font, fill=ink)
        self.runs.append((text, len(self.characters)))
        middle = y + font.getmetrics()[0] - 0.33 * size
        widths = [advance(face, size, character) for character in text]
        stretch, done = total / max(1e-6, sum(widths)), 0.0
        for character, width in zip(text, widths, strict=True):
            if character != " ":
                self.characters.append(Character(character, x + (done + width / 2) * stretch, middle))
            done += width
        return x + total

    def line(self, points: list[tuple[float, float]], ink: RGB) -> None:
        k = self.oversample
        self.pen.line([(x * k, y * k) for x, y in points], fill=ink, width=k)

    def shape(self, kind: str, color: str, x: float, y: float, radius: float, turn: float = 0.0) -> None:
        fill = vary(self.random, COLORS[color], 14)
        X, Y, R = x * self.oversample, y * self.oversample, radius * self.oversample
        if kind == "circle":
            self.pen.ellipse([X - R, Y - R, X + R, Y + R], fill=fill)
        else:
            self.pen.polygon(outline(kind, X, Y, R, turn), fill=fill)
        self.things.append(Thing(kind, color, x, y, (x - radius, y - radius, x + radius, y + radius)))

    def bar(self, x0: float, y0: float, x1: float, y1: float, color: str) -> None:
        k = self.oversample
        self.pen.rectangle([x0 * k, y0 * k, x1 * k, y1 * k], fill=COLORS[color])
        self.things.append(Thing(None, color, (x0 + x1) / 2, (y0 + y1) / 2, (x0, y0, x1, y1)))

    def finish(self) -> Image.Image:
        """The picture, reduced and, unless switched off, a little damaged as scans and photographs are."""
        picture, random = self.picture, self.random
        if self.oversample > 1:
            picture = picture.resize((self.width, self.height), Image.Resampling.BOX)
        if not self.has_effects:
            return picture
        if random.random() < 0.15:
            degrees = random.uniform(-1.6, 1.6)
            self.angle = radians(degrees)
            picture = picture.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=self.ground)
        if random.random() < 0.15:
            picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.2, 0.6)))
        if random.random() < 0.22:
            picture = _add_noise(random, picture)
        if random.random() < 0.35:
            picture = _recompress(picture, random.randint(45, 92))
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
