"""`POST /v1/chat/completions`: validate, ask, answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.engine.documents import has_whole_documents
from tapetum.server.chat.ask import ask_chat
from tapetum.server.chat.later import begin_chat
from tapetum.server.chat.translate import parse_question
from tapetum.server.events import events
from tapetum.server.logs import REQUEST_ID, record_of
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected
from tapetum.server.stream import EventStream


def routes(serving: Serving) -> list[Route]:
    async def chat(request: Request) -> Response:
        question = await read_as(request, parse_question)
        tenant = tenant_of(request.scope, question.asked.cache_salt)
        record = record_of(request.scope)
        if question.asked.stream and has_whole_documents(question.chat):
            beginning = begin_chat(serving, question, tenant=tenant, record=record)
            later = await while_connected(request, beginning)
            return _named(EventStream(later.stream(events(later.chunks()))), later.request_id)
        reply = await while_connected(request, ask_chat(serving, question, tenant=tenant))
        record.watch(reply.choices)
        if question.asked.stream:
            response: Response = EventStream(events(reply.chunks()))
        else:
            response = json_response(await while_connected(request, reply.whole()))
        return _named(response, reply.request_id)

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


def _named(response: Response, request_id: str) -> Response:
    response.headers[REQUEST_ID] = request_id
    return response
