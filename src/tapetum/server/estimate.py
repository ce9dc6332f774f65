"""`POST /v1/estimate`: what a chat request would cost, without running it.

Needs no pixels: sizes come from the headers of the pictures. What could never run is no error here, the answer says
why.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.server.chat.schema import parse_chat
from tapetum.server.chat.translate import chat_input_of, sampling_of
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected


def routes(serving: Serving) -> list[Route]:
    async def estimate(request: Request) -> Response:
        asked = await read_as(request, parse_chat)
        serving.model_name(asked.model)
        question = serving.engine.estimate(
            chat_input_of(asked), sampling_of(asked), tenant=tenant_of(request.scope, asked.cache_salt)
        )
        return json_response(await while_connected(request, question))

    return [Route("/v1/estimate", estimate, methods=["POST"])]
