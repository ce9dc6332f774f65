"""Official clients, the examples and what the documents show, with the bundled model, served as users do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel, Field

from tapetum.assets import SAMPLES_DIR
from tests.cpu.served_kit import ENVIRONMENT, Served

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = next(each for each in json.loads((SAMPLES_DIR / "samples.json").read_text()) if each["correct"])
ENCODED = b64encode((SAMPLES_DIR / SAMPLE["image"]).read_bytes()).decode()
LOOK = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
            {"type": "text", "text": SAMPLE["question"]},
        ],
    }
]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
HERE = "//127.0.0.1:8000"  # where servers are in the documents
INTERPRETERS = {"sh": ("bash", "-euo", "pipefail", "-c"), "python": (sys.executable, "-c")}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served("--enable-debug-endpoints", "--allowed-local-media-path", str(SAMPLES_DIR))
    yield server
    assert server.end(signal.SIGTERM) == 0
    assert "Traceback" not in "".join(server.log)


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_all_ways_to_ask_give_the_same_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="default", messages=LOOK, temperature=0)
    assert whole.choices[0].message.content == SAMPLE["expected"]
    with client.chat.completions.stream(model="default", messages=LOOK, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.content == SAMPLE["expected"]
    content = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED}"},
        {"type": "input_text", "text": SAMPLE["question"]},
    ]
    answer = client.responses.create(
        model="default", input=[{"role": "user", "content": content}], temperature=0
    )
    assert answer.output_text == SAMPLE["expected"]


class Receipt(BaseModel):
    store: Annotated[str, Field(max_length=12)]
    sizes: Annotated[list[Literal["S", "M"]], Field(max_length=3)]
    is_paid: bool


def test_a_schema_holds_a_model_that_was_never_taught_json(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="default", messages=LOOK, response_format=Receipt, temperature=1, seed=seed, max_tokens=300
        )
        assert isinstance(answer.choices[0].message.parsed, Receipt)


def test_a_tool_that_must_be_called_is_called(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"place": {"enum": ["Bern", "Basel"]}},
        "required": ["place"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    answer = client.chat.completions.create(
        model="default", messages=LOOK, tools=[tool], tool_choice="required", temperature=0, max_tokens=200
    )
    assert answer.choices[0].finish_reason in ("tool_calls", "stop")
    for call in answer.choices[0].message.tool_calls:
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["place"] in ("Bern", "Basel")


def documented() -> list[tuple[str, str, str, str]]:
    """Each command for a running server and each program of the pages: page, language, text, and the JSON that the
    page shows as its answer, if it does."""
    found: list[tuple[str, str, str, str]] = []
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        for (language, text), (kind, shown) in pairwise([*blocks, ("", "")]):
            if language in INTERPRETERS and (HERE in text or text.startswith(("from ", "import "))):
                found.append((page.name, language, text, shown if kind == "json" else ""))
    return found


@pytest.mark.parametrize(("page", "language", "text", "shown"), documented(), ids=lambda value: None)
def test_what_a_page_shows_is_what_happens(
    served: Served, page: str, language: str, text: str, shown: str
) -> None:
    there = text.replace(HERE, served.url.removeprefix("http:"))
    command = [*INTERPRETERS[language], there]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert done.stdout.strip()
    if shown:
        assert shape(last_json(done.stdout)) == shape(json.loads(shown)), page
    else:
        assert '"error":{' not in done.stdout, page


def test_every_metric_is_told(served: Served) -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    exposed = httpx2.get(f"{served.url}/metrics", timeout=10).text
    names = re.findall(r"^# TYPE tapetum:(\w+) (\w+)$", exposed, re.MULTILINE)
    assert names
    told = {name.removesuffix("_total") if kind == "counter" else name for name, kind in names}
    assert [name for name in told if not re.search(rf"`{name}[`{{]", page)] == []


def last_json(text: str) -> object:
    """The last of several JSON values that follow one another."""
    value: object = None
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        text = text[end:]
    return value


def shape(value: object) -> object:
    """What a JSON value consists of, whatever it says."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(entry) for entry in value[:1]]
    return (
        "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
    )


def test_the_pages_have_something_to_try() -> None:
    assert {page for page, _, _, _ in documented()} >= {"README.md", "api.md", "routes.md", "operating.md"}


@pytest.mark.parametrize("name", ["client.py", "tools.py"])
def test_the_examples_for_clients_run(served: Served, name: str) -> None:
    words = [str(SAMPLES_DIR / SAMPLE["image"]), SAMPLE["question"]]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *words],
        env={**ENVIRONMENT, "OPENAI_BASE_URL": f"{served.url}/v1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(SAMPLE["expected"]) or name == "tools.py"
    assert done.stdout.strip()


@pytest.mark.parametrize("name", ["client.py", "tools.py"])
def test_what_an_example_cannot_do_is_one_line(served: Served, tmp_path: Path, name: str) -> None:
    here, nowhere = str(SAMPLES_DIR / SAMPLE["image"]), "http://127.0.0.1:9/v1"
    text = tmp_path / "words.png"
    text.write_text("no picture", encoding="utf-8")
    for picture, url, fault in (
        ("missing.png", nowhere, "missing.png"),
        (here, nowhere, nowhere),
        (str(text), f"{served.url}/v1", "picture"),
    ):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name), picture, "What?"],
            env={**ENVIRONMENT, "OPENAI_BASE_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert fault in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
