"""Identity of pictures and clips.

A media key names what the encoder will see: the uint8 canvas after the resize, how it was cut into patches, and the
tenant. An alias names what a client sent together with how it is to be processed; it leads to a media key without
decoding and never stands for one. Both are BLAKE3 over fields that carry their name and length, so no two lists of
fields give the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import blake3
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tapetum.core.media import Geometry, ProcessorMode
from tapetum.media.document import Page
from tapetum.media.plan import Shot
from tapetum.media.source import Loaded
from tapetum.processing.pixels import bands

FieldValue = bytes | memoryview | str | int | float


def digest(fields: Iterable[tuple[str, FieldValue]]) -> bytes:
    """BLAKE3 over (name, value) pairs, order included: 32 bytes."""
    hasher = blake3.blake3()
    for name, value in fields:
        raw = _raw(value)
        label = name.encode()
        hasher.update(struct.pack(">IQ", len(label), len(raw)) + label)
        hasher.update(raw)
    return hasher.digest()


def media_key(
    patches: NDArray[np.uint8],
    geometry: Geometry,
    *,
    parameters: Mapping[str, int],
    tenant: str,
    processor: ProcessorMode = "exact",
) -> bytes:
    """The key of an item. `patches` holds the canvas's bytes in an order that the other fields fix."""
    width, height = geometry.used
    return digest(
        (
            ("what", "media key 1"),
            ("tenant", tenant),
            ("kind", geometry.kind),
            ("width", width),
            ("height", height),
            ("frames", geometry.frames),
            ("seconds per grid", geometry.seconds_per_grid),
            *_arrangement(geometry),
            *sorted(parameters.items()),
            *_mode(processor),
            ("canvas", np.ascontiguousarray(patches).reshape(-1).data),
        )
    )


def alias_key(
    shot: Shot,
    geometry: Geometry,
    *,
    tenant: str,
    processor: ProcessorMode = "exact",
    parameters: Mapping[str, int] | None = None,
    ground: tuple[int, ...] = (),
) -> bytes:
    """The key of a reference that has been read but not decoded.

    It holds the size that results, not the options that led to it, and all else that what is decoded depends on: the
    processing of the checkpoint, the `ground` of transparent pixels and the versions of decoders.
    """
    width, height = geometry.used
    file: tuple[tuple[str, FieldValue], ...] = ()
    if shot.file is not None:
        file = (("video", shot.file.data), ("chosen", struct.pack(f">{len(shot.indices)}q", *shot.indices)))
    return digest(
        (
            ("what", "media alias 4"),
            ("tenant", tenant),
            ("kind", geometry.kind),
            ("width", width),
            ("height", height),
            ("frames", geometry.frames),
            ("seconds per grid", geometry.seconds_per_grid),
            *_arrangement(geometry),
            *_mode(processor),
            *sorted((parameters or {}).items()),
            ("ground", bytes(ground)),
            ("decoders", _decoders()),
            *file,
            *(field for frame in shot.frames for field in _picture_fields(frame)),
        )
    )


def _arrangement(geometry: Geometry) -> tuple[tuple[str, FieldValue], ...]:
    """Nothing for what has neither tiles nor times, whose keys stay what they were before there were any."""
    fields: tuple[tuple[str, FieldValue], ...] = ()
    if geometry.tiles is not None:
        # The encoder drops what pads a tile, and how much that is depends on the shape of the original.
        fields += (("tiles", struct.pack(">4q", *geometry.tiles, *geometry.original)),)
    if geometry.frame_times:
        fields += (("times", struct.pack(f">{len(geometry.frame_times)}d", *geometry.frame_times)),)
    return fields


def _mode(processor: ProcessorMode) -> tuple[tuple[str, FieldValue], ...]:
    """Nothing for exact pixels, whose keys stay what they were before there was another mode."""
    return () if processor == "exact" else (("processor", processor),)


@cache
def _decoders() -> str:
    return ", ".join(_versioned(package) for package in ("pillow", "av"))


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # an extra that is not installed
        return package


def _picture_fields(picture: Loaded) -> tuple[tuple[str, FieldValue], ...]:
    if isinstance(picture, bytes):
        return (("file", picture),)
    if isinstance(picture, Page):
        return picture.identity
    return (("width", picture.width), ("height", picture.height), ("pixels", _pixel_digest(picture)))


def _pixel_digest(picture: Image.Image) -> bytes:
    """Of the memory of a picture whose size another field tells. What it holds beside the colours counts too: of two
    equal pictures one may seem new, but never a new one known."""
    hasher = blake3.blake3()
    for band in bands(picture):
        hasher.update(np.ascontiguousarray(band).reshape(-1).data)
    return hasher.digest()


def _raw(value: FieldValue) -> bytes | memoryview:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return struct.pack(">q", value)
    if isinstance(value, float):
        return struct.pack(">d", value)
    return value
