"""What a device costs: the coefficients of the cost model and the sizes of the model they were measured with.

Owns the JSON that says so. Those measured on CPUs come with the package and go by their name; any other is a file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.resources import files
from json import dumps
from pathlib import Path
from typing import Annotated

import msgspec

from tapetum.core.cost import CostModel
from tapetum.core.errors import ConfigError
from tapetum.processing.base import PixelBounds
from tapetum.processing.qwen_vl import QwenVLProcessor

_DATA = files("tapetum.bench.simulate") / "data"
_IMAGE_TOKEN, _VIDEO_TOKEN = 1, 2  # token ids of placeholders; nobody looks at them

_Cost = Annotated[float, msgspec.Meta(ge=0.0, le=1e3)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of a token in each kind of memory."""

    kv_bytes_per_token: _Size
    feature_bytes_per_token: _Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """How pictures become patches: the numbers of a Qwen2-VL processor; bounds are of a frame."""

    patch_size: _Size
    merge_size: _Size
    temporal_patch_size: _Size
    image_pixels: tuple[_Size, _Size]
    video_pixels: tuple[_Size, _Size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """`step` and `encode` as in `core.cost`, in seconds."""

    name: str
    note: str  # where the numbers come from
    step: tuple[_Cost, _Cost, _Cost, _Cost, _Cost]
    encode: tuple[_Cost, _Cost, _Cost]
    memory: Memory
    encoder: Encoder

    def cost_model(self) -> CostModel:
        """One that knows these costs from the start, as after the measurement of a real start."""
        return CostModel(step=self.step, encode=self.encode)

    def processor(self) -> QwenVLProcessor:
        encoder = self.encoder
        return QwenVLProcessor(
            media_tokens={"image": _IMAGE_TOKEN, "video": _VIDEO_TOKEN},
            patch_size=encoder.patch_size,
            merge_size=encoder.merge_size,
            temporal_patch_size=encoder.temporal_patch_size,
            bounds={"image": PixelBounds(*encoder.image_pixels), "video": PixelBounds(*encoder.video_pixels)},
        )


def shipped_names() -> tuple[str, ...]:
    return tuple(sorted(entry.name.removesuffix(".json") for entry in _DATA.iterdir()))


def read_coefficients(source: str) -> Coefficients:
    """Of a name that comes with the package, or of a file."""
    if source in shipped_names():
        return _decoded((_DATA / f"{source}.json").read_bytes(), source)
    try:
        text = Path(source).read_bytes()
    except OSError as error:
        names = ", ".join(shipped_names())
        raise ConfigError(
            f"coefficients {source!r} are neither a file that can be read ({error.strerror}) nor one of {names}"
        ) from error
    return _decoded(text, source)


def write_coefficients(coefficients: Coefficients, path: Path) -> None:
    path.write_text(dumps(asdict(coefficients), indent=1) + "\n", encoding="utf-8")


def _decoded(text: bytes, name: str) -> Coefficients:
    try:
        return msgspec.json.decode(text, type=Coefficients)
    except msgspec.DecodeError as error:
        raise ConfigError(f"coefficients {name} cannot be used: {error}") from error
