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
import ssl
from collections.abc import Iterator

import uvicorn
import uvloop

from tapetum.core.config import EngineConfig, ServerConfig
from tapetum.core.errors import ConfigError, TapetumError
from tapetum.engine.child import Child
from tapetum.engine.remote import ProcessLink
from tapetum.engine.service import AsyncEngine
from tapetum.server.app import assemble
from tapetum.server.process import keep_loop_on_time
from tapetum.server.protocol import GuardedProtocol
from tapetum.server.report import report
from tapetum.server.serving import Serving
from tapetum.server.websocket import GuardedWebSocket

_log = logging.getLogger(__name__)
_CLOSE_S = 5  # for connections to take their last bytes


def serve(config: EngineConfig, server: ServerConfig, child: Child | None = None) -> None:
    """Serve until a signal; raises what keeps the model from loading. `child` becomes the engine, if there is one."""
    keep_loop_on_time()
    engine = AsyncEngine(ProcessLink(config, child=child), restarts=server.engine_restarts)
    uvloop.run(_serve(engine, server))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_serve`: uvicorn's own way would end the process before the engine has stopped."""
        yield


async def _serve(engine: AsyncEngine, config: ServerConfig) -> None:
    serving = Serving(engine, config)
    server = _Server(uvicorn_config(serving))
    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    leaving = asyncio.create_task(_signal())
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(_load(engine))
    reporting = asyncio.create_task(report(engine))
    try:
        await asyncio.wait((leaving, answering, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            scheme = "http" if config.ssl_certfile is None else "https"
            _log.info("serving %s at %s://%s:%d/v1", " and ".join(engine.model_names), scheme, host, port)
            await asyncio.wait((leaving, answering), return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_asked = leaving.done()
        for task in (loading, leaving, reporting):
            task.cancel()
        if is_asked:
            _log.info(
                "stopping; what runs has %g s to end, another signal ends it at once", config.shutdown_grace_s
            )
        num_left = await serving.traffic.drain(config.shutdown_grace_s)
        if num_left:
            _log.warning("%d requests have not ended in time and are cut off", num_left)
        await engine.stop()
        server.should_exit = True
        await answering


def uvicorn_config(serving: Serving) -> uvicorn.Config:
    """How the application is served; raises ConfigError for a certificate that cannot be used."""
    config = serving.config
    _check_certificate(config)
    return uvicorn.Config(
        assemble(serving),
        http=GuardedProtocol,
        ws=GuardedWebSocket,
        ws_max_size=config.max_body_bytes,
        ws_per_message_deflate=False,  # what comes and goes is mostly base64 and small
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_CLOSE_S,
    )


def _check_certificate(config: ServerConfig) -> None:
    if config.ssl_certfile is None:
        return
    try:
        # no password: a key that wants one must not stop the start to ask for it
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.ssl_certfile, config.ssl_keyfile, password=lambda: ""
        )
    except OSError as error:
        raise ConfigError(
            f"--ssl-certfile {config.ssl_certfile} with its key cannot be used: {error}"
        ) from error


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
