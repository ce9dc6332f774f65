"""What a connection passes before a route: keys and their tenants, limits, origins, heads, lines of the log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPResponse

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tapetum.assets import SAMPLES_DIR
from tapetum.core.config import ServerConfig
from tapetum.engine.service import AsyncEngine
from tapetum.server import protocol
from tapetum.server.auth import OPEN
from tapetum.server.report import report
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually

KEYS = "first acme\nsecond acme\nthird other\nfast quick rps=2\nlone alone concurrent=1\n"
DATA_URL = "data:image/png;base64," + base64.b64encode((SAMPLES_DIR / "ok-01-text.png").read_bytes()).decode()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS, encoding="utf-8")
    path.chmod(0o600)
    with TestServer(
        Script("Hello there"), ServerConfig(api_key_file=str(path), api_keys=("flag",))
    ) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask(server: TestServer, key: str, **fields: object) -> httpx2.Response:
    return server.client.post("/v1/chat/completions", json=chat_body(**fields), headers=bearer(key))


def rejections(server: TestServer) -> dict[str, float]:
    families = text_string_to_metric_families(server.client.get("/metrics").text)
    return {
        sample.labels["reason"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name.endswith("rejections_total")
    }


ROUTES = [
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/debug/reset_caches"),
    ("GET", "/debug/keys"),
    ("GET", "/props"),
    ("GET", "/v1/no/such/route"),
    ("POST", "/health/"),
    ("GET", "//health"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_everything_wants_a_key_but_what_is_open(keyed: TestServer, method: str, path: str) -> None:
    reply = keyed.client.request(method, keyed.url + path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    with_key = keyed.client.request(method, keyed.url + path, headers=bearer("first"))
    assert with_key.status_code != 401


def test_probes_and_the_document_are_open(keyed: TestServer) -> None:
    for path in OPEN - {"/ready"}:
        assert keyed.client.get(path).status_code == 200


def test_keys_of_one_tenant_share_pictures_and_prefixes_and_others_never_do(keyed: TestServer) -> None:
    picture = {"type": "image_url", "image_url": {"url": DATA_URL}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "What does it say?"}]}]

    def cached(key: str, **fields: object) -> tuple[int, str]:
        reply = ask(keyed, key, messages=messages, **fields).json()
        return (
            reply["usage"]["prompt_tokens_details"]["cached_tokens"],
            reply["tapetum"]["media"][0]["cache"],
        )

    assert cached("first") == (0, "miss")
    for key in ("third", "flag"):
        assert cached(key) == (0, "miss")
    assert cached("first", cache_salt="own") == (0, "miss")
    tokens, source = cached("second")
    assert tokens > 0 and source != "miss"


def test_a_websocket_wants_a_key_too(keyed: TestServer) -> None:
    url = keyed.url.replace("http", "ws") + "/v1/chat/ws"
    with pytest.raises(InvalidStatus) as refused:
        connect(url)
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"
    ways = ({"additional_headers": bearer("third")}, {"subprotocols": ["tapetum", "third"]})
    for way in ways:
        with connect(url, **way) as websocket:
            websocket.send(json.dumps({"id": 1, "request": chat_body()}))
            while "done" not in (frame := json.loads(websocket.recv())):
                assert "chunk" in frame
    with pytest.raises(InvalidStatus):
        connect(url, subprotocols=["tapetum", "wrong"])


def test_a_key_is_held_to_its_rate(keyed: TestServer) -> None:
    replies = [ask(keyed, "fast", max_tokens=1) for _ in range(4)]
    assert [reply.status_code for reply in replies[:2]] == [200, 200]
    refused = replies[-1]
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert ask(keyed, "first").status_code == 200
    assert rejections(keyed)["rate_limit_exceeded"] >= 1


@pytest.fixture
def slowly(keyed: TestServer) -> Iterator[None]:
    keyed.script.step_s = 0.01
    yield
    keyed.script.step_s = 0.0
    assert eventually(lambda: keyed.is_at_rest)


@pytest.mark.usefixtures("slowly")
def test_a_key_is_held_to_its_requests_at_a_time_and_a_stream_counts_to_its_end(keyed: TestServer) -> None:
    body = chat_body(stream=True, ignore_eos=True, max_tokens=1000)
    with keyed.client.stream("POST", "/v1/chat/completions", json=body, headers=bearer("lone")) as stream:
        lines = stream.iter_lines()  # which closes the stream when it is let go
        next(lines)
        assert ask(keyed, "lone").status_code == 429
        url = keyed.url.replace("http", "ws") + "/v1/chat/ws"
        with connect(url, additional_headers=bearer("lone")) as websocket:  # its requests count, not itself
            websocket.send(json.dumps({"id": 1, "request": chat_body()}))
            assert json.loads(websocket.recv())["error"]["code"] == "rate_limit_exceeded"
    assert eventually(lambda: ask(keyed, "lone", max_tokens=1).status_code == 200)


def test_a_long_queue_refuses_answers_before_their_bodies_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncEngine, "backlog_s", property(lambda _: 12.5))
    with TestServer(Script("Hi"), ServerConfig(max_queue_s=10.0)) as server:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n"
        reply = raw(server, head)  # the body is still to come
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 3\r\n" in reply and b"12.5 s long, limit 10 s" in reply
        for path in ("/v1/completions", "/v1/responses", "/v1/vlm"):
            assert server.client.post(path, json={}).status_code == 429
        assert server.client.get("/v1/models").status_code == 200
        assert server.client.post("/tokenize", json={"prompt": "x"}).status_code == 200
        assert rejections(server) == {"overloaded": 4}
    with TestServer(Script("Hi"), ServerConfig(max_queue_s=13.0)) as server:
        assert server.chat().status_code == 200


def test_a_server_that_drains_takes_nothing_more_but_still_tells_how_it_is() -> None:
    script = Script("Hi")
    script.step_s = 0.01
    with TestServer(script) as server:
        body = chat_body(stream=True, ignore_eos=True, max_tokens=100)
        with server.client.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            drained = asyncio.run_coroutine_threadsafe(server.serving.traffic.drain(20), server.loop)
            assert eventually(lambda: server.serving.traffic.is_draining)
            refused = server.chat()
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "capacity")
            assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "1")
            with pytest.raises(InvalidStatus) as no_socket:
                connect(server.url.replace("http", "ws") + "/v1/chat/ws")
            assert no_socket.value.response.status_code == 503
            assert server.client.get("/health").status_code == 200
            assert server.client.get("/ready").status_code == 503
            assert not drained.done()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert drained.result(5) == 0


def test_a_server_drains_no_longer_than_it_may() -> None:
    script = Script("Hi")
    script.step_s = 0.01
    with TestServer(script) as server:
        body = chat_body(stream=True, ignore_eos=True, max_tokens=1000)
        with server.client.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            drained = asyncio.run_coroutine_threadsafe(server.serving.traffic.drain(0.1), server.loop)
            assert drained.result(5) == 1


def test_ready_is_who_has_answered_the_golden_request() -> None:
    with TestServer(Script("Hi")) as server:
        assert server.client.get("/ready").status_code == 503
        asyncio.run_coroutine_threadsafe(server.serving.engine.prove(), server.loop).result(10)
        assert server.client.get("/ready").json() == {
            "status": "ok",
            "model": "tapetum-mini",
            "device": "cpu",
        }
        server.script.death = SystemExit("gone")
        server.chat()
        assert eventually(lambda: server.client.get("/ready").status_code == 503)


def test_web_pages_of_allowed_origins_may_ask() -> None:
    config = ServerConfig(allowed_origins=("https://a.example",), api_keys=("k",))
    with TestServer(Script("Hi"), config) as server:
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        for origin, status in (("https://a.example", 200), ("https://b.example", 400)):
            reply = server.client.options("/v1/chat/completions", headers={"origin": origin, **asks})
            assert reply.status_code == status
        refused = server.client.post("/v1/chat/completions", headers={"origin": "https://a.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://a.example"
        other = server.client.get("/health", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_no_origin_is_allowed_unless_the_operator_says_so(plain: TestServer) -> None:
    reply = plain.client.get("/health", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in reply.headers
    assert plain.client.options("/v1/chat/completions").status_code == 405


@pytest.fixture(scope="module")
def plain() -> Iterator[TestServer]:
    with TestServer(
        Script("Hello there"), ServerConfig(metrics_prefix="vllm", max_body_bytes=100_000)
    ) as server:
        yield server


def raw(server: TestServer, data: bytes, *, timeout_s: float = 5.0) -> bytes:
    """What comes back for bytes, until the server closes or says nothing more."""
    host, port = server.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65536):
                received += chunk
                head, _, body = received.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                if length and len(body) >= int(length[1]):
                    break
    return received


def error_in(reply: bytes) -> dict[str, object]:
    return json.loads(reply.partition(b"\r\n\r\n")[2])["error"]


def test_bytes_that_are_no_http_get_json(plain: TestServer) -> None:
    reply = raw(plain, b"\x16\x03\x01nonsense\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert error_in(reply)["code"] == "invalid_http"


@pytest.mark.parametrize("piece", [b"x: " + b"y" * 8000 + b"\r\n", b"x: y\r\n" * 2000])
def test_a_head_without_end_is_refused(plain: TestServer, piece: bytes) -> None:
    host, port = plain.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        received = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                connection.sendall(piece)
        with contextlib.suppress(ConnectionError):
            received = connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 431 ") or not received
    assert plain.client.get("/health").status_code == 200


def test_a_head_that_comes_too_slowly_ends_the_connection(
    plain: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    assert raw(plain, b"GET /health HTTP/1.1\r\nhost: x\r\n") == b""
    assert raw(plain, b"") == b""
    assert raw(plain, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_body_that_was_refused_is_still_taken_off_the_connection(plain: TestServer) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n\r\n"
    second = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    host, port = plain.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head)
        assert status_of_next(connection) == 413  # by what it says of itself
        connection.sendall(b"x" * 400_000 + second)
        assert status_of_next(connection) == 200


def status_of_next(connection: socket.socket) -> int:
    """The status of the next response, which is read to its end and no further."""
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_large_body_gets_its_answer(plain: TestServer, is_declared: bool) -> None:
    body = json.dumps(chat_body(junk="x" * 3_000_000)).encode()
    pieces = iter([body[start : start + 50_000] for start in range(0, len(body), 50_000)])
    reply = plain.client.post("/v1/chat/completions", content=body if is_declared else pieces)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
    assert plain.chat().status_code == 200


def test_the_prefix_of_metrics_may_be_that_of_others(plain: TestServer) -> None:
    text = plain.client.get("/metrics").text
    assert "vllm:num_requests_running" in text and "tapetum:" not in text


def test_every_refusal_is_counted_once_and_probes_are_none(plain: TestServer) -> None:
    before = rejections(plain)
    plain.chat(model="gpt-9")
    plain.chat(temperature=-1)
    plain.chat(messages=[])
    plain.client.post("/v1/completions", content=b"{")
    plain.client.get("/v1/zebras")
    plain.client.get("/ready")
    plain.chat()
    after = rejections(plain)
    change = {reason: after[reason] - before.get(reason, 0) for reason in after}
    expected = {"model_not_found": 1, "invalid_parameter": 2, "invalid_request": 1, "not_found": 1}
    assert {reason: count for reason, count in change.items() if count} == expected


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, object]]]:
    """The fields of the lines about requests, and their messages."""
    found: list[dict[str, object]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append({"message": record.getMessage(), **record.fields})

    logger = logging.getLogger("tapetum.requests")
    handler = Keep()
    logger.addHandler(handler)
    caplog.set_level(logging.INFO, "tapetum.requests")
    yield found
    logger.removeHandler(handler)


def test_a_line_tells_all_of_a_request(plain: TestServer, lines: list[dict[str, object]]) -> None:
    picture = {"type": "image_url", "image_url": {"url": DATA_URL}}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "hush"}]}]
    body = json.dumps({"messages": messages, "cache_salt": "a line"}).encode()
    reply = plain.client.post(
        "/v1/chat/completions?q=secret", content=body, headers={"x-request-id": "mine-1"}
    )
    assert eventually(lambda: bool(lines))
    (line,) = lines
    told = reply.json()
    usage, timing = told["usage"], told["tapetum"]["timing"]
    assert line == {
        "message": "POST /v1/chat/completions 200",
        "request_id": told["tapetum"]["request_id"],
        "client_request_id": "mine-1",
        "tenant": "",
        "status": 200,
        "error": None,
        "total_s": line["total_s"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "visual_tokens": usage["prompt_tokens_details"]["visual_tokens"],
        "cached_tokens": 0,
        "finish_reason": "stop",
        **timing,
    }
    assert line["total_s"] >= line["ttft_s"] > 0
    assert reply.headers["x-request-id"] == "mine-1"


ANSWERS = {
    "/v1/chat/completions": chat_body(),
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/vlm": {"prompt": "What?", "image_url": DATA_URL},
}


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_every_route_of_answers_leaves_its_line(
    plain: TestServer, lines: list[dict[str, object]], path: str, is_streamed: bool
) -> None:
    if is_streamed and path == "/v1/vlm":
        return
    reply = plain.client.post(path, json={**ANSWERS[path], "stream": is_streamed})
    assert reply.status_code == 200, reply.text
    assert eventually(lambda: bool(lines))
    (line,) = lines
    assert (line["message"], line["finish_reason"]) == (f"POST {path} 200", "stop")
    assert line["completion_tokens"] == 3 and line["ttft_s"] > 0
    assert reply.headers["x-request-id"] == line["request_id"]
    assert str(line["request_id"]) in reply.text


def test_several_prompts_and_answers_are_one_line(plain: TestServer, lines: list[dict[str, object]]) -> None:
    reply = plain.client.post("/v1/completions", json={"prompt": ["Hello", "Bye"], "n": 2, "max_tokens": 1})
    assert eventually(lambda: bool(lines))
    (line,) = lines
    assert line["completion_tokens"] == reply.json()["usage"]["completion_tokens"] == 4
    assert line["finish_reason"] == "length"


def test_requests_of_a_websocket_leave_a_line_each(plain: TestServer, lines: list[dict[str, object]]) -> None:
    with connect(plain.url.replace("http", "ws") + "/v1/chat/ws") as websocket:
        for name, fields in (("a", {}), ("b", {"temperature": -1})):
            websocket.send(json.dumps({"id": name, "request": chat_body(**fields)}))
            while not {"done", "error"} & set(json.loads(websocket.recv())):
                pass
    assert eventually(lambda: len(lines) == 3)
    told = [(line["status"], line["error"], line.get("finish_reason")) for line in lines]
    assert told == [(200, None, "stop"), (400, "invalid_parameter", None), (101, None, None)]


def test_a_client_that_leaves_is_told_from_one_that_was_answered(
    plain: TestServer, lines: list[dict[str, object]]
) -> None:
    plain.script.step_s = 0.01
    body = chat_body(ignore_eos=True, max_tokens=1000)
    with plain.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        next(stream.iter_lines())
    with pytest.raises(httpx2.ReadTimeout):
        plain.client.post("/v1/chat/completions", json=body, timeout=0.3)
    assert eventually(lambda: len(lines) == 2)
    plain.script.step_s = 0.0
    assert [(line["status"], line["finish_reason"]) for line in lines] == [(200, "abort"), (499, "abort")]


def test_an_answer_that_fails_says_so_in_its_line(plain: TestServer, lines: list[dict[str, object]]) -> None:
    plain.script.fail_at = 1
    plain.chat()
    plain.chat(stream=True)
    plain.script.fail_at = None
    assert eventually(lambda: len(lines) == 2)
    told = [(line["status"], line["error"], line["finish_reason"]) for line in lines]
    assert told == [(500, "engine_error", "error"), (200, None, "error")]
    assert "engine_error" not in rejections(plain), "it was taken"


def test_probes_leave_no_line_and_other_questions_do(
    plain: TestServer, lines: list[dict[str, object]]
) -> None:
    for path in ("/health", "/ready", "/metrics", "/version"):
        plain.client.get(path)
    assert eventually(lambda: bool(lines))
    assert [line["message"] for line in lines] == ["GET /version 200"]


@pytest.mark.parametrize("name", ["", "x" * 129, "two words", "ü"])
def test_an_id_that_is_none_is_not_said_again(plain: TestServer, name: str) -> None:
    reply = plain.client.get("/version", headers=[(b"x-request-id", name.encode())])
    assert re.fullmatch("[0-9a-f]{32}", reply.headers["x-request-id"])


BAD_PICTURES = [
    "data:image/png;base64,",
    "data:image/png;base64,@@@@****",
    "data:image/png;base64," + "iVBORw0KGgo" * 100,
    "data:;base64," + "A" * 5000,
    "QUFB" * 2000,
    "http://127.0.0.1:1/x.png?signature=" + "QUFB" * 100,
    "https://example.com/" + "QUFB" * 400 + "?token=QUFB",
]


@pytest.mark.parametrize("url", BAD_PICTURES, ids=range(len(BAD_PICTURES)))
def test_no_data_and_no_query_of_a_url_is_told_again(
    plain: TestServer, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    caplog.set_level(logging.DEBUG)
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hush, hush"}]
    for fields in ({}, {"model": "A" * 4000}, {"A" * 4000: 1}, {"mm_processor_kwargs": {"A" * 4000: 1}}):
        reply = plain.chat(messages=[{"role": "user", "content": content}], **fields)
        assert reply.status_code in (400, 404)
        for told in (reply.text, caplog.text):
            assert not re.search(r"[A-Za-z0-9+/=]{200}", told)
            assert "signature" not in told and "token=QUFB" not in told
        assert "hush" not in caplog.text


def test_a_question_about_the_server_is_answered_from_where_it_is_enforced(plain: TestServer) -> None:
    props = plain.client.get("/props").json()
    assert props["modalities"] == {"vision": True, "video": True, "audio": False}
    limits = props["limits"]
    assert (limits["max_model_len"], limits["max_body_bytes"]) == (2048, 100_000)
    assert limits["media"]["max_bytes"] == 64 * 2**20 and limits["media"]["has_local_files"] is False
    assert limits["media"]["processor"] == "exact"
    fewest, most = limits["visual_tokens"]
    assert 1 <= fewest < most
    assert set(props["chat_template_caps"]) >= {"has_tools", "tool_style", "has_reasoning"}
    assert props["served_model_names"] == ["tapetum-mini"]


def test_a_model_card_has_what_clients_of_vllm_look_for(plain: TestServer) -> None:
    listed = plain.client.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert card | {"created": 0} == {
        "id": "tapetum-mini",
        "object": "model",
        "created": 0,
        "owned_by": "tapetum",
        "root": "tapetum-mini",
        "parent": None,
        "max_model_len": 2048,
    }
    assert plain.client.get("/v1/models/default").json()["id"] == "tapetum-mini"


def test_a_busy_server_says_so_now_and_then(plain: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tapetum.server.report")
    reporting = asyncio.run_coroutine_threadsafe(report(plain.serving.engine, 0.02), plain.loop)
    plain.chat()
    assert eventually(lambda: "output tokens/s" in caplog.text)
    assert not reporting.done()
    reporting.cancel()


def test_large_bodies_are_parsed_beside_the_loop(plain: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from tapetum.server import serving
    from tapetum.server.chat import route

    monkeypatch.setattr(serving, "_QUICK_BYTES", 500)
    threads: list[str] = []
    parse = route.parse_question

    def spy(body: bytes) -> object:
        threads.append(threading.current_thread().name)
        return parse(body)

    monkeypatch.setattr(route, "parse_question", spy)
    plain.chat()
    plain.chat(junk="x" * 1000)
    assert threads[0] != threads[1]
    assert threads[1].startswith("asyncio")
