"""Finds the native library, checks that it fits, and declares its C functions.

Owns the one handle of the process. It looks where the package lies: in an editable install both in the environment,
where pip puts a library, and in the checkout, where `make native` does. The newest that was built for functions.py
and structures.py is taken. Without any, `load` gives None, says so once, and everything runs on torch and Pillow.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import tapetum.native
from tapetum.native import functions, structures

_log = logging.getLogger(__name__)
NAME = "libtapetum_native.so"


@cache
def load() -> ctypes.CDLL | None:
    """The library with its functions declared, or None; a call releases the interpreter lock."""
    library = newest_fitting(tapetum.native.__path__)
    if library is None:
        _log.warning(
            "no native kernels: %s is not built; the slower torch path runs; "
            "install a C++ compiler, then Tapetum again",
            NAME,
        )
    elif library.tpt_isa() == b"portable":
        _log.warning(
            "this processor has neither AVX-512 nor AVX2: kernels run in portable code, which is slower"
        )
    return library


def newest_fitting(folders: Iterable[str]) -> ctypes.CDLL | None:
    """The newest library in these folders that fits; a line is logged for each newer one that does not."""
    found = [path for folder in folders if (path := Path(folder) / NAME).exists()]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            return _opened(path)
        except (OSError, AttributeError) as error:
            _log.warning("native kernels in %s are not used: %s", path, error)
    return None


def _opened(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.tpt_built_for.restype = ctypes.c_char_p
    built, wanted = library.tpt_built_for().decode(), _abi()
    if built != wanted:
        raise OSError(
            f"they were built for functions {built}, needed are {wanted}; run `make native` or install Tapetum again"
        )
    for name, (result, arguments) in functions.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _abi() -> str:
    """What the build stamps into the library."""
    files = (functions.__file__, structures.__file__)
    digests = "".join(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files)
    return hashlib.sha256(digests.encode()).hexdigest()[:16]
