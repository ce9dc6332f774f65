"""The server as a whole: its health under load, ids of clients, its numbers, its limits."""

from __future__ import annotations

from PIL import Image

from tests.conformance.faults.form import ALIVE, Catalogue
from tests.conformance.faults.image_geometry import FACTOR
from tests.conformance.faults.pictures import enc, scene, url
from tests.conformance.faults.requests import ask, chat

CASES = Catalogue("server")
case = CASES.case


@case(
    "R60a",
    "blocked-loop",
    "health while large pictures and a huge text are prepared",
    {
        "checks": [
            {"p95_ms_of": "health", "ms": 200},
            {"every_status": "health", "in": [200]},
            {"no_status_of": ["r", 500]},
        ]
    },
)
def _():
    u = url(enc(scene(1500, 1000).resize((3000, 2000), Image.NEAREST), "JPEG", quality=80), "image/jpeg")
    return {
        "scenario": "busy-front",
        "steps": [
            {
                "do": "poll",
                "path": "/health",
                "every_ms": 50,
                "for_s": 30,
                "save": "health",
                "background": True,
            },
            {
                "do": "parallel",
                "steps": [{"do": "post", "body": ask(u), "save": "r"} for _ in range(8)]
                + [{"do": "post", "body": chat("lorem ipsum " * 400_000), "save": "r"}],
            },
        ],
    }


@case(
    "R62a",
    "engine-death",
    "two requests in flight under one client-given id",
    {
        "any_of": [
            {"checks": [{"every_status": "r", "in": [200]}, {"pairwise_equal_text": ["r", "solo"]}]},
            {"checks": [{"one_status_in": ["r", [400, 409]]}, {"one_status_in": ["r", [200]]}]},
        ],
        "checks": [{"no_status_of": ["r", 500]}],
        **ALIVE,
    },
)
def _():
    bs = [ask(scene(112, 84, 1), max_tokens=64), ask(scene(84, 112, 2), max_tokens=64)]
    return {
        "scenario": "same-id",
        "steps": [{"do": "post", "body": b, "save": "solo"} for b in bs]
        + [
            {
                "do": "parallel",
                "steps": [
                    {
                        "do": "post",
                        "body": {**b, "request_id": "same"},
                        "headers": {"X-Request-Id": "same"},
                        "save": "r",
                    }
                    for b in bs
                ],
            }
        ],
    }


@case(
    "R64a",
    "wrong-metric",
    "counters after five finished and five broken-off requests",
    {
        "checks": [
            {"gauge": ["running", 0]},
            {"gauge": ["waiting", 0]},
            {"counter_delta": ["finished", 5]},
            {"counter_delta": ["aborted", 5]},
            {"counter_delta_equals_sum_of_usage": ["prompt_tokens", "ok"]},
            {"no_negative_metric": True},
        ]
    },
)
def _():
    b = ask(scene(112, 84), max_tokens=16)
    long = {**ask(scene(112, 84), max_tokens=2000), "stream": True}
    return {
        "scenario": "metrics",
        "steps": [{"do": "get", "path": "/metrics", "save": "before"}]
        + [{"do": "post", "body": b, "save": "ok"} for _ in range(5)]
        + [{"do": "post", "body": long, "abort_after_chunks": 2, "save": "x"} for _ in range(5)]
        + [{"do": "sleep", "s": 2}, {"do": "get", "path": "/metrics", "save": "after"}],
    }


@case(
    "R66a",
    "start-failure",
    "limits that cannot fit into memory",
    {
        "checks": [
            {
                "start_outcome": [
                    "starts with smaller limits and says so",
                    "exits within 60 s naming the option",
                ]
            },
            {"never": "killed by the system, hang, stack trace only"},
        ]
    },
)
def _():
    return {
        "scenario": "start-limits",
        "steps": [
            {
                "do": "start",
                "args": {
                    "max_images_per_request": 64,
                    "max_pixels": 16384 * FACTOR * FACTOR,
                    "context": 262144,
                    "memory_mb": 2048,
                },
            },
            {"do": "post", "body": ask(scene(112, 84)), "save": "r"},
        ],
    }
