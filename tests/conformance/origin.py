"""The remote side of a scenario: a media server with the scenario's routes, and a listener that nobody may contact.

Both stay at their ports for a whole run, so servers under test can be started with their addresses. Every visit is
answered on a thread of its own; one that hangs ends with the process.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.conformance.observation import Visits

_FILLER = b"\0" * 65536


class Origin:
    """`media` and `canary` are origins, such as http://127.0.0.1:8080."""

    def __init__(self) -> None:
        self._server = _MediaServer(("127.0.0.1", 0), _Answer)
        self._canary = socket.create_server(("127.0.0.1", 0))
        self._canary_hits = 0
        self.media = f"http://127.0.0.1:{self._server.server_port}"
        self.canary = f"http://127.0.0.1:{self._canary.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._count_canary, daemon=True).start()

    def serve(self, routes: Sequence[dict]) -> None:
        """Answer these routes from now on, and forget all visits."""
        self._server.routes = {route["route"]: route for route in routes}
        self._server.queries = []
        self._canary_hits = 0

    @property
    def visits(self) -> Visits:
        return Visits(tuple(self._server.queries), self._canary_hits)

    def close(self) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._canary.close()

    def _count_canary(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                visit, _ = self._canary.accept()
                self._canary_hits += 1  # before the visitor can know
                visit.close()


class _MediaServer(ThreadingHTTPServer):
    block_on_close = False  # a visit may hang

    def __init__(self, address: tuple[str, int], answer: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, answer)
        self.routes: dict[str, dict] = {}
        self.queries: list[str] = []
        self.closing = threading.Event()


class _Answer(BaseHTTPRequestHandler):
    """One visit."""

    protocol_version = "HTTP/1.1"
    server: _MediaServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.queries.append(query)
        self.close_connection = True
        with contextlib.suppress(OSError):  # the server under test has gone away
            self._send(self.server.routes.get(path, {"status": 404}))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing: what counts is noted."""

    def _send(self, route: dict) -> None:
        is_endless = route.get("chunk_forever", False)
        if not is_endless:
            self.server.closing.wait(route.get("hang_s", 0))
        body, status = route.get("body", b""), route.get("status", 200)
        self.send_response(status)
        for name, value in route.get("headers", {}).items():
            self.send_header(name, value)
        if is_endless:
            self.send_header("Transfer-Encoding", "chunked")
        elif status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_endless:
            self._send_forever(body or _FILLER, route.get("hang_s", 0))
        elif self.command == "GET":
            self.wfile.write(body)

    def _send_forever(self, piece: bytes, pause_s: float) -> None:
        while not self.server.closing.is_set():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.server.closing.wait(pause_s)
