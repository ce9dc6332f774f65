"""From the URLs of tiers to their stores. What a scheme needs is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tapetum.cache.tiers import Kind, Store
from tapetum.core.config import TierConfig
from tapetum.core.tier_urls import TierUrl


def open_stores(config: TierConfig) -> Mapping[Kind, tuple[Store, ...]]:
    """The stores of each kind, the fastest first; a place that serves two kinds is opened once.

    Raises ConfigError for the first that cannot be used; none stays open then.
    """
    opened: dict[object, Store] = {}
    stores: dict[Kind, tuple[Store, ...]] = {}
    try:
        for kind, urls in config.urls().items():
            for url in urls:
                identity = (kind, url.text) if url.scheme == "host" else url.text
                opened[identity] = store = opened.get(identity) or open_store(url)
                stores[kind] = (*stores.get(kind, ()), store)
    except BaseException:
        for store in opened.values():
            store.close()
        raise
    return {
        "features": stores.get("features", ()),
        "alias": stores.get("features", ()),
        "kv": stores.get("kv", ()),
    }


def open_store(url: TierUrl) -> Store:
    """Raises ConfigError for a place that cannot be written to or reached, or a package that is missing."""
    if url.scheme == "host":
        from tapetum.cache.tiers_host import HostStore

        assert url.max_bytes is not None, "the grammar gives every host tier a limit"
        return HostStore(url.max_bytes, url.timeout_s)
    if url.scheme == "disk":
        from tapetum.cache.tiers_disk import DiskStore

        assert url.max_bytes is not None, "the grammar gives every disk tier a limit"
        return DiskStore(Path(url.place).expanduser(), url.max_bytes, url.timeout_s)
    if url.scheme == "s3":
        from tapetum.cache.tiers_object import ObjectStore

        return ObjectStore(url)
    from tapetum.cache.tiers_redis import RedisStore

    return RedisStore(url)
