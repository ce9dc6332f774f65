"""How pictures reach a server: dialects of data URLs, remote addresses, files of the server, large bodies."""

from __future__ import annotations

import base64

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import enc, noise, scene
from tests.conformance.faults.requests import ask, chat, text, video

CASES = Catalogue("transport")
case = CASES.case


def _small() -> bytes:
    """A picture whose base64 has '+', '/' and '=' in it."""
    for s in range(1, 200):
        d = enc(scene(112, 84, s))
        b = base64.b64encode(d).decode()
        if "+" in b and "/" in b and b.endswith("="):
            return d
    raise AssertionError


def _b64() -> str:
    return base64.b64encode(_small()).decode()


@case("R18-ref", "none", "the canonical data URL", {"status": 200}, True)
def _():
    return ask(_small())


def _dialect(cid: str, title: str, head: str):
    same = {"status": 200, "same_prompt_tokens_as": "R18-ref", "same_output_as": "R18-ref"}

    @case(cid, "wrong-status", title, {**same, **ALIVE})
    def _():
        return ask(head + _b64())


_dialect("R18a", "parameter before ;base64", "data:image/png;charset=utf-8;base64,")
_dialect("R18b", "two parameters", "data:image/png;name=a.png;q=1;base64,")

_dialect("R19a", "no media type", "data:;base64,")
_dialect("R19b", "media type 'undefined'", "data:undefined;base64,")
_dialect("R19c", "PNG called image/jpeg", "data:image/jpeg;base64,")


SSRF_URLS = [
    "{CANARY}/x.png",
    "http://[::1]:9/x.png",
    "http://2130706433/x.png",
    "http://0x7f.1/x.png",
    "http://169.254.169.254/latest/meta-data/",
    "http://localhost.:9/x.png",
    "ftp://example.invalid/x.png",
    "gopher://example.invalid/",
]


@case(
    "R21a",
    "security",
    "urls of inner addresses and foreign schemes",
    {"checks": [{"every_status": "r", "in": BAD}, {"canary_hits": 0}, {"max_seconds_each": 3}], **ALIVE},
)
def _():
    return {
        "scenario": "ssrf-direct",
        "config": {"remote_media": "public hosts only"},
        "steps": [{"do": "post", "body": ask(u), "save": "r"} for u in SSRF_URLS],
    }


@case(
    "R21b",
    "security",
    "allowed host redirects to an inner one",
    {"checks": [{"every_status": "r", "in": BAD}, {"canary_hits": 0}], **ALIVE},
)
def _():
    hops = [
        {"route": f"/r{c}", "status": c, "headers": {"Location": "{CANARY}/x.png"}, "body": b""}
        for c in (301, 302, 303, 307, 308)
    ]
    hops += [{"route": "/loop", "status": 302, "headers": {"Location": "{MEDIA}/loop"}, "body": b""}]
    return {
        "scenario": "ssrf-redirect",
        "config": {"allow_media_hosts": ["{MEDIA}"]},
        "serve": hops,
        "steps": [{"do": "post", "body": ask("{MEDIA}" + h["route"]), "save": "r"} for h in hops],
    }


@case(
    "R22a",
    "security",
    "a file of the server named as picture or video",
    {"checks": [{"every_status": "r", "in": BAD}, {"same_text_of_every": "r.error"}], **ALIVE},
)
def _():
    urls = [
        "file://{TMPFILE}",
        "{TMPFILE}",
        "file://localhost{TMPFILE}",
        "FILE://{TMPFILE}",
        "file://{TMPFILE}.missing",
        "file:{TMPFILE}",
    ]
    return {
        "scenario": "local-file",
        "config": {"local_media": "off (the default)"},
        "steps": [{"do": "post", "body": ask(u), "save": "r"} for u in urls]
        + [{"do": "post", "body": chat([video("file://{TMPFILE}"), text("?")]), "save": "r"}],
    }


@case(
    "R24a",
    "wrong-status",
    "remote 404, 500, a web page, an empty body",
    {"checks": [{"every_status": "r", "in": BAD}, {"error_names_remote_status": "r"}], **ALIVE},
)
def _():
    routes = [
        {"route": "/404.png", "status": 404, "body": b"no"},
        {"route": "/500.png", "status": 500, "body": b""},
        {
            "route": "/page.png",
            "status": 200,
            "headers": {"Content-Type": "text/html"},
            "body": b"<html></html>",
        },
        {"route": "/empty.png", "status": 200, "headers": {"Content-Type": "image/png"}, "body": b""},
        {"route": "/204.png", "status": 204, "body": b""},
    ]
    return {
        "scenario": "remote-errors",
        "config": {"allow_media_hosts": ["{MEDIA}"]},
        "serve": routes,
        "steps": [{"do": "post", "body": ask("{MEDIA}" + r["route"]), "save": "r"} for r in routes],
    }


@case(
    "R26a",
    "over-strict",
    "presigned link: no extension, a long query",
    {
        "checks": [
            {"status_of": "r", "in": [200]},
            {"same_output_as_case": ["r", "C00"]},
            {
                "served_query_verbatim": "sig=a%2Bb%2F%3D&X-Amz-Date=20260101T000000Z&response-content-type=image%2Fpng"
            },
        ]
    },
)
def _():
    q = "sig=a%2Bb%2F%3D&X-Amz-Date=20260101T000000Z&response-content-type=image%2Fpng"
    return {
        "scenario": "presigned",
        "config": {"allow_media_hosts": ["{MEDIA}"]},
        "serve": [
            {
                "route": "/o/7f3a",
                "status": 200,
                "headers": {"Content-Type": "binary/octet-stream"},
                "body": enc(scene(112, 84)),
            }
        ],
        "steps": [{"do": "post", "body": ask("{MEDIA}/o/7f3a?" + q), "save": "r"}],
    }


@case(
    "R27a",
    "wrong-status",
    "request body of about 1 MB",
    {
        "any_of": [
            {"status": 200},
            {"status": 413, "error_is_json": True, "error_contains_any": ["large", "limit", "size"]},
        ],
        **ALIVE,
    },
)
def _():
    return ask(enc(noise(700, 700), compress_level=0))
