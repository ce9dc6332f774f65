"""PDF documents over HTTP: which pages a model sees, what a second question costs, what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tapetum.core.media import PagesSeen
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.engine.llm import LLM
from tapetum.media import document_process
from tapetum.media.document_process import DocumentProcesses
from tests.cpu.documents_kit import FILE, PAGE_TOKENS, PAGES, SMALL, ask, data_url, part, seen, written
from tests.cpu.engine_kit import SpeakingExecutor, engine_with, spoken
from tests.cpu.server_kit import Script, TestServer, eventually
from tests.documents import bomb_pdf, encrypted_pdf, pdf
from tests.handbook import handbook, questions


class Watch(Script):
    """Also counts what is encoded and the most blocks that were held at once."""

    def __init__(self) -> None:
        super().__init__("Seven boats.")
        self.encoded: set[bytes] = set()
        self.most_held = 0
        self.server: TestServer | None = None

    def execute(self, plan: BatchPlan) -> StepResult:
        self.encoded |= {job.item.key for job in plan.encodes}
        if self.server is not None:
            self.most_held = max(self.most_held, self.server.engine.stats.num_held_blocks)
        return super().execute(plan)


@pytest.fixture
def script() -> Watch:
    return Watch()


@pytest.fixture
def server(script: Watch) -> Iterator[TestServer]:
    with TestServer(script) as running:
        script.server = running
        yield running
        assert eventually(lambda: running.is_at_rest)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pages that were drawn, counted from 1."""
    pages: list[int] = []
    real = DocumentProcesses.render

    def render(self: DocumentProcesses, file: object, page: int, *rest: object) -> bytes:
        pages.append(page + 1)
        return real(self, file, page, *rest)

    monkeypatch.setattr(DocumentProcesses, "render", render)
    return pages


def test_the_pages_that_a_question_is_about_are_seen_in_order(server: TestServer, script: Watch) -> None:
    answer = ask(server, part(max_pages=4), text="Compare the boats of town 31, town 17 and town 9").json()
    (pages,) = answer["tapetum"]["pages"]
    assert {9, 17, 31} < set(pages["pages"])
    assert pages == {
        "document": 0,
        "name": "towns.pdf",
        "pages": sorted(pages["pages"]),
        "num_pages": 40,
        "chosen_by": "question",
    }
    assert len(answer["tapetum"]["media"]) == len(pages["pages"]) == 4
    text = written(script.seen[-1])
    places = [text.index(f"Page {number} of 40:") for number in pages["pages"]]
    assert places == sorted(places)
    assert text.index("Document towns.pdf") < places[0]


def test_a_question_asked_again_encodes_nothing_and_draws_nothing(
    server: TestServer, script: Watch, drawn: list[int]
) -> None:
    first = ask(server).json()
    assert len(script.encoded) == len(drawn) == 8
    again = ask(server).json()
    assert len(script.encoded) == len(drawn) == 8
    assert again["tapetum"]["pages"] == first["tapetum"]["pages"]
    assert {medium["cache"] for medium in again["tapetum"]["media"]} == {"prefix"}
    usage = again["usage"]
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] <= 16
    ask(server, text="And town 18?", priority="economy")
    assert len(drawn) < 16, "pages that both questions are about are known"


def test_what_is_in_the_cache_is_bounded_by_the_pages_seen(server: TestServer, script: Watch) -> None:
    data = pdf(handbook(3)[0])
    for question, page in questions(3, 0)[:6]:
        response = ask(server, part(data), text=question, max_tokens=8)
        assert page in seen(response)
        prompt = script.seen[-1]
        num_text = prompt.num_prompt_tokens - sum(span.num_tokens for span in prompt.prompt.spans)
        assert len(prompt.prompt.spans) == 8
        assert num_text < 300
    assert 0 < script.most_held * 16 <= 8 * PAGE_TOKENS + 300 + 8 + 16


@pytest.mark.parametrize(
    ("fields", "pages", "chosen_by"),
    [
        ({"pages": [7, 3]}, [3, 7], "request"),
        ({"pages": list(range(1, 41)), "max_pages": 2}, None, "request"),
        ({"max_pages": 1}, [17], "question"),
    ],
)
def test_a_part_may_say_which_pages(
    server: TestServer, fields: dict[str, object], pages: list[int] | None, chosen_by: str
) -> None:
    (told,) = ask(server, part(**fields)).json()["tapetum"]["pages"]
    assert told["chosen_by"] == chosen_by
    assert told["pages"] == pages if pages else 17 in told["pages"]


@pytest.mark.parametrize(
    ("data", "text", "pages", "chosen_by"),
    [
        (pdf(PAGES[:5]), "How many boats?", [1, 2, 3, 4, 5], "all"),
        (pdf([""] * 20), "How many boats?", [1, 2, 3, 4, 5, 6, 7, 8], "order"),
        (FILE, "¿?", [1, 2, 3, 4, 5, 6, 7, 8], "order"),
        (pdf(["", "a bridge", *["a ship"] * 20]), "the bridge", [1, 2], "question"),
        (FILE, "Summarise page 33", None, "question"),
    ],
)
def test_pages_that_no_word_can_find(
    server: TestServer, data: bytes, text: str, pages: list[int] | None, chosen_by: str
) -> None:
    (told,) = ask(server, part(data), text=text).json()["tapetum"]["pages"]
    assert told["chosen_by"] == chosen_by
    assert told["pages"] == pages if pages else 33 in told["pages"]


def test_no_more_pages_than_fit_are_seen(server: TestServer, script: Watch) -> None:
    many = seen(ask(server, part(max_pages=40), text="boats", max_tokens=96))
    assert 15 < len(many) < 30
    assert script.seen[-1].num_prompt_tokens <= 2048 - 96
    few = seen(ask(server, part(max_pages=40), text="boats", max_visual_tokens=300))
    assert len(few) == 300 // PAGE_TOKENS
    spans = script.seen[-1].prompt.spans
    assert all(span.num_tokens == PAGE_TOKENS for span in spans), "fewer pages rather than smaller ones"


def test_documents_and_pictures_share_the_room(server: TestServer, script: Watch) -> None:
    picture = {"type": "image_url", "image_url": data_url_of_picture()}
    response = ask(server, picture, part(), part(pdf(PAGES[20:]), max_pages=3), text="boats of town 30")
    assert response.status_code == 200, response.text
    first, second = response.json()["tapetum"]["pages"]
    assert (first["document"], second["document"]) == (0, 1)
    assert 30 in first["pages"]
    assert 10 in second["pages"]
    assert len(second["pages"]) == 3
    assert len(script.seen[-1].prompt.spans) == 1 + len(first["pages"]) + 3
    text = written(script.seen[-1])
    assert text.index("Document 1 towns.pdf") < text.index("Document 2 towns.pdf")


def test_the_text_of_a_page_may_follow_its_picture(server: TestServer, script: Watch) -> None:
    ask(server, part(max_pages=1, page_text=True))
    assert "has 629 boats." in written(script.seen[-1])
    ask(server, part(max_pages=1))
    assert "629" not in written(script.seen[-1])
    long = pdf(["town 17 " + "and more " * 3000, *PAGES])
    assert 18 in seen(ask(server, part(long, page_text=True))), "a page that does not fit is passed over"


def test_a_later_question_of_the_same_chat_chooses_anew(server: TestServer) -> None:
    messages = [
        {"role": "user", "content": [part(max_pages=2), {"type": "text", "text": "boats of town 17?"}]},
        {"role": "assistant", "content": "629"},
        {"role": "user", "content": "And town 23?"},
    ]
    response = server.client.post("/v1/chat/completions", json={"messages": messages})
    assert seen(response) == [17, 23]


def test_a_stream_tells_the_pages_at_both_ends(server: TestServer) -> None:
    body = ask(server, stream=True).text
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    told = [chunk["tapetum"]["pages"] for chunk in chunks if "tapetum" in chunk]
    assert len(told) == 2
    assert told[0] == told[1]
    assert 17 in told[0][0]["pages"]


def test_responses_take_an_input_file(server: TestServer) -> None:
    content = [
        {"type": "input_file", "file_data": data_url(), "filename": "a.pdf", "max_pages": 1},
        {"type": "input_text", "text": "How many boats has town 17?"},
    ]
    response = server.client.post("/v1/responses", json={"input": [{"role": "user", "content": content}]})
    assert seen(response) == [17]
    content[0] = {"type": "input_file", "file_id": "file-1"}
    refused = server.client.post("/v1/responses", json={"input": [{"role": "user", "content": content}]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input[0].content[0].file_id"


def test_a_request_without_documents_tells_of_none(server: TestServer) -> None:
    assert server.chat().json()["tapetum"]["pages"] is None


def test_an_estimate_and_the_tokens_are_those_of_the_pages(
    server: TestServer, script: Watch, drawn: list[int]
) -> None:
    turn = {"role": "user", "content": [part(), {"type": "text", "text": "town 17"}]}
    body = {"messages": [turn], **SMALL}
    estimate = server.client.post("/v1/estimate", json=body).json()
    count = server.client.post("/tokenize", json=body).json()["count"]
    assert drawn == [], "nothing is drawn for it"
    assert len(estimate["media"]) == 8
    answer = server.client.post("/v1/chat/completions", json=body).json()
    assert estimate["prompt_tokens"] == count == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (part(encrypted_pdf()), "encrypted"),
        (part(FILE[:3000]), "broken"),
        (part(b"%PDF-1.7"), "broken"),
        (part(b"\x89PNG\r\n\x1a\n"), "send a PDF document"),
        (part(pdf(["x"], box=(300_000, 9))), "limit 20000 a side"),
        (part(pdf(["x"], box=(9000, 10))), "aspect ratio"),
        (part(pdf(["x"] * 2001)), "2001 pages, limit 2000"),
        (part(pages=[41]), "has 40 pages"),
        (part(pages=[0]), "numbers from 1"),
        (part(mode="whole"), "map_reduce"),
        (part(max_pages=0), "max_pages"),
        (part(fps=2), "fps"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "file_id"),
        ({"type": "file", "file": {}}, "no file"),
        ({"type": "file", "file": {"file_data": data_url(), "file_url": "https://a.b/c"}}, "both"),
        ({"type": "file", "file": {"file_data": "/etc/passwd"}}, "base64"),
        ({"type": "file", "file": {"file_data": "file:///etc/passwd"}}, "base64"),
        ({"type": "file", "file": {"file_url": "file:///etc/passwd"}}, "off"),
        ({"type": "file", "file": {"file_url": "http://127.0.0.1/a.pdf"}}, "off"),
        ({"type": "image_url", "image_url": data_url()}, "send it as a part of type file"),
    ],
)
def test_what_is_no_document_is_refused_in_a_sentence(
    server: TestServer, content: dict[str, object], reason: str
) -> None:
    response = ask(server, content)
    assert response.status_code in (400, 413), response.text
    assert reason in response.json()["error"]["message"]
    assert seen(ask(server, part(max_pages=1))) == [17], "the server lives"


def test_a_bomb_is_refused_and_the_server_lives(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_process, "MEMORY_BYTES", 256 * 1024**2)
    response = ask(server, part(bomb_pdf(280 * 1024**2)))
    assert response.status_code == 400
    assert "ended the process that reads it" in response.json()["error"]["message"]
    assert 'tapetum:document_reader_crashes_total{model_name="tapetum-mini"} 1.0' in (
        server.client.get("/metrics").text
    )
    assert seen(ask(server, part(max_pages=1))) == [17]


def test_the_plain_form_of_base64_is_taken(server: TestServer) -> None:
    plain = {"type": "file", "file": {"file_data": base64.b64encode(FILE).decode()}, "max_pages": 1}
    assert seen(ask(server, plain)) == [17]


def test_a_program_asks_about_a_path_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "towns.pdf"
    path.write_bytes(FILE)
    engine = engine_with(SpeakingExecutor(lambda _: spoken("Seven boats.")))
    with LLM(engine) as llm:
        for source, name in (
            (path, "towns.pdf"),
            (FILE, None),
            ({"file_data": data_url(), "filename": "t.pdf"}, "t.pdf"),
        ):
            content = [{"type": "file", "file": source, "max_pages": 1}, "How many boats has town 17?"]
            (output,) = llm.chat([{"role": "user", "content": content}])
            assert output.pages == (
                PagesSeen(document=0, name=name, pages=(17,), num_pages=40, chosen_by="question"),
            )
            assert output.outputs[0].text == "Seven boats."


def data_url_of_picture() -> str:
    file = BytesIO()
    Image.new("RGB", (112, 112), (9, 99, 9)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
