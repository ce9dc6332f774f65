"""Video files for tests: encoded by FFmpeg, or AVI of JPEG frames written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO

import av
import numpy as np
from PIL import Image

SIZE = (64, 48)


def frame(number: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A picture unlike all others, with a mark in its upper left."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :] = (number * 23 % 200, 100, number * 7 % 200)
    pixels[: height // 4, : width // 4] = 255
    return pixels


def encoded(
    count: int,
    *,
    codec: str = "libx264",
    container: str = "mp4",
    rate: int = 10,
    times: Sequence[int] | None = None,
    gop: int = 5,
    pixels: str = "yuv420p",
    turned: int = 0,
    options: dict[str, str] | None = None,
) -> bytes:
    """`times` say when the frames are shown, in ticks of 1 / (10 * rate) seconds."""
    out = BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *SIZE, pixels
        stream.codec_context.gop_size = gop
        stream.codec_context.time_base = Fraction(1, 10 * rate)
        if turned:
            stream.set_display_rotation(turned)
        for number in range(count):
            picture = av.VideoFrame.from_ndarray(frame(number), format="rgb24")
            picture.pts = 10 * number if times is None else times[number]
            picture.time_base = Fraction(1, 10 * rate)
            file.mux(stream.encode(picture))
        file.mux(stream.encode())
    return out.getvalue()


def jpeg(number: int, size: tuple[int, int] = SIZE) -> bytes:
    out = BytesIO()
    Image.fromarray(frame(number, size)).save(out, "JPEG", quality=90)
    return out.getvalue()


def avi(
    frames: Sequence[bytes],
    *,
    size: tuple[int, int] = SIZE,
    rate: tuple[int, int] = (2, 1),
    declared: int | None = None,
) -> bytes:
    """A motion JPEG AVI; a rate of (0, 0) leaves it out."""
    count = len(frames) if declared is None else declared
    per_frame_us = min(1_000_000 * rate[1] // rate[0], 2**32 - 1) if rate[0] else 0
    main = struct.pack("<14I", per_frame_us, 0, 0, 16, count, 0, 1, 2**20, *size, 0, 0, 0, 0)
    header = b"vidsMJPG" + struct.pack(
        "<IHHIIIIIIII", 0, 0, 0, 0, rate[1], rate[0], 0, count, 2**20, 2**32 - 1, 0
    )
    header += struct.pack("<hhhh", 0, 0, *size)
    layout = struct.pack("<IiiHH4sIiiII", 40, *size, 1, 24, b"MJPG", size[0] * size[1] * 3, 0, 0, 0, 0)
    stream = _list(b"strl", _chunk(b"strh", header) + _chunk(b"strf", layout))
    body = b"".join(_chunk(b"00dc", data) for data in frames)
    return _chunk(b"RIFF", b"AVI " + _list(b"hdrl", _chunk(b"avih", main) + stream) + _list(b"movi", body))


def _chunk(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _list(tag: bytes, body: bytes) -> bytes:
    return _chunk(b"LIST", tag + body)
