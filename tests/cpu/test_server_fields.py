"""Every field of every route, with values of every kind: answered or refused in JSON, and never the server's fault."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tapetum.core.config import ServerConfig
from tapetum.server.chat.formats import FormatFields
from tapetum.server.chat.schema import ChatRequest
from tapetum.server.completions.schema import CompletionRequest
from tapetum.server.responses.schema import ResponsesRequest
from tapetum.server.tokens import DetokenizeRequest, TokenizeRequest
from tapetum.server.vlm import VlmRequest
from tests.cpu.server_kit import Script, TestServer, eventually

CHAT = {"messages": [{"role": "user", "content": "x"}]}
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
ROUTES = {
    "/v1/completions": ({"prompt": "x", "max_tokens": 2}, CompletionRequest),
    "/v1/responses": ({"input": "x", "max_output_tokens": 2}, ResponsesRequest),
    "/v1/vlm": ({"image_url": PICTURE, "prompt": "x", "max_tokens": 2}, VlmRequest),
    "/v1/estimate": (CHAT, ChatRequest),
    "/debug/prompt": (CHAT, ChatRequest),
    "/tokenize": ({"prompt": "x"}, TokenizeRequest),
    "/detokenize": ({"tokens": [5]}, DetokenizeRequest),
}
VALUES = (
    "null",
    "true",
    "0",
    "-1",
    "7",
    "0.5",
    "1e400",
    "9" * 40,
    '""',
    '"x"',
    '"\\ud800"',
    '"\\u0000"',
    "[]",
    "[[]]",
    '["x"]',
    "[-1]",
    "{}",
    '{"x": 1}',
    '{"5": 1}',
    "[{}]",
    '[{"type": "function"}]',
    '[{"role": "user"}]',
    '{"type": "function", "function": {"name": ""}}',
)


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with TestServer(Script("a"), ServerConfig(has_debug_endpoints=True)) as server:
        yield server


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ROUTES)
def test_no_value_of_any_field_is_a_fault_of_the_server(server: TestServer, path: str, step: int) -> None:
    """Each field gets every value, or in the short form every eighth, beginning with another one each time."""
    base, schema = ROUTES[path]
    # What an answer must look like is left out: the script says what it likes.
    fields = [name for name in schema.__struct_fields__ if name not in FormatFields.__struct_fields__]
    counts: dict[bool, int] = {True: 0, False: 0}
    for index, name in enumerate((*fields, "zebra")):
        for value in VALUES[index % step :: step]:
            rest = {key: given for key, given in base.items() if key != name}
            body = json.dumps(rest)[:-1] + ", " * bool(rest) + f"{json.dumps(name)}: {value}}}"
            response = server.client.post(path, content=body.encode())
            assert response.status_code < 500, (name, value, response.text)
            counts[response.status_code == 200] += 1
            if response.status_code != 200:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert min(counts.values()) > 0  # both come about
    assert eventually(lambda: server.is_at_rest)
