"""The API's own document: what schemathesis makes of it, whether all routes are in it, and its page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.routing import Route

from tapetum.core.config import ServerConfig
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.engine.service import AsyncEngine
from tapetum.server import app, openapi
from tapetum.server.docs_page import DEFAULT_BASE, curl
from tapetum.server.operations import OPERATIONS
from tapetum.server.serving import Serving
from tests.cpu.server_kit import EOS, Script, TestServer, chat_body

# Of each operation; seven of them have bodies to be drawn, so the long form asks well over 500 times.
EXAMPLES = 80 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 3
NAMES, SCHEMAS = openapi.schemas()
DOCUMENT = openapi.document(NAMES, SCHEMAS, has_keys=False)

load_all_checks()
api = schemathesis.openapi.from_dict(DOCUMENT)


class ObedientScript(Script):
    """Keeps to the grammars of answers: ends where that is allowed, else says the first token that is."""

    def execute(self, plan: BatchPlan) -> StepResult:
        result = super().execute(plan)
        bound = {name: _first_allowed(mask) for name, mask in plan.masks.items() if name in result.tokens}
        tokens = {
            name: (replace(result.tokens[name][0], token_id=token_id),) for name, token_id in bound.items()
        }
        return replace(result, tokens={**result.tokens, **tokens})


def _first_allowed(mask: bytes) -> int:
    allowed = [index for index in range(8 * len(mask)) if mask[index // 8] >> index % 8 & 1]
    return EOS if EOS in allowed else allowed[0]


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with TestServer(ObedientScript("Hello there")) as server:
        yield server


# Left out: /ready, which may say 503 here. And of the checks the one that wants every request taken that fits its
# shape: whether values go together a shape cannot say.
@api.exclude(path="/ready").parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == 3, suppress_health_check=list(HealthCheck)
)
def test_no_request_breaks_the_server_or_gets_what_is_not_in_the_document(
    case: Case, server: TestServer
) -> None:
    case.call_and_validate(base_url=server.url, excluded_checks=[positive_data_acceptance])


def test_every_route_is_in_the_document() -> None:
    serving = Serving(AsyncEngine(), ServerConfig())
    routes = {
        (route.path.replace("{name:path}", "{name}"), method.lower())
        for module in app.MODULES
        for route in module.routes(serving)
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert routes == {(operation.path, operation.method) for operation in OPERATIONS}


def test_an_example_of_every_question_works(server: TestServer) -> None:
    for operation in OPERATIONS:
        if operation.request is None:
            continue
        reply = server.client.post(operation.path, json=operation.example)
        assert reply.status_code == 200, (operation.path, reply.text)
        if operation.event is not None:
            streamed = server.client.post(operation.path, json={**operation.example, "stream": True})
            events = re.findall(r"^data: (\{.*)$", streamed.text, re.MULTILINE)
            assert (
                len(events) >= 2
            )  # the opening and the rest: what comes while one is sent goes out together
            schema = {"$ref": f"#/components/schemas/{NAMES[operation.event]}", **DOCUMENT}
            for event in events:
                jsonschema.validate(json.loads(event), schema)
            assert ("data: [DONE]" in streamed.text) == operation.has_done
            content = DOCUMENT["paths"][operation.path]["post"]["responses"]["200"]["content"]
            assert ("[DONE]" in json.dumps(content)) == operation.has_done


def test_an_answer_has_all_that_is_required_and_what_is_not_may_be_left_out() -> None:
    required = {name: set(schema["required"]) for name, schema in SCHEMAS.items()}
    assert required["ChatAnswer"] == {"id", "object", "created", "model", "choices"}
    assert set(SCHEMAS["ChatAnswer"]["properties"]) - required["ChatAnswer"] >= {"usage", "tapetum"}
    assert required["MediaReport"] >= {"degraded", "frames"}  # null, but there
    assert required["ChatRequest"] == {"messages"}


def test_fields_that_are_only_refused_are_not_shown() -> None:
    shown = set(SCHEMAS["ChatRequest"]["properties"])
    assert shown >= {"messages", "temperature", "tools", "response_format", "max_visual_tokens", "prediction"}
    assert not shown & {"audio", "store", "documents"}


def test_keys_are_in_the_document_where_there_are_keys() -> None:
    with TestServer(Script("Hi"), ServerConfig(api_keys=("k",))) as server:
        told = server.client.get("/openapi.json").json()
        assert told["security"] == [{"key": []}]
        assert server.client.post("/v1/chat/completions", json=chat_body()).status_code == 401
    assert "security" not in DOCUMENT


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("href", "src") if name in given]
        self.ids |= {given["id"] or ""} if "id" in given else set()

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_from_elsewhere_and_its_links_lead_somewhere(server: TestServer) -> None:
    reply = server.client.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = _Page()
    page.feed(reply.text)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "url(" not in reply.text and "@import" not in reply.text
    assert len(page.links) > 50
    assert {link for link in page.links if not link.startswith("#")} == {"openapi.json"}
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    for operation in OPERATIONS:
        assert operation.path in page.text
        assert curl(operation, server.url) in page.text
    assert "max_visual_tokens" in page.text


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("vlm.example", "http://vlm.example"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("a;rm -rf", DEFAULT_BASE),
        ("<script>", DEFAULT_BASE),
        ("[::1", DEFAULT_BASE),
    ],
)
def test_the_lines_of_the_page_lead_where_it_was_found(server: TestServer, host: str, base: str) -> None:
    text = server.client.get("/docs", headers={"host": host}).text
    assert f"curl {base}/version<" in text
    assert "<script>" not in text and "rm -rf" not in text


def test_the_page_says_which_streams_have_a_mark_of_their_end(server: TestServer) -> None:
    told = server.client.get("/docs").text.split("<h2>")
    streams = {
        part.partition("</code>")[0].rpartition(">")[2]: "[DONE]" in part
        for part in told
        if "<td>stream</td>" in part
    }
    assert streams == {"/v1/chat/completions": True, "/v1/completions": True, "/v1/responses": False}
