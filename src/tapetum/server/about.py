"""What a server says of itself: its models, whether it lives and takes requests, its numbers and its version."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum import __version__
from tapetum.assets import MODEL_DIR
from tapetum.core.errors import CapacityError, EngineDead
from tapetum.server.metrics import CONTENT_TYPE, exposition
from tapetum.server.serving import Serving, json_response


def routes(serving: Serving) -> list[Route]:
    about = _About(serving)
    return [
        Route("/v1/models", about.models),
        Route("/v1/models/{name:path}", about.model),
        Route("/health", about.health),
        Route("/ready", about.ready),
        Route("/metrics", about.metrics),
        Route("/version", about.version),
    ]


class ModelCard(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["tapetum"] = "tapetum"
    root: str  # the checkpoint as it was named
    parent: None = None
    max_model_len: int


class Models(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"
    model: str
    device: str


class Version(Struct, frozen=True, kw_only=True):
    version: str


class _About:
    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def models(self, request: Request) -> Response:
        names = self._serving.engine.model_names
        return json_response(Models(data=[self._card(name) for name in names]))

    async def model(self, request: Request) -> Response:
        return json_response(self._card(self._serving.model_name(request.path_params["name"])))

    async def health(self, request: Request) -> Response:
        """200 while the engine lives, idle or busy, also while the server drains."""
        engine = self._serving.engine
        facts = engine.facts  # raises while there is none to ask
        if not engine.is_healthy:
            raise EngineDead("the engine loop has ended or hangs; restart the server")
        return json_response(Health(model=engine.model_names[0], device=facts.device))

    async def ready(self, request: Request) -> Response:
        """200 while a request that came now would be answered."""
        self._serving.refuse_late()
        engine = self._serving.engine
        facts = engine.facts
        if not engine.is_ready:
            raise CapacityError("the engine has not answered its first request yet; come back in a moment")
        return json_response(Health(model=engine.model_names[0], device=facts.device))

    async def metrics(self, request: Request) -> Response:
        engine = self._serving.engine
        prefix = self._serving.config.metrics_prefix
        text = exposition(await engine.metrics(), prefix=prefix, model_name=engine.model_names[0])
        return Response(text, media_type=CONTENT_TYPE)

    async def version(self, request: Request) -> Response:
        return json_response(Version(version=__version__))

    def _card(self, name: str) -> ModelCard:
        engine = self._serving.engine
        return ModelCard(
            id=name,
            created=self._serving.created,
            root=engine.config.model.model or MODEL_DIR.name,
            max_model_len=engine.facts.max_model_len,
        )
