"""What steps cost, kept from one start to the next, so that only the first has to measure it.

A file of a few hundred bytes in a folder beside the packed weights, for one model on one machine. It is written when
an engine has been measured, and again when it ends, with all that it has learned since. One that is old, damaged or
of something else is as good as none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from tapetum.core.cost import CostModel, LearnedCosts

_log = logging.getLogger(__name__)
_FOLDER = "costs"
_MAX_AGE_S = 30 * 86_400.0  # since it was written; whatever has changed on a machine, it is found by then


class _Content(msgspec.Struct, frozen=True):
    subject: str
    learned: LearnedCosts


class CostFile:
    """`subject` names all that costs depend on; `folder` None = nothing is kept."""

    def __init__(self, folder: Path | None, subject: str) -> None:
        name = hashlib.sha256(subject.encode()).hexdigest()[:32] + ".json"
        self._path = None if folder is None else folder / _FOLDER / name
        self._subject = subject

    def read(self) -> CostModel | None:
        """None if there is nothing that can be used."""
        if self._path is None:
            return None
        try:
            if time.time() - self._path.stat().st_mtime > _MAX_AGE_S:
                return None
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
            return CostModel(learned=content.learned) if content.subject == self._subject else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec's are ValueErrors
            _log.warning("steps are measured anew, %s cannot be used: %s", self._path, error)
            return None

    def write(self, cost: CostModel) -> None:
        """Replace it; a line in the log where that cannot be."""
        if self._path is None:
            return
        temporary = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(_Content(subject=self._subject, learned=cost.learned)))
            temporary.replace(self._path)
        except OSError as error:
            _log.info("what steps cost is not kept for the next start: %s", error)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
