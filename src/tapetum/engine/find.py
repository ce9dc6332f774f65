"""Where a model lives: the bundled one, a directory, a GGUF file, or a repository of the hub, which is fetched.

Whatever it is, what comes back is the directory of a checkpoint, and everything else reads that.
"""

from __future__ import annotations

import re
from pathlib import Path

from tapetum.assets import MODEL_DIR
from tapetum.core.config import ModelConfig
from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.core.folders import user_cache
from tapetum.engine.hub import download
from tapetum.models.gguf.folder import checkpoint_folder
from tapetum.models.gguf.reader import SUFFIX

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/([\w./-]+\.gguf))?")


def find_model(config: ModelConfig, *, has_weights: bool = True) -> Path:
    """The directory of a checkpoint; one of the hub is fetched, or found where it was fetched to before.

    Without weights the directory of one that has to be fetched may lack them.
    """
    if config.model is None:
        return MODEL_DIR
    path = Path(config.model).expanduser()
    if path.is_dir():
        return _checkpoint_in(path)
    if path.suffix == SUFFIX and path.is_file():
        return _folder_of(path)
    found = _HUB_ID.fullmatch(config.model)
    if not found:
        raise ConfigError(
            f"model is {config.model!r}, neither a directory, nor a {SUFFIX} file, nor a hub id such as "
            "Qwen/Qwen2-VL-2B-Instruct"
        )
    hub_id, file = found.groups()
    directory = download(
        hub_id, config.revision, file=file, has_weights=has_weights, is_offline=config.is_offline
    )
    if file:
        return _folder_of(directory / file)
    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"{hub_id} has no config.json; a {SUFFIX} file in it is named as {hub_id}/FILE{SUFFIX}"
        )
    return _checkpoint_in(directory)


def _checkpoint_in(directory: Path) -> Path:
    files = [file for file in sorted(directory.glob(f"*{SUFFIX}")) if not file.name.startswith("mmproj")]
    has_config = (directory / "config.json").is_file()
    if not files or (has_config and any(directory.glob("*.safetensors"))):
        if not has_config:
            raise CheckpointError(f"{directory} has no config.json; name the directory of a checkpoint")
        return directory
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{directory} holds several GGUF files; name one of {names}")
    return _folder_of(files[0])


def _folder_of(file: Path) -> Path:
    cache = user_cache("gguf")
    if cache is None:
        raise ConfigError(
            f"there is no folder to keep what is read from {file.name}; set XDG_CACHE_HOME to one"
        )
    return checkpoint_folder(file, cache)
