"""Relations about the engine and its process hold of what is right and fail on what is wrong."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from tests.conformance.process import Process
from tests.pure.conformance_kit import (
    Example,
    MadeUpServer,
    answer,
    failure,
    problem,
    prompt,
    scrape,
    seen,
    start,
    with_,
)


def cached(number: int) -> dict:
    return {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": number, "visual_tokens": 16}}


EXAMPLES = [
    Example(
        {"role_turns_seen_by_model": ["r", 2]},
        [seen(r=answer())],
        [seen(r=answer())],
        MadeUpServer(prompts=[prompt("a", roles=["system", "user", "assistant"])]),
        MadeUpServer(prompts=[prompt("a", roles=["user", "assistant"])]),
    ),
    Example(
        {"role_turns_seen_by_model": "r", "user": 1, "system": 1},
        [seen(r=answer())],
        [seen(r=answer())],
        MadeUpServer(prompts=[prompt("a", roles=["system", "user", "assistant"])]),
        MadeUpServer(prompts=[prompt("a", roles=["user", "user", "assistant"])]),
    ),
    Example(
        {"prompt_order": ["r", ["First", "image", "Second", "image"]]},
        [seen(r=answer())],
        [seen(r=answer())],
        MadeUpServer(prompts=[prompt("user First:", "image", "Second:", "image", "which?")]),
        MadeUpServer(prompts=[prompt("user", "image", "image", "First: Second: which?")]),
    ),
    Example(
        {"prompt_order": "r", "is": ["image", "text"]},
        [seen(r=answer())],
        [seen(r=answer())],
        MadeUpServer(prompts=[prompt("user\n", "image", "which?")]),
        MadeUpServer(prompts=[prompt("user\n", "image", "image", "which?")]),
    ),
    Example(
        {"cached_tokens_at_least_image_of": ["r", "first"]},
        [seen(r=answer(usage=cached(16)), first=answer())],
        [
            seen(r=answer(usage=cached(15)), first=answer()),
            seen(r=answer(usage=cached(16)), first=answer(usage={"prompt_tokens": 3})),
            seen(r=failure(), first=answer()),
        ],
    ),
    Example(
        {"distinct_image_keys": ["r", 2]},
        [seen(r=[answer(), answer()])],
        [seen(r=[answer(), answer()])],
        MadeUpServer(prompts=[prompt("image", keys=["a"]), prompt("image", keys=["b"])]),
        MadeUpServer(prompts=[prompt("image", keys=["a"])]),
    ),
    Example(
        {"gauge": ["running", 0]},
        [seen()],
        [seen()],
        MadeUpServer(scrapes=[scrape(num_requests_running=0)]),
        MadeUpServer(scrapes=[scrape(num_requests_running=1)]),
    ),
    Example(
        {"gauge": ["running", 0]},
        [seen()],
        [seen()],
        MadeUpServer(scrapes=[scrape(num_requests_running=0)]),
        MadeUpServer(scrapes=[scrape(num_requests_waiting=0)]),
    ),
    Example(
        {"gauge_within_s": ["running", 0, 0.2]},
        [with_(seen(), ended_s=math.inf)],
        [with_(seen(), ended_s=0.0)],
        MadeUpServer(scrapes=[scrape(num_requests_running=3), scrape(num_requests_running=0)]),
        MadeUpServer(scrapes=[scrape(num_requests_running=3)]),
    ),
    Example(
        {"counter_delta": ["finished", 5]},
        [
            seen(
                before=scrape(finished_stop=1, finished_length=1),
                after=scrape(finished_stop=4, finished_length=3, finished_abort=9),
            )
        ],
        [
            seen(before=scrape(finished_stop=1), after=scrape(finished_stop=5)),
            seen(after=scrape(finished_stop=5)),
        ],
    ),
    Example(
        {"counter_delta": ["aborted", 1]},
        [seen(before=scrape(finished_stop=1), after=scrape(finished_stop=1, finished_abort=1))],
        [seen(before=scrape(finished_abort=1), after=scrape(finished_abort=1))],
    ),
    Example(
        {"counter_delta_equals_sum_of_usage": ["prompt_tokens", "ok"]},
        [seen(before=scrape(prompt_tokens=7), after=scrape(prompt_tokens=87), ok=[answer(), answer()])],
        [
            seen(before=scrape(prompt_tokens=7), after=scrape(prompt_tokens=127), ok=[answer(), answer()]),
            seen(before=scrape(prompt_tokens=7), after=scrape(prompt_tokens=87), ok=[answer(), failure()]),
        ],
    ),
    Example(
        {"no_negative_metric": True},
        [seen(before=scrape(num_requests_running=0))],
        [seen(before=scrape(num_requests_running=-1))],
        MadeUpServer(scrapes=[scrape(prompt_tokens=1)]),
        MadeUpServer(scrapes=[scrape(prompt_tokens=1)]),
    ),
    Example(
        {"no_negative_metric": True},
        [seen()],
        [seen()],
        MadeUpServer(scrapes=[scrape(kv_cache_usage_perc=0)]),
        MadeUpServer(scrapes=[scrape(kv_cache_usage_perc=-0.1)]),
    ),
    Example(
        {"rss_growth_mb_max": 100},
        [with_(seen(), growth_mb=100.0)],
        [with_(seen(), growth_mb=101.0), seen()],
    ),
    Example(
        {"rss_growth_second_half_percent_max": ["m", 5]},
        [seen(m=[100, 180, 200, 205, 207, 210])],
        [seen(m=[100, 180, 200, 205, 207, 211]), seen(m=[100, 100])],
    ),
    Example(
        {"exit_within_s": 5},
        [with_(seen(), signals=[10.0])],
        [with_(seen(), signals=[9.0]), with_(seen(), ended_s=1.0)],
        MadeUpServer(ended=(0, 15.0)),
        MadeUpServer(ended=(0, 15.0)),
    ),
    Example(
        {"exit_within_s": 5},
        [with_(seen(), signals=[10.0])],
        [with_(seen(), signals=[10.0])],
        MadeUpServer(ended=(0, 15.0)),
        MadeUpServer(ended=None),
    ),
    Example({"exit_code": 0}, [seen()], [seen()], MadeUpServer(ended=(0, 1.0)), MadeUpServer(ended=(1, 1.0))),
    Example(
        {"exit_code": [0, 143]},
        [seen()],
        [seen()],
        MadeUpServer(ended=(143, 1.0)),
        MadeUpServer(ended=None),
    ),
    Example(
        {"no_orphan_process": True},
        [with_(seen(), signals=[1.0])],
        [with_(seen(), signals=[1.0]), seen()],
        MadeUpServer(),
        MadeUpServer(orphans=[Process(7, "1", 1, "python -m tapetum.engine.process")]),
    ),
    Example(
        {
            "start_outcome": [
                "starts with smaller limits and says so",
                "exits within 60 s naming the option",
            ]
        },
        [
            with_(seen(), start=start(ready=True, log="max_model_len lowered to 2048")),
            with_(seen(), start=start(2, log="tapetum: --max-model-len is 9, limit 8")),
        ],
        [
            with_(seen(), start=start(ready=True, log="serving")),
            with_(seen(), start=start(2, log="it does not fit")),
            with_(seen(), start=start(2, log="--max-model-len", seconds=61.0)),
            with_(seen(), start=start(-9, log="--max-model-len")),
            with_(seen(), start=start(None, log="--max-model-len")),
            with_(seen(), start=start(0, log="--max-model-len")),
            seen(),
        ],
    ),
    Example(
        {"never": "killed by the system, hang, stack trace only"},
        [
            with_(seen(), start=start(2, log="Traceback\n--max-model-len")),
            with_(seen(), start=start(ready=True)),
        ],
        [
            with_(seen(), start=start(-9)),
            with_(seen(), start=start(137)),
            with_(seen(), start=start(None)),
            with_(seen(), start=start(1, log="Traceback")),
        ],
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: next(iter(example.check)))
def test_a_relation_holds_of_what_is_right_and_of_nothing_else(example: Example) -> None:
    example.prove()


def test_a_gauge_is_waited_for() -> None:
    scrapes = [scrape(num_requests_running=1)] * 3 + [scrape(num_requests_running=0)]
    check = {"gauge_within_s": ["running", 0, 5]}
    assert problem(check, replace(seen(), ended_s=time.monotonic()), MadeUpServer(scrapes=scrapes)) is None


def test_a_phrase_about_starts_that_nobody_knows_is_told() -> None:
    assert "politely" in str(
        problem({"start_outcome": ["starts politely"]}, replace(seen(), start=start(ready=True)))
    )
