"""The server process: what keeps it from starting, and how it starts, drains and ends on signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result

from tapetum import cli
from tests.cpu.served_kit import ENVIRONMENT, TAPETUM
from tests.cpu.server_kit import chat_body, eventually

# Made for these tests, for localhost and 127.0.0.1.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUaS9ssUms9+Q9OAaug6QfDxwmtvIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDAyMDIzNFoYDzIxMjYxMTA2
MDIwMjM0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQtU8YNIm8Z8vGn1HqXsNMna/kaxLJ/AJhDA5to9NNT3dwX+YLgKFBf
cLE5Sp6dmDjv1O9HL8X0kUAEcBargYKOo28wbTAdBgNVHQ4EFgQUf9Jv9iA4CHhr
jbqY0OhFEA50E/EwHwYDVR0jBBgwFoAUf9Jv9iA4CHhrjbqY0OhFEA50E/EwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAO3gNBPWwTVArEEEEI79yA2HMjR4qFH+RUc2d5+5qfpDAiAn
B6UwJO94jc/fCTUQFopWGkbbvaJ6z1rk+NNhXKjV4Q==
-----END CERTIFICATE-----
"""
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgV4mIpHkB3T6vGykA
3urW4BkqMyHA5YCWpWC+l8krWo6hRANCAAQtU8YNIm8Z8vGn1HqXsNMna/kaxLJ/
AJhDA5to9NNT3dwX+YLgKFBfcLE5Sp6dmDjv1O9HL8X0kUAEcBargYKO
-----END PRIVATE KEY-----
"""
LONG = chat_body(stream=True, ignore_eos=True, max_tokens=1500)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with cert.pem, key.pem and keys."""
    (tmp_path / "cert.pem").write_text(CERTIFICATE, encoding="utf-8")
    (tmp_path / "key.pem").write_text(KEY, encoding="utf-8")
    (tmp_path / "keys").write_text("sesame house\n", encoding="utf-8")
    (tmp_path / "keys").chmod(0o600)
    return tmp_path


def serve(monkeypatch: pytest.MonkeyPatch, *flags: str) -> Result:
    monkeypatch.setattr(cli, "set_up_logging", lambda level: None)
    return CliRunner().invoke(cli.main, ["serve", *flags])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "{taken}"], ["cannot listen on 127.0.0.1:", "choose another --host or --port"]),
        (["--host", "256.0.0.1"], ["cannot listen on 256.0.0.1"]),
        (["--api-key-file", "{files}/cert.pem"], ["cert.pem, line 2 has one word"]),
        (["--ssl-certfile", "{files}/keys"], ["--ssl-certfile", "cannot be used"]),
        (["--ssl-certfile", "{files}/cert.pem"], ["--ssl-certfile", "cannot be used"]),  # no key in it
        (["no/such/model/at/all"], ["no/such/model/at/all"]),
    ],
)
def test_what_keeps_it_from_starting_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, files: Path, flags: list[str], words: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [flag.replace("{taken}", port).replace("{files}", str(files)) for flag in flags]
        result = serve(monkeypatch, *(["--port", "0"] if "--port" not in given else []), *given)
    assert result.exit_code == 2, result.output
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stderr.count("\n") == 1


class Process:
    """`tapetum serve`, from before it has loaded anything. `log` are the lines that it has written, decoded.

    `shell` starts it, as the command "$@".
    """

    def __init__(self, *flags: str, files: Path | None = None, shell: str = 'exec "$@"') -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            ["sh", "-c", shell, "sh", *TAPETUM, "serve", "--port", str(port), *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        verify: ssl.SSLContext | bool = False
        if files is not None:
            verify = ssl.create_default_context(cafile=str(files / "cert.pem"))
        self.client = httpx2.Client(
            base_url=f"http{'s' if files else ''}://127.0.0.1:{port}", timeout=60, verify=verify
        )
        self.log: list[dict[str, object]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log += map(json.loads, self.process.stderr)

    def status(self, path: str) -> int | None:
        try:
            return self.client.get(path).status_code
        except httpx2.ConnectError:
            return None

    def children(self) -> list[int]:
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        return [int(number) for number in found.stdout.split()]


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes of a test; none outlives it."""
    processes: list[Process] = []
    yield processes
    for each in processes:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait(10)
        each.client.close()


def is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_opens_at_once_gets_ready_drains_and_ends_well(started: list[Process], files: Path) -> None:
    flags = ("--ssl-certfile", f"{files}/cert.pem", "--ssl-keyfile", f"{files}/key.pem")
    server = Process(*flags, "--api-key-file", f"{files}/keys", files=files)
    started.append(server)
    seen: list[int | None] = []

    def is_ready() -> bool:
        seen.append(server.status("/ready"))
        return seen[-1] == 200

    assert eventually(is_ready, within_s=60)
    assert set(seen) <= {None, 503, 200} and 503 in seen, "the port opens before the model is loaded"
    assert server.status("/v1/models") == 401
    server.client.headers["authorization"] = "Bearer sesame"
    children = server.children()
    assert children

    with server.client.stream("POST", "/v1/chat/completions", json={**LONG, "max_tokens": 200}) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: server.status("/ready") == 503)
        refused = server.client.post("/v1/chat/completions", json=chat_body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert server.status("/health") == 200
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in events[-2]
    assert server.process.wait(20) == 0
    assert eventually(lambda: not any(map(is_alive, children)))
    requests = [line for line in server.log if line["logger"] == "tapetum.requests"]
    assert [line["status"] for line in requests if line["message"].startswith("POST")] == [503, 200]
    assert {line["tenant"] for line in requests if line["message"].startswith("POST")} == {"house"}
    assert all(set(line) >= {"time", "level", "logger", "message"} for line in server.log)


def test_a_grace_that_ends_cuts_off_and_a_second_signal_does_at_once(started: list[Process]) -> None:
    slow = ("--speculate", "off")  # guessed tokens would end the answer before the grace does
    started += [Process("--shutdown-grace-s", "0.5", *slow), Process(*slow)]
    ends = {}
    for server, signals in zip(started, (1, 2), strict=True):
        assert eventually(lambda server=server: server.status("/health") == 200, within_s=60)
        children = server.children()
        with server.client.stream("POST", "/v1/chat/completions", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert eventually(lambda server=server: server.status("/ready") == 503)
            if signals == 2:
                server.process.send_signal(signal.SIGTERM)
                ends[signals] = (server.process.wait(5), [])
            else:
                ends[signals] = (0, [line for line in lines if line][-2:])
                ends[signals] = (server.process.wait(20), ends[signals][1])
        assert eventually(lambda children=children: not any(map(is_alive, children)), within_s=10)
    code, events = ends[1]
    assert code == 0
    assert '"code":"capacity"' in events[0] and events[1] == "data: [DONE]"
    assert any("1 requests have not ended in time" in str(line["message"]) for line in started[0].log)
    assert ends[2] == (-signal.SIGTERM, [])


def test_a_signal_while_it_loads_ends_it_well(started: list[Process]) -> None:
    server = Process()
    started.append(server)
    assert eventually(lambda: server.status("/health") == 503, within_s=30)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    assert not any(line["level"] == "error" for line in server.log), server.log


def test_without_standard_files_it_serves_and_ends_well(started: list[Process]) -> None:
    server = Process(shell='exec "$@" <&- >&- 2>&-')
    started.append(server)
    assert eventually(lambda: server.status("/ready") == 200, within_s=60)
    assert server.client.post("/v1/chat/completions", json=chat_body(max_tokens=2)).status_code == 200
    assert server.client.post("/v1/chat/completions", content=b"{").status_code == 400
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
