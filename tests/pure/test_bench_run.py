"""The order of a run, with real processes that answer at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tapetum.bench import launch, run
from tapetum.bench.peers import Peer
from tapetum.bench.record import Repeat
from tapetum.bench.run import Plan, Run
from tapetum.bench.workloads import Sizes

SERVER = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Chat(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        tokens = json.loads(self.rfile.read(int(self.headers["content-length"])))["max_tokens"]
        self.send_response(200)
        self.end_headers()
        for number in range(tokens):
            event = {"choices": [{"delta": {"content": "w"}}]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")

    def log_message(self, *_):
        pass

if "spin" in sys.argv:
    def spin():
        while True:
            pass
    threading.Thread(target=spin, daemon=True).start()
if "die" in sys.argv:
    sys.exit(3)
print("started", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Chat).serve_forever()
"""


class Seen:
    def __init__(self) -> None:
        self.repeats: list[Repeat] = []
        self.failed: list[tuple[str, str]] = []

    def left_out(self, label: str, why: str) -> None:
        self.failed.append((label, why))

    @property
    def order(self) -> list[tuple[int, str, str]]:
        return [(repeat.number, repeat.peer, repeat.workload) for repeat in self.repeats]


def peer(label: str, *words: str) -> Peer:
    return Peer(kind="tapetum", label=label, command=(sys.executable, "-c", SERVER, *words))


def ran(folder: Path, *peers: Peer, workloads: tuple[str, ...] = ("T1",)) -> Seen:
    seen, sizes = Seen(), Sizes(num_requests=1, max_tokens=2)
    plan = Plan(workloads=workloads, repeats=2, seed="s", sizes=sizes, checkpoint=folder, logs=folder)
    Run(plan, seen.repeats.append, seen.left_out).all(peers)
    return seen


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SETTLE_S", 0.0)
    monkeypatch.setattr(launch, "_IDLE_S", 0.3)


def starts(folder: Path, label: str) -> int:
    return (folder / f"{label}.log").read_text().count("started")


def test_peers_take_turns_and_are_started_once(tmp_path: Path) -> None:
    seen = ran(tmp_path, peer("a"), peer("b"))
    first = [(0, "a", "P10"), (0, "a", "T1"), (0, "b", "P10"), (0, "b", "T1")]
    assert seen.order == [*first, (1, "a", "T1"), (1, "b", "T1")]
    assert not seen.failed
    assert (starts(tmp_path, "a"), starts(tmp_path, "b")) == (1, 1)
    start, ask, *_ = seen.repeats
    assert 0 < start.figures["healthy_s"] <= start.figures["first_token_s"]
    assert ask.figures["num_tokens"] == 2
    assert not ask.faults


def test_a_start_that_is_asked_for_is_one_each_turn(tmp_path: Path) -> None:
    seen = ran(tmp_path, peer("a"), workloads=("P10",))
    assert seen.order == [(0, "a", "P10"), (1, "a", "P10")]
    assert starts(tmp_path, "a") == 2


def test_one_that_spins_while_it_waits_is_stopped(tmp_path: Path) -> None:
    ran(tmp_path, peer("a", "spin"))
    assert starts(tmp_path, "a") == 2


def test_one_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    seen = ran(tmp_path, peer("a", "die"), peer("b"))
    ((label, why),) = seen.failed
    assert label == "a"
    assert "ended with 3" in why and "a.log" in why
    assert [name for _, name, workload in seen.order if workload == "T1"] == ["b", "b"]


def test_nothing_is_left_running(tmp_path: Path) -> None:
    before = _children()
    ran(tmp_path, peer("a"))
    assert _children() <= before


def _children() -> set[str]:
    """Of this process, by number."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}
