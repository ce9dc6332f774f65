"""Where the answers of a command come from: a server that runs already (`--url`), or an engine in this process.

Owns the flags that choose, and the HTTP client that hides the difference: either way a command speaks HTTP to the
same application.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from tapetum.core.config import EngineConfig, ServerConfig
from tapetum.core.errors import ConfigError, EngineError, TapetumError
from tapetum.flags import engine_config, engine_flags, one_model, option

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T", bound=Callable[..., object])
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A running server, or the config of an engine to start; `model` is what to ask the server for."""

    url: str | None = None
    api_key: str | None = None
    model: str | None = None
    config: EngineConfig | None = None


def place_flags(command: T) -> T:
    """The model, every flag of an engine, and the two of a server that takes its place."""
    command = option("--api-key", "api_key", help="Key of the server at --url.")(engine_flags(command))
    command = option("--url", "url", help="Ask a running OpenAI-compatible server instead.")(command)
    return click.argument("model_argument", required=False, metavar="[MODEL]")(command)


def place_of(call: click.Context, options: dict[str, object]) -> Place:
    """Takes the flags of `place_flags` out of the options, and refuses those that would have no effect."""
    url, key, argument = (options.pop(name) for name in ("url", "api_key", "model_argument"))
    model = one_model(None if argument is None else str(argument), options)
    if url is None:
        return Place(config=engine_config(model, options))
    given = [name for name in options if call.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    flags = [parameter.opts[0] for parameter in call.command.params if parameter.name in given]
    if flags:
        raise ConfigError(
            f"{flags[0]} is for an engine, which the server at --url has; leave one of them out"
        )
    return Place(url=_root(str(url)), api_key=None if key is None else str(key), model=model)


@contextlib.asynccontextmanager
async def client_of(place: Place) -> AsyncIterator[httpx2.AsyncClient]:
    """A client whose paths begin with `/v1`. What it asks has no time limit."""
    import httpx2

    timeout = httpx2.Timeout(None, connect=_CONNECT_S)
    if place.url is not None:
        headers = {} if place.api_key is None else {"authorization": f"Bearer {place.api_key}"}
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            base_url=place.url, headers=headers, timeout=timeout, limits=limits
        ) as client:
            yield client
        return

    from tapetum.commands.transport import AppTransport
    from tapetum.engine.service import AsyncEngine
    from tapetum.server.app import build_app

    assert place.config is not None, "without a URL there is a config"
    tell_loading(place.config)
    async with AsyncEngine(place.config) as engine:
        transport = AppTransport(build_app(engine, ServerConfig()))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://tapetum", timeout=timeout
        ) as client:
            yield client


async def model_of(place: Place, client: httpx2.AsyncClient) -> str:
    """The name to ask for: as given, or the first that the server has."""
    import httpx2

    from tapetum.commands.answer import refusal

    if place.url is not None and place.model is not None:
        return place.model
    try:
        response = await client.get("/v1/models")
    except httpx2.TransportError as error:
        raise unreachable(place, error) from error
    if not response.is_success:
        raise refusal(response.status_code, response.content)
    return str(response.json()["data"][0]["id"])


def tell_loading(config: EngineConfig) -> None:
    """What the seconds before the first word are for."""
    click.echo(f"loading {config.model.model or 'tapetum-mini'} …", err=True)


def unreachable(place: Place, error: Exception) -> TapetumError:
    """What to tell when the transport fails."""
    return EngineError(
        f"{place.url} does not answer: {error or type(error).__name__}; is the server running?"
    )


def _root(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}, must begin with http:// or https://")
    return url.rstrip("/").removesuffix("/v1")
