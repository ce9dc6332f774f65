"""Clips: odd numbers of frames, headers that are wrong, frames that cannot be decoded."""

from __future__ import annotations

import base64
import struct

from PIL import ImageDraw

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import enc, scene
from tests.conformance.faults.requests import chat, text, video

CASES = Catalogue("video")
case = CASES.case


def _chunk(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack("<I", len(body)) + body + (b"\0" if len(body) % 2 else b"")


def _list(tag: bytes, body: bytes) -> bytes:
    return _chunk(b"LIST", tag + body)


def avi(
    frames: list[bytes],
    size: tuple[int, int],
    fps: tuple[int, int] = (2, 1),
    declared: int | None = None,
    audio_only: bool = False,
) -> bytes:
    """A motion-JPEG AVI written by hand; fps (0, 0) leaves the rate out."""
    w, h = size
    n = len(frames) if declared is None else declared
    rate, scale = fps
    us = int(1_000_000 * scale / rate) if rate else 0
    avih = struct.pack("<14I", us, 0, 0, 0x10, n, 0, 1, 1 << 20, w, h, 0, 0, 0, 0)
    if audio_only:
        strh = (
            b"auds"
            + b"\0\0\0\0"
            + struct.pack("<IHHIIIIIIIIhhhh", 0, 0, 0, 0, 1, 8000, 0, 8000, 8000, 0, 1, 0, 0, 0, 0)
        )
        strf = struct.pack("<HHIIHHH", 1, 1, 8000, 8000, 1, 8, 0)
        movi = _chunk(b"00wb", b"\x80" * 8000)
        index = [(b"00wb", 8000)]
    else:
        strh = (
            b"vids"
            + b"MJPG"
            + struct.pack(
                "<IHHIIIIIIIIhhhh", 0, 0, 0, 0, scale, rate, 0, n, 1 << 20, 0xFFFFFFFF, 0, 0, 0, w, h
            )
        )
        strf = struct.pack("<IiiHH4sIiiII", 40, w, h, 1, 24, b"MJPG", w * h * 3, 0, 0, 0, 0)
        movi = b"".join(_chunk(b"00dc", f) for f in frames)
        index = [(b"00dc", len(f)) for f in frames]
    hdrl = _list(
        b"hdrl", _chunk(b"avih", avih) + _list(b"strl", _chunk(b"strh", strh) + _chunk(b"strf", strf))
    )
    off, idx = 4, b""
    for tag, ln in index:
        idx += tag + struct.pack("<III", 0x10, off, ln)
        off += 8 + ln + ln % 2
    return _chunk(b"RIFF", b"AVI " + hdrl + _list(b"movi", movi) + _chunk(b"idx1", idx))


def _frames(n: int, size: tuple[int, int] = (84, 84)) -> list[bytes]:
    out = []
    for i in range(n):
        im = scene(*size)
        ImageDraw.Draw(im).ellipse((5 + 8 * i % 60, 30, 25 + 8 * i % 60, 50), fill=(0, 0, 0))
        out.append(enc(im, "JPEG", quality=90))
    return out


VQ = text("Which way does the dot move?")
NOVIDEO = {"status": BAD, "error_contains_any": ["video", "support"]}

for _cid, _n in (
    ("R34a", 3),
    ("R34c", 7),
):

    @case(
        _cid,
        "wrong-status",
        f"video of {_n} frame(s) at 2 per second",
        {"any_of": [{"status": 200, "same_prompt_tokens_as": _cid + "-ref"}, NOVIDEO], **ALIVE},
    )
    def _(n=_n):
        return chat([video(avi(_frames(n), (84, 84))), VQ])

    @case(
        _cid + "-ref",
        "none",
        "the same with the last frame repeated",
        {"any_of": [{"status": 200}, NOVIDEO]},
        True,
    )
    def _(n=_n):
        f = _frames(n)
        return chat([video(avi(f + f[-1:], (84, 84))), VQ])


VBAD = {
    "any_of": [
        {"status": BAD, "error_contains_any": ["video", "frame", "stream", "fps", "decode"]},
        {"status": 200},
    ],
    "max_seconds": 15,
}

for _cid, _t, _fn, _e in (
    ("R35a", "no frame rate in the file", lambda: avi(_frames(4), (84, 84), (0, 0)), VBAD),
    ("R35b", "header declares 0 frames, 4 follow", lambda: avi(_frames(4), (84, 84), declared=0), VBAD),
    (
        "R35e",
        "first 120 bytes only",
        lambda: avi(_frames(4), (84, 84))[:120],
        {"status": BAD, "max_seconds": 15},
    ),
):

    @case(_cid, "wrong-status", _t, {**_e, **ALIVE})
    def _(fn=_fn):
        return chat([video(fn()), VQ])


def _broken() -> bytes:
    f = _frames(10)
    f[4] = f[4][:60] + b"\0" * 200
    return avi(f, (84, 84))


@case("R36a", "wrong-status", "one of ten frames cannot be decoded", {**VBAD, **ALIVE})
def _():
    return chat([video(_broken()), VQ])


@case(
    "R38a",
    "wrong-status",
    "frames as a list of JPEGs in one data URL",
    {"any_of": [{"status": 200}, NOVIDEO], **ALIVE},
)
def _():
    b = ",".join(base64.b64encode(f).decode() for f in _frames(4))
    return chat([video("data:video/jpeg;base64," + b), VQ])
