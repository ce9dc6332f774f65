"""References under the policy: what may be named, how big, from where."""

from __future__ import annotations

import base64
import os
import socket
import threading
import time
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaForbidden, MediaTooLarge
from tapetum.media.source import SourceReader, VideoFile

FILE = b"\x89PNG and some more bytes \x00\xff+/="


def read(source: object, *, trusted: bool = False, **config: object) -> bytes | Image.Image:
    return SourceReader(MediaConfig(**config)).read(source, is_trusted=trusted)


def data_url(data: bytes = FILE, head: str = "image/png;base64") -> str:
    return f"data:{head},{base64.b64encode(data).decode()}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "allowed" / "deep").mkdir(parents=True)
    (tmp_path / "allowed" / "cat.png").write_bytes(FILE)
    (tmp_path / "allowed" / "deep" / "ein hund ü.png").write_bytes(FILE)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "allowed-not" / "cat.png").write_bytes(b"secret")
    return tmp_path


# --- bytes and data: URLs


@pytest.mark.parametrize("source", [FILE, bytearray(FILE), memoryview(FILE)])
def test_bytes(source):
    assert read(source) == FILE
    with pytest.raises(MediaTooLarge, match=f"{len(FILE)} bytes, limit 5; .*--media-max-mb"):
        read(source, max_bytes=5)


@pytest.mark.parametrize(
    "url",
    [
        data_url(),
        data_url(head=";base64"),
        data_url(head="image/jpeg;charset=utf-8;BASE64"),
        data_url().replace("data:", "DATA:", 1),
        "data:image/png;base64," + quote(base64.b64encode(FILE).decode(), safe=""),
        "data:image/png," + quote(FILE, safe=""),
    ],
)
def test_data_urls(url):
    assert read(url) == FILE


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,AAA", "base64"),
        ("data:image/png;base64,AAAA AAAA", "base64"),
        ("data:image/png;base64,AA\nAA", "base64"),
        ("data:image/png;base64,AA-_", "base64"),
        ("data:image/png;base64,AAAA====", "base64"),
        ("data:image/png;base64,ÄÄÄÄ", "base64"),
        ("data:image/png;base64,%4", "hexadecimal"),
        ("data:image/png,abc%zz", "hexadecimal"),
        ("data:image/png,äöü", "cannot"),
    ],
)
def test_data_urls_that_are_refused(url, words):
    with pytest.raises(MediaError, match=words):
        read(url)


def test_data_urls_are_measured_before_they_are_decoded(monkeypatch):
    data = bytes(300)
    exact = {"max_bytes": 300}
    for url in (data_url(data), "data:," + quote(data), "data:,x" + "y" * 299):
        assert len(read(url, **exact)) == 300
    monkeypatch.setattr("pybase64.b64decode", None)
    for url in (data_url(bytes(303)), "data:," + quote(bytes(301)), "data:," + "y" * 301):
        with pytest.raises(MediaTooLarge, match="limit 300"):
            read(url, **exact)


def test_a_message_never_holds_a_whole_picture():
    for url in ("data:image/png" + "A" * 10**5, "ftp://" + "a" * 10**5, "file:///" + "a" * 10**5):
        with pytest.raises(MediaError) as caught:
            read(url)
        assert len(str(caught.value)) < 300


# --- files


def test_the_operator_may_name_any_file(folder):
    path = folder / "secret.png"
    for source in (path, str(path), path.as_uri(), f"file://localhost{path}"):
        assert read(source, trusted=True) == b"secret"


def test_clients_name_nothing_by_default(folder):
    """One answer for all files: it tells neither which exist nor how they were named."""
    path = folder / "secret.png"
    references = [
        path,
        str(path),
        path.as_uri(),
        "cat.png",
        f"{path}.missing",
        "file:",
        "file:///a%zz",
        "a\0b",
    ]
    references += [
        f"FILE://{path}",
        f"file:{path}",
        f"file://localhost{path}",
        "file://other.host/x",
        "/proc/self/mem",
    ]
    answers = set()
    for source in references:
        for read_one in (read, read_clip):
            with pytest.raises(MediaForbidden, match="--allowed-local-media-path") as caught:
                read_one(source)
            answers.add(str(caught.value))
    assert len(answers) == 1


def test_clients_read_below_the_allowed_folder(folder):
    root = folder / "allowed"
    name = root / "deep" / "ein hund ü.png"
    (root / "link.png").symlink_to("cat.png")
    for source in (name, name.as_uri(), str(name), "cat.png", "deep/../cat.png", str(root / "link.png")):
        assert read(source, allowed_local_path=str(root)) == FILE


def test_clients_do_not_leave_the_allowed_folder(folder):
    root = folder / "allowed"
    (root / "out.png").symlink_to(folder / "secret.png")
    (root / "outside").symlink_to(folder)
    (folder / "way in").symlink_to(root)
    sources = [
        str(folder / "secret.png"),
        str(folder / "allowed-not" / "cat.png"),
        "../secret.png",
        "deep/../../secret.png",
        str(root / "out.png"),
        "outside/secret.png",
        (root / "out.png").as_uri(),
        f"file://{root}/%2e%2e/secret.png",
        "/proc/self/environ",
        str(folder / "not there.png"),
    ]
    for source in sources:
        with pytest.raises(MediaForbidden, match="outside the folder") as caught:
            read(source, allowed_local_path=str(root))
        assert "secret" not in str(caught.value).replace(repr(source), "")
    # A link to the folder itself is fine, and the folder may be given as a link.
    assert read("cat.png", allowed_local_path=str(folder / "way in")) == FILE
    assert read(str(folder / "way in" / "cat.png"), allowed_local_path=str(root)) == FILE


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system cannot refuse links as it opens")
@pytest.mark.parametrize("trusted", [False, True])
def test_a_link_put_in_after_the_check_is_not_followed(folder, monkeypatch, trusted):
    root = folder / "allowed"
    resolve = os.path.realpath

    def resolve_then_swap(path: str) -> str:
        """What an attacker does between the check and the open."""
        real = resolve(path)
        if real.endswith("cat.png"):
            os.unlink(real)
            os.symlink(folder / "secret.png", real)
        return real

    monkeypatch.setattr(os.path, "realpath", resolve_then_swap)
    with pytest.raises(MediaError, match="cannot be read"):
        read(str(root / "cat.png"), allowed_local_path=str(root), trusted=trusted)
    assert (root / "cat.png").is_symlink(), "the swap took place"


def test_files_that_cannot_be_read(folder, monkeypatch):
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)
        server.bind("socket")
        cases = [
            (folder / "nothing.png", "No such file"),
            (folder, "directory|regular file"),
            (folder / "pipe", "not a regular file"),
            (folder / "socket", "cannot be read"),
            ("a\0b.png", "null"),
            ("x" * 5000, "too long"),
            ("/dev/zero", "not a regular file"),
        ]
        for source, words in cases:
            started = time.monotonic()
            with pytest.raises(MediaError, match=words):
                read(source, trusted=True)
            assert time.monotonic() - started < 1


def test_files_are_measured_before_they_are_read(folder):
    with (folder / "large.png").open("wb") as file:
        file.truncate(2**40)  # sparse: reading it would take a terabyte
    with pytest.raises(MediaTooLarge, match=f"{2**40} bytes"):
        read(folder / "large.png", trusted=True)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file://other.host/cat.png", "host other.host"),
        ("file:cat.png", "no absolute path"),
        ("file:///a%zz", "hexadecimal"),
        ("file://[::1", "not a valid URL"),
    ],
)
def test_file_urls_that_are_refused(url, words):
    with pytest.raises(MediaError, match=words):
        read(url, trusted=True)


# --- everything else


@pytest.mark.parametrize("url", ["http://example.org/cat.png", "HTTPS://example.org", "https:x"])
@pytest.mark.parametrize("trusted", [True, False])
def test_remote_pictures_are_off_unless_allowed(url, trusted):
    with pytest.raises(MediaForbidden, match=r"off; .* --allowed-media-domains"):
        read(url, trusted=trusted)


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://bucket/x", "javascript://x"])
def test_unknown_schemes(url):
    with pytest.raises(MediaForbidden, match="scheme"):
        read(url, trusted=True)


@pytest.mark.parametrize("source", [None, 5, 1.5, {"url": "x"}, ["x"], object()])
def test_unknown_types(source):
    with pytest.raises(MediaError, match=type(source).__name__):
        read(source, trusted=True)


def test_pictures_and_arrays():
    array = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    for source in (array, Image.fromarray(array)):
        assert np.array_equal(np.asarray(read(source)), array)


def test_one_lazy_picture_from_many_threads():
    """Pillow decodes a picture it opened lazily on first use, and not safely from two threads."""
    out = BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    reader = SourceReader(MediaConfig())
    for _ in range(5):
        lazy = Image.open(BytesIO(out.getvalue()))
        results: list[object] = []
        barrier = threading.Barrier(6)

        def work(lazy=lazy, results=results, barrier=barrier):
            barrier.wait()
            results.append(np.array_equal(np.asarray(reader.read(lazy, is_trusted=True)), noise))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 6


# --- clips


def read_clip(source: object, **config: object) -> list[bytes | Image.Image]:
    return SourceReader(MediaConfig(**config)).read_clip(source, is_trusted=False)


def test_clips_are_lists_of_pictures():
    array = np.zeros((3, 4, 5, 3), np.uint8)
    assert [frame.size for frame in read_clip(array)] == [(5, 4)] * 3
    assert [frame.size for frame in read_clip([array[0], Image.new("L", (5, 4))])] == [(5, 4)] * 2
    assert read_clip((FILE, data_url())) == [FILE, FILE]
    assert read_clip(frame for frame in [FILE]) == [FILE]
    assert read_clip([]) == []


def test_a_clip_may_be_a_file(tmp_path):
    path = tmp_path / "clip.avi"
    path.write_bytes(FILE)
    for source in (FILE, data_url(), BytesIO(FILE), "clip.avi"):
        assert read_clip(source, allowed_local_path=str(tmp_path)) == VideoFile(FILE)
    assert read_clip(Image.new("RGB", (5, 4)))[0].size == (5, 4)


def test_frames_in_one_data_url():
    """The form in which vLLM's users send frames they have cut out themselves."""
    one = base64.b64encode(FILE).decode()
    assert read_clip(f"data:video/jpeg;base64,{one},{one},{one}") == [FILE] * 3
    assert read_clip(f"DATA:video/JPEG;base64,{one}") == [FILE]
    assert read_clip(f"data:video/mp4;base64,{one}") == VideoFile(FILE)
    with pytest.raises(MediaTooLarge, match="more than 2 frames"):
        read_clip("data:video/jpeg;base64," + ",".join([one] * 3), max_frames=2)
    with pytest.raises(MediaError, match="base64"):
        read_clip(f"data:video/jpeg;base64,{one},@@")


def test_clips_that_are_refused():
    with pytest.raises(MediaError, match="int"):
        read_clip(5)
    with pytest.raises(MediaForbidden, match="--allowed-media-domains"):
        read_clip([FILE, "https://example.org/1.png"])
    with pytest.raises(MediaTooLarge, match="more than 2 frames"):
        read_clip((FILE for _ in iter(int, 1)), max_frames=2)  # endless
    with pytest.raises(MediaTooLarge, match=f"{3 * len(FILE)} bytes"):
        read_clip([FILE] * 3, max_bytes=2 * len(FILE))
    with pytest.raises(MediaTooLarge, match="more than 50 pixels together"):
        read_clip(np.zeros((3, 4, 5, 3), np.uint8), max_pixels=50)


def test_open_files_are_read_from_where_they_stand(tmp_path) -> None:
    reader = SourceReader(MediaConfig(max_bytes=10))
    assert reader.read(BytesIO(b"0123456789"), is_trusted=True) == b"0123456789"
    with pytest.raises(MediaTooLarge):
        reader.read(BytesIO(b"0" * 11), is_trusted=True)
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    with path.open("rb") as file:
        file.read(1)
        assert reader.read(file, is_trusted=True) == b"bc"
    with path.open() as file, pytest.raises(MediaError, match="mode 'rb'"):
        reader.read(file, is_trusted=True)


def test_an_empty_reference_is_said_to_be_empty() -> None:
    with pytest.raises(MediaError, match="reference is empty"):
        SourceReader(MediaConfig()).read("", is_trusted=False)
