"""`POST /v1/responses`: validate, ask as a chat, answer in the words of this API."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.server.chat.ask import ask_chat
from tapetum.server.responses.reply import ResponsesReply
from tapetum.server.responses.schema import parse_responses
from tapetum.server.responses.translate import chat_request_of
from tapetum.server.serving import Serving, json_response, read_body, tenant_of, while_connected
from tapetum.server.stream import EventStream


def routes(serving: Serving) -> list[Route]:
    async def respond(request: Request) -> Response:
        asked = parse_responses(await read_body(request))
        tenant = tenant_of(request.scope, asked.cache_salt)
        chat = await while_connected(request, ask_chat(serving, chat_request_of(asked), tenant=tenant))
        reply = ResponsesReply(chat, asked)
        if asked.stream:
            return EventStream(reply.stream())
        return json_response(await while_connected(request, reply.whole()))

    return [Route("/v1/responses", respond, methods=["POST"])]
