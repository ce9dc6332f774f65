"""Small servers on the loopback for tests of fetching: each answers every connection with the bytes it is told to."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

Answer = Callable[[bytes], Iterable[bytes]]  # request head -> pieces of the answer


class Place:
    """A server and what it saw: connections, and the heads of the requests that came over them."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None) -> None:
        self._answer = answer
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.origin = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.num_connections = 0
        self.heads: list[bytes] = []
        self.ended = threading.Semaphore(0)  # released when a connection is over
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes its thread
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        try:
            with sock, self._tls.wrap_socket(sock, server_side=True) if self._tls else sock as stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (piece := stream.recv(65536)):
                        return
                    head += piece
                self.heads.append(head)
                for piece in self._answer(head):
                    stream.sendall(piece)
        except OSError:
            pass
        finally:
            self.ended.release()


@contextmanager
def place(answer: Answer | bytes, tls: ssl.SSLContext | None = None) -> Iterator[Place]:
    fixed = answer if isinstance(answer, bytes) else None
    server = Place((lambda _: [fixed]) if fixed is not None else answer, tls)  # type: ignore[list-item, arg-type]
    try:
        yield server
    finally:
        server.close()


def reply(body: bytes = b"", status: int = 200, **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Whatever",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def drip(head: bytes, piece: bytes = b"x", pause_s: float = 0.02, times: int = 10_000) -> Answer:
    def answer(_: bytes) -> Iterator[bytes]:
        yield head
        for _ in range(times):
            time.sleep(pause_s)
            yield piece

    return answer
