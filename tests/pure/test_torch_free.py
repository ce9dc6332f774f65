"""The decisions, the edges and the front of the package neither need nor touch torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
TORCH_FREE = ["bench", "core", "cache", "sched", "text", "media", "processing", "server", "assets", "native"]

# Runs in a fresh interpreter: imports a package with all its modules and prints who asked for torch.
PROBE = """
import importlib, json, pkgutil, sys, traceback

class Refuse:
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "torch":
            return None
        files = [frame.filename for frame in traceback.extract_stack()]
        self.asked.append(next((file for file in reversed(files) if "tapetum" in file), files[-1]))
        raise ImportError("torch is blocked")

sys.meta_path.insert(0, Refuse())
failed = {}
names = [sys.argv[1]]
while names:
    name = names.pop()
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
        continue
    found = [item.name for item in pkgutil.iter_modules(getattr(module, "__path__", []), name + ".")]
    names += [name for name in found if not name.endswith(".libtapetum_native")]  # a library, but no module
print(json.dumps({"modules": sorted(m for m in sys.modules if m.startswith("tapetum")),
                  "asked": Refuse.asked, "failed": failed}))
"""


def probe(name: str) -> dict:
    done = subprocess.run([sys.executable, "-c", PROBE, name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", TORCH_FREE)
def test_a_pure_package_does_without_torch(package: str) -> None:
    report = probe(f"tapetum.{package}")
    assert report["failed"] == {}
    assert report["asked"] == []
    files = (SOURCE / "tapetum" / package).rglob("*.py")
    modules = {".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files}
    assert {name.removesuffix(".__init__") for name in modules} <= set(report["modules"])


def test_the_command_line_starts_without_torch() -> None:
    report = probe("tapetum.cli")
    assert report["failed"] == {}
    assert report["asked"] == []


def test_the_package_itself_loads_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, tapetum; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "tapetum" in loaded
    assert not loaded & {
        "torch",
        "numpy",
        "PIL",
        "tokenizers",
        "jinja2",
        "starlette",
        "uvicorn",
        "msgspec",
        "tqdm",
    }


def test_the_probe_sees_torch_where_it_is() -> None:
    report = probe("tapetum.runtime")
    assert "tapetum.runtime.sampler" in report["failed"]
    assert any(file.endswith("sampler.py") for file in report["asked"])
