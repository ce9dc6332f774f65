"""`tapetum run-batch`: every request is answered once, whatever ends a run, and nobody's file is spoiled."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result

from tapetum.assets import SAMPLES_DIR
from tapetum.cli import main
from tapetum.commands.batch_files import Input, Output
from tapetum.commands.batch_run import BatchRun
from tapetum.core.errors import CapacityError
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually

CHAT = "/v1/chat/completions"


def request(custom_id: object, url: str = CHAT, **body: object) -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": chat_body(**body)}


def written(folder: Path, requests: Sequence[object]) -> Path:
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in requests))
    return file


def entries(file: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines), "a request was answered twice"
    return by_id


def batch(*words: object, input: str | None = None) -> Result:
    return CliRunner().invoke(main, ["run-batch", *map(str, words)], input=input)


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        server.script.step_s = 0.0
        assert eventually(lambda: server.is_at_rest)


def test_the_bundled_model_answers_in_process(tmp_path: Path) -> None:
    samples = [each for each in json.loads((SAMPLES_DIR / "samples.json").read_text()) if each["correct"]][:3]
    requests = []
    for sample in samples:
        data = b64encode((SAMPLES_DIR / sample["image"]).read_bytes()).decode()
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        content = [picture, {"type": "text", "text": sample["question"]}]
        requests.append(
            request(sample["image"], model="mine", messages=[{"role": "user", "content": content}])
        )
    out = tmp_path / "out.jsonl"
    done = batch("-i", written(tmp_path, requests), "-o", out, "--served-model-name", "mine")
    assert done.exit_code == 0, done.output
    answers = entries(out)
    for sample in samples:
        entry = answers[sample["image"]]
        assert entry["response"]["status_code"] == 200
        assert entry["error"] is None
        body = entry["response"]["body"]
        assert (body["object"], body["model"]) == ("chat.completion", "mine")
        assert body["choices"][0]["message"]["content"] == sample["expected"]
    assert "3/3" in done.stderr, "a progress bar"
    assert done.stderr.startswith("loading tapetum-mini …\n"), "the bar begins after it"
    assert done.stderr.endswith(f"3 of 3 requests are answered in {out}\n")


def test_a_request_at_fault_is_an_entry_and_counts_in_the_exit_code(
    server: TestServer, tmp_path: Path
) -> None:
    bad = {
        "parameter": (request("parameter", temperature=-1), 400, "invalid_parameter"),
        "model": (request("model", model="nobody"), 404, "model_not_found"),
        "route": (request("route", url="/v1/nowhere"), 404, "not_found"),
        "stream": (request("stream", stream=True), None, "invalid_request"),
        "method": ({**request("method"), "method": "GET"}, None, "invalid_request"),
        "elsewhere": (request("elsewhere", url="http://example.com/v1/"), None, "invalid_request"),
        "metrics": (request("metrics", url="/metrics"), None, "invalid_request"),
        "no body": ({"custom_id": "no body", "url": CHAT}, None, "invalid_request"),
    }
    requests = [request("first"), *(each for each, _, _ in bad.values()), request("last")]
    out = tmp_path / "out.jsonl"
    done = batch("-i", written(tmp_path, requests), "-o", out, "--url", server.url)
    assert done.exit_code == len(bad)
    assert f"errors={len(bad)}" in done.stderr
    assert done.stderr.endswith(
        f"2 of 10 requests are answered in {out}\n"
        "errors: 5 invalid_request, 1 invalid_parameter, 1 model_not_found, and 1 more\n"
    )
    again = batch("-i", tmp_path / "in.jsonl", "-o", out, "--url", server.url)
    assert "errors: 5 invalid_request, 1 " in again.stderr, "of earlier runs too"
    answers = entries(out)
    assert answers.keys() == {each["custom_id"] for each in requests}
    for name, (_, status, code) in bad.items():
        response = answers[name]["response"]
        assert answers[name]["error"]["code"] == code, name
        assert answers[name]["error"]["message"]
        assert (response and response["status_code"]) == status
        if response:
            assert response["body"]["error"]["message"] == answers[name]["error"]["message"]
    for name in ("first", "last"):
        assert answers[name]["response"]["body"]["choices"][0]["message"]["content"] == server.script.answer


def test_a_run_that_was_cut_anywhere_goes_on(server: TestServer, tmp_path: Path) -> None:
    names = ["a", "b\n", "c"]
    source = written(tmp_path, [request(name) for name in names])
    whole = tmp_path / "whole.jsonl"
    assert batch("-i", source, "-o", whole, "--url", server.url).exit_code == 0
    data = whole.read_bytes()
    cuts = {0, 1, 20, len(data) - 1, len(data), *(i for i in range(len(data)) if data[i : i + 1] == b"\n")}
    cuts |= {cut + 1 for cut in cuts if cut < len(data)} | set(range(0, len(data), len(data) // 12))
    for cut in sorted(cuts):
        out = tmp_path / f"cut-{cut}.jsonl"
        out.write_bytes(data[:cut])
        num_whole = data[:cut].count(b"\n")
        num_asked = len(server.script.seen)
        assert batch("-i", source, "-o", out, "--url", server.url).exit_code == 0
        assert len(server.script.seen) - num_asked == len(names) - num_whole, cut
        assert entries(out).keys() == set(names)
        assert out.read_bytes().startswith(b"".join(data[:cut].splitlines(keepends=True)[:num_whole]))


def test_errors_of_an_earlier_run_count_and_are_not_asked_again(server: TestServer, tmp_path: Path) -> None:
    source = written(tmp_path, [request("good"), request("bad", temperature=-1)])
    out = tmp_path / "out.jsonl"
    assert [batch("-i", source, "-o", out, "--url", server.url).exit_code for _ in range(2)] == [1, 1]
    assert len(out.read_text().splitlines()) == 2


def test_requests_may_come_through_a_pipe(server: TestServer, tmp_path: Path) -> None:
    text = "\n".join(
        json.dumps(request(name)) for name in "xyz"
    )  # blank lines and a missing last newline are fine
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "tapetum", "run-batch", "-i", "-", "-o", str(out), "--url", server.url]
    done = subprocess.run(command, input=f"\n{text}".encode(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert entries(out).keys() == set("xyz")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"custom_id": "a"}', "", '{"custom_id": "a"}'], "line 3: custom_id 'a' was already on line 1"),
        (['{"custom_id": "a"}', '{"url": "/v1/completions"}'], "line 2 has no custom_id"),
        (['{"custom_id": ""}'], "line 1 has no custom_id"),
        (['{"custom_id": 7}'], "line 1 has no custom_id"),
        (['{"custom_id": "a"}', '{"custom_id": "b"'], "line 2 has no custom_id"),
        (['["custom_id"]'], "line 1 has no custom_id"),
        (["[" * 100_000], "line 1 has no custom_id"),
    ],
)  # fmt: skip
def test_a_file_whose_requests_cannot_be_told_apart_is_refused_whole(
    server: TestServer, tmp_path: Path, lines: list[str], message: str
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    num_asked = len(server.script.seen)
    done = batch("-i", source, "-o", out, "--url", server.url)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tapetum: {source} {message}")
    assert not out.exists()
    assert len(server.script.seen) == num_asked


@pytest.mark.parametrize("text", ["precious", '{"custom_id": "a"}\n', '{"error": null}\n', "1\n2\n", "\n"])
def test_a_file_that_is_no_output_of_a_batch_stays_as_it_is(tmp_path: Path, text: str) -> None:
    out = tmp_path / "notes"
    out.write_text(text)
    done = batch("-i", written(tmp_path, [request("a")]), "-o", out, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert "line 1 is not an answer of a batch; choose another -o" in done.stderr
    assert out.read_text() == text


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = batch("-i", written(tmp_path, [request("a")]), "-o", out, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert f"another run writes to {out}" in done.stderr


def test_a_server_that_is_not_there_is_told_and_asked_later(server: TestServer, tmp_path: Path) -> None:
    source, out = written(tmp_path, [request("a")]), tmp_path / "out.jsonl"
    done = batch("-i", source, "-o", out, "--url", "http://127.0.0.1:9/v1")
    assert done.exit_code == 1
    assert "http://127.0.0.1:9 does not answer" in done.stderr
    assert out.read_bytes() == b""
    assert batch("-i", source, "-o", out, "--url", server.url + "/v1/").exit_code == 0


def test_an_interrupt_ends_cleanly_and_the_next_run_goes_on(server: TestServer, tmp_path: Path) -> None:
    names = [f"q{index}" for index in range(6)]
    source, out = written(tmp_path, [request(name) for name in names]), tmp_path / "out.jsonl"
    words = ["run-batch", "-i", str(source), "-o", str(out), "--url", server.url, "--concurrency", "2"]
    server.script.step_s = 0.05
    process = subprocess.Popen(
        [sys.executable, "-m", "tapetum", *words], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= 2, within_s=30)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "the same command goes on from here" in told
    num_done = out.read_bytes().count(b"\n")
    assert 2 <= num_done < len(names)
    assert eventually(lambda: server.is_at_rest), "what ran was cancelled"
    server.script.step_s = 0.0
    num_asked = len(server.script.seen)
    assert batch(*words[1:]).exit_code == 0
    assert len(server.script.seen) - num_asked == len(names) - num_done
    assert entries(out).keys() == set(names)


class Pages:
    """Answers the requests of a client in turn; the last answer stays."""

    def __init__(self, *answers: httpx2.Response) -> None:
        self.answers = list(answers)
        self.num_asked = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.num_asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def run(pages: Pages, folder: Path, names: Sequence[str], concurrency: int = 1) -> dict[str, dict]:
    out = folder / "out.jsonl"
    output = Output(out)
    try:
        with written(folder, [request(name) for name in names]).open("rb") as file:
            async with httpx2.AsyncClient(
                transport=httpx2.MockTransport(pages), base_url="http://x"
            ) as client:
                questions = iter(Input(file, "in.jsonl"))
                await BatchRun(client, output, lambda _: None).ask_all(questions, concurrency)
    finally:
        output.close()
    return entries(out)


FULL = httpx2.Response(429, headers={"retry-after": "0"}, json={"error": {"message": "full", "code": None}})


async def test_a_full_server_is_asked_again(tmp_path: Path) -> None:
    pages = Pages(FULL, FULL, httpx2.Response(200, headers={"x-request-id": "r1"}, json={"fine": [1, "ü"]}))
    answers = await run(pages, tmp_path, ["a"])
    assert answers["a"]["response"] == {"status_code": 200, "request_id": "r1", "body": {"fine": [1, "ü"]}}
    assert pages.num_asked == 3


async def test_a_server_that_stays_full_ends_the_run_and_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    pages = Pages(httpx2.Response(200, json={}), FULL)
    with pytest.raises(CapacityError, match="full; run the command again later"):
        await run(pages, tmp_path, ["a", "b", "c"])
    assert entries(tmp_path / "out.jsonl").keys() == {"a"}


async def test_what_is_no_json_is_written_as_text(tmp_path: Path) -> None:
    entry = (await run(Pages(httpx2.Response(502, text="<h1>bad\ngateway</h1>")), tmp_path, ["a"]))["a"]
    assert entry["response"]["body"] == "<h1>bad\ngateway</h1>"
    assert entry["error"]["code"] == "http_502"


async def test_no_more_run_at_once_than_allowed(tmp_path: Path) -> None:
    running = most = 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return httpx2.Response(200, json={})

    answers = await run(answer, tmp_path, [str(index) for index in range(20)], concurrency=3)  # type: ignore[arg-type]
    assert len(answers) == 20
    assert most == 3


def test_with_a_server_the_flags_of_an_engine_are_refused(tmp_path: Path) -> None:
    words = ("-i", written(tmp_path, [request("a")]), "-o", tmp_path / "o", "--url", "http://127.0.0.1:9")
    done = batch(*words, "--max-num-seqs", "2")
    assert done.exit_code == 2
    assert "--max-num-seqs is for an engine, which the server at --url has" in done.stderr
    assert "--url is 'ftp://x'" in batch(*words[:-1], "ftp://x").stderr
