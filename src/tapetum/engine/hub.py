"""Checkpoints of the hub: fetched with a bar on the terminal, or taken from the cache of what was fetched.

The client of the hub does the work. A connection that is cut is taken up where it ended; after a fetch that was stopped
the next one keeps the files that are whole. Owns what is fetched, and one sentence for each way in which that can fail.
"""

from __future__ import annotations

from pathlib import Path

from tapetum.core.errors import CheckpointError

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
        return Path(
            snapshot_download(
                hub_id,
                revision=revision,
                allow_patterns=wanted,
                ignore_patterns=list(_UNWANTED) if file is None else None,
                local_files_only=is_offline,
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
