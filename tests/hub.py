"""A hub in this process: the endpoints that a fetch asks for, over a folder, with faults that a test switches on."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/(.+)")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """`revisions` by name: the folder of their files. A commit is the digest of the name of its folder."""

    repository: str
    revisions: dict[str, Path]
    gated: bool = False
    cut_after: int | None = None  # bytes of a body, once; then the connection is closed
    stall_after: int | None = None  # bytes of a body, once; then nothing more comes
    is_stalled: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)  # asked for, of files

    def commit(self, folder: Path) -> str:
        return hashlib.sha1(str(folder).encode()).hexdigest()

    def folder(self, revision: str) -> Path | None:
        by_commit = {self.commit(folder): folder for folder in self.revisions.values()}
        return self.revisions.get(revision, by_commit.get(revision))


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    class Answers(_Answers):
        source = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    source: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, *, has_body: bool) -> None:
        hub, path = self.source, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        found = _INFO.fullmatch(path) or _TREE.fullmatch(path) or _FILE.fullmatch(path)
        if found is None or found[1] != hub.repository:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        folder = hub.folder(found[2])
        if folder is None:
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        if hub.gated and found.re is _FILE:
            return self._refuse(403, "GatedRepo", "Access to this repository is restricted")
        if found.re is _INFO:
            return self._send_json({"id": hub.repository, "sha": hub.commit(folder), "siblings": []})
        if found.re is _TREE:
            return self._send_json(
                [_entry(folder, file) for file in sorted(folder.rglob("*")) if file.is_file()]
            )
        return self._send_file(folder, found[3], has_body=has_body)

    def _send_file(self, folder: Path, name: str, *, has_body: bool) -> None:
        path = folder / name
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found")
        data, start = path.read_bytes(), 0
        if asked := re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range", "")):
            start = int(asked[1])
            self.source.ranges.append(f"{name} {start}")
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{_digest(data)}"')
        self.send_header("X-Repo-Commit", self.source.commit(folder))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if has_body:
            self._write(data[start:])
        return None

    def _write(self, data: bytes) -> None:
        hub = self.source
        limit = hub.cut_after or hub.stall_after
        if limit is None or limit >= len(data):
            self.wfile.write(data)
            return
        is_stall = hub.cut_after is None
        hub.cut_after = hub.stall_after = None
        self.wfile.write(data[:limit])
        self.wfile.flush()
        self.close_connection = True
        if is_stall:
            hub.is_stalled.set()
            hub.is_over.wait(60)

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _entry(folder: Path, file: Path) -> dict[str, object]:
    data = file.read_bytes()
    return {"type": "file", "path": str(file.relative_to(folder)), "size": len(data), "oid": _digest(data)}


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
