"""What is to be said of a tier before a server relies on it: reachable, writable, how full, how quick, what is wrong.

Nothing is evicted here: a tier is opened without its limit. One entry is written, read and removed again.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from tapetum.cache.entries import HEAD_BYTES, BadEntry, pack, peek, unpack
from tapetum.cache.stores import open_store
from tapetum.cache.tiers import KINDS, Entry, Kind, Name, Store, StoreError
from tapetum.core.config import TierConfig
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import shown_bytes
from tapetum.core.tier_urls import TierUrl

PROBE_BYTES = 2**20
BROKEN = "broken"  # in place of a version
_MAX_HEADS = 1000  # entries whose version is looked at
_LOOK_S = 3.0  # for all of them
_NO_LIMIT = 2**62
_REMEDIES = {
    "host": "give it less",
    "disk": "look at the disk and at who may write to the folder",
    "redis": "look at the server's log and at its maxmemory",
    "rediss": "look at the server's log and at its maxmemory",
    "unix": "look at the server's log and at its maxmemory",
    "s3": "look at what the credentials allow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The entries of one kind."""

    kind: Kind
    num_entries: int
    num_bytes: int
    versions: dict[str, int]  # of those that were looked at; BROKEN = its header cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Seconds that an entry of PROBE_BYTES took."""

    write_s: float
    read_s: float
    remove_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierExamination:
    url: TierUrl
    serves: tuple[str, ...]  # features, kv
    is_reachable: bool = False
    kept: tuple[Kept, ...] = ()
    probe: Probe | None = None
    problem: str = ""  # it cannot be used; empty = it can
    remarks: tuple[str, ...] = ()  # it can, but not as it is meant to

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.kept)


def examine_tiers(config: TierConfig) -> tuple[TierExamination, ...]:
    """Each place once, in the order of the flags. Raises nothing: what is wrong is told in the result."""
    serves: dict[tuple[str, str], list[str]] = {}
    urls: dict[tuple[str, str], TierUrl] = {}
    for kind, several in config.urls().items():
        for url in several:
            place = (url.text, kind if url.scheme == "host" else "")
            urls[place] = url
            serves.setdefault(place, []).append(kind)
    return tuple(_examined(url, tuple(serves[place])) for place, url in urls.items())


def _examined(url: TierUrl, serves: tuple[str, ...]) -> TierExamination:
    found = TierExamination(url=url, serves=serves)
    try:
        store = open_store(replace(url, max_bytes=_NO_LIMIT if url.max_bytes else None))
    except ConfigError as error:
        return replace(found, problem=error.message)
    try:
        found = replace(found, is_reachable=True, kept=_kept(store))
        found = replace(
            found, probe=_probe(store), remarks=(*_over_limit(found), *store.remarks(url.max_bytes))
        )
    except StoreError as error:
        return replace(found, problem=f"{url.shown} {error}; {_REMEDIES[url.scheme]}")
    except BadEntry:
        return replace(found, problem=f"{url.shown} gives back other bytes than were written; do not use it")
    finally:
        store.close()
    return found


def _over_limit(found: TierExamination) -> tuple[str, ...]:
    limit, held = found.url.max_bytes, found.num_bytes
    if limit is None or held <= limit:
        return ()
    return (f"a server would remove {shown_bytes(held - limit)} to keep the limit; raise max to keep them",)


def _kept(store: Store) -> tuple[Kept, ...]:
    listed = list(store.names())
    versions: dict[Kind, Counter[str]] = {kind: Counter() for kind in KINDS}
    until = time.perf_counter() + _LOOK_S
    for each in takewhile(lambda _: time.perf_counter() < until, listed[:_MAX_HEADS]):
        if (version := _version(store, each.name)) is not None:
            versions[each.name.kind][version] += 1
    sizes = {kind: [each.num_bytes for each in listed if each.name.kind == kind] for kind in KINDS}
    return tuple(
        Kept(
            kind=kind, num_entries=len(sizes[kind]), num_bytes=sum(sizes[kind]), versions=dict(versions[kind])
        )
        for kind in KINDS
        if sizes[kind]
    )


def _version(store: Store, name: Name) -> str | None:
    """None for an entry that is gone meanwhile."""
    head = store.read_head(name, HEAD_BYTES)
    try:
        return None if head is None else peek(head)[0]
    except BadEntry:
        return BROKEN


def _probe(store: Store) -> Probe:
    data = secrets.token_bytes(PROBE_BYTES)
    made = Entry(
        kind="features",
        key=secrets.token_bytes(32),
        dtype="uint8",
        shape=(PROBE_BYTES,),
        data=data,
        cost_s=0.0,
    )
    name = Name(made.kind, made.key)
    moments = [time.perf_counter()]
    try:
        store.write(name, pack(made), made.cost_s)
        moments.append(time.perf_counter())
        found = store.read(name)
        if found is None:
            raise StoreError("does not give back what was written")
        unpack(found, name)
        moments.append(time.perf_counter())
    finally:
        store.remove(name)
    moments.append(time.perf_counter())
    write_s, read_s, remove_s = (later - earlier for earlier, later in pairwise(moments))
    return Probe(write_s=write_s, read_s=read_s, remove_s=remove_s)
