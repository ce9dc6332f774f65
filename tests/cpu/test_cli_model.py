"""The command line with the bundled model, as processes: answers, health while loading, signals, exit codes."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import openai
import pytest
from click.testing import CliRunner, Result

from tapetum.assets import MODEL_DIR, SAMPLES_DIR
from tapetum.cli import main
from tests.cpu.served_kit import ENVIRONMENT, TAPETUM, Served
from tests.cpu.server_kit import eventually
from tests.documents import pdf
from tests.pure.clips import encoded

SAMPLES = [each for each in json.loads((SAMPLES_DIR / "samples.json").read_text()) if each["correct"]]


def tapetum(*words: str) -> Result:
    """In this process: it has loaded torch already."""
    return CliRunner().invoke(main, words)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served("--max-model-len", "512")
    yield server
    assert server.end(signal.SIGINT) == 0
    assert "Traceback" not in "".join(server.log)


def body(sample: dict, **fields: object) -> dict[str, object]:
    data = base64.b64encode((SAMPLES_DIR / sample["image"]).read_bytes()).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [picture, {"type": "text", "text": sample["question"]}]
    return {"model": "default", "messages": [{"role": "user", "content": content}], **fields}


def test_run_answers_and_counts() -> None:
    sample = SAMPLES[0]
    words = ("run", str(SAMPLES_DIR / sample["image"]), sample["question"])
    done = subprocess.run([*TAPETUM, *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert (done.returncode, done.stdout) == (0, sample["expected"] + "\n")
    assert re.fullmatch(r"loading tapetum-mini …\n\d+ tokens in \d+\.\d\d s\n", done.stderr)


def test_run_prints_json_and_takes_the_model_as_its_first_word() -> None:
    sample = SAMPLES[1]
    done = tapetum("run", str(MODEL_DIR), str(SAMPLES_DIR / sample["image"]), sample["question"], "--json")
    report = json.loads(done.stdout)
    assert (report["answer"], report["finish_reason"]) == (sample["expected"], "stop")
    assert report["media"][0]["visual_tokens"] < report["prompt_tokens"]
    assert report["timing"]["ttft_s"] > 0
    assert done.stderr == ""


def test_run_takes_a_document_and_says_which_pages_it_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "towns"  # the name says nothing
    file.write_bytes(pdf([f"The harbour of town {number}" for number in range(1, 21)]))
    question = "What about town 17?"
    done = tapetum("run", str(file), question, "--max-tokens", "2")
    assert done.exit_code == 0
    assert re.search(r"pages \d+(, \d+){6} of 20 of towns\n\Z", done.stderr)
    assert "17" in done.stderr
    report = json.loads(tapetum("run", str(file), question, "--max-tokens", "2", "--json").stdout)
    (pages,) = report["pages"]
    assert (pages["num_pages"], len(pages["pages"]), pages["name"]) == (
        20,
        7,
        "towns",
    )  # as many as the context holds


def test_run_says_in_one_line_what_is_wrong_with_a_picture() -> None:
    done = tapetum("run", str(SAMPLES_DIR / "samples.json"), "What is this?")
    assert (done.exit_code, done.stdout) == (2, "")
    _, fault = done.stderr.splitlines()
    assert fault.startswith("tapetum: ")


def test_run_takes_a_video_as_such(tmp_path: Path) -> None:
    file = tmp_path / "clip"  # the name says nothing
    file.write_bytes(encoded(4))
    done = tapetum("run", str(file), "What is this?", "--json", "--max-tokens", "2")
    assert done.exit_code == 0, done.output
    (media,) = json.loads(done.stdout)["media"]
    assert media["frames"] >= 2


def test_served_answers_are_those_of_the_samples(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        for sample in SAMPLES[:3]:
            answer = client.chat.completions.create(**body(sample))
            chunks = client.chat.completions.create(**body(sample, stream=True))
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert answer.choices[0].message.content == streamed == sample["expected"]


def test_logprobs_name_the_greedy_tokens(served: Served) -> None:
    answer = httpx2.post(
        f"{served.url}/v1/chat/completions", json=body(SAMPLES[0], logprobs=True, top_logprobs=3), timeout=60
    ).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content[:-1]) == SAMPLES[0]["expected"]
    for token in content:
        assert token["top_logprobs"][0]["token"] == token["token"]
        assert len(token["top_logprobs"]) == 3
        assert 0 >= token["logprob"] == token["top_logprobs"][0]["logprob"]


def test_a_client_that_leaves_gives_its_blocks_back(served: Served) -> None:
    def held() -> float:
        text = httpx2.get(f"{served.url}/metrics", timeout=10).text
        return sum(
            float(line.split()[-1])
            for line in text.splitlines()
            if re.match("tapetum:(kv_cache_usage_perc|num_requests)", line)
        )

    # up to the end of the context, and at random: where nothing repeats no guess makes it short
    endless = body(SAMPLES[0], stream=True, ignore_eos=True, temperature=2.0, seed=1)
    with httpx2.stream("POST", f"{served.url}/v1/chat/completions", json=endless, timeout=30) as response:
        lines = response.iter_lines()
        assert all(next(lines) is not None for _ in range(8))
        assert held() > 0
    assert eventually(lambda: held() == 0, within_s=5)


def test_bad_input_is_told_and_the_server_goes_on(served: Served) -> None:
    url = f"{served.url}/v1/chat/completions"
    sample = SAMPLES[0]
    for fields, status in (({"n": 0}, 400), ({"max_tokens": 5000}, 400), ({"model": "x"}, 404)):
        response = httpx2.post(url, json=body(sample, **fields), timeout=60)
        assert (response.status_code, set(response.json())) == (status, {"error"})
    assert httpx2.get(f"{served.url}/health", timeout=10).json()["status"] == "ok"
    assert httpx2.post(url, json=body(sample), timeout=60).status_code == 200


def test_a_signal_lets_an_answer_finish_and_ends_the_process_cleanly() -> None:
    server = Served("--api-key", "secret")
    whole: list[str] = []

    def ask() -> None:
        request = body(
            SAMPLES[0], stream=True, ignore_eos=True, max_tokens=1500, temperature=2.0, seed=1
        )  # long enough to be seen, and nothing that guesses shorten
        headers = {"authorization": "Bearer secret"}
        url = f"{server.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=request, headers=headers, timeout=60) as response:
            whole.extend(line for line in response.iter_lines() if line)

    asking = threading.Thread(target=ask)
    asking.start()
    assert eventually(lambda: "num_requests_running{" in httpx2.get(f"{server.url}/metrics").text)
    assert eventually(
        lambda: (
            re.search(r"num_requests_running\{.*\} 1\.0", httpx2.get(f"{server.url}/metrics").text)
            is not None
        )
    )
    assert server.end(signal.SIGTERM) == 0
    asking.join(10)
    assert whole[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in whole[-2]
    assert "Traceback" not in "".join(server.log)


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tapetum("serve", "--port", str(port))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tapetum: cannot listen on 127.0.0.1:{port}: ")


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    done = tapetum("serve", "--port", "0", str(SAMPLES_DIR))
    assert done.exit_code == 2
    assert "config.json" in done.stderr
    assert "stopping" not in done.stderr, "nobody has sent a signal"
    done = tapetum("serve", "--port", "0", "--kv-cache-memory", "0.000001")
    assert done.exit_code == 2
    assert "stopping" not in done.stderr
    assert "--kv-cache-memory" in done.stderr
