"""What has been said in a terminal, as the messages of a chat request.

Owns the turns and the pictures that wait for the next one. References become data: URLs here, so that a server on
another machine sees them too.
"""

from __future__ import annotations

import os
import re
import shlex
from base64 import b64encode
from mimetypes import guess_type
from pathlib import Path
from typing import Literal

from tapetum.core.errors import RequestError

Turn = dict[str, object]
Kind = Literal["image", "video"]
_WORD = re.compile(r"""\s*('[^']*'|"[^"]*"|(?:\\.|[^\s\\'"])+)(?=\s|$)""")


class Conversation:
    def __init__(self) -> None:
        self._system: Turn | None = None
        self._turns: list[Turn] = []
        self._media: list[Turn] = []  # parts of the next question

    @property
    def messages(self) -> list[Turn]:
        return [*([self._system] if self._system else []), *self._turns]

    def attach(self, kind: Kind, path: Path) -> None:
        """Put a picture or clip into the next question; raises RequestError."""
        try:
            data = path.expanduser().read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise RequestError(f"cannot read {path}: {reason}") from error
        if not _begins_as(kind, data):
            name = "picture" if kind == "image" else "video"
            raise RequestError(f"{path.name} is not a {name} that can be read; nothing is attached")
        media_type = guess_type(path.name)[0] or "application/octet-stream"
        url = {"url": f"data:{media_type};base64,{b64encode(data).decode()}"}
        self._media.append({"type": f"{kind}_url", f"{kind}_url": url})

    def ask(self, text: str) -> None:
        words: list[Turn] = [{"type": "text", "text": text}] if text else []
        content = [*self._media, *words] if self._media else text
        self._turns.append({"role": "user", "content": content})
        self._media = []

    def answer(self, text: str) -> None:
        self._turns.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forget the last question, which has got no answer."""
        self._turns.pop()

    def instruct(self, text: str) -> None:
        """Set the system message; without text there is none."""
        self._system = {"role": "system", "content": text} if text else None

    def clear(self) -> None:
        """Forget everything but the system message."""
        self._turns, self._media = [], []


def split_dropped(line: str) -> tuple[list[tuple[Kind, Path]], str]:
    """The pictures and clips that a line begins with, written as terminals do when files are dropped on them, and the
    rest of the line."""
    files: list[tuple[Kind, Path]] = []
    while match := _WORD.match(line):
        name = "".join(shlex.split(match[1]))
        kind = _kind_of(name)
        if kind is None or not os.path.isfile(name):
            break
        files.append((kind, Path(name)))
        line = line[match.end() :]
    return files, line.strip()


def paths_of(text: str) -> list[Path]:
    """The paths behind a command: one that may have spaces, or several, quoted where they have."""
    if os.path.isfile(text):
        return [Path(text)]
    try:
        paths = [Path(word) for word in shlex.split(text)]
    except ValueError as error:  # a quote that does not end
        raise RequestError(f"cannot read {text}: {error}") from error
    if not paths:
        raise RequestError("no path is given; write that of a file")
    return paths


def _begins_as(kind: Kind, data: bytes) -> bool:
    from tapetum.media.container import demuxer_of
    from tapetum.media.image import is_picture

    return is_picture(data) if kind == "image" else demuxer_of(data) is not None


def _kind_of(name: str) -> Kind | None:
    media_type = guess_type(name)[0] or ""
    return (
        "image" if media_type.startswith("image/") else "video" if media_type.startswith("video/") else None
    )
