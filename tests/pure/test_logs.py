"""Lines of the log: their form, and what never gets into one."""

from __future__ import annotations

import base64
import json
import logging
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.logs import JsonLines, set_up_logging, without_payload
from tapetum.engine.meters import Distribution, Metric
from tapetum.server.report import busy_line, numbers_of

PAYLOAD = re.compile(r"[A-Za-z0-9+/=]{200}")


def line_of(message: str, *values: object, **attributes: object) -> dict[str, object]:
    record = logging.LogRecord("tapetum.x", logging.INFO, "file", 1, message, values, None)
    record.__dict__.update(attributes)
    text = JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_is_one_object_with_its_own_fields_behind() -> None:
    line = line_of("%s took %d", "it", 5, created=1.25, msecs=250.0, fields={"status": 200, "tenant": "ä"})
    assert line == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "info",
        "logger": "tapetum.x",
        "message": "it took 5",
        "status": 200,
        "tenant": "ä",
    }


def test_an_exception_comes_with_its_traceback_and_without_data() -> None:
    try:
        raise ValueError("no picture: " + base64.b64encode(bytes(range(256)) * 4).decode())
    except ValueError:
        line = line_of("failed", exc_info=sys.exc_info())
    assert (
        "Traceback" in line["exception"] and "ValueError: no picture: <1368 characters>" in line["exception"]
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("get https://host/a/b.png?sig=abc&x=1 failed", "get https://host/a/b.png?… failed"),
        ("'http://h?x'", "'http://h?…'"),
        ("s3://bucket/key?token=1 and http://h/?y", "s3://bucket/key?… and http://h/?…"),
        ("is it https://host/a/b.png?", "is it https://host/a/b.png?"),
        ("why? https://host", "why? https://host"),
        ("a" * 99, "a" * 99),
        ("data:image/png;base64," + "A" * 300, "data:image/png;base64,<300 characters>"),
    ],
)
def test_queries_and_data_are_left_out(text: str, told: str) -> None:
    assert without_payload(text) == told


@given(st.binary(min_size=1, max_size=3000), st.text(max_size=50), st.text(max_size=50))
def test_no_base64_gets_through(data: bytes, before: str, behind: str) -> None:
    told = without_payload(f"{before}{base64.b64encode(data * 4).decode()}{behind}")
    assert not PAYLOAD.search(told)


@pytest.mark.parametrize("piece", ["x", "a://", "http://h/", "A+", "?", "a://b?"])
def test_a_text_of_any_length_and_kind_is_told_shortly_and_quickly(piece: str) -> None:
    import time

    started_s = time.perf_counter()
    assert len(without_payload(piece * 1_000_000)) < 10_000
    assert time.perf_counter() - started_s < 1.0


@pytest.fixture
def _as_before() -> object:
    """The loggers as they were."""
    root, ours = logging.getLogger(), logging.getLogger("tapetum")
    kept = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], root.level = kept[0], kept[1]
    ours.setLevel(kept[2])


@pytest.mark.usefixtures("_as_before")
def test_libraries_speak_up_only_when_something_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    for name in ("uvicorn.error", "httpx", "tapetum.server.run"):
        logging.getLogger(name).info("well")
        logging.getLogger(name).debug("detail")
        logging.getLogger(name).error("ill")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("uvicorn.error", "ill"),
        ("httpx", "ill"),
        ("tapetum.server.run", "well"),
        ("tapetum.server.run", "ill"),
    ]


NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "mm_cache_queries",
)


def test_a_busy_server_says_how_much_it_does() -> None:
    before = dict.fromkeys(NAMES, 10.0)
    now = dict(zip(NAMES, (3.0, 2.0, 0.345, 60.0, 110.0, 50.0, 30.0, 15.0), strict=True))
    assert busy_line(before, now, 10.0) == (
        "5.0 prompt and 10.0 output tokens/s, 0.5 media/s, 3 running, 2 waiting, 34.5% of KV in use, "
        "50% of prompts cached"
    )
    assert "cached" not in (busy_line(now, {**now, "generation_tokens": 111.0}, 10.0) or "")


def test_an_idle_server_says_nothing() -> None:
    idle = {**dict.fromkeys(NAMES, 10.0), "num_requests_running": 0.0, "num_requests_waiting": 0.0}
    assert busy_line(idle, idle, 10.0) is None
    assert busy_line({}, dict.fromkeys(NAMES, 0.0), 10.0) is None


def test_values_of_all_labels_are_one_number_and_histograms_none() -> None:
    gauge = Metric(name="a", kind="gauge", text="", values={"x": 1.0, "y": 2.0}, label="l")
    spread = Distribution(bounds=(1.0,), counts=(1, 2), total=3.0)
    assert numbers_of([gauge, Metric(name="b", kind="histogram", text="", values={"": spread})]) == {
        "a": 3.0,
        "b": 0,
    }
