"""Fetching a picture or video over http(s), on a worker thread, under the policy of remote.py.

A connection goes to an address that was checked, again for every redirect, while the certificate must still be that
of the name. No proxies, no cookies, no environment, no decompression, at most so many bytes. A fetch whose asker has
left or whose time has passed ends soon; the deadline itself is the asker's.

Owns no retries and no cache. Messages tell what the client could see itself: its URL's host, a status, a length;
never an address, where a redirect leads, or what was in a body.
"""

from __future__ import annotations

import ssl
import threading
from urllib.parse import urljoin

import httpcore2

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaForbidden, MediaTooLarge
from tapetum.media.connect import PinnedBackend, meanwhile
from tapetum.media.deadlines import GoOn
from tapetum.media.remote import RemotePolicy, Target, parse_url

MAX_REDIRECTS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = ((b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"), (b"User-Agent", b"tapetum"))
_WEB_PAGE = (b"<!doctype html", b"<html")


class Fetcher:
    """Reads files from allowed places; safe to call from many threads."""

    def __init__(
        self, config: MediaConfig, policy: RemotePolicy | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._max_bytes = config.max_bytes
        self._policy = policy or RemotePolicy(config.allowed_domains)
        self._tls = tls  # read from the system with the first https URL
        self._lock = threading.Lock()  # guards it

    def fetch(self, url: str, go_on: GoOn) -> bytes:
        """The body behind a URL; raises MediaError, or what `go_on` raises."""
        if self._policy.is_off:
            raise MediaForbidden(
                "fetching remote pictures and videos is off; send the picture or video itself as a data: URL, "
                "or start the server with --allowed-media-domains"
            )
        target = parse_url(url)
        self._policy.check(target)
        name = target.origin.host
        for _ in range(MAX_REDIRECTS + 1):
            found = self._get(target, name, go_on)
            if isinstance(found, bytes):
                return found
            target = self._redirected(target, found.location, name)
        raise MediaError(f"{name} redirects more than {MAX_REDIRECTS} times; give the URL of the file itself")

    def _redirected(self, target: Target, location: str, name: str) -> Target:
        try:
            following = parse_url(urljoin(target.url, location))
            self._policy.check(following)
        except (MediaError, ValueError) as error:
            raise MediaForbidden(
                f"{name} redirects to a place that is not allowed; give the URL of the file itself"
            ) from error
        return following

    def _get(self, target: Target, name: str, go_on: GoOn) -> bytes | _Redirect:
        origin = target.origin
        addresses = meanwhile(lambda: self._policy.addresses(origin), go_on)
        if not addresses:
            raise MediaForbidden(f"{name} leads to no public address; send the picture as a data: URL")
        place = httpcore2.Origin(origin.scheme.encode(), origin.host.encode(), origin.port)
        url = httpcore2.URL(scheme=place.scheme, host=place.host, port=place.port, target=target.path)
        request = httpcore2.Request("GET", url, headers=[(b"Host", origin.authority.encode()), *_HEADERS])
        tls = self._tls_settings() if origin.scheme == "https" else None
        backend = PinnedBackend(addresses, go_on)
        connection = httpcore2.HTTPConnection(place, ssl_context=tls, network_backend=backend)
        try:
            return self._answer(connection.handle_request(request), name)
        except ssl.SSLCertVerificationError as error:
            raise MediaError(f"{name} has no certificate that is trusted for its name") from error
        except httpcore2.ConnectError as error:
            raise MediaError(f"{name} cannot be reached; check the URL") from error
        except (httpcore2.ProtocolError, httpcore2.NetworkError, OSError) as error:
            raise MediaError(f"{name} broke off its answer, or does not speak HTTP; try again") from error
        finally:
            connection.close()

    def _answer(self, response: httpcore2.Response, name: str) -> bytes | _Redirect:
        headers = {key.lower(): value for key, value in reversed(response.headers)}
        if response.status in _REDIRECTS and b"location" in headers:
            return _Redirect(headers[b"location"].decode("latin-1"))
        if response.status != 200:
            raise MediaError(f"{name} answered {response.status} for the picture or video; check the URL")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise MediaError(f"{name} answered with a compressed body, though asked for the file as it is")
        length = headers.get(b"content-length", b"")
        if length.isdigit():
            self._check_length(int(length[:20]), name)
        parts: list[bytes] = []
        num_bytes = 0
        for part in response.iter_stream():
            num_bytes += len(part)
            self._check_length(num_bytes, name)
            parts.append(part)
        return _checked(b"".join(parts), name)

    def _check_length(self, num_bytes: int, name: str) -> None:
        if num_bytes > self._max_bytes:
            raise MediaTooLarge(
                f"{name} answered with more than {self._max_bytes} bytes, the limit; "
                "send a smaller file or raise --media-max-mb"
            )

    def _tls_settings(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = httpcore2.default_ssl_context()
            return self._tls


class _Redirect:
    def __init__(self, location: str) -> None:
        self.location = location


def _checked(body: bytes, name: str) -> bytes:
    if not body:
        raise MediaError(f"{name} answered with an empty body instead of a picture or video; check the URL")
    if body[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_WEB_PAGE):
        raise MediaError(f"{name} answered with a web page instead of a picture or video; check the URL")
    return body
