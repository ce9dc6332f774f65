"""The client that is timed, against a made-up server that streams events at known times."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from tapetum.bench.figures import figures_of
from tapetum.bench.load import Answer, Outcome, Target, client_at, run_script
from tapetum.bench.workloads import Ask, Paced, Script

PAUSE_S = 0.05


class MadeUp(ThreadingHTTPServer):
    daemon_threads = True
    bodies: list[dict[str, object]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MadeUp

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "made-up"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        said = body["messages"][-1]["content"]
        if said == "refuse":
            self._send(503, b'{"error": "full"}')
            return
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        if said == "break":
            self._event({"error": {"message": "broken"}})
            return
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number in range(body["max_tokens"] // 2):  # two tokens in an event
            time.sleep(PAUSE_S)
            self._event({"choices": [{"delta": {"content": f"w{number}"}}]})
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: object) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[MadeUp]:
    with MadeUp(("127.0.0.1", 0), Chat) as made_up:
        made_up.bodies = []
        threading.Thread(target=made_up.serve_forever, args=(0.05,), daemon=True).start()
        yield made_up
        made_up.shutdown()


def ask(text: str, max_tokens: int = 4) -> Ask:
    return Ask(({"role": "user", "content": text},), max_tokens)


def run(server: MadeUp, script: Script) -> Outcome:
    async def whole() -> Outcome:
        async with client_at(server.url) as client:
            return await run_script(Target(client, "m", lambda tokens: {"ignore_eos": tokens}), script)

    return asyncio.run(whole())


def test_times_are_those_of_text_and_tokens_those_of_the_usage(server: MadeUp) -> None:
    outcome = run(server, Script(lanes=((ask("hello", 8),),)))
    ((answer,),) = outcome.lanes
    assert answer.fault is None
    assert len(answer.pieces_s) == 4
    assert (answer.num_tokens, answer.num_prompt_tokens) == (8, 9)
    assert PAUSE_S <= answer.ttft_s < 4 * PAUSE_S  # the event without text is no token
    assert answer.tpot_s == pytest.approx((answer.pieces_s[-1] - answer.pieces_s[0]) / 7)
    assert len(answer.gaps_s) == 3
    assert min(answer.gaps_s) > 0.5 * PAUSE_S
    body = server.bodies[0]
    assert (body["model"], body["ignore_eos"], body["stream"], body["temperature"]) == ("m", 8, True, 0)
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("said", "fault"), [("refuse", "status 503"), ("break", "broken")])
def test_a_failure_is_an_answer_with_a_fault(server: MadeUp, said: str, fault: str) -> None:
    outcome = run(server, Script(lanes=((ask(said), ask("hello")),)))
    failed, good = outcome.lanes[0]
    assert failed.fault is not None and fault in failed.fault
    assert good.fault is None
    assert figures_of("T1", outcome)["num_failed"] == 1


def test_a_server_that_is_not_there_is_a_fault() -> None:
    async def whole() -> Answer:
        async with client_at("http://127.0.0.1:9") as client:
            return await Target(client, "m", lambda _: {}).ask(ask("hello"))

    assert asyncio.run(whole()).fault is not None


def test_lanes_run_at_once_and_their_questions_in_turn(server: MadeUp) -> None:
    lane = (ask("one", 4), ask("two", 4))
    outcome = run(server, Script(lanes=(lane,) * 4))
    assert 4 * PAUSE_S <= outcome.wall_s < 8 * PAUSE_S + 0.5
    assert figures_of("W2", outcome)["requests_per_s"] == pytest.approx(8 / outcome.wall_s)


def test_paced_questions_end_with_the_lanes(server: MadeUp) -> None:
    paced = tuple(Paced(ask(f"p{number}", 2), 0.04) for number in range(100))
    outcome = run(server, Script(lanes=((ask("large", 8),),), paced=paced, lead_s=0.05))
    assert 2 <= len(outcome.paced) <= 20
    assert all(answer.fault is None for answer in outcome.paced)
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "p0"}]


def test_paced_questions_alone_are_all_asked(server: MadeUp) -> None:
    paced = tuple(Paced(ask(f"p{number}", 2), 0.01) for number in range(5))
    assert len(run(server, Script(lanes=(), paced=paced)).paced) == 5


def test_an_answer_in_one_event_ends_with_its_last_token() -> None:
    assert Answer(pieces_s=(1.0,), end_s=4.0, num_tokens=4).tpot_s == 1.0


def answered(*pieces: float, tokens: int = 2) -> Answer:
    return Answer(pieces_s=pieces, end_s=pieces[-1], num_tokens=tokens, num_prompt_tokens=1)


def test_figures_of_conversations_windows_and_gaps() -> None:
    lanes = tuple(tuple(answered(first + turn, 9.0) for turn in range(4)) for first in (1.0, 2.0, 3.0))
    figures = figures_of("W3", Outcome(lanes=lanes, paced=(), wall_s=1.0))
    assert (figures["first_turn_ttft_s"], figures["later_turns_ttft_s"]) == (2.0, 4.0)
    figures = figures_of("W5", Outcome(lanes=lanes[:1], paced=(), wall_s=1.0))
    assert (figures["first_window_ttft_s"], figures["later_windows_ttft_s"]) == (1.0, 3.0)
    paced = (answered(1.0, 1.1, 1.3), answered(2.0, 2.1, 6.1))
    figures = figures_of("W4", Outcome(lanes=((answered(7.0, 8.0),),), paced=paced, wall_s=1.0))
    assert figures["gap_max_s"] == pytest.approx(4.0)
    assert (figures["ttft_s"], figures["large_ttft_s"]) == (1.5, 7.0)


def test_the_command_loads_a_server_and_tells_its_times(server: MadeUp) -> None:
    from tapetum.cli import main

    words = ["--url", server.url, "--num-prompts", "3", "--image-size", "0", "--output-len", "6"]
    done = CliRunner().invoke(main, ["bench", "serve", *words])
    assert done.exit_code == 0, done.output
    assert "3 answered, 0 failed" in done.output
    assert "TTFT, ms" in done.output and "p99" in done.output
    assert [body["model"] for body in server.bodies] == ["made-up"] * 5  # two to warm up
    done = CliRunner().invoke(main, ["bench", "serve", *words, "--request-rate", "50"])
    assert "3 answered" in done.output
