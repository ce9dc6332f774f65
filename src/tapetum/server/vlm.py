"""`POST /v1/vlm`: one picture, one question, one text. The shortest way to ask."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.server.chat.ask import ask_chat
from tapetum.server.chat.parts import ImageUrlPart, Part, TextPart
from tapetum.server.chat.sampling import SamplingFields
from tapetum.server.chat.schema import ChatMessage, ChatRequest, check_chat
from tapetum.server.chat.translate import ChatQuestion, question_of
from tapetum.server.chat.wire import ChatAnswer
from tapetum.server.disclosure import Disclosure, Usage
from tapetum.server.errors import NotSupported
from tapetum.server.logs import record_of
from tapetum.server.parse import parsed
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected


class VlmRequest(SamplingFields, frozen=True, kw_only=True):
    image_url: str
    prompt: str


class VlmAnswer(Struct, frozen=True, kw_only=True):
    text: str
    usage: Usage
    tapetum: Disclosure


_decoder = msgspec.json.Decoder(VlmRequest)


def routes(serving: Serving) -> list[Route]:
    async def look(request: Request) -> Response:
        question = await read_as(request, _parse)
        tenant = tenant_of(request.scope, question.asked.cache_salt)
        reply = await while_connected(request, ask_chat(serving, question, tenant=tenant))
        record_of(request.scope).watch(reply.choices)
        return json_response(_in_short(await while_connected(request, reply.whole())))

    return [Route("/v1/vlm", look, methods=["POST"])]


def _parse(body: bytes) -> ChatQuestion:
    """The chat that a body amounts to; raises RequestError and its children."""
    asked = parsed(_decoder, body)
    if asked.stream or asked.num_choices > 1:
        name = "stream" if asked.stream else "n"
        raise NotSupported(f"{name} is not supported here; ask /v1/chat/completions for it", param=name)
    content: list[Part] = [ImageUrlPart(image_url=asked.image_url), TextPart(text=asked.prompt)]
    chosen = {name: getattr(asked, name) for name in SamplingFields.__struct_fields__}
    request = ChatRequest(messages=[ChatMessage(role="user", content=content)], **chosen)
    check_chat(request)
    return question_of(request)


def _in_short(answer: ChatAnswer) -> VlmAnswer:
    """A whole answer has all of these."""
    (choice,) = answer.choices
    assert choice.message and answer.usage and answer.tapetum, "the answer is whole"
    return VlmAnswer(text=choice.message.content or "", usage=answer.usage, tapetum=answer.tapetum)
