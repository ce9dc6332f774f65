"""Chat requests, and the two that every server must answer."""

from __future__ import annotations

from typing import Any

from PIL import Image

from tests.conformance.faults.form import Catalogue
from tests.conformance.faults.pictures import enc, scene, url

MODEL = "default"
CASES = Catalogue("control")
case = CASES.case
CONTROL = "C00"  # the request that tells whether a server still serves


def text(s: str) -> dict:
    return {"type": "text", "text": s}


def img(data: bytes | Image.Image | str, mime: str = "image/png", **extra) -> dict:
    if isinstance(data, Image.Image):
        data = enc(data)
    u = data if isinstance(data, str) else url(data, mime)
    return {"type": "image_url", "image_url": {"url": u, **extra}}


def video(data: bytes | str, mime: str = "video/x-msvideo") -> dict:
    u = data if isinstance(data, str) else url(data, mime)
    return {"type": "video_url", "video_url": {"url": u}}


def chat(content: Any, *, messages: list | None = None, **kw) -> dict:
    body = {
        "model": MODEL,
        "temperature": 0,
        "seed": 1,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 5,
        "messages": messages or [{"role": "user", "content": content}],
    }
    body.update(kw)
    return {k: v for k, v in body.items() if v is not DROP}


DROP = object()
Q = "Name the colours of the four corners, clockwise from the upper left."


def ask(data, mime: str = "image/png", q: str = Q, **kw) -> dict:
    return chat([img(data, mime), text(q)], **kw)


@case("C00", "none", "a plain request that must always work", {"status": 200, "image_spans": 1})
def _():
    return ask(scene(112, 84))


@case("C01", "none", "the same question without any picture", {"status": 200, "image_spans": 0})
def _():
    return chat([text(Q)])
