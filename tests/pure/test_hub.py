"""Fetching a checkpoint, from a hub in this process: whole, cut and resumed, at a revision, offline, and refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from tapetum.core.config import ModelConfig
from tapetum.core.errors import CheckpointError
from tapetum.engine.find import find_model
from tests.gguf_files import embedding, metadata, write_gguf
from tests.hub import Hub, running

NAME = "someone/some-model"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
PIECE = 10 * 1024**2  # that the client writes at a time
SIZES = [PIECE + 2 * 2**20, 2**20]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """With two revisions; what is fetched goes to a cache of the test's own."""
    folders = {}
    for revision in ("main", "v1"):
        folder = folders[revision] = tmp_path / "hub" / revision
        (folder / "original").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_vl", "revision": revision}))
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))})
        )
        for index, name in enumerate(SHARDS):
            (folder / name).write_bytes(bytes([index + 1]) * SIZES[index])
        for name in ("pytorch_model.bin", "consolidated.safetensors", "original/params.json"):
            (folder / name).write_bytes(b"not wanted")
    with running(Hub(NAME, folders)) as found:
        point_at(monkeypatch, found.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield found


def point_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """What HF_ENDPOINT does before the client is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def find(**changes: object) -> Path:
    return find_model(ModelConfig(model=NAME, **changes))


def bodies(hub: Hub) -> list[str]:
    """What files were asked for, beside their heads."""
    return [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]


def eventually(is_so: Callable[[], bool], within_s: float = 20) -> bool:
    end_s = time.monotonic() + within_s
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.05)
    return is_so()


def revision_of(directory: Path) -> str:
    return json.loads((directory / "config.json").read_text())["revision"]


def test_all_of_a_sharded_checkpoint_is_fetched_once_and_nothing_else(hub: Hub) -> None:
    directory = find()
    assert {path.name for path in directory.iterdir()} == {
        "config.json", "model.safetensors.index.json", *SHARDS,
    }  # fmt: skip
    assert [(directory / name).read_bytes()[:1] for name in SHARDS] == [b"\1", b"\2"]
    fetched = bodies(hub)
    assert len(fetched) == 4
    assert find() == directory
    assert bodies(hub) == fetched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one_bar_and_a_file_none(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    find(revision="v1")
    monkeypatch.setattr(sys, "stderr", terminal)
    find()
    assert file.getvalue() == ""
    drawn = [line for line in terminal.getvalue().replace("\n", "\r").split("\r") if line]
    assert all(line.startswith(f"fetching {NAME}: ") for line in drawn), drawn
    assert "100%" in drawn[-1] and terminal.getvalue().endswith("\n")
    size = len(terminal.getvalue())
    find()
    assert len(terminal.getvalue()) == size, "there is nothing to fetch"


def test_what_is_only_looked_at_is_fetched_without_weights(hub: Hub) -> None:
    directory = find_model(ModelConfig(model=NAME), has_weights=False)
    assert {path.name for path in directory.iterdir()} == {"config.json", "model.safetensors.index.json"}
    assert find() == directory
    assert all((directory / name).is_file() for name in SHARDS)


def test_a_connection_that_is_cut_is_taken_up_where_it_ended(hub: Hub) -> None:
    hub.cut_after = PIECE + 2**20
    directory = find()  # the client notices, and asks for the rest
    assert [len((directory / name).read_bytes()) for name in SHARDS] == SIZES
    assert hub.ranges == [f"{SHARDS[0]} {PIECE}"]


def test_a_fetch_that_was_killed_goes_on_with_the_files_that_are_not_whole(hub: Hub, tmp_path: Path) -> None:
    hub.stall_after = PIECE + 2**20
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache")}
    code = "from tapetum.engine.hub import download; download('someone/some-model', None)"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    assert hub.is_stalled.wait(60)
    assert eventually(lambda: any(tmp_path.glob(f"cache/**/{SHARDS[1]}")))
    process.kill()
    process.wait()
    with pytest.raises(CheckpointError, match="is fetched in part only"):
        find(is_offline=True)
    hub.requests.clear()
    assert [(find() / name).stat().st_size for name in SHARDS] == SIZES
    assert [name for name in SHARDS if any(name in request for request in bodies(hub))] == [SHARDS[0]]


def test_a_revision_is_fetched_beside_the_newest(hub: Hub) -> None:
    assert revision_of(find()) == "main"
    assert revision_of(find(revision="v1")) == "v1"
    commit = hub.commit(hub.revisions["v1"])
    assert revision_of(find(revision=commit)) == "v1"


def test_offline_takes_what_is_there_and_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CheckpointError, match=r"'someone/some-model' was not fetched before; leave --offline"
    ):
        find(is_offline=True)
    directory = find()
    hub.requests.clear()
    assert find(is_offline=True) == directory
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert find() == directory
    assert hub.requests == []
    with pytest.raises(CheckpointError, match="at 'v1' was not fetched before"):
        find(revision="v1")
    (directory / SHARDS[1]).unlink()
    with pytest.raises(
        CheckpointError, match="is fetched in part only; leave --offline and HF_HUB_OFFLINE out"
    ):
        find()


def test_what_cannot_be_fetched_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(name: str = NAME, **changes: object) -> str:
        with pytest.raises(CheckpointError) as caught:
            find_model(ModelConfig(model=name, **changes))
        assert "\n" not in caught.value.message
        return caught.value.message

    assert "'someone/other' is no directory here and no repository of the hub" in refusal("someone/other")
    assert "at 'v9' is not there; --revision takes a branch" in refusal(revision="v9")
    hub.gated = True
    assert "is gated; accept its terms on its page, then set HF_TOKEN" in refusal()
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert "cannot be fetched: " in refusal(revision="v1")


def test_one_gguf_file_of_many_is_fetched(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = hub.revisions["main"]
    for name in ("some-Q4.gguf", "some-Q8.gguf"):
        write_gguf(folder / name, metadata(), embedding())
    directory = find_model(ModelConfig(model=f"{NAME}/some-Q8.gguf"))
    assert json.loads((directory / "config.json").read_text())["model_type"] == "llama"
    assert [request.rpartition("/")[2] for request in bodies(hub)] == ["some-Q8.gguf"]
    (folder / "config.json").unlink()
    hub.revisions["main"] = folder.rename(folder.with_name("changed"))
    with pytest.raises(CheckpointError, match=r"is named as someone/some-model/FILE\.gguf"):
        find()
