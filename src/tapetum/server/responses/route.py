"""`POST /v1/responses`: validate, ask as a chat, answer in the words of this API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.engine.documents import has_whole_documents
from tapetum.server.chat.ask import ask_chat
from tapetum.server.chat.later import begin_chat
from tapetum.server.chat.translate import ChatQuestion, question_of
from tapetum.server.logs import record_of
from tapetum.server.responses.reply import ResponsesReply
from tapetum.server.responses.schema import ResponsesRequest, parse_responses
from tapetum.server.responses.translate import chat_request_of
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected
from tapetum.server.stream import EventStream


def routes(serving: Serving) -> list[Route]:
    async def respond(request: Request) -> Response:
        asked, question = await read_as(request, _parse)
        tenant = tenant_of(request.scope, asked.cache_salt)
        record = record_of(request.scope)
        if asked.stream and has_whole_documents(question.chat):
            beginning = begin_chat(serving, question, tenant=tenant, record=record)
            later = await while_connected(request, beginning)
            return EventStream(later.stream(ResponsesReply(later, asked).stream()))
        chat = await while_connected(request, ask_chat(serving, question, tenant=tenant))
        record.watch(chat.choices)
        reply = ResponsesReply(chat, asked)
        if asked.stream:
            return EventStream(reply.stream())
        return json_response(await while_connected(request, reply.whole()))

    return [Route("/v1/responses", respond, methods=["POST"])]


def _parse(body: bytes) -> tuple[ResponsesRequest, ChatQuestion]:
    asked = parse_responses(body)
    return asked, question_of(chat_request_of(asked))
