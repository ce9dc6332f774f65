"""Servers that tiers talk to, started by the tests on a loopback port: a real redis-server, an S3 of moto."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REDIS = shutil.which("redis-server")


class RedisServer:
    """May be killed and started again on the same port; it forgets everything then."""

    def __init__(self, folder: Path, *words: str) -> None:
        assert REDIS is not None
        self.port = free_port()
        self._folder = folder
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, query: str = "") -> str:
        return f"redis://127.0.0.1:{self.port}/0{query}"

    def start(self) -> None:
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [str(REDIS), *words, "--dir", str(self._folder), *self._words], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith((b"+PONG", b"-NOAUTH")):
                    return
            time.sleep(0.01)
        self.kill()
        raise TimeoutError("redis-server does not answer")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def redis_server(folder: Path, *words: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *words)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def s3_bucket(name: str = "pictures") -> Iterator[str]:
    """-> the URL of a tier in a fresh bucket; the credentials of the environment are made up meanwhile."""
    import boto3
    from moto.server import ThreadedMotoServer

    said = {"AWS_ACCESS_KEY_ID": "made-up", "AWS_SECRET_ACCESS_KEY": "made-up", "AWS_REGION": "us-east-1"}
    before = {key: os.environ.get(key) for key in said}
    os.environ.update(said)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
    server.start()
    try:
        host, port = server.get_host_and_port()
        boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket=name)
        yield f"s3://{name}/tapetum?endpoint=http://{host}:{port}"
    finally:
        server.stop()
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
