"""What a server says of itself: its models, whether it lives, its numbers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum.core.errors import EngineDead
from tapetum.server.metrics import CONTENT_TYPE, exposition
from tapetum.server.serving import Serving, json_response


def routes(serving: Serving) -> list[Route]:
    about = _About(serving)
    return [
        Route("/v1/models", about.models),
        Route("/v1/models/{name:path}", about.model),
        Route("/health", about.health),
        Route("/metrics", about.metrics),
    ]


class _About:
    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def models(self, request: Request) -> Response:
        names = self._serving.engine.model_names
        return json_response({"object": "list", "data": [self._entry(name) for name in names]})

    async def model(self, request: Request) -> Response:
        return json_response(self._entry(self._serving.model_name(request.path_params["name"])))

    async def health(self, request: Request) -> Response:
        engine = self._serving.engine
        facts = engine.facts  # raises while there is none to ask
        if not engine.is_healthy:
            raise EngineDead("the engine loop has ended or hangs; restart the server")
        return json_response({"status": "ok", "model": engine.model_names[0], "device": facts.device})

    async def metrics(self, request: Request) -> Response:
        engine = self._serving.engine
        text = exposition(await engine.metrics(), model_name=engine.model_names[0])
        return Response(text, media_type=CONTENT_TYPE)

    def _entry(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._serving.created,
            "owned_by": "tapetum",
            "max_model_len": self._serving.engine.facts.max_model_len,
        }
