"""`POST /v1/estimate`: what a chat request would cost, without running it.

Needs no pixels: sizes come from the headers of the pictures. What could never run is no error here, the answer says
why.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.engine.estimate import Estimate
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.translate import parse_question
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected


def routes(serving: Serving) -> list[Route]:
    async def foretell(request: Request) -> Response:
        question = await read_as(request, parse_question)
        serving.model_name(question.asked.model)
        tenant = tenant_of(request.scope, question.asked.cache_salt)
        priority = priority_number(question.asked.priority)
        estimate = serving.engine.estimate(question.chat, question.sampling, tenant=tenant, priority=priority)
        return json_response(_rounded(await while_connected(request, estimate)))

    return [Route("/v1/estimate", foretell, methods=["POST"])]


def _rounded(estimate: Estimate) -> Estimate:
    """To microseconds, as all times that are told."""
    return replace(
        estimate,
        prefill_s=round(estimate.prefill_s, 6),
        queue_s=round(estimate.queue_s, 6),
        media=tuple(replace(medium, encode_s=round(medium.encode_s, 6)) for medium in estimate.media),
    )
