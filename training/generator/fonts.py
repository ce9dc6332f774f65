"""Typefaces: which there are, how wide a text is in them, which size fits.

DejaVu Sans and its bold come with the matplotlib wheel; `extra_faces` adds others, for training or as a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

from PIL import ImageFont

MIN_TYPE = 24  # smallest type in pixels that a text is given
_SMALL_BODIED = ("Cantarell", "Lato", "FreeSans")  # these look smaller than others of the same size


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


# Of Debian packages: fonts-liberation, fonts-roboto-unhinted, fonts-inter, fonts-cantarell.
TRAINING_FILES = {
    "LiberationSans-Regular.ttf": 3,
    "LiberationSans-Bold.ttf": 2,
    "Roboto-Regular.ttf": 2,
    "Roboto-Medium.ttf": 1,
    "Roboto-Bold.ttf": 1,
    "Inter-Regular.otf": 2,
    "Inter-Medium.otf": 1,
    "Cantarell-Regular.otf": 2,
}
# Of fonts-open-sans, fonts-lato, fonts-freefont-ttf: kept out of training, to measure what unseen faces cost.
HELD_OUT_FILES = {"OpenSans-Regular.ttf": 1, "Lato-Medium.ttf": 1, "FreeSans.ttf": 1}


def extra_faces(folder: Path, files: Mapping[str, int] = TRAINING_FILES) -> tuple[Face, ...]:
    """The named files, each found once anywhere below a folder, with how often they are picked."""
    paths = {path.name: path for path in sorted(folder.rglob("*.[ot]tf"))}
    missing = [name for name in files if name not in paths]
    if missing:
        raise FileNotFoundError(
            f"{folder} holds no {', '.join(missing)}; install the packages named in fonts.py"
        )
    return tuple(Face(str(paths[name]), weight, _scale(name)) for name, weight in files.items())


def _scale(name: str) -> float:
    return 1.1 if name.startswith(_SMALL_BODIED) else 1.0


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


def fit_size(face: Face, text: str, width: float, largest: int, smallest: int = MIN_TYPE) -> int:
    """The largest size up to `largest` in which the text is about `width` wide, at least `smallest`."""
    size = int(20 * width / max(1.0, text_width(face, 20, text)))
    return max(smallest, min(largest, size))
