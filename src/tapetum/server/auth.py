"""Who may ask, and how much: API keys, their tenants and their limits.

Owns the key file. Compares digests, so the time an answer takes tells nothing about a key, and no key is kept, logged
or told back.

A line of the file is `key tenant [rps=N] [concurrent=N]`; a word that begins with `#` begins a comment. Keys of one
tenant share caches, keys of different ones never do. The limits are the key's own.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from tapetum.core.checks import shown
from tapetum.core.config import ServerConfig
from tapetum.core.errors import ConfigError
from tapetum.server.errors import WrongKey
from tapetum.server.logs import PROBES, record_of
from tapetum.server.quota import QUOTA, Quota
from tapetum.server.serving import TENANT, Serving

_log = logging.getLogger(__name__)
OPEN = PROBES | {"/version", "/openapi.json", "/docs"}  # for all; the rest wants a key where there are keys
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SUBPROTOCOL = "tapetum"  # browsers can send a key to a WebSocket only as the name of a further protocol
_LIMITS = {"rps": (0.001, 1e6), "concurrent": (1, 1e6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a key stands for."""

    digest: bytes
    tenant: str
    quota: Quota | None = None


def accounts_of(config: ServerConfig) -> tuple[Account, ...]:
    """The keys of the flags, each a tenant of its own, and those of the file. Raises ConfigError."""
    accounts = [Account(digest=_digest(key.encode()), tenant=_own_tenant(key)) for key in config.api_keys]
    if config.api_key_file is not None:
        of_file = list(_read(Path(config.api_key_file), {account.digest for account in accounts}))
        if not of_file:
            raise ConfigError(f"--api-key-file {config.api_key_file} has no keys; nobody could ask")
        accounts += of_file
    return tuple(accounts)


class RequireKey:
    """Lets only clients with one of the keys at what is not open, and notes whose key it was."""

    def __init__(self, app: ASGIApp, accounts: Sequence[Account], serving: Serving) -> None:
        self._app = app
        self._accounts = accounts
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN:
            account = account_of(self._accounts, _given_key(scope))
            if account is None:
                error = WrongKey("the API key is missing or wrong; send it as `Authorization: Bearer KEY`")
                await self._serving.tell(scope, error)(scope, receive, send)
                return
            scope[TENANT] = record_of(scope).tenant = account.tenant
            scope[QUOTA] = account.quota
        await self._app(scope, receive, send)


def account_of(accounts: Sequence[Account], key: bytes) -> Account | None:
    """In the same time whatever the key: every digest is compared, and in full."""
    digest = _digest(key)
    matches = [one for one in accounts if hmac.compare_digest(one.digest, digest)]
    return matches[0] if matches else None


def _given_key(scope: Scope) -> bytes:
    kind, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"bearer":
        return bytes(key.strip())
    protocols = scope.get("subprotocols", ())
    return protocols[1].encode() if len(protocols) == 2 and protocols[0] == SUBPROTOCOL else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _own_tenant(key: str) -> str:
    """The same after a restart, and told apart from the tenants of a file by its colon."""
    return "key:" + hashlib.sha256(b"tenant of " + key.encode()).hexdigest()[:16]


def _read(path: Path, known: set[bytes]) -> Iterator[Account]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {path} cannot be read: {error}") from error
    if mode & stat.S_IROTH:
        _log.warning("%s can be read by every user of this machine; chmod o-r it", path)
    for number, line in enumerate(text.splitlines(), start=1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if words:
            place = f"--api-key-file {path}, line {number}"
            account = _account_in(words, place)
            if account.digest in known:
                raise ConfigError(f"{place}: the key is there before; keep one of the two")
            known.add(account.digest)
            yield account


def _account_in(words: Sequence[str], place: str) -> Account:
    """What a line says; its key, the first word, is never told."""
    if len(words) < 2:
        raise ConfigError(f"{place} has one word; write `key tenant [rps=N] [concurrent=N]`")
    key, tenant, *limits = words
    if not _TENANT.fullmatch(tenant):
        raise ConfigError(
            f"{place}: tenant is {shown(tenant)}, must be up to 64 letters, digits, '.', '_' and '-'"
        )
    given: dict[str, float] = {}
    for limit in limits:
        name, _, text = limit.partition("=")
        if name not in _LIMITS or name in given:
            raise ConfigError(f"{place}: {shown(limit)} is no limit; write rps=N or concurrent=N, each once")
        given[name] = _number(name, text, place)
    quota = Quota(rps=given.get("rps"), concurrent=given.get("concurrent")) if given else None
    return Account(digest=_digest(key.encode()), tenant=tenant, quota=quota)


def _number(name: str, text: str, place: str) -> float:
    low, high = _LIMITS[name]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise ConfigError(f"{place}: {name} is {shown(text)}, allowed are {low:g} to {high:g}")
    return number
