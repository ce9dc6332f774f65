"""Entries in a Redis (or Valkey) server that several processes share.

The server keeps the accounts too, so that all processes see one limit: a sorted set by worth as in greedy.py, sizes
and uses in a hash, changed by one script at a time. A server with a `maxmemory` of its own may drop an entry at any
moment; its account is corrected when somebody misses it. Not for Redis Cluster: the script reads several keys.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from tapetum.cache.tiers import KINDS, Buffer, Holdings, Kind, Listed, Name, StoreError, TierName
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import shown_bytes
from tapetum.core.tier_urls import TierUrl

if TYPE_CHECKING:
    from redis import Redis

_ROOT = "tapetum:"
_ACCOUNTS = [f"{_ROOT}order", f"{_ROOT}items", f"{_ROOT}totals"]
_CONNECT_S = 1.0
_SCRIPT = """
local ORDER, ITEMS, TOTALS = KEYS[1], KEYS[2], KEYS[3]
local action, root, name, size, cost, limit = unpack(ARGV)
local evicted = {}

local function kind_of(member)
  return string.match(member, '^[^:]+')
end

local function account(member, bytes)
  redis.call('HINCRBY', TOTALS, kind_of(member), bytes)
  redis.call('HINCRBY', TOTALS, 'all', bytes)
end

local function forget(member)
  local item = redis.call('HGET', ITEMS, member)
  redis.call('ZREM', ORDER, member)
  if item then
    redis.call('HDEL', ITEMS, member)
    account(member, -tonumber(string.match(item, '^%S+')))
  end
end

local function rank(member, bytes, seconds, uses)
  local age = tonumber(redis.call('HGET', TOTALS, 'age') or '0')
  local worth = age + seconds * uses / math.max(1, bytes)
  redis.call('ZADD', ORDER, string.format('%.17g', worth), member)
  redis.call('HSET', ITEMS, member, string.format('%d %.17g %d', bytes, seconds, uses))
end

if action == 'use' then
  local item = redis.call('HGET', ITEMS, name)
  if redis.call('EXISTS', root .. name) == 0 then
    forget(name)
  elseif item then
    local bytes, seconds, uses = string.match(item, '^(%S+) (%S+) (%S+)$')
    rank(name, tonumber(bytes), tonumber(seconds), tonumber(uses) + 1)
  end
elseif action == 'admit' then
  forget(name)
  size, limit = tonumber(size), tonumber(limit)
  while limit > 0 and tonumber(redis.call('HGET', TOTALS, 'all') or '0') + size > limit do
    local least = redis.call('ZPOPMIN', ORDER)
    if #least == 0 then break end
    redis.call('HSET', TOTALS, 'age', least[2])
    forget(least[1])
    redis.call('UNLINK', root .. least[1])
    evicted[#evicted + 1] = kind_of(least[1])
  end
  account(name, size)
  rank(name, size, tonumber(cost), 1)
elseif action == 'remove' then
  forget(name)
  redis.call('UNLINK', root .. name)
end
return {redis.call('HGETALL', TOTALS), evicted}
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class RedisStore:
    tier: TierName = "redis"

    def __init__(self, url: TierUrl) -> None:
        """Raises ConfigError for a server that cannot be reached or written to, or without the package."""
        self.timeout_s = url.timeout_s
        self._max_bytes = url.max_bytes or 0
        self._owner = secrets.token_hex(8)
        self._num_bytes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._num_evictions: Counter[Kind] = Counter(dict.fromkeys(KINDS, 0))
        self._client = _connected(url)

    def knows(self, name: Name) -> None:
        """The server alone knows."""

    def holdings(self) -> Holdings:
        """As of the last answer of the server; evictions are those that this process brought about."""
        return Holdings(num_bytes=dict(self._num_bytes), num_evictions=dict(self._num_evictions))

    def read(self, name: Name) -> Buffer | None:
        with _told("read"), self._client.pipeline(transaction=False) as pipe:
            pipe.get(_key(name))
            pipe.eval(_SCRIPT, 3, *_ACCOUNTS, "use", _ROOT, _member(name))
            found, answer = pipe.execute()
        self._note(answer)
        return cast("bytes | None", found)

    def read_head(self, name: Name, num_bytes: int) -> bytes | None:
        with _told("read"):
            return cast("bytes", self._client.getrange(_key(name), 0, num_bytes - 1)) or None

    def use(self, names: Sequence[Name]) -> None:
        with _told("use"), self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.eval(_SCRIPT, 3, *_ACCOUNTS, "use", _ROOT, _member(name))
            answers = pipe.execute()
        self._note(answers[-1])

    def write(self, name: Name, buffers: Sequence[Buffer], cost_s: float) -> None:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if self._max_bytes and size > self._max_bytes:
            return
        with _told("write"):
            if self._client.exists(_key(name)):
                self._account("use", name)
                return
            with self._client.pipeline(transaction=True) as pipe:
                words = ("admit", _ROOT, _member(name), size, repr(float(cost_s)), self._max_bytes)
                pipe.eval(_SCRIPT, 3, *_ACCOUNTS, *words)
                pipe.set(_key(name), b"".join(buffers))
                answer, _ = pipe.execute()
        self._note(answer)

    def remove(self, name: Name) -> None:
        with _told("remove"):
            self._account("remove", name)

    def names(self) -> Iterator[Listed]:
        with _told("list"):
            for member, item in self._client.hscan_iter(_ACCOUNTS[1]):
                kind, _, key = member.decode().partition(":")
                if kind in KINDS:
                    yield Listed(Name(cast("Kind", kind), bytes.fromhex(key)), int(item.split()[0]))

    def claim(self, name: Name, seconds: float) -> bool:
        with _told("claim"):
            milliseconds = max(1, round(1000 * seconds))
            return bool(self._client.set(_lease(name), self._owner, nx=True, px=milliseconds))

    def release(self, name: Name) -> None:
        with _told("release"):
            self._client.eval(_RELEASE, 1, _lease(name), self._owner)

    def refresh(self) -> None:
        with _told("ask"):
            self._note(self._client.eval(_SCRIPT, 3, *_ACCOUNTS, "look", _ROOT))

    def remarks(self, max_bytes: int | None) -> tuple[str, ...]:
        with _told("ask"):
            memory = self._client.info("memory")
        limit, policy = int(memory.get("maxmemory", 0)), str(memory.get("maxmemory_policy", ""))
        if not limit and not max_bytes:
            return ("nothing limits what the server keeps; give the URL a max, or the server a maxmemory",)
        if limit and policy == "noeviction" and not 0 < (max_bytes or 0) < limit:
            return (
                f"the server refuses writes above its {shown_bytes(limit)}; give the URL a max below that, or the "
                "server a maxmemory-policy such as allkeys-lru",
            )
        return ()

    def close(self) -> None:
        self._client.close()

    def _account(self, action: str, name: Name) -> None:
        self._note(self._client.eval(_SCRIPT, 3, *_ACCOUNTS, action, _ROOT, _member(name)))

    def _note(self, answer: object) -> None:
        totals, evicted = cast("tuple[list[bytes], list[bytes]]", answer)
        said = dict(zip(totals[::2], totals[1::2], strict=True))
        for kind in KINDS:
            self._num_bytes[kind] = int(said.get(kind.encode(), b"0"))
            self._num_evictions[kind] += evicted.count(kind.encode())


def _connected(url: TierUrl) -> Redis:
    try:
        from redis import ConnectionError as Unreachable
        from redis import OutOfMemoryError, Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise ConfigError(
            f'{url.shown} needs the package redis, which is not installed; pip install "tapetum[redis]"'
        ) from error
    database = f"?db={url.options['db']}" if "db" in url.options else ""
    try:
        client = Redis.from_url(
            url.text + database,
            socket_timeout=url.timeout_s,
            socket_connect_timeout=min(url.timeout_s, _CONNECT_S),
            retry=Retry(
                NoBackoff(), 1, supported_errors=(Unreachable,)
            ),  # a connection that the server ended
        )
    except ValueError as error:
        raise ConfigError(f"{url.shown} is no address of a Redis server: {error}") from error
    try:
        client.set(f"{_ROOT}probe", b"", ex=1)
    except OutOfMemoryError:  # full for now, as any cache is
        return client
    except RedisError as error:
        client.close()
        raise ConfigError(
            f"{url.shown} cannot be written to: {str(error).rstrip('.')}; start the server, or correct its address or "
            "password"
        ) from error
    return client


@contextmanager
def _told(what: str) -> Iterator[None]:
    from redis import RedisError

    try:
        yield
    except RedisError as error:
        raise StoreError(f"cannot {what}: {error}") from error


def _member(name: Name) -> str:
    return f"{name.kind}:{name.key.hex()}"


def _key(name: Name) -> str:
    return _ROOT + _member(name)


def _lease(name: Name) -> str:
    return f"{_ROOT}lease:{_member(name)}"
