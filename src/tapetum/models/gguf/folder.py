"""A GGUF file as the directory of a checkpoint: the JSON files that its metadata stands for, beside a link to it.

So everything that reads a checkpoint reads these too. A directory is written once for each state of a file, whole
before it has its name, so several processes may ask for the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from tapetum.core.errors import ConfigError
from tapetum.models.gguf.config import read_config, read_generation
from tapetum.models.gguf.reader import GGUFFile
from tapetum.models.gguf.tokenizer import read_tokenizer, read_tokenizer_config

LINK = "model.gguf"
_FORMAT = 2  # of what is written; raise it with a change, so that older directories are not used


def checkpoint_folder(path: Path, cache: Path) -> Path:
    """The directory for this file in `cache`, written if it is not there yet."""
    path = path.resolve()
    status = path.stat()
    state = f"{_FORMAT} {path} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    folder = cache / f"{path.stem}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        _write(folder, path)
    return folder


def _write(folder: Path, path: Path) -> None:
    file = GGUFFile(path)
    parts = {
        "config.json": read_config(file),
        "generation_config.json": read_generation(file),
        "tokenizer.json": read_tokenizer(file),
        "tokenizer_config.json": read_tokenizer_config(file),
    }
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
        try:
            for name, values in parts.items():
                (temporary / name).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
            os.symlink(path, temporary / LINK)
            os.rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # somebody else was first, or it has its name
    except OSError as error:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder.parent} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a folder that can"
            ) from error
