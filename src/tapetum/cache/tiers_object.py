"""Entries as objects of an S3 bucket, which any number of processes and machines share.

Credentials come from the environment, as everywhere with S3. There is no limit here: an object store keeps no order
of use, so what is old is removed by a lifecycle rule of the bucket. Leases are objects made or replaced under a
condition; they end by the clocks of the machines, which must agree to a second or so.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from tapetum.cache.tiers import KINDS, Buffer, Holdings, Listed, Name, StoreError, TierName
from tapetum.core.errors import ConfigError
from tapetum.core.tier_urls import TierUrl

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import S3Config, S3Store

_ENDING = ".safetensors"


class ObjectStore:
    tier: TierName = "s3"

    def __init__(self, url: TierUrl) -> None:
        """Raises ConfigError for a bucket that cannot be written to, or without the package."""
        self.timeout_s = url.timeout_s
        self._owner = secrets.token_hex(8)
        self._bucket = _connected(url)

    def knows(self, name: Name) -> None:
        """The bucket alone knows."""

    def holdings(self) -> Holdings:
        """Nobody counts; `names` tells."""
        return Holdings(num_bytes={}, num_evictions={})

    def read(self, name: Name) -> Buffer | None:
        import obstore

        with _told("read"):
            try:
                return memoryview(obstore.get(self._bucket, _path(name)).bytes())
            except FileNotFoundError:
                return None

    def read_head(self, name: Name, num_bytes: int) -> bytes | None:
        import obstore

        with _told("read"):
            try:
                return bytes(obstore.get_range(self._bucket, _path(name), start=0, length=num_bytes))
            except FileNotFoundError:
                return None

    def use(self, names: Sequence[Name]) -> None:
        """Nothing: what goes is the bucket's to decide."""

    def write(self, name: Name, buffers: Sequence[Buffer], cost_s: float) -> None:
        import obstore

        with _told("write"):
            try:
                obstore.head(self._bucket, _path(name))
            except FileNotFoundError:
                obstore.put(self._bucket, _path(name), b"".join(buffers), use_multipart=False)

    def remove(self, name: Name) -> None:
        import obstore

        with _told("remove"):
            obstore.delete(self._bucket, _path(name))

    def names(self) -> Iterator[Listed]:
        import obstore

        with _told("list"):
            for kind in KINDS:
                for batch in obstore.list(self._bucket, prefix=kind):
                    for item in batch:
                        stem = item["path"].rpartition("/")[2].removesuffix(_ENDING)
                        yield Listed(Name(kind, bytes.fromhex(stem)), item["size"])

    def claim(self, name: Name, seconds: float) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        path, lease = _lease(name), f"{time.time() + seconds:.3f} {self._owner}".encode()
        with _told("claim"):
            try:
                obstore.put(self._bucket, path, lease, mode="create", use_multipart=False)
                return True
            except AlreadyExistsError:
                pass
            try:
                held = obstore.get(self._bucket, path)
                if float(bytes(held.bytes()).split()[0]) > time.time():
                    return False
                seen: UpdateVersion = {"e_tag": held.meta["e_tag"]}
                obstore.put(self._bucket, path, lease, mode=seen, use_multipart=False)
            except (FileNotFoundError, PreconditionError):  # given back or taken in this very moment
                return False
            return True

    def release(self, name: Name) -> None:
        import obstore

        with _told("release"):
            try:
                held = bytes(obstore.get(self._bucket, _lease(name)).bytes())
                if held.endswith(self._owner.encode()):
                    obstore.delete(self._bucket, _lease(name))
            except FileNotFoundError:
                return

    def refresh(self) -> None:
        """Nothing is remembered of what is there."""

    def remarks(self, max_bytes: int | None) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        """Connections end with the object."""


def _connected(url: TierUrl) -> S3Store:
    try:
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise ConfigError(
            f'{url.shown} needs the package obstore, which is not installed; pip install "tapetum[s3]"'
        ) from error
    bucket, _, prefix = url.place.removeprefix("//").partition("/")
    config: S3Config = {}
    if "endpoint" in url.options:
        config["endpoint"] = url.options["endpoint"]
    if "region" in url.options:
        config["region"] = url.options["region"]
    timeout = timedelta(seconds=url.timeout_s)
    try:
        store = S3Store(
            bucket,
            prefix=prefix or None,
            config=config,
            client_options={"timeout": timeout, "connect_timeout": timeout, "allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": timeout},
        )
        obstore.put(store, "probe", b"", use_multipart=False)
        obstore.delete(store, "probe")
    except (BaseError, OSError, ValueError) as error:
        raise ConfigError(
            f"{url.shown} cannot be written to: {_first_line(error)}; correct bucket, endpoint, region or credentials "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        ) from error
    return store


@contextmanager
def _told(what: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(f"cannot {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _path(name: Name) -> str:
    key = name.key.hex()
    return f"{name.kind}/{key[:2]}/{key}{_ENDING}"


def _lease(name: Name) -> str:
    return f"leases/{name.kind}-{name.key.hex()}"
