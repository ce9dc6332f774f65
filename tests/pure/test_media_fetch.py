"""Fetching against real servers on the loopback: bodies, redirects, faults, limits, a canary nobody may meet."""

from __future__ import annotations

import gzip
import itertools
import ssl
import threading
import time
from contextlib import ExitStack

import pytest

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaForbidden, MediaTimeout, MediaTooLarge
from tapetum.media import connect
from tapetum.media.deadlines import GivenUp
from tapetum.media.fetch import MAX_REDIRECTS, Fetcher
from tapetum.media.ingest import Ingest
from tapetum.media.remote import RemotePolicy
from tests.processors import make_processor
from tests.pure.places import drip, place, reply

FILE = b"\x89PNG and so on"


def fetch(url: str, *allowed: str, resolve=None, tls=None, go_on=lambda: None, **config: object) -> bytes:
    policy = RemotePolicy(allowed, resolve)
    return Fetcher(MediaConfig(**config), policy, tls).fetch(url, go_on)


def refused(url: str, *allowed: str, error: type[MediaError] = MediaError, **options) -> str:
    with pytest.raises(error) as caught:
        fetch(url, *allowed, **options)
    assert caught.value.http_status == (413 if error is MediaTooLarge else 400)
    return str(caught.value)


def test_a_body_comes_whole_and_the_query_arrives_verbatim():
    query = "sig=a%2Bb%2F%3D&X-Amz-Date=20260101T000000Z&response-content-type=image%2Fpng&a+b='~!$"
    with place(reply(FILE)) as server:
        assert fetch(f"{server.origin}/o/7f3a?{query}#part", server.origin) == FILE
        (head,) = server.heads
    lines = head.decode().split("\r\n")
    assert lines[0] == f"GET /o/7f3a?{query} HTTP/1.1"
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    assert headers == {
        "host": server.origin.removeprefix("http://"),
        "accept": "*/*",
        "accept-encoding": "identity",
        "user-agent": "tapetum",
    }, "nothing of the machine or of other requests goes out"


def test_a_body_in_chunks_or_without_a_length():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    for answer, body in [(chunked, b"hello!"), (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello")]:
        with place(answer) as server:
            assert fetch(server.origin, server.origin) == body


def test_nothing_is_fetched_unless_allowed():
    with place(reply(FILE)) as canary:
        for allowed in ([], ["http://127.0.0.1:1"], ["*"], ["localhost", "127.0.0.1"]):
            refused(f"{canary.origin}/x.png", *allowed, error=MediaForbidden)
            refused(f"http://localhost:{canary.port}/x.png", *allowed)
            refused(f"https://localhost:{canary.port}/x.png", *allowed)
            refused(f"https://[::1]:{canary.port}/x.png", *allowed)
            refused(f"https://user@127.0.0.1:{canary.port}/x.png", *allowed)
        assert canary.num_connections == 0


def test_the_environment_has_no_say(monkeypatch):
    with place(reply(b"proxy")) as canary, place(reply(FILE)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, canary.origin)
        assert fetch(server.origin, server.origin) == FILE
        assert canary.num_connections == 0


# --- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_every_hop_is_checked(status):
    with place(reply(FILE)) as canary:
        for location in (
            f"{canary.origin}/x.png",
            f"//127.0.0.1:{canary.port}/",
            f"https://localhost:{canary.port}/",
        ):
            with place(reply(status=status, Location=location)) as server:
                message = refused(f"{server.origin}/r", server.origin, "*", error=MediaForbidden)
            assert str(canary.port) not in message and "localhost" not in message
        assert canary.num_connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location", ["/there?a=%2B", "there?a=%2B", "{origin}/there?a=%2B", "//{host}/there?a=%2B"]
)
def test_redirects_to_allowed_places_are_followed(status, location):
    def answer(head: bytes):
        if head.startswith(b"GET /there?a=%2B "):
            return [reply(FILE)]
        there = location.format(origin=server.origin, host=server.origin.removeprefix("http://"))
        return [reply(status=status, Location=there)]

    with place(answer) as server:
        assert fetch(f"{server.origin}/here", server.origin) == FILE
        assert server.num_connections == 2


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "gopher://x/", "http://user@127.0.0.1/", "http://2130706433/", "http://[::1", "\\\\host\\x",
     "http://127.0.0.1:99999/", "http://ho st/", "data:image/png;base64,AAAA"],
)  # fmt: skip
def test_redirects_to_what_is_no_place(location):
    with place(reply(status=302, Location=location)) as server:
        assert "not allowed" in refused(server.origin, server.origin, "*", error=MediaForbidden)


@pytest.mark.parametrize("location", ["https://b.example/x", "http://a.example/x", "//b.example/x"])
def test_redirects_to_public_places_that_are_not_allowed(location):
    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "127.0.0.1" else ["8.8.8.8"]

    with place(reply(status=302, Location=location)) as server:
        allowed = (server.origin, "a.example")
        message = refused(server.origin, *allowed, resolve=resolve, error=MediaForbidden)
        assert "redirects to a place that is not allowed" in message


def test_loops_end():
    with place(lambda head: [reply(status=302, Location="/loop")]) as server:
        assert f"more than {MAX_REDIRECTS} times" in refused(server.origin, server.origin)
        assert server.num_connections == MAX_REDIRECTS + 1


def test_a_redirect_to_nowhere_tells_its_status():
    with place(reply(status=302)) as server:
        assert "answered 302" in refused(server.origin, server.origin)


# --- names and addresses


def test_a_name_is_asked_for_once_and_the_answer_kept(monkeypatch):
    """Answers that change between the check and the connection, as an attacker's own name server gives them."""
    answers = itertools.chain([["8.8.8.8"]], itertools.repeat(["127.0.0.1"]))
    reached: list[str] = []

    def note(address, port, go_on):
        reached.append(address)
        raise OSError

    monkeypatch.setattr(connect, "_connected", note)
    assert "cannot be reached" in refused("https://a.example/", "*", resolve=lambda *_: next(answers))
    assert reached == ["8.8.8.8"]


def test_a_redirect_back_to_a_name_checks_its_new_address():
    answers = itertools.chain([["127.0.0.1"]], itertools.repeat(["127.0.0.2"]))
    with place(lambda head: [reply(status=302, Location=f"https://a.example:{server.port}/")]) as server:
        here = f"http://a.example:{server.port}"
        message = refused(here, here, "*", error=MediaForbidden, resolve=lambda *_: next(answers))
        assert "no public address" in message and "127.0.0" not in message
        assert server.num_connections == 1


def test_the_next_address_is_tried():
    with place(reply(FILE)) as server:
        here = f"http://a.example:{server.port}"
        no_route = "255.255.255.255"  # refused before anything is sent
        assert fetch(here, here, resolve=lambda *_: ["127.0.0.2", no_route, "::1", "127.0.0.1"]) == FILE
        assert server.heads[0].split(b"\r\n")[1] == f"Host: a.example:{server.port}".encode()


def test_unknown_and_inner_names_get_one_answer():
    def unknown(*_):
        raise OSError("no such host")

    messages = {
        refused("https://a.example/", "*", error=MediaForbidden, resolve=resolve)
        for resolve in (unknown, lambda *_: ["10.0.0.1"], lambda *_: ["8.8.8.8", "fd00::1"], lambda *_: [])
    }
    assert len(messages) == 1


def test_the_certificate_must_be_that_of_the_name(tls):
    with place(reply(FILE), tls.server) as server:
        for host, is_right in (("media.example", True), ("other.example", False)):
            here = f"https://{host}:{server.port}"
            options = {"resolve": lambda *_: ["127.0.0.1"], "tls": tls.client}
            if is_right:
                assert fetch(f"{here}/x", here, **options) == FILE
            else:
                assert "certificate" in refused(f"{here}/x", here, **options)
        assert len(server.heads) == 1
        here = f"https://media.example:{server.port}"
        assert "certificate" in refused(here, here, resolve=lambda *_: ["127.0.0.1"]), "nobody has signed it"


def test_plain_http_where_https_is_spoken(tls):
    with place(reply(FILE), tls.server) as secure:
        here = f"http://127.0.0.1:{secure.port}"
        assert "does not speak HTTP" in refused(here, here)


class Tls:
    def __init__(self, folder) -> None:
        (folder / "key.pem").write_text(KEY)
        (folder / "certificate.pem").write_text(CERTIFICATE)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self.client = ssl.create_default_context(cafile=str(folder / "certificate.pem"))


@pytest.fixture
def tls(tmp_path) -> Tls:
    return Tls(tmp_path)


# --- what servers answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply(b"no", 404), "answered 404"),
        (reply(b"", 500), "answered 500"),
        (reply(status=204), "answered 204"),
        (reply(b"part", 206), "answered 206"),
        (reply(status=401), "answered 401"),
        (reply(b"<html></html>", Content_Type="text/html"), "web page"),
        (reply(b"\n <!DOCTYPE html><p>secret"), "web page"),
        (reply(b""), "empty body"),
        (reply(gzip.compress(bytes(10**6)), Content_Encoding="gzip"), "compressed"),
        (reply(FILE, Content_Encoding="br"), "compressed"),
        (reply(FILE, Content_Length="1000"), "broke off"),
        (reply(FILE, Content_Length="x"), "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "broke off"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "does not speak HTTP"),
        (b"", "broke off"),
        (b"\x00" * 100_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 500_000, "does not speak HTTP"),
    ],
)
def test_answers_that_are_refused(answer, words):
    with place(answer) as server:
        message = refused(f"{server.origin}/x.png", server.origin)
    assert words in message
    assert "127.0.0.1" in message and "secret" not in message and str(server.port) not in message


def test_nobody_there():
    with place(b"") as server:
        pass
    assert "cannot be reached" in refused(server.origin, server.origin)


def test_a_content_type_is_not_believed():
    with place(reply(FILE, Content_Type="text/html")) as server:
        assert fetch(server.origin, server.origin) == FILE


def test_bodies_are_bounded():
    exact = reply(bytes(1000))
    with place(exact) as server:
        assert len(fetch(server.origin, server.origin, max_bytes=1000)) == 1000
        refused(server.origin, server.origin, max_bytes=999, error=MediaTooLarge)
    head = b"HTTP/1.1 200 OK\r\n"
    endless = (
        drip(head + b"\r\n", bytes(2000), 0),
        drip(head + b"Transfer-Encoding: chunked\r\n\r\n", b"64\r\n" + bytes(100) + b"\r\n", 0),
    )
    for answer in endless:
        with place(answer) as server:
            message = refused(server.origin, server.origin, max_bytes=10_000, error=MediaTooLarge)
            assert "more than 10000 bytes" in message
            assert server.ended.acquire(timeout=5), "the connection is closed"


def test_a_declared_length_over_the_limit_is_refused_before_the_body():
    with place(drip(reply(b"", Content_Length="5000000000"), times=200)) as server:
        started = time.monotonic()
        refused(server.origin, server.origin, error=MediaTooLarge)
        assert time.monotonic() - started < 2


def test_a_body_is_never_unpacked(tmp_path):
    """A bomb costs what its bytes weigh."""
    bomb = gzip.compress(bytes(50_000_000))
    with place(reply(bomb)) as server:
        assert fetch(server.origin, server.origin) == bomb


# --- time


@pytest.mark.parametrize(
    "answer",
    [
        drip(b""),
        drip(b"", b""),
        drip(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),
        drip(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda head: drip(reply(status=302, Location="/again"), b"", 0.05, 3)(head),
    ],
    ids=[
        "one byte at a time",
        "silence",
        "headers for ever",
        "a slow body",
        "no end of beginnings",
        "slow hops",
    ],
)
def test_a_fetch_ends_soon_after_its_asker_left(answer):
    left = threading.Event()
    threading.Timer(0.3, left.set).start()

    def go_on() -> None:
        if left.is_set():
            raise GivenUp

    with place(answer) as server:
        started = time.monotonic()
        with pytest.raises((GivenUp, MediaError)):
            fetch(server.origin, server.origin, go_on=go_on)
        assert time.monotonic() - started < 2


def test_a_slow_name_server_keeps_nobody():
    def resolve(*_):
        time.sleep(5)
        return ["127.0.0.1"]

    until = time.monotonic() + 0.2

    def go_on() -> None:
        if time.monotonic() > until:
            raise GivenUp

    with pytest.raises(GivenUp):
        fetch("https://a.example/", "*", resolve=resolve, go_on=go_on)
    assert time.monotonic() - until < 2


def test_a_handshake_that_never_comes():
    with place(drip(b"", b"")) as server:
        here = f"https://127.0.0.1:{server.port}"
        until = time.monotonic() + 0.2

        def go_on() -> None:
            if time.monotonic() > until:
                raise GivenUp

        with pytest.raises(GivenUp):
            fetch(here, here, go_on=go_on)


# --- through the worker pool


def part(url: str) -> MediaPart:
    return MediaPart(kind="image", source=url)


def test_slow_servers_time_out_and_keep_no_decode_waiting(picture):
    with ExitStack() as stack:
        slow = stack.enter_context(place(drip(b"HTTP/1.1 200 OK\r\n\r\n")))
        quick = stack.enter_context(place(reply(picture)))
        config = MediaConfig(allowed_domains=(slow.origin, quick.origin), timeout_s=0.6)
        ingest = Ingest(make_processor(), config, workers=1)
        stack.callback(ingest.close)
        waiting = [ingest.plan(part(slow.origin), tenant="") for _ in range(4)]
        started = time.monotonic()
        assert ingest.load(part(quick.origin), tenant="").key == ingest.load(part_of(picture), tenant="").key
        assert time.monotonic() - started < 0.5, "slow ones have threads of their own"
        for future in waiting:
            with pytest.raises(MediaTimeout, match=r"longer than 0\.6 s"):
                future.result(5)
        for _ in range(4):
            assert slow.ended.acquire(timeout=5), "the connection is closed when the time is over"


def test_a_cancelled_load_closes_its_connection(picture):
    with place(drip(b"HTTP/1.1 200 OK\r\n\r\n")) as slow:
        ingest = Ingest(make_processor(), MediaConfig(allowed_domains=(slow.origin,)), workers=1)
        future = ingest.plan(part(slow.origin), tenant="")
        while not slow.heads:
            time.sleep(0.01)
        started = time.monotonic()
        assert future.cancel()
        assert slow.ended.acquire(timeout=5)
        assert time.monotonic() - started < 1
        ingest.close()


@pytest.mark.parametrize("body", [b'{"password": "hunter2"}', b"%!PS hunter2", b"RIFF hunter2"])
def test_what_is_no_picture_is_not_told_about(body):
    with place(reply(body)) as server:
        ingest = Ingest(make_processor(), MediaConfig(allowed_domains=(server.origin,)), workers=1)
        for kind in ("image", "video"):
            with pytest.raises(MediaError, match="no picture or video") as caught:
                ingest.load(MediaPart(kind=kind, source=server.origin), tenant="")
            assert "hunter2" not in str(caught.value) and "RIFF" not in str(caught.value)
        ingest.close()


def test_of_a_document_in_place_of_a_picture_only_that_is_told():
    with place(reply(b"%PDF-1.7 hunter2")) as server:
        ingest = Ingest(make_processor(), MediaConfig(allowed_domains=(server.origin,)), workers=1)
        for kind in ("image", "video"):
            with pytest.raises(MediaError) as caught:
                ingest.load(MediaPart(kind=kind, source=server.origin), tenant="")
            assert "hunter2" not in str(caught.value)
        ingest.close()


def part_of(data: bytes) -> MediaPart:
    return MediaPart(kind="image", source=data)


@pytest.fixture
def picture() -> bytes:
    from io import BytesIO

    from PIL import Image

    out = BytesIO()
    Image.new("RGB", (60, 40), (1, 2, 3)).save(out, "PNG")
    return out.getvalue()


# A certificate of media.example that has signed itself, and its key, which guards nothing.
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgigPyfaCPMbyr9d2L
yeLOEkDhNJqRNynZPHmQydGjuG+hRANCAAQky+GZB5AidG9mZs9WAt5MZuc/ibq0
2tTAd7cClUgBtHZVrXqJaHVukXm97RiIGNblfXQeWg4nbGZ1qTcNp1IE
-----END PRIVATE KEY-----
"""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBajCCARCgAwIBAgIBATAKBggqhkjOPQQDAjAYMRYwFAYDVQQDDA1tZWRpYS5l
eGFtcGxlMCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAYMRYwFAYD
VQQDDA1tZWRpYS5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEJMvh
mQeQInRvZmbPVgLeTGbnP4m6tNrUwHe3ApVIAbR2Va16iWh1bpF5ve0YiBjW5X10
HloOJ2xmdak3DadSBKNJMEcwGAYDVR0RBBEwD4INbWVkaWEuZXhhbXBsZTAMBgNV
HRMEBTADAQH/MB0GA1UdDgQWBBQ/TcbUFGizWTrq0kQKROJA67DoWDAKBggqhkjO
PQQDAgNIADBFAiEA/EZC3OaCNGembaNLAQW2DotB0rojQBg/ppDdp83UW7ECIDM8
I4z9FHf9asJSM1L6aHRA0G1gs5IOOeYLo27y7Udz
-----END CERTIFICATE-----
"""
