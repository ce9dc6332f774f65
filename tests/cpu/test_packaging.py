"""What pip makes of a checkout: a wheel with the native library, and one without it where nothing can compile it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSETS = {
    "tapetum/py.typed",
    "tapetum/native/library.py",
    "tapetum/native/functions.py",
    "tapetum/native/structures.py",
    "tapetum/assets/tapetum-mini/model.safetensors",
    "tapetum/assets/samples/samples.json",
}
LIBRARY = "tapetum/native/libtapetum_native.so"

pytestmark = pytest.mark.slow  # fetches the build backend


def build_wheel(out: Path, **variables: str) -> tuple[str, set[str]]:
    """Name and files of the wheel that pip builds of this checkout."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(out),
        str(ROOT),
    ]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    [wheel] = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return wheel.name, set(opened.namelist())


def test_a_wheel_holds_the_library_and_not_its_sources(tmp_path: Path) -> None:
    name, files = build_wheel(tmp_path)
    assert files >= ASSETS | {LIBRARY}
    assert not [file for file in files if file.endswith((".cpp", ".h"))]
    assert "-py3-none-" in name and not name.endswith("-any.whl")


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    name, files = build_wheel(tmp_path, CXX="/bin/false")
    assert files >= ASSETS
    assert not [file for file in files if file.endswith((".so", ".cpp", ".h"))]
    assert name.endswith("-py3-none-any.whl")
