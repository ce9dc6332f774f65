"""Checkpoints of the hub: fetched with a bar on the terminal, or taken from the cache of what was fetched.

The client of the hub does the work. A connection that is cut is taken up where it ended; after a fetch that was stopped
the next one keeps the files that are whole. Owns what is fetched, the bar, and one sentence for each way in which a
fetch can fail.
"""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock
from types import TracebackType

from tqdm import tqdm

from tapetum.core.errors import CheckpointError

_log = logging.getLogger(__name__)
_SMALL = ("*.json", "*.jinja", "*.txt")
_WEIGHTS = ("*.safetensors",)
_UNWANTED = ("*/*", "consolidated*")  # other forms of the same weights


def download(
    hub_id: str,
    revision: str | None,
    *,
    file: str | None = None,
    has_weights: bool = True,
    is_offline: bool = False,
) -> Path:
    """The directory of a repository at a revision, with all of a checkpoint or one file; offline, as it was fetched."""
    wanted = [*_SMALL, *(_WEIGHTS if has_weights else ())] if file is None else [file]
    # Imported here: a model on disk needs no hub and no network.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with _Bar(hub_id) as bar:
            return Path(
                snapshot_download(
                    hub_id,
                    revision=revision,
                    allow_patterns=wanted,
                    ignore_patterns=list(_UNWANTED) if file is None else None,
                    local_files_only=is_offline,
                    tqdm_class=bar.counter(),
                )
            )
    except (HfHubHTTPError, OSError, ValueError) as error:
        at = "" if revision is None else f" at {revision!r}"
        raise CheckpointError(f"model {hub_id!r}{at} {_reason(error, is_offline)}") from error


def _reason(error: Exception, is_offline: bool) -> str:
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import (
        GatedRepoError,
        IncompleteSnapshotError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return "is gated; accept its terms on its page, then set HF_TOKEN to a token of that account"
    if isinstance(error, RepositoryNotFoundError):
        return "is no directory here and no repository of the hub; check its name, and HF_TOKEN for a private one"
    if isinstance(error, RevisionNotFoundError):
        return "is not there; --revision takes a branch, a tag or a commit of the repository"
    is_offline = is_offline or is_offline_mode()
    if isinstance(error, IncompleteSnapshotError):
        how = "leave --offline and HF_HUB_OFFLINE out" if is_offline else "check the network"
        return f"is fetched in part only; {how} to fetch the rest"
    if isinstance(error, LocalEntryNotFoundError) and is_offline:
        return "was not fetched before; leave --offline and HF_HUB_OFFLINE out, or name a directory"
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"cannot be fetched: {first_line}; check the network, and that the disk has room, and try again"


class _Bar:
    """One bar of bytes in place of the several that the client draws. Appears when there is something to fetch."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: tqdm | None = None
        self._lock = Lock()  # files are fetched by several threads

    def __enter__(self) -> _Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def counter(self) -> type[tqdm]:
        """What the client makes its bars of: they count, and draw nothing."""
        tell = self._tell

        class Counter(tqdm):  # type: ignore[misc]  # it has no types
            def __init__(self, *args: object, **options: object) -> None:
                options.pop("name", None)
                self._is_bytes = options.get("unit") == "B"
                super().__init__(*args, **{**options, "disable": True})

            def update(self, n: float | None = 1) -> bool | None:
                self.n += n or 0
                if self._is_bytes and self.total:
                    tell(int(self.n), int(self.total))
                return None

        return Counter

    def _tell(self, done: int, total: int) -> None:
        """Some clients count what has come and what is on the disk: the larger one is shown."""
        with self._lock:
            if self._bar is None:
                _log.info("fetching %s", self._name)
                self._bar = tqdm(
                    desc=f"fetching {self._name}", total=total, unit="B", unit_scale=True, disable=None
                )
            self._bar.total = max(total, self._bar.total or 0)
            if done > self._bar.n:
                self._bar.update(done - self._bar.n)
