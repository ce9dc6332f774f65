"""`POST /v1/chat/completions`: validate, ask, answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.server import request_id
from tapetum.server.chat.ask import ask_chat
from tapetum.server.chat.schema import parse_chat
from tapetum.server.events import events
from tapetum.server.serving import Serving, json_response, read_body, tenant_of, while_connected
from tapetum.server.stream import EventStream


def routes(serving: Serving) -> list[Route]:
    async def chat(request: Request) -> Response:
        asked = parse_chat(await read_body(request))
        tenant = tenant_of(request.scope, asked.cache_salt)
        reply = await while_connected(request, ask_chat(serving, asked, tenant=tenant))
        if asked.stream:
            response: Response = EventStream(events(reply.chunks()))
        else:
            response = json_response(await while_connected(request, reply.whole()))
        response.headers[request_id.NAME] = reply.request_id
        return response

    return [Route("/v1/chat/completions", chat, methods=["POST"])]
