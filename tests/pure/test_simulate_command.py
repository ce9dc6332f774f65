"""`tapetum bench simulate`: what it reads, prints and writes, and how it refuses what makes no sense."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tapetum.bench.simulate.coefficients import read_coefficients, shipped_names, write_coefficients
from tapetum.bench.simulate.presets import PRESETS, arrivals
from tapetum.bench.simulate.trace import Arrival, Medium, Shape, read_trace, write_trace
from tapetum.cli import main
from tapetum.core.errors import ConfigError

TEXT = Shape(name="text", prompt_tokens=100, output_tokens=10)
PICTURE = Shape(name="picture", prompt_tokens=9, output_tokens=4, media=(Medium(width=300, height=200),))
TRACE = (
    Arrival(at_s=0.0, shape=PICTURE, tenant="a", priority=1),
    Arrival(at_s=0.1, shape=TEXT, tenant="b", timeout_s=30.0),
)


def simulate(*flags: str) -> Result:
    return CliRunner().invoke(main, ["bench", "simulate", *flags])


@pytest.mark.parametrize("name", shipped_names())
def test_what_ships_is_measured_and_of_a_plausible_size(name: str) -> None:
    found = read_coefficients(name)
    assert found.name == name and "measured" in found.note
    cost = found.cost_model()
    assert cost.step_coefficients == pytest.approx(found.step)
    assert cost.encode_coefficients == pytest.approx(found.encode)
    assert 1e-3 < cost.step_seconds(1, 100) < cost.step_seconds(0, 0, 512) < 60
    assert 0.01 < cost.encode_seconds(1024, 1024**2) < 60


def test_coefficients_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = replace(read_coefficients("qwen2vl-mini-cpu"), name="mine", note="made up")
    write_coefficients(given, tmp_path / "mine.json")
    assert read_coefficients(str(tmp_path / "mine.json")) == given


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"step": [1, 2, 3]}, "step"),
        ({"step": [-1, 0, 0, 0, 0]}, "step"),
        ({"encode": ["a", 0, 0]}, "encode"),
        ({"memory": {}}, "kv_bytes_per_token"),
    ],
)
def test_coefficients_that_make_no_sense_are_refused_by_name(
    change: dict[str, object], word: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    write_coefficients(read_coefficients("qwen2vl-mini-cpu"), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=word):
        read_coefficients(str(path))


def test_a_trace_is_read_as_it_was_written_and_in_order_of_time(tmp_path: Path) -> None:
    write_trace(reversed(TRACE), tmp_path / "t.jsonl")
    assert read_trace(tmp_path / "t.jsonl") == TRACE


@pytest.mark.parametrize("line", ["{", "[]", '{"at_s": -1}', '{"at_s": 0, "shape": {"name": "x"}}', ""])
def test_a_trace_that_cannot_be_read_names_the_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"line 1|0 requests"):
        read_trace(path)


def test_presets_hold_what_they_say() -> None:
    drawn = arrivals(PRESETS["mixed"], 2.0, 1000, 0)
    names = Counter(arrival.shape.name for arrival in drawn)
    assert names == {"text": 600, "picture": 300, "4 pictures": 80, "clip": 20}
    assert drawn[-1].at_s == pytest.approx(500, rel=0.1)
    assert {(a.shape.prompt_tokens, a.shape.output_tokens) for a in drawn if a.shape.name == "text"} == {
        (512, 128)
    }
    tenants = [arrival.tenant for arrival in arrivals(PRESETS["tenants"], 1.0, 1100, 0)]
    assert tenants.count("large") == pytest.approx(10 * tenants.count("small"), rel=0.3)


def test_a_preset_is_played_and_told() -> None:
    result = simulate(
        "--trace", "mixed", "--num-prompts", "10", "--replicas", "2", "--schedule", "interactive"
    )
    assert result.exit_code == 0, result.output
    for word in ("capacity", "goodput", "Tapetum", "first come", "TTFT p50", "text", "interactive"):
        assert word in result.output


def test_a_file_is_played_and_everything_written(tmp_path: Path) -> None:
    write_trace(TRACE, tmp_path / "t.jsonl")
    out = tmp_path / "out"
    result = simulate("--trace", str(tmp_path / "t.jsonl"), "--out", str(out), "--no-baseline")
    assert result.exit_code == 0, result.output
    found = json.loads((out / "study.json").read_text())
    assert [run["name"] for run in found["runs"]] == ["Tapetum"]
    assert found["runs"][0]["num_good"] == 2 and found["capacity"] is None
    assert [tenant["name"] for tenant in found["runs"][0]["tenants"]] == ["a", "b"]
    assert ElementTree.parse(out / "plot.svg").getroot().tag.endswith("svg")
    assert read_trace(out / "trace.jsonl") == TRACE


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--trace", "nothing"], "neither a file nor one of mixed"),
        (["--coefficients", "nothing"], "qwen2vl-mini-cpu"),
        (["--load", "0"], "--load"),
        (["--load", "nan"], "--load"),
        (["--noise", "-1"], "--noise"),
        (["--quality-ladder", "0"], "--quality-ladder"),
        (["--itl-target-ms", "0"], "--itl-target-ms"),
        (["--max-queue-seconds", "-3"], "--max-queue-seconds"),
        (["--replicas", "0"], "--replicas"),
    ],
)
def test_bad_flags_are_refused_by_name(flags: list[str], word: str) -> None:
    result = simulate("--num-prompts", "5", *flags)
    assert result.exit_code != 0
    assert word in result.output + str(result.exception)
