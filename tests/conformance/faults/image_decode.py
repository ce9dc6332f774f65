"""Files of pictures: orientation, transparency, channels, animations, broken and hostile ones."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from PIL import Image

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import dec, enc, noise, on_white, oriented, scene, solid, upright
from tests.conformance.faults.requests import ask

CASES = Catalogue("image-decode")
case = CASES.case


def _exif6() -> bytes:
    return oriented(scene(168, 112), 6, quality=95)


@case(
    "R01a",
    "silent-wrong",
    "JPEG with EXIF orientation 6 (phone portrait)",
    {"status": 200, "same_prompt_tokens_as": "R01a-ref", "same_output_as": "R01a-ref"},
)
def _():
    return ask(_exif6(), "image/jpeg")


@case("R01a-ref", "none", "the same pixels physically rotated", {"status": 200}, True)
def _():
    return ask(upright(_exif6()))


def _exif3() -> bytes:
    return oriented(scene(168, 84, 3), 3)


@case(
    "R01d",
    "silent-wrong",
    "EXIF orientation 3 inside JPEG",
    {"status": 200, "same_prompt_tokens_as": "R01d-ref", "same_output_as": "R01d-ref"},
)
def _():
    return ask(_exif3(), "image/jpeg")


@case("R01d-ref", "none", "its upright pixels", {"status": 200}, True)
def _():
    return ask(upright(_exif3()))


def _rgba() -> bytes:
    """A black disc on a see-through ground whose hidden colours are noise."""
    a = np.zeros((112, 112, 4), np.uint8)
    a[..., :3] = np.random.default_rng(5).integers(0, 256, (112, 112, 3))
    y, x = np.mgrid[0:112, 0:112]
    disc = (x - 56) ** 2 + (y - 56) ** 2 < 40**2
    a[disc] = (0, 0, 0, 255)
    return enc(Image.fromarray(a))


@case(
    "R02a",
    "silent-wrong",
    "RGBA PNG, noise hidden under alpha 0",
    {"status": 200, "same_prompt_tokens_as": "R02a-ref", "same_output_as": "R02a-ref"},
)
def _():
    return ask(_rgba(), q="What is in this picture?")


@case("R02a-ref", "none", "the same over a white ground", {"status": 200}, True)
def _():
    return ask(on_white(_rgba()), q="What is in this picture?")


def _la() -> bytes:
    a = np.zeros((96, 96, 2), np.uint8)
    a[..., 0] = np.arange(96, dtype=np.uint8)[None] * 2
    a[30:70, 30:70, 1] = 255
    return enc(Image.fromarray(a))


@case(
    "R02c",
    "silent-wrong",
    "grey + alpha (LA) PNG",
    {"status": 200, "same_prompt_tokens_as": "R02c-ref", "same_output_as": "R02c-ref"},
)
def _():
    return ask(_la(), q="What is in this picture?")


@case("R02c-ref", "none", "the same over white", {"status": 200}, True)
def _():
    return ask(on_white(_la()), q="What is in this picture?")


def _grey(fmt: str) -> bytes:
    return enc(scene(112, 112).convert("L"), fmt)


for _cid, _f in (("R04a", "JPEG"), ("R04b", "PNG")):

    @case(
        _cid,
        "engine-death",
        f"one-channel {_f}",
        {"status": 200, "same_prompt_tokens_as": _cid + "-ref", "same_output_as": _cid + "-ref", **ALIVE},
    )
    def _(f=_f):
        return ask(_grey(f), "image/" + f.lower())

    @case(_cid + "-ref", "none", "three equal channels", {"status": 200}, True)
    def _(f=_f):
        return ask(dec(_grey(f)).convert("RGB"))


@case("R04c", "engine-death", "1-bit black and white PNG", {"status": 200, **ALIVE})
def _():
    return ask(enc(scene(112, 112).convert("1")))


def _anim() -> bytes:
    frames = [solid(56, 56, (255, 0, 0)), solid(56, 56, (0, 0, 255))]
    return enc(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=200, loop=0)


@case(
    "R06a",
    "unclear-rule",
    "animated GIF of two frames",
    {
        "any_of": [
            {"status": 200, "same_prompt_tokens_as": "R06a-ref", "same_output_as": "R06a-ref"},
            {"status": BAD, "error_contains_any": ["anim", "frame", "gif"]},
        ],
        **ALIVE,
    },
)
def _():
    return ask(_anim(), "image/gif", q="Which colour is this?")


@case("R06a-ref", "none", "its first frame", {"status": 200}, True)
def _():
    return ask(dec(_anim()).convert("RGB"), q="Which colour is this?")


@case(
    "R07a",
    "process-death",
    "still WebP",
    {
        "any_of": [
            {"status": 200, "same_output_as": "R07a-ref", "same_prompt_tokens_as": "R07a-ref"},
            {"status": BAD, "error_contains_any": ["webp", "format", "decode"]},
        ],
        "max_seconds": 10,
        **ALIVE,
    },
)
def _():
    return ask(enc(scene(112, 84), "WEBP", lossless=True), "image/webp")


@case("R07a-ref", "none", "the same pixels as PNG", {"status": 200}, True)
def _():
    return ask(scene(112, 84))


def _isobmff(brand: bytes) -> bytes:
    ftyp = b"ftyp" + brand + b"\0\0\0\0" + b"mif1" + brand
    return struct.pack(">I", 4 + len(ftyp)) + ftyp + b"\0\0\0\x10mdat" + b"\x5a" * 8


@case(
    "R07c",
    "hang",
    "heic header that nobody can decode",
    {
        "status": [*BAD, 415],
        "error_contains_any": ["format", "decode", "image", "unsupported"],
        "max_seconds": 5,
        **ALIVE,
    },
)
def _():
    return ask(_isobmff(b"heic"), "image/heic")


@case(
    "R08a",
    "wrong-status",
    "JPEG cut off after 60 % of its bytes",
    {
        "status": BAD,
        "error_contains_any": ["truncat", "corrupt", "decode", "image"],
        "max_seconds": 10,
        **ALIVE,
    },
)
def _():
    d = enc(noise(224, 224), "JPEG", quality=90)
    return ask(d[: len(d) * 6 // 10], "image/jpeg")


@case(
    "R08b",
    "wrong-status",
    "PNG whose data chunk is cut off",
    {
        "status": BAD,
        "error_contains_any": ["truncat", "corrupt", "decode", "image"],
        "max_seconds": 10,
        **ALIVE,
    },
)
def _():
    d = enc(noise(96, 96))
    return ask(d[: len(d) // 2])


for _cid, _u, _t in (
    ("R09a", "data:image/png;base64,", "no bytes at all"),
    ("R09c", "data:image/png;base64,@@@@****", "not base64"),
):

    @case(_cid, "hang", _t, {"status": BAD, "max_seconds": 5, "reply_and_log_without_base64": True, **ALIVE})
    def _(u=_u):
        return ask(u)


def bomb(side: int = 20000) -> bytes:
    """A valid 1-bit PNG of side x side pixels: about 50 kB, 1.2 GB once it is RGB."""

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    z = zlib.compressobj(6)
    row = b"\0" * (1 + (side + 7) // 8)
    block, parts = row * 500, []
    for _i in range(side // 500):
        parts.append(z.compress(block))
    parts.append(z.flush())
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", b"".join(parts))
        + chunk(b"IEND", b"")
    )


@case(
    "R10a",
    "resource",
    "PNG bomb: 50 kB that unfold to 400 Mpixel",
    {
        "status": [*BAD, 413],
        "error_contains_any": ["pixel", "large", "size", "limit", "bomb"],
        "max_seconds": 2,
        "rss_growth_mb_max": 100,
        "reply_and_log_without_base64": True,
        **ALIVE,
    },
)
def _():
    return ask(bomb())


@case(
    "R10b",
    "resource",
    "PNG header of 60000 x 60000, no data behind it",
    {"status": [*BAD, 413], "max_seconds": 2, "rss_growth_mb_max": 100, **ALIVE},
)
def _():
    d = bytearray(enc(solid(8, 8, (1, 2, 3))))
    d[16:24] = struct.pack(">II", 60000, 60000)
    d[29:33] = struct.pack(">I", zlib.crc32(bytes(d[12:29])))
    return ask(bytes(d))
