"""From a reference to the bytes of a file, or to a canonical picture where the caller already holds pixels.

Owns the policy on references: what a client may name, how big it may be, where files may lie. Limits are checked
before anything is copied or read. Owns no decoding (image.py, video.py) and no network (fetch.py).
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

import numpy as np
import pybase64
from PIL import Image

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaForbidden, MediaTooLarge
from tapetum.media.container import demuxer_of
from tapetum.media.deadlines import GoOn
from tapetum.media.document import Page, is_pdf
from tapetum.media.fetch import Fetcher
from tapetum.media.image import adopt_array, adopt_picture, check_bytes, is_picture

_FILES = (bytes, bytearray, memoryview, io.IOBase, os.PathLike, str)
Loaded = bytes | Image.Image | Page  # a file still encoded, an upright RGB picture, or a page to be drawn
_FRAMES_URL, _FRAME_URL = "data:video/jpeg;base64,", "data:image/jpeg;base64,"
_MAX_SPLITS = 2**20
_SCHEME = re.compile(r"(data|file|https?):|([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_ONE_PICTURE = (str, bytes, bytearray, memoryview, os.PathLike, io.IOBase, Image.Image, np.ndarray)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class VideoFile:
    """A clip that came as one file."""

    data: bytes


def is_frame_list(source: object) -> bool:
    """Whether a clip came as a list of frames, rather than as a file or a reference to one."""
    if isinstance(source, str):
        return source[: len(_FRAMES_URL)].lower() == _FRAMES_URL
    return not isinstance(source, _ONE_PICTURE) or (isinstance(source, np.ndarray) and source.ndim == 4)


def is_remote(source: object) -> bool:
    """Whether reading a reference, or one of a list of them, means to wait for the network."""
    if isinstance(source, (list, tuple)):
        return any(map(is_remote, source))
    return isinstance(source, str) and source[:6].lower().startswith(("http:", "https:"))


def _always() -> None:
    """Go on, whatever happens."""


class SourceReader:
    """Reads references under one policy; safe to call from many threads."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._fetcher = Fetcher(config)
        self._picture_lock = threading.Lock()  # Pillow does not load one lazy picture from two threads

    def read(self, source: object, *, is_trusted: bool, go_on: GoOn = _always) -> Loaded:
        """One picture; `is_trusted` references of the operator may name any local file.

        `go_on` is called while a fetch waits and raises once nobody waits for it any more.
        """
        if isinstance(source, (bytes, bytearray, memoryview)):
            check_bytes(memoryview(source).nbytes, self._config)
            return bytes(source)
        if isinstance(source, Page):
            return source
        if isinstance(source, Image.Image):
            with self._picture_lock:
                return adopt_picture(source, self._config)
        if isinstance(source, np.ndarray):
            return adopt_array(source, self._config)
        if isinstance(source, io.IOBase):
            return self._read_stream(source)
        if isinstance(source, os.PathLike):
            self._check_local(is_trusted)
            return self._read_file(os.fsdecode(source), is_trusted)
        if isinstance(source, str):
            return self._read_reference(source, is_trusted, go_on)
        raise MediaError(
            f"picture is a {type(source).__name__}; give bytes, a path, a data:, http(s): or file: URL, a PIL picture "
            "or a uint8 array"
        )

    def read_document(self, source: object, *, is_trusted: bool, go_on: GoOn = _always) -> bytes:
        """The file of a PDF document."""
        if isinstance(source, (Image.Image, np.ndarray)):
            raise MediaError("document is a picture; send it as one")
        if not isinstance(source, _FILES):
            raise MediaError(
                f"document is a {type(source).__name__}; give bytes, a path, or a data:, http(s): or file: URL"
            )
        data = self.read(source, is_trusted=is_trusted, go_on=go_on)
        if not isinstance(data, bytes) or not is_pdf(data):
            begins = f"starts with {data[:12]!r}" if isinstance(data, bytes) and data else "is empty"
            raise MediaError(f"document file {begins}; send a PDF document, and pictures as image_url")
        return data

    def read_clip(
        self, source: object, *, is_trusted: bool, go_on: GoOn = _always
    ) -> list[Loaded] | VideoFile:
        """A video file, or the frames of a clip in order. Together they are held to the limits of one picture."""
        if isinstance(source, np.ndarray) and source.ndim == 4:
            source = list(source)
        if isinstance(source, str) and source[: len(_FRAMES_URL)].lower() == _FRAMES_URL:
            source = [_FRAME_URL + frame for frame in source[len(_FRAMES_URL) :].split(",", _MAX_SPLITS)]
        if is_frame_list(source):
            if not isinstance(source, Iterable):
                raise MediaError(
                    f"clip is a {type(source).__name__}; give a video file or its frames as a list of pictures"
                )
            return self._read_frames(source, is_trusted, go_on)
        loaded = self.read(source, is_trusted=is_trusted, go_on=go_on)
        if isinstance(loaded, bytes):
            return VideoFile(loaded)
        return [loaded]

    def _read_frames(self, source: Iterable[object], is_trusted: bool, go_on: GoOn) -> list[Loaded]:
        frames: list[Loaded] = []
        num_bytes = num_pixels = 0
        for frame in source:
            if len(frames) == self._config.max_frames:
                raise MediaTooLarge(
                    f"clip has more than {self._config.max_frames} frames; "
                    "send fewer or raise MediaConfig.max_frames"
                )
            loaded = self.read(frame, is_trusted=is_trusted, go_on=go_on)
            if isinstance(loaded, bytes):
                num_bytes += len(loaded)
            else:
                num_pixels += loaded.size[0] * loaded.size[1]
            self._check_total(num_bytes, num_pixels)
            frames.append(loaded)
        return frames

    def _check_total(self, num_bytes: int, num_pixels: int) -> None:
        check_bytes(num_bytes, self._config)
        if num_pixels > self._config.max_pixels:
            raise MediaTooLarge(
                f"frames of the clip have more than {self._config.max_pixels} pixels together; "
                "send fewer or smaller ones or raise MediaConfig.max_pixels"
            )

    def _read_reference(self, reference: str, is_trusted: bool, go_on: GoOn) -> bytes:
        match = _SCHEME.match(reference)
        scheme = (match[1] or match[2]).lower() if match else None
        if not reference:
            raise MediaError("picture reference is empty; send a data: URL or a path")
        if scheme == "data":
            return self._read_data_url(reference)
        if scheme in ("http", "https"):
            return self._fetched(reference, go_on)
        if scheme in (None, "file"):
            self._check_local(is_trusted)
            return self._read_file(_path_of_url(reference) if scheme else reference, is_trusted)
        raise MediaForbidden(f"{_shown(reference)}: scheme {scheme}: is not allowed; send a data: URL")

    def _fetched(self, url: str, go_on: GoOn) -> bytes:
        """A body that is no picture is not told about further: errors of a decoder might tell what is in it."""
        data = self._fetcher.fetch(url, go_on)
        if not is_picture(data) and demuxer_of(data) is None and not is_pdf(data):
            raise MediaError("the URL leads to no picture or video that can be decoded; check where it leads")
        return data

    def _check_local(self, is_trusted: bool) -> None:
        """Where clients may name no files, all references to files get one answer: it tells nothing about any."""
        if not is_trusted and self._config.allowed_local_path is None:
            raise MediaForbidden(
                "reading files of the server is off; send the picture or video itself as a data: URL, "
                "or start the server with --allowed-local-media-path"
            )

    def _read_data_url(self, url: str) -> bytes:
        """RFC 2397. The declared type is not believed: the bytes themselves say what they are."""
        comma = url.find(",")
        if comma < 0:
            raise MediaError(f"{_shown(url)}: data: URL has no comma before its data")
        is_base64 = url[:comma].lower().endswith(";base64")
        length = len(url) - comma - 1 - 2 * url.count("%", comma)  # after undoing escapes
        check_bytes(length * 3 // 4 - 2 if is_base64 else length, self._config)
        payload = url[comma + 1 :]
        if not is_base64:
            data = _unescape(payload)
        else:
            if "%" in payload:
                payload = _unescape(payload).decode("latin-1")
            try:
                data = pybase64.b64decode(payload, validate=True)
            except ValueError as error:
                raise MediaError(f"data: URL is not valid base64: {error}; encode the file again") from error
        check_bytes(len(data), self._config)
        return data

    def _read_stream(self, stream: io.IOBase) -> bytes:
        """An open binary file or BytesIO, from where it stands; it is left at its end."""
        if isinstance(stream, io.TextIOBase) or not stream.readable():
            raise MediaError("picture is a file open for text or writing; open it with mode 'rb'")
        data: bytes = stream.read(self._config.max_bytes + 1)
        check_bytes(len(data), self._config)
        return data

    def _read_file(self, path: str, is_trusted: bool) -> bytes:
        try:
            real = os.path.realpath(path) if is_trusted else self._confined(path)
            # A pipe must not block the open, and the last component, resolved above, must not become a link again.
            flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            with open(os.open(real, os.O_RDONLY | flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise MediaError(f"{_shown(path)} is not a regular file; give the path of a picture")
                check_bytes(status.st_size, self._config)
                data = file.read(self._config.max_bytes + 1)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise MediaError(f"{_shown(path)} cannot be read: {reason}") from error
        check_bytes(len(data), self._config)
        return data

    def _confined(self, path: str) -> str:
        """The real path of a client's reference, links resolved; it must lie below the allowed folder."""
        root = self._config.allowed_local_path
        assert root is not None, "checked before any path is looked at"
        real_root = os.path.realpath(root)
        real = os.path.realpath(os.path.join(real_root, path))
        if not Path(real).is_relative_to(real_root):
            raise MediaForbidden(
                f"{_shown(path)} is outside the folder that --allowed-local-media-path allows; put it below"
            )
        return real


def _path_of_url(url: str) -> str:
    """The path a file: URL names, as RFC 8089 has it; a path with `?` or `#` must escape them."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise MediaError(f"{_shown(url)} is not a valid URL: {error}") from error
    if parts.netloc.lower() not in ("", "localhost"):
        raise MediaForbidden(f"{_shown(url)} names the host {parts.netloc}; only local files can be read")
    if not parts.path.startswith("/"):
        raise MediaError(f"{_shown(url)} has no absolute path; write file:///folder/picture.png")
    return os.fsdecode(_unescape(parts.path))


def _unescape(text: str) -> bytes:
    if _BAD_ESCAPE.search(text):
        raise MediaError(f"{_shown(text)}: a % is not followed by two hexadecimal digits; write it as %25")
    if not text.isascii():
        raise MediaError(f"{_shown(text)}: holds letters that a URL cannot; escape them with %")
    return unquote_to_bytes(text)


def _shown(reference: str) -> str:
    """A reference in a message: enough to recognise it, never a whole picture."""
    return repr(reference if len(reference) <= 60 else reference[:40] + "...")
