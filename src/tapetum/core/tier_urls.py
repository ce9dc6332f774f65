"""Where a tier of bytes lies, as an operator writes it: `disk:/var/cache/pictures?max=20GiB`.

Owns the grammar: `host:`, `disk:PATH`, `redis://HOST:PORT/DB`, `rediss://`, `unix://`, `s3://BUCKET/PREFIX`, each
with options behind `?`. Whether the place can be reached is the store's to find out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, Self, cast
from urllib.parse import parse_qsl

from tapetum.core.errors import ConfigError

Scheme = Literal["host", "disk", "redis", "rediss", "unix", "s3"]

GIB = 1024**3
TIMEOUT_S = 2.0
_DEFAULT_MAX = {"host": 4 * GIB, "disk": 20 * GIB}  # others have no limit of ours unless they are given one
_OPTIONS = {
    "host": ("max", "timeout_s"),
    "disk": ("max", "timeout_s"),
    "redis": ("max", "timeout_s"),
    "rediss": ("max", "timeout_s"),
    "unix": ("max", "timeout_s", "db"),
    "s3": ("endpoint", "region", "timeout_s"),
}
_EXAMPLES = {
    "host": "host:?max=4GiB",
    "disk": "disk:/var/cache/tapetum?max=20GiB",
    "redis": "redis://127.0.0.1:6379/0?max=8GiB",
    "rediss": "rediss://cache.example:6379/0?max=8GiB",
    "unix": "unix:///run/redis.sock?db=0&max=8GiB",
    "s3": "s3://bucket/prefix?region=eu-central-1",
}
_UNITS = {
    "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 1024, "MiB": 1024**2, "GiB": GIB, "TiB": 1024**4,
}  # fmt: skip
_MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUrl:
    """A place, checked in form. `text` names it without its options, and may hold a password."""

    scheme: Scheme
    text: str
    place: str  # what is between scheme and options
    max_bytes: int | None  # None = no limit of ours
    timeout_s: float = TIMEOUT_S  # of one read or write; a store that needs longer is left alone for a while
    options: dict[str, str] = field(default_factory=dict)  # what only the store understands

    @classmethod
    def parse(cls, text: str, flag: str) -> Self:
        """Raises ConfigError that names the flag, the value and what is allowed."""
        scheme, colon, rest = text.partition(":")
        if not colon or scheme not in _OPTIONS:
            known = ", ".join(f"{name}:" for name in _OPTIONS)
            raise ConfigError(
                f"{flag} is {without_password(text)!r}; a tier begins with {known} such as {_EXAMPLES['disk']}"
            )
        place, mark, query = rest.rpartition("?")
        if not mark:
            place, query = rest, ""
        url = f"{scheme}:{place}"
        _check_place(scheme, place, flag, url)
        options = _options(scheme, query, flag, url)
        limit, timeout = options.pop("max", None), options.pop("timeout_s", None)
        return cls(
            scheme=cast("Scheme", scheme),
            text=url,
            place=place,
            max_bytes=_DEFAULT_MAX.get(scheme) if limit is None else _size(limit, flag, url),
            timeout_s=TIMEOUT_S if timeout is None else _seconds(timeout, flag, url),
            options=options,
        )

    @property
    def shown(self) -> str:
        """For messages and pages: who may read those need not know the password."""
        return without_password(self.text)


def without_password(text: str) -> str:
    return re.sub(r"://[^/?#]*@", "://***@", text)


def _check_place(scheme: str, place: str, flag: str, url: str) -> None:
    bare = place.removeprefix("//")
    is_wrong = {
        "host": bool(place),
        "disk": not bare or place.startswith("//"),
        "s3": place == bare or not bare.partition("/")[0],
    }.get(scheme, place == bare or not bare)
    if is_wrong:
        raise ConfigError(f"{flag} is {without_password(url)!r}; write it as {_EXAMPLES[scheme]}")


def _options(scheme: str, query: str, flag: str, url: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name == "max" and scheme == "s3":
            raise ConfigError(
                f"{flag} is {without_password(url)!r} with max, but an object store keeps no order of use; "
                "leave max out and give the bucket a lifecycle rule that removes old objects"
            )
        if name not in _OPTIONS[scheme]:
            raise ConfigError(
                f"{flag} is {without_password(url)!r} with the option {name!r}; "
                f"allowed are {', '.join(_OPTIONS[scheme])}"
            )
    return options


def _size(text: str, flag: str, url: str) -> int:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]i?B)", text)
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 1 <= size <= 2**50:
        raise ConfigError(
            f"{flag} is {without_password(url)!r} with max={text!r}; write a size such as max=20GiB"
        )
    return size


def _seconds(text: str, flag: str, url: str) -> float:
    seconds = float(text) if re.fullmatch(r"\d{1,4}(\.\d{1,9})?", text) else 0.0
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise ConfigError(
            f"{flag} is {without_password(url)!r} with timeout_s={text!r}; "
            f"write seconds above 0 and up to {_MAX_TIMEOUT_S:g}"
        )
    return seconds
