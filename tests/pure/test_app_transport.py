"""The way from a client into an application of the same process: like a network, but for the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tapetum.commands.transport import AppTransport


class Stage:
    """An application whose work can be watched."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.running = 0

    async def echo(self, request: Request) -> Response:
        return JSONResponse(
            {
                "body": (await request.body()).decode(),
                "query": dict(request.query_params),
                "header": request.headers.get("x-test"),
                "path": request.url.path,
            },
            status_code=201,
            headers={"x-answer": "yes"},
        )

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(self._pieces())

    async def _pieces(self) -> AsyncIterator[str]:
        self.running += 1
        try:
            yield "first"
            await self.go_on.wait()
            yield "second"
        finally:
            self.running -= 1

    async def wait(self, request: Request) -> Response:
        self.running += 1
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        return Response()

    async def fail(self, request: Request) -> Response:
        raise ZeroDivisionError

    def client(self) -> httpx2.AsyncClient:
        routes = [
            Route("/" + name, getattr(self, name), methods=["POST"])
            for name in ("echo", "stream", "wait", "fail")
        ]
        return httpx2.AsyncClient(transport=AppTransport(Starlette(routes=routes)), base_url="http://app")


async def test_a_request_and_its_answer_arrive_whole() -> None:
    async with Stage().client() as client:
        answer = await client.post("/echo?a=1&b=%C3%BC", content="x" * 3_000_000, headers={"x-test": "t"})
    assert (answer.status_code, answer.headers["x-answer"]) == (201, "yes")
    told = answer.json()
    assert told == {"body": "x" * 3_000_000, "query": {"a": "1", "b": "ü"}, "header": "t", "path": "/echo"}


async def test_pieces_arrive_as_they_are_made() -> None:
    stage = Stage()
    async with stage.client() as client, client.stream("POST", "/stream") as answer:
        pieces = answer.aiter_bytes()
        assert await anext(pieces) == b"first"
        assert stage.running == 1
        stage.go_on.set()
        assert [piece async for piece in pieces] == [b"second"]
    assert stage.running == 0


async def test_a_client_that_closes_early_ends_the_work() -> None:
    stage = Stage()
    async with stage.client() as client:
        async with client.stream("POST", "/stream") as answer:
            assert await anext(answer.aiter_bytes()) == b"first"
        assert stage.running == 0


async def test_a_client_that_is_cancelled_ends_the_work() -> None:
    stage = Stage()
    async with stage.client() as client:
        asking = asyncio.create_task(client.post("/wait"))
        while not stage.running:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert stage.running == 0


async def test_a_failure_of_the_application_is_an_answer_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Stage().client() as client:
        answer = await client.post("/fail")
    assert answer.status_code == 500
    assert "POST /fail failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
