"""The server process: socket, model, signals, and a clean end.

Owns the order: the port opens at once, `/health` says 503 until the model is loaded, and on SIGINT or SIGTERM what
runs may finish for some seconds before the connections close. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from tapetum.core.config import EngineConfig, ServerConfig
from tapetum.core.errors import ConfigError, TapetumError
from tapetum.engine.remote import ProcessLink
from tapetum.engine.service import AsyncEngine
from tapetum.server.app import build_app

_log = logging.getLogger(__name__)
SHUTDOWN_GRACE_S = 30.0
_CLOSE_S = 5  # for connections to take their last bytes


def serve(config: EngineConfig, server: ServerConfig) -> None:
    """Serve until a signal; raises what keeps the model from loading."""
    engine = AsyncEngine(ProcessLink(config), restarts=server.engine_restarts)
    uvloop.run(_serve(engine, server))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_serve`: uvicorn's own way would end the process before the engine has stopped."""
        yield


async def _serve(engine: AsyncEngine, config: ServerConfig) -> None:
    listener = _listen(config)
    server = _Server(
        uvicorn.Config(
            build_app(engine, config),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_S,
        )
    )
    host, port = listener.getsockname()[:2]
    leaving = asyncio.create_task(_signal())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(_load(engine))
    try:
        await asyncio.wait((leaving, serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            _log.info("serving %s at http://%s:%d/v1", " and ".join(engine.model_names), host, port)
            await asyncio.wait((leaving, serving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        loading.cancel()
        leaving.cancel()
        _log.info("stopping; what runs has %g s to end, another signal ends it at once", SHUTDOWN_GRACE_S)
        await engine.stop(SHUTDOWN_GRACE_S)
        server.should_exit = True
        await serving


async def _load(engine: AsyncEngine) -> None:
    """A model that does not load ends the server; one that fails the golden request is served, but never ready."""
    await engine.start()
    try:
        await engine.prove()
    except TapetumError as error:
        _log.error("the golden request has failed, /ready stays 503: %s", error.message)


async def _signal() -> None:
    """Wait for SIGINT or SIGTERM once; after that either ends the process."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, came.set)
    try:
        await came.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once: Python's own way would unwind every task first


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error}; choose another --host or --port"
        ) from error
