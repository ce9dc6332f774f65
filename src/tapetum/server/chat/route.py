"""`POST /v1/chat/completions`: validate, translate, submit, answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.server.chat.reply import Reply
from tapetum.server.chat.schema import parse_chat
from tapetum.server.chat.translate import chat_input_of, priority_of, sampling_of
from tapetum.server.serving import Serving, json_response, read_body, tenant_of, while_connected
from tapetum.server.stream import EventStream


def routes(serving: Serving) -> list[Route]:
    async def chat(request: Request) -> Response:
        asked = parse_chat(await read_body(request))
        model = serving.model_name(asked.model)
        engine = serving.engine
        num_waiting = engine.num_waiting
        submission = engine.submit(
            chat_input_of(asked),
            sampling_of(asked),
            priority=priority_of(asked),
            timeout_s=asked.timeout_s,
            tenant=tenant_of(request.scope, asked.cache_salt),
        )
        generation = await while_connected(request, submission)
        reply = Reply(generation, asked, model=model, tokenizer=engine.tokenizer)
        if asked.stream:
            return EventStream(reply.events(num_waiting))
        return json_response(await while_connected(request, reply.whole()))

    return [Route("/v1/chat/completions", chat, methods=["POST"])]
