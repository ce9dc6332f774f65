"""`POST /v1/completions`: validate, submit every prompt, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.core.chat import TextInput
from tapetum.core.request import SamplingParams
from tapetum.engine.choices import Choices
from tapetum.engine.generation import Generation
from tapetum.server.chat.sampling import priority_number
from tapetum.server.completions.prompts import check_answers, text_inputs
from tapetum.server.completions.reply import CompletionReply
from tapetum.server.completions.schema import CompletionRequest, parse_completion, sampling_of
from tapetum.server.events import events
from tapetum.server.logs import record_of
from tapetum.server.serving import Serving, json_response, read_as, tenant_of, while_connected
from tapetum.server.stream import EventStream


def routes(serving: Serving) -> list[Route]:
    async def complete(request: Request) -> Response:
        asked, sampling = await read_as(request, _parse)
        model = serving.model_name(asked.model)
        engine = serving.engine
        num_waiting = engine.num_waiting
        prompts = text_inputs(asked.prompt, engine.facts.max_model_len - 1)
        check_answers(len(prompts), asked.num_choices)
        tenant = tenant_of(request.scope, asked.cache_salt)
        sources = await while_connected(request, _submitted(serving, prompts, asked, sampling, tenant))
        record_of(request.scope).watch(*sources)
        reply = CompletionReply(
            prompts, sources, asked, model=model, tokenizer=engine.tokenizer, num_waiting=num_waiting
        )
        if asked.stream:
            return EventStream(events(reply.chunks()))
        return json_response(await while_connected(request, reply.whole()))

    return [Route("/v1/completions", complete, methods=["POST"])]


def _parse(body: bytes) -> tuple[CompletionRequest, SamplingParams]:
    asked = parse_completion(body)
    return asked, sampling_of(asked)


async def _submitted(
    serving: Serving,
    prompts: Sequence[TextInput],
    asked: CompletionRequest,
    sampling: SamplingParams,
    tenant: str,
) -> list[Choices]:
    """All prompts, taken by the engine; when one is refused none of them runs."""
    submissions = [
        asyncio.ensure_future(
            serving.engine.submit(
                replace(prompt, num_choices=asked.num_choices),
                sampling,
                priority=priority_number(asked.priority),
                timeout_s=asked.timeout_s,
                tenant=tenant,
            )
        )
        for prompt in prompts
    ]
    try:
        generations = await asyncio.gather(*submissions)
    except BaseException:
        for submission in submissions:
            submission.cancel()
        for outcome in await asyncio.gather(*submissions, return_exceptions=True):
            if isinstance(outcome, Generation):
                outcome.cancel()
        raise
    return [serving.engine.choices(generation) for generation in generations]
