"""What is asked, when a repeat counts, how servers are started, and how a run stands against its goals."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from tapetum.bench.chart import chart
from tapetum.bench.goals import GOALS, shape_of, standings
from tapetum.bench.guard import CpuTimes, Use, cpu_times, tree_s, use_between
from tapetum.bench.peers import Ground, Peer, peers_of
from tapetum.bench.record import Record, Repeat, Setup, columns, read_record, write_record
from tapetum.bench.report import report
from tapetum.bench.workloads import WORKLOADS, Ask, Script, Sizes, script_of
from tapetum.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
SMALL = Sizes(num_large=1, max_paced=3)


def pictures(ask: Ask) -> list[str]:
    parts = [
        part
        for message in ask.messages
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def side(url: str) -> tuple[int, int]:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size


def asks(script: Script) -> list[Ask]:
    return [ask for lane in script.lanes for ask in lane] + [paced.ask for paced in script.paced]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_says_all_that_is_asked(workload: str) -> None:
    first = script_of(workload, "a", SMALL)
    assert script_of(workload, "a", SMALL) == first
    others = {json.dumps(ask.messages) for ask in asks(script_of(workload, "b", SMALL))}
    assert not others & {json.dumps(ask.messages) for ask in asks(first)}


@pytest.mark.parametrize(("workload", "count"), [("T1", 0), ("W1", 1)])
def test_one_at_a_time(workload: str, count: int) -> None:
    (lane,) = script_of(workload, "a", Sizes()).lanes
    assert len(lane) == 4
    assert {ask.max_tokens for ask in lane} == {32}
    assert all([side(url) for url in pictures(ask)] == [(448, 448)] * count for ask in lane)
    assert len({url for ask in lane for url in pictures(ask)}) == 4 * count


def test_eight_clients_have_pictures_of_their_own() -> None:
    script = script_of("W2", "a", Sizes())
    assert [len(lane) for lane in script.lanes] == [2] * 8
    assert len({url for ask in asks(script) for url in pictures(ask)}) == 16


def test_conversations_grow_on_one_picture_that_all_share() -> None:
    lanes = script_of("W3", "a", Sizes()).lanes
    assert [len(lane) for lane in lanes] == [4] * 4
    assert len({url for lane in lanes for ask in lane for url in pictures(ask)}) == 1
    for lane in lanes:
        assert [len(ask.messages) for ask in lane] == [1, 3, 5, 7]
        for before, after in pairwise(lane):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.messages[len(before.messages)]["role"] == "assistant"


def test_text_is_paced_beside_large_pictures() -> None:
    script = script_of("W4", "a", Sizes())
    (lane,) = script.lanes
    assert [side(url) for ask in lane for url in pictures(ask)] == [(1344, 1344)] * 2
    assert {ask.max_tokens for ask in lane} == {16}
    assert len(script.paced) == 40
    assert {paced.ask.max_tokens for paced in script.paced} == {64}
    assert all(0.7 <= paced.pause_s <= 1.3 for paced in script.paced)
    assert script.lead_s == 0.5


def test_a_window_keeps_twelve_frames_of_the_one_before() -> None:
    (lane,) = script_of("W5", "a", Sizes()).lanes
    windows = [pictures(ask) for ask in lane]
    assert [len(window) for window in windows] == [16] * 4
    assert all(after[:12] == before[4:] for before, after in pairwise(windows))
    assert len({url for window in windows for url in window}) == 28
    assert side(windows[0][0]) == (224, 224)


def process(proc: Path, number: int, parent: int, ticks: tuple[int, int, int, int], name: str = "x") -> None:
    folder = proc / str(number)
    folder.mkdir(exist_ok=True)
    before = "S " + f"{parent} " + "0 " * 9  # state, parent, then what nobody asks for up to the times
    (folder / "stat").write_text(f"{number} ({name}) {before}{' '.join(map(str, ticks))} 20 0\n")


def test_the_tree_of_a_server_is_its_own_and_an_idle_one_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 100 0 0 900 5 0 0 7\ncpu0 1 2 3\n")
    process(tmp_path, 10, 1, (50, 0, 999, 0))  # asks: its children are not its own
    process(tmp_path, 20, 10, (10, 0, 1, 1), name="a) (b")
    process(tmp_path, 21, 20, (5, 3, 0, 0))
    process(tmp_path, 30, 10, (40, 0, 0, 0))
    times = cpu_times(20, 10, proc=tmp_path)
    assert times.server_s == pytest.approx(0.20)
    assert times.client_s == pytest.approx(0.50)
    assert (times.busy_s, times.stolen_s) == (pytest.approx(1.0), pytest.approx(0.07))
    assert tree_s(21, proc=tmp_path) == pytest.approx(0.08)


def times(at: float, busy: float, server: float, client: float, stolen: float = 0.0) -> CpuTimes:
    return CpuTimes(at_s=at, busy_s=busy, stolen_s=stolen, server_s=server, client_s=client)


def test_foreign_is_what_neither_server_nor_client_used() -> None:
    use = use_between(times(0, 100, 10, 1), times(10, 120, 28, 1.5, stolen=2))
    assert use.server_cores == pytest.approx(1.8)
    assert use.foreign_cores == pytest.approx(0.15)
    assert use.stolen_cores == pytest.approx(0.2)
    assert not use.is_clean
    assert use_between(times(0, 100, 10, 1), times(10, 119, 28, 1.5)).is_clean


QUIET = Use(seconds=1, server_cores=2, foreign_cores=0.01, stolen_cores=0)
BUSY = replace(QUIET, foreign_cores=0.5)


def repeat(peer: str, workload: str, use: Use = QUIET, **figures: float) -> Repeat:
    return Repeat(peer=peer, workload=workload, number=0, figures=figures, use=use)


def test_only_clean_repeats_count_where_there_are_any() -> None:
    quiet = [repeat("a", "T1", tpot_s=value) for value in (1.0, 3.0)]
    failed = replace(repeat("a", "T1", tpot_s=70.0), faults=("no",))
    found = columns(
        [*quiet, repeat("a", "T1", BUSY, tpot_s=90.0), failed, repeat("b", "T1", BUSY, tpot_s=5.0)]
    )
    assert (found["a", "T1"].figures["tpot_s"], found["a", "T1"].num_clean, found["a", "T1"].num_repeats) == (
        2,
        2,
        4,
    )
    assert (found["b", "T1"].figures["tpot_s"], found["b", "T1"].num_clean) == (5, 0)


OURS = "Tapetum bf16"


@pytest.mark.parametrize(("ours", "word"), [(0.68, "aim"), (0.8, "must"), (0.81, "missed")])
def test_a_time_is_compared_with_its_peer(ours: float, word: str) -> None:
    (row,) = standings(
        columns([repeat(OURS, "W1", ttft_s=ours), repeat("vLLM bf16", "W1", ttft_s=1.0)]), "mini"
    )[:1]
    assert (row.goal.row, row.ratio, row.word, row.is_clean) == ("P3", pytest.approx(ours), word, True)


def test_more_requests_are_better() -> None:
    for ours, word in ((1.5, "aim"), (1.3, "must"), (1.2, "missed")):
        both = [repeat(OURS, "W2", requests_per_s=ours), repeat("vLLM bf16", "W2", requests_per_s=1.0)]
        (row,) = standings(columns(both), "mini")
        assert (row.goal.row, row.word) == ("P7", word)


def test_a_gap_is_held_to_its_own_bound() -> None:
    (row,) = standings(columns([repeat(OURS, "W4", gap_max_s=0.2)]), "mini")
    assert (row.goal.row, row.word, row.ratio) == ("P1", "must", None)


def test_a_start_has_an_aim_in_seconds() -> None:
    for ours, word in ((3.0, "aim"), (5.0, "must"), (5.1, "missed")):
        both = [repeat(OURS, "P10", first_token_s=ours), repeat("llama.cpp bf16", "P10", first_token_s=10.0)]
        (row,) = standings(columns(both), "2b")
        assert row.word == word


def test_goals_are_those_of_their_checkpoint(tmp_path: Path) -> None:
    both = [repeat(OURS, "T1", tpot_s=1.0), repeat("llama.cpp bf16", "T1", tpot_s=2.0)]
    rows = {
        shape: [row.goal.row for row in standings(columns(both), shape)] for shape in ("mini", "2b", None)
    }
    assert rows == {"mini": ["P5"], "2b": ["P6"], None: []}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "hidden_size": 1536}))
    assert shape_of(tmp_path) == "2b"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "hidden_size": 64}))
    assert shape_of(tmp_path) is None


def test_every_row_has_a_goal_that_can_be_reached() -> None:
    assert {goal.row for goal in GOALS} == {f"P{number}" for number in range(1, 12)}
    assert all((goal.aim >= goal.must) == goal.is_more_better or goal.aim == goal.must for goal in GOALS)


def record() -> Record:
    setup = Setup(
        version="1", model="m", shape="mini", threads=2, seed="s", commands={OURS: "tapetum serve m"}
    )
    both = (repeat(OURS, "T1", tpot_s=0.0085), repeat("llama.cpp bf16", "T1", BUSY, tpot_s=0.01))
    return Record(setup=setup, repeats=both)


def test_a_report_tells_ratio_goal_and_what_disturbed_it() -> None:
    lines = report(record()).splitlines()
    goal = "| P5 | TPOT of text, s | 0.0085 | 0.01 (llama.cpp bf16) | 0.85 | ≤ 0.9x | ≤ 0.8x |"
    assert f"{goal} must, but others were at work |" in lines
    assert "| text: TPOT, ms | 8.5 | 10 |" in lines
    assert "| T1: repeats that count | 1 of 1 | 0 of 1 |" in lines


def test_a_chart_draws_a_bar_for_each_ratio() -> None:
    picture = chart(standings(columns(record().repeats), "mini"))
    assert picture.startswith("<svg") and picture.count("0.85</text>") == 1
    assert f'width="{300 * 0.85:.1f}"' in picture


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    write_record(record(), tmp_path / "run.json")
    assert read_record(tmp_path / "run.json") == replace(
        record(), setup=read_record(tmp_path / "run.json").setup
    )
    (tmp_path / "run.json").write_text('{"setup": 1}')
    with pytest.raises(ConfigError, match="not what a run leaves"):
        read_record(tmp_path / "run.json")


def page(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "performance.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_page_is_made_of_the_runs_that_are_kept(tmp_path: Path) -> None:
    write_record(record(), tmp_path / "run.json")
    assert page("--docs", str(tmp_path), str(tmp_path / "run.json")).returncode == 0
    made = (tmp_path / "performance.md").read_text()
    assert "| P5 |" in made and "](performance-m.svg)" in made and "tapetum serve m" in made
    assert page("--docs", str(tmp_path), "--check").returncode == 0
    (tmp_path / "performance.md").write_text(made.replace("0.85", "0.58"))
    checked = page("--docs", str(tmp_path), "--check")
    assert checked.returncode == 1
    assert "performance.md" in checked.stdout


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    for name in ("vllm", "llama-server", "transformers"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return Ground(
        checkpoint=tmp_path,
        threads=2,
        gguf=(("bf16", tmp_path / "a.gguf"), ("Q8_0", tmp_path / "b.gguf")),
        mmproj=tmp_path / "p.gguf",
        more_words={"tapetum": ("--mm-processor", "fast")},
    )


def words(peer: Peer, flag: str) -> str:
    return peer.command[peer.command.index(flag) + 1]


def test_all_peers_have_the_same_threads_and_precision(ground: Ground) -> None:
    named = [
        f"{kind}={ground.checkpoint / name}" for kind, name in (("vllm", "vllm"), ("llama", "llama-server"))
    ]
    ours, vllm, llama, quantised = peers_of([*named], ground)
    assert [peer.label for peer in (ours, vllm, llama, quantised)] == [
        "Tapetum bf16",
        "vLLM bf16",
        "llama.cpp bf16",
        "llama.cpp Q8_0",
    ]
    assert words(ours, "--threads") == words(llama, "-t") == words(llama, "-tb") == "2"
    assert words(ours, "--dtype") == words(vllm, "--dtype") == "bfloat16"
    assert words(ours, "--speculate") == "off"  # answers of random weights repeat one token
    assert ours.command[-2:] == ("--mm-processor", "fast")
    assert vllm.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert {peer.environment["OMP_NUM_THREADS"] for peer in (ours, vllm, llama)} == {"2"}
    assert words(quantised, "-m").endswith("b.gguf")
    assert ours.fields(32) == {"ignore_eos": True}


def test_transformers_is_told_the_length_in_its_own_way(ground: Ground) -> None:
    _, peer = peers_of([f"transformers={ground.checkpoint / 'transformers'}"], ground)
    lengths = json.loads(str(peer.fields(7)["generation_config"]))
    assert (lengths["max_new_tokens"], lengths["min_new_tokens"]) == (7, 7)
    assert peer.model == str(ground.checkpoint)


@pytest.mark.parametrize(
    ("named", "message"),
    [("sglang", "known are vllm"), ("vllm=/nowhere/vllm", "no program /nowhere/vllm")],
)
def test_a_peer_that_cannot_be_started_is_refused(ground: Ground, named: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        peers_of([named], ground)


def test_llama_needs_its_files(ground: Ground) -> None:
    with pytest.raises(ConfigError, match="--gguf"):
        peers_of([f"llama={ground.checkpoint / 'llama-server'}"], replace(ground, mmproj=None))


def test_help_of_bench_is_quick_and_needs_no_torch() -> None:
    ask = (
        "import sys; from tapetum.cli import main; main(['bench', 'peers', '--help'], standalone_mode=False)"
    )
    probe = f"{ask}; print('torch' in sys.modules, 'PIL' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_workload_that_is_not_known_is_refused(tmp_path: Path) -> None:
    from tapetum.cli import main

    (tmp_path / "config.json").write_text("{}")
    done = CliRunner().invoke(
        main, ["bench", "peers", str(tmp_path), "--workloads", "W9", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 2
    assert "'W9', known are T1" in done.output
