"""The HTTP application: the routes of all modules behind one gate. Nothing here computes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.types import ASGIApp

from tapetum.core.config import ServerConfig
from tapetum.engine.service import AsyncEngine
from tapetum.server import (
    about,
    completions,
    debug,
    estimate,
    openapi,
    props,
    responses,
    socket,
    tokens,
    vlm,
)
from tapetum.server.chat import route as chat
from tapetum.server.faults import tellers
from tapetum.server.gate import guarded
from tapetum.server.serving import Serving

MODULES = (  # with `routes(serving)` each
    about,
    chat,
    completions,
    responses,
    vlm,
    estimate,
    tokens,
    socket,
    props,
    openapi,
    debug,
)


def build_app(engine: AsyncEngine, config: ServerConfig) -> ASGIApp:
    """The application; the caller starts and stops the engine."""
    return assemble(Serving(engine, config))


def assemble(serving: Serving) -> ASGIApp:
    routes = [route for module in MODULES for route in module.routes(serving)]
    app = Starlette(routes=routes, exception_handlers=tellers(serving))
    app.router.redirect_slashes = (
        False  # a redirect has no body that says what is wrong, and loses that of a POST
    )
    return guarded(app, serving)
