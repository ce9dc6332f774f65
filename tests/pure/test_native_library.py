"""Finding the native library: which of several is taken, and what becomes of those that do not fit."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import tapetum.native
from tapetum.native import library
from tapetum.native.functions import FUNCTIONS

COMPILERS = ("c++", "g++", "clang++")


@pytest.fixture
def built() -> Path:
    """A library that fits."""
    loaded = library.load()
    if loaded is None:
        pytest.skip("the native library is not built: there was no C++ compiler at the install")
    return Path(loaded._name)


def put(folder: Path, content: bytes, *, age_s: float = 0.0) -> str:
    folder.mkdir()
    path = folder / library.NAME
    path.write_bytes(content)
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return str(folder)


def of_other_functions(built: Path) -> bytes:
    """The same library with the stamp of another table."""
    content, stamp = built.read_bytes(), library._abi().encode()
    assert content.count(stamp) == 1
    return content.replace(stamp, stamp[::-1])


def home(loaded: ctypes.CDLL | None) -> str:
    assert loaded is not None
    return str(Path(loaded._name).parent)


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C++ compiler")
def test_where_there_is_a_compiler_there_is_a_library() -> None:
    assert library.load() is not None


def test_every_function_of_the_table_is_declared(built: Path) -> None:
    loaded = library.newest_fitting([str(built.parent)])
    assert loaded is not None
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        assert (function.restype, tuple(function.argtypes)) == (result, arguments)


def test_it_computes(built: Path) -> None:
    loaded = library.newest_fitting([str(built.parent)])
    assert loaded is not None
    wide = np.array(
        [1.0, -2.5, 1.00390625, np.inf], np.float32
    )  # the third lies between two, the even one is 1.0
    narrow = np.zeros(4, np.uint16)
    loaded.tpt_narrow(wide.ctypes.data, narrow.ctypes.data, 4)
    assert (narrow.astype(np.uint32) << 16).view(np.float32).tolist() == [1.0, -2.5, 1.0, np.inf]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_newest_that_fits_is_taken(built: Path, tmp_path: Path, is_first: bool) -> None:
    content = built.read_bytes()
    new, old = put(tmp_path / "new", content), put(tmp_path / "old", content, age_s=60.0)
    folders = [new, old] if is_first else [old, new]
    assert home(library.newest_fitting([str(tmp_path / "none"), *folders])) == new


def test_one_of_other_functions_is_told_about_and_passed_over(
    built: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = put(tmp_path / "other", of_other_functions(built))
    fits = put(tmp_path / "fits", built.read_bytes(), age_s=60.0)
    with caplog.at_level(logging.WARNING):
        assert home(library.newest_fitting([other, fits])) == fits
    [line] = caplog.messages
    assert other in line and library._abi() in line and "make native" in line


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(200)])
def test_a_damaged_one_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    assert library.newest_fitting([put(tmp_path / "damaged", content)]) is None
    assert len(caplog.messages) == 1


def test_a_library_of_somebody_else_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign = next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    assert library.newest_fitting([put(tmp_path / "foreign", foreign.read_bytes())]) is None
    assert "tpt_built_for" in caplog.messages[0]


def test_none_at_all_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tapetum.native, "__path__", [str(tmp_path)])
    library.load.cache_clear()
    try:
        assert library.load() is None
        assert library.load() is None
        [line] = caplog.messages
        assert "torch" in line and "compiler" in line
    finally:
        library.load.cache_clear()
