"""Finds the native library, checks that it fits, and declares its C functions.

Owns the one handle of the process. Without a library, or with one of another build, `load` gives None, says so once,
and everything runs on torch and Pillow.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import tapetum.native

_log = logging.getLogger(__name__)
_NAME = "libtapetum_native.so"
_ABI = 1
_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

# name -> (result, arguments); pointers travel as integers
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "tpt_abi": (_I, ()),
    "tpt_isa": (ctypes.c_char_p, ()),
    "tpt_use_isa": (_I, (ctypes.c_char_p,)),
    "tpt_num_threads": (_I, ()),
    "tpt_set_num_threads": (None, (_I,)),
    "tpt_narrow": (None, (_P, _P, _L)),
}


@cache
def load() -> ctypes.CDLL | None:
    """The library with its functions declared, or None; a call releases the interpreter lock."""
    for folder in tapetum.native.__path__:
        path = Path(folder) / _NAME
        if path.exists():
            return _opened(path)
    _log.warning("no native kernels: %s is not built; the torch path runs, which is slower", _NAME)
    return None


def _opened(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
        if library.tpt_abi() != _ABI:
            raise OSError(f"it is build {library.tpt_abi()}, build {_ABI} is needed; install Tapetum again")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        _log.warning(
            "no native kernels: %s cannot be used: %s; the torch path runs, which is slower", path, error
        )
        return None
    return library
