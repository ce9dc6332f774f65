"""Typefaces: which there are, how wide a text is in them, which size fits.

DejaVu Sans and its bold come with the matplotlib wheel; `extra_faces` adds a folder of others for training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

from PIL import ImageFont

MIN_TYPE = 13  # smallest type in pixels that a text is given
_SMALL_BODIED = ("Ca", "LiberationSerif", "Inconsolata")  # these look smaller than others of the same size


@dataclass(frozen=True, slots=True)
class Face:
    """A font file; `weight` is how often it is picked, `scale` evens out small-bodied faces."""

    path: str
    weight: int = 1
    scale: float = 1.0


@cache
def default_faces() -> tuple[Face, ...]:
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the generator needs the fonts of matplotlib; install tapetum[train]")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    return (Face(str(folder / "DejaVuSans.ttf"), 5), Face(str(folder / "DejaVuSans-Bold.ttf"), 3))


def extra_faces(folder: Path) -> tuple[Face, ...]:
    """The .ttf files of a folder, each picked as rarely as the others."""
    return tuple(Face(str(path), 1, _scale(path.name)) for path in sorted(folder.glob("*.ttf")))


def _scale(name: str) -> float:
    return 1.13 if "STIX" in name or name.startswith(_SMALL_BODIED) else 1.0


def pick_face(random: Random, faces: tuple[Face, ...]) -> Face:
    return random.choices(faces, [face.weight for face in faces])[0]


@cache
def load_font(face: Face, size: int) -> ImageFont.FreeTypeFont:
    # Basic layout places a text as the sum of its characters, which `text_width` and the labels rely on.
    pixels = round(size * face.scale) if face.scale != 1.0 else size
    return ImageFont.truetype(face.path, pixels, layout_engine=ImageFont.Layout.BASIC)


@cache
def advance(face: Face, size: int, character: str) -> float:
    return load_font(face, size).getlength(character)


def text_width(face: Face, size: int, text: str) -> float:
    return sum(advance(face, size, character) for character in text)


def fit_size(face: Face, text: str, width: float, largest: int, smallest: int = 12) -> int:
    """The largest size up to `largest` in which the text is about `width` wide, at least `smallest`."""
    size = int(20 * width / max(1.0, text_width(face, 20, text)))
    return max(smallest, min(largest, size))
