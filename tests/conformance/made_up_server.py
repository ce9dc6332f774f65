"""A small server that answers as a good one would, or with one fault: what the conformance runner is tested with.

    python -m tests.conformance.made_up_server --port N [--fault NAME] [other flags, noted and not used]

Its answer to a request is a digest of it, so equal requests get equal answers. A child process stands for the worker.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("", "forgets", "dies", "500", "leaks", "logs", "orphan", "hangs", "stubborn")
WORKER = ["-c", "import time; time.sleep(60)", "tapetum.engine.process"]
KEY = "--api-key"


def main() -> None:
    arguments = dict(zip(sys.argv[1::1], sys.argv[2::1], strict=False))
    fault = arguments.get("--fault", "")
    assert fault in FAULTS
    if arguments.get("--model") == "absent":
        sys.exit("made up: --model is absent")
    worker = subprocess.Popen([sys.executable, *WORKER], start_new_session=True)
    server = _Server(("127.0.0.1", int(arguments["--port"])), _Answer)
    server.fault, server.key = fault, arguments.get(KEY)

    def leave(number: int, frame: object) -> None:
        if fault != "stubborn":
            if fault != "orphan":
                worker.kill()
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_watch, args=(server, worker), daemon=True).start()
    _log(f"serving {sys.argv[1:]}")
    server.serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    fault = ""
    key: str | None = None
    is_alive = True
    num_chats = 0
    num_aborted = 0
    leaked: bytearray = bytearray()


def _log(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _watch(server: _Server, worker: subprocess.Popen) -> None:
    worker.wait()
    server.is_alive = False


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(
                200, _METRICS.format(finished=self.server.num_chats, aborted=self.server.num_aborted).encode()
            )
        elif self.path == "/v1/models":
            self._tell(200, {"data": [{"id": "made-up", "max_model_len": 256}]})
        else:
            self._tell(200 if self.server.is_alive else 503, {"error": {"message": "the worker has ended"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.key and self.headers.get("authorization") != f"Bearer {self.server.key}":
            self._tell(401, {"error": {"message": "the key is wrong"}})
        elif self.path == "/debug/reset_caches":
            self._tell(200, {})
        elif self.path == "/debug/prompt":
            self._tell(200, _report(json.loads(body)))
        else:
            self._chat(body)

    def _chat(self, body: bytes) -> None:
        try:
            asked = json.loads(body, parse_constant=_refuse)
        except ValueError as error:
            self._tell(400, {"error": {"message": f"no JSON: {error}"}})
            return
        fault, is_bad = self.server.fault, "bad" in str(asked["messages"])
        if fault == "logs":
            _log(body.decode())
        if fault == "leaks" and "picture" in str(asked["messages"]):
            self.server.leaked += b"x" * 40_000_000
        if fault == "hangs" and is_bad:
            time.sleep(30)
        if fault == "dies" and is_bad:
            self.server.is_alive = False
        if is_bad:
            self._tell(500 if fault == "500" else 400, {"error": {"message": "this is bad"}})
            return
        self.server.num_chats += 1
        text = hashlib.sha256(repr(sorted(asked["messages"][0].items())).encode()).hexdigest()[
            : asked.get("max_tokens", 8)
        ]
        if fault == "forgets":
            text += str(self.server.num_chats)
        self._stream(asked, text) if asked.get("stream") else self._tell(200, _whole(text))

    def _stream(self, asked: dict, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for char in ["", *(text.partition(asked["stop"])[0] if asked.get("stop") else text)]:
                self.wfile.write(
                    b"data: "
                    + json.dumps({"choices": [{"index": 0, "delta": {"content": char}}]}).encode()
                    + b"\n\n"
                )
                self.wfile.flush()
                time.sleep(0.005)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.num_chats -= 1
            self.server.num_aborted += 1
        self.close_connection = True

    def _tell(self, status: int, document: dict) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing."""


def _whole(text: str) -> dict:
    top = [{"token": text[:1], "bytes": None, "logprob": -0.1 * (1 + ord(text[0]))}]
    choice = {
        "index": 0,
        "message": {"content": text},
        "finish_reason": "length",
        "logprobs": {"content": [{"token": text[:1], "top_logprobs": top}]},
    }
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": len(text),
        "prompt_tokens_details": {"visual_tokens": 4},
    }
    return {"choices": [choice], "usage": usage}


def _report(asked: dict) -> dict:
    digest = hashlib.sha256(repr(asked["messages"]).encode()).hexdigest()
    span = {"kind": "image", "start": 1, "end": 5, "key": digest}
    segments = [{"kind": "text", "text": "user"}, span, {"kind": "text", "text": "?"}]
    return {"spans": [span], "segments": segments, "turns": [{"role": "user"}, {"role": "assistant"}]}


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


_METRICS = """# TYPE made_up:request_success counter
made_up:request_success_total{{finished_reason="length"}} {finished}
made_up:request_success_total{{finished_reason="abort"}} {aborted}
# TYPE made_up:num_requests_running gauge
made_up:num_requests_running 0
"""

if __name__ == "__main__":
    main()
