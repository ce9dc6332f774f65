"""Sockets whose every wait is short, to addresses that somebody else has checked.

Owns the way from an address to a stream that httpcore2 can speak over. A name is only told to the other side, as SNI,
and held against its certificate; it is never looked up here.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import httpcore2

from tapetum.media.deadlines import GoOn

T = TypeVar("T")
SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
WAIT_S = 0.05
_CONNECT_S = 3.0  # for one address, so that another can be tried


class PinnedBackend(httpcore2.NetworkBackend):
    """Connects to the first of its addresses that answers, whatever name it is asked for."""

    def __init__(self, addresses: Sequence[str], go_on: GoOn) -> None:
        self._addresses = addresses
        self._go_on = go_on

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> PatientStream:
        for address in self._addresses:
            try:
                return PatientStream(_connected(address, port, self._go_on), self._go_on)
            except OSError:
                continue
        raise httpcore2.ConnectError("no address answers")


class PatientStream(httpcore2.NetworkStream):
    """A socket that asks between its waits whether to go on. The timeouts of its callers are not needed."""

    def __init__(self, sock: socket.socket, go_on: GoOn) -> None:
        self._sock = sock
        self._go_on = go_on
        sock.settimeout(WAIT_S)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._patiently(partial(self._sock.recv, max_bytes))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        view = memoryview(buffer)
        while view:
            view = view[self._patiently(partial(self._sock.send, view)) :]

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> PatientStream:
        wrapped = ssl_context.wrap_socket(
            self._sock, server_hostname=server_hostname, do_handshake_on_connect=False
        )
        stream = PatientStream(wrapped, self._go_on)
        try:
            stream._patiently(wrapped.do_handshake)
        except BaseException:
            wrapped.close()
            raise
        return stream

    def _patiently(self, act: Callable[[], T]) -> T:
        while True:
            self._go_on()
            try:
                return act()
            except (TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue


def meanwhile(work: Callable[[], T], go_on: GoOn) -> T:
    """The result of something that cannot be interrupted, such as asking the system for an address."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="media-resolve", daemon=True).start()
    while True:
        go_on()
        try:
            return future.result(WAIT_S)
        except TimeoutError:
            if future.done():
                return future.result()


def _connected(address: str, port: int, go_on: GoOn) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with suppress(BlockingIOError):  # it is under way
            sock.connect((address, port))
        until = time.monotonic() + _CONNECT_S
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            while not selector.select(WAIT_S):
                go_on()
                if time.monotonic() > until:
                    raise TimeoutError
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, "cannot connect")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock
