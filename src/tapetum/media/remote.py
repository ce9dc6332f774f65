"""Where a reference of a client may lead: one parser of URLs, one list of allowed places, one check of addresses.

Owns the whole policy on remote media; fetch.py connects to nothing but what comes out of here. Three kinds of entries
allow places:
- an origin such as `http://127.0.0.1:8123` allows exactly that scheme, host and port, whatever its address;
- a host name such as `example.com` allows https to that host, as long as its addresses are public;
- `*` allows https to any host whose addresses are public.

The parser takes less than a browser would: what one program reads as this host and another as that is refused.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tapetum.core.errors import ConfigError, MediaError, MediaForbidden

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]  # host and port -> addresses as text

MAX_URL = 8192
ANY_HOST = "*"
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE | re.ASCII | re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_LIKE_A_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_PORTS = {"http": 80, "https": 443}
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
# Parts of what `is_global` lets through: relays that carry other addresses (6to4, Teredo), and examples of documents.
_NOT_PUBLIC = tuple(
    map(ipaddress.ip_network, ("192.88.99.0/24", "192.0.0.0/24", "2001::/23", "2002::/16", "3fff::/20"))
)


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str  # lower case; an IPv6 address without its brackets
    port: int

    @property
    def authority(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart, once: what is checked is what is connected to."""

    origin: Origin
    path: bytes  # with the query, as the client wrote it

    @property
    def url(self) -> str:
        return f"{self.origin.scheme}://{self.origin.authority}{self.path.decode('ascii')}"


def parse_url(url: str) -> Target:
    """Raises MediaError for everything but a plain http(s) URL."""
    if len(url) > MAX_URL:
        raise MediaError(f"URL has {len(url)} characters, limit {MAX_URL}; send the picture as a data: URL")
    if _FORBIDDEN.search(url):
        raise _bad_url("holds blanks, control characters or backslashes; escape them with %")
    match = _URL.fullmatch(url)
    if match is None:
        raise _bad_url("is no http:// or https:// URL")
    scheme, authority, path = match[1].lower(), match[2], match[3]
    origin = _origin(scheme, authority)
    if not path.startswith("/"):
        path = "/" + path
    escaped = "".join(char if char.isascii() else _escaped(char) for char in path)
    return Target(origin, escaped.encode("ascii"))


class RemotePolicy:
    """Which places are allowed, and at which of their addresses; safe to call from many threads."""

    def __init__(self, allowed: Sequence[str], resolve: Resolve | None = None) -> None:
        """Raises ConfigError for an entry that is no origin, host name or `*`."""
        self._origins: set[Origin] = set()
        self._hosts: set[str] = set()
        self._resolve = resolve or _system_addresses
        for entry in allowed:
            self._allow(entry)

    @property
    def is_off(self) -> bool:
        return not self._origins and not self._hosts

    def check(self, target: Target) -> None:
        """Raises MediaForbidden for a place that no entry allows."""
        origin = target.origin
        if origin in self._origins:
            return
        if origin.host not in self._hosts and ANY_HOST not in self._hosts:
            raise MediaForbidden(
                f"fetching from {origin.host} is not allowed on this server; send the picture as a data: URL, "
                "or have the host allowed with --allowed-media-domains"
            )
        if origin.scheme != "https":
            raise MediaForbidden(f"fetching from {origin.host} is allowed by https only; write https://")

    def addresses(self, origin: Origin) -> list[str]:
        """Where to connect to: none for a name that is unknown, and none for one that is not public."""
        try:
            found = [ipaddress.ip_address(text) for text in self._resolve(origin.host, origin.port)]
        except (OSError, ValueError):
            return []
        is_allowed = origin in self._origins or all(map(is_public, found))
        return [str(address) for address in found] if is_allowed else []

    def _allow(self, entry: str) -> None:
        try:
            if entry == ANY_HOST:
                self._hosts.add(entry)
            elif "://" in entry:
                target = parse_url(entry.removesuffix("/"))
                if target.path != b"/":
                    raise _bad_url("has a path")
                self._origins.add(target.origin)
            else:
                self._hosts.add(_host(entry.lower()))
        except MediaError as error:
            raise ConfigError(
                f"--allowed-media-domains: {entry!r} is refused ({error.message}); write an origin such as "
                "http://127.0.0.1:8123, a host name such as example.com, or *"
            ) from error


def is_public(address: Address) -> bool:
    """Whether an address is reachable by everybody, and stands for itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.scope_id or address not in _PUBLIC_IPV6:  # NAT64 and the like carry IPv4 addresses
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _origin(scheme: str, authority: str) -> Origin:
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        what = "holds a name or password before its host" if "@" in authority else "has no plain host"
        raise _bad_url(f"{what}; write https://host/path, with letters other than a to z as xn--")
    port = int(match[2]) if match[2] else _PORTS[scheme]
    if not 1 <= port <= 65_535:
        raise _bad_url("has a port outside 1 to 65535")
    return Origin(scheme, _host(match[1].lower()), port)


def _host(host: str) -> str:
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise _bad_url("has a host that is no IPv6 address") from error
        if address.ipv4_mapped is not None:
            raise _bad_url("has an IPv4 address written as IPv6")
        return str(address)
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise _bad_url("has a host that is no name; write it without a dot at its end")
    if _LIKE_A_NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise _bad_url("has a host that is a number; write an address as 192.0.2.1") from error
    return host


def _bad_url(why: str) -> MediaError:
    return MediaError(f"URL of a picture or video {why}")


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _system_addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
