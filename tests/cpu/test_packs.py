"""Packed weights that outlive the process: the same bytes again, and never those of another checkpoint or layout."""

from __future__ import annotations

import dataclasses
import errno
import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tapetum.models import pack_file
from tapetum.models.pack_file import Origin, PackFile
from tapetum.models.packs import Packs
from tapetum.ops.memory import HUGE_PAGE

SIZES = {"a": 5000, "b": 3 * 1024**2 + 7, "c": 64}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    (tmp_path / "model").mkdir()
    return Origin(directory=str(tmp_path / "model"), checkpoint="as it is", dtype="bfloat16", layout="1")


def random_bytes(name: str, num_bytes: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def filled(packs: Packs, made: list[str], sizes: dict[str, int] = SIZES) -> dict[str, Tensor]:
    """All weights of `packs`; `made` gets the names of those that had to be packed."""

    def fill(name: str) -> Callable[[Tensor], None]:
        def write(memory: Tensor) -> None:
            made.append(name)
            memory.copy_(random_bytes(name, len(memory)))

        return write

    return {name: packs.get(name, size, fill(name)) for name, size in sizes.items()}


def start(
    folder: Path, origin: Origin, sizes: dict[str, int] = SIZES, *, is_current: bool = True
) -> list[str]:
    """Load once, keep what is new: the names of the weights that were packed. Values are checked."""
    made: list[str] = []
    packs = Packs(PackFile(folder, origin), worth_bytes=1)
    weights = filled(packs, made, sizes)
    writer = packs.keep(lambda: is_current)
    if writer is not None:
        writer.join()
    for name, size in sizes.items():
        assert torch.equal(weights[name], random_bytes(name, size))
        assert weights[name].data_ptr() % 64 == 0
    return made


def test_the_second_start_packs_nothing(tmp_path: Path, origin: Origin) -> None:
    assert start(tmp_path / "packs", origin) == list(SIZES)
    assert start(tmp_path / "packs", origin) == []
    assert start(tmp_path / "packs", origin) == []


@pytest.mark.parametrize("field", ["directory", "checkpoint", "dtype", "layout"])
def test_packs_of_another_origin_are_not_taken(tmp_path: Path, origin: Origin, field: str) -> None:
    start(tmp_path / "packs", origin)
    other = dataclasses.replace(origin, **{field: str(tmp_path)})
    assert start(tmp_path / "packs", other) == list(SIZES)
    assert start(tmp_path / "packs", other) == []


def test_a_checkpoint_has_one_file_for_each_dtype(tmp_path: Path, origin: Origin) -> None:
    for change in ({}, {"checkpoint": "new"}, {"layout": "2"}, {"dtype": "float32"}):
        start(tmp_path / "packs", dataclasses.replace(origin, **change))
    assert len(list((tmp_path / "packs").iterdir())) == 2


def test_a_weight_that_is_new_joins_those_that_were_kept(tmp_path: Path, origin: Origin) -> None:
    start(tmp_path / "packs", origin)
    assert start(tmp_path / "packs", origin, {**SIZES, "a": 6000, "d": 10}) == ["a", "d"]
    assert start(tmp_path / "packs", origin, {**SIZES, "a": 6000, "d": 10}) == []


def test_packs_of_a_checkpoint_that_changed_meanwhile_are_not_kept(
    tmp_path: Path, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path / "packs", origin, is_current=False)
    assert "has changed" in caplog.text
    assert list((tmp_path / "packs").iterdir()) == []


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - HUGE_PAGE)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(HUGE_PAGE))


def overwrite(start_byte: int, length: int, value: bytes = b"\0") -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(start_byte)
            file.write(value * length)

    return damage


DAMAGES = {
    "cut off": truncate,
    "empty": empty,
    "longer": lengthen,
    "other magic": overwrite(3, 1, b"x"),
    "length of the head": overwrite(16, 8, b"\xff"),
    "digest of the head": overwrite(30, 4),
    "text of the head": overwrite(90, 5, b"x"),
    "bytes that were never written": overwrite(HUGE_PAGE + 1024**2, 1024**2),
    "all": overwrite(0, 6 * 1024**2, b"\xa5"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, origin: Origin, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    start(tmp_path / "packs", origin)
    DAMAGES[damage](PackFile(tmp_path / "packs", origin).path)
    assert start(tmp_path / "packs", origin) == list(SIZES)
    assert "packed anew" in caplog.text
    assert start(tmp_path / "packs", origin) == []


def test_a_file_in_small_pages_is_read_instead_of_mapped(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "packs", origin)
    monkeypatch.setattr(pack_file, "_num_huge_bytes", lambda address: 0)
    before = num_mapped(tmp_path)
    made: list[str] = []
    weights = filled(Packs(PackFile(tmp_path / "packs", origin)), made)
    assert made == []
    assert all(torch.equal(weights[name], random_bytes(name, size)) for name, size in SIZES.items())
    gc.collect()
    assert num_mapped(tmp_path) == before


def num_mapped(folder: Path) -> int:
    """Mappings of this process that belong to a file below `folder`."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(folder))


def test_a_folder_that_cannot_be_made_costs_one_line(
    tmp_path: Path, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert start(tmp_path / "file" / "packs", origin) == list(SIZES)
    lines = [line for line in caplog.messages if "not kept" in line]
    assert len(lines) == 1


def test_a_full_disk_costs_one_line_and_leaves_nothing(
    tmp_path: Path, origin: Origin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert start(tmp_path / "packs", origin) == list(SIZES)
    assert "No space left" in caplog.text
    assert list((tmp_path / "packs").iterdir()) == []


def test_a_disk_is_not_filled_up(
    tmp_path: Path, origin: Origin, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = pack_file.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pack_file.shutil, "disk_usage", lambda folder: usage._replace(free=5 * 1024**2))
    assert start(tmp_path / "packs", origin) == list(SIZES)
    assert "5 MiB free" in caplog.text
    assert list((tmp_path / "packs").iterdir()) == []


def test_small_models_are_not_kept(tmp_path: Path, origin: Origin) -> None:
    packs = Packs(PackFile(tmp_path / "packs", origin))
    filled(packs, [])
    assert packs.keep(lambda: True) is None
    assert not (tmp_path / "packs").exists()


def test_files_that_nobody_will_use_go_when_one_is_written(tmp_path: Path, origin: Origin) -> None:
    folder = tmp_path / "packs"
    gone, unused = (
        dataclasses.replace(origin, directory=str(tmp_path / name)) for name in ("gone", "unused")
    )
    for other in (gone, unused):
        Path(other.directory).mkdir()
        start(folder, other)
    half = folder / "0.1-2"
    half.write_bytes(b"half of it")
    long_ago = time.time() - 31 * 86_400
    os.utime(PackFile(folder, unused).path, (long_ago, long_ago))
    os.utime(half, (long_ago, long_ago))
    Path(gone.directory).rmdir()
    start(folder, origin)
    assert list(folder.iterdir()) == [PackFile(folder, origin).path]


def test_use_keeps_a_file_young(tmp_path: Path, origin: Origin) -> None:
    start(tmp_path / "packs", origin)
    path = PackFile(tmp_path / "packs", origin).path
    os.utime(path, (0, 0))
    start(tmp_path / "packs", origin)
    assert time.time() - path.stat().st_mtime < 60


def test_who_has_the_old_file_mapped_keeps_it(tmp_path: Path, origin: Origin) -> None:
    start(tmp_path / "packs", origin)
    made: list[str] = []
    weights = filled(Packs(PackFile(tmp_path / "packs", origin)), made)
    start(tmp_path / "packs", dataclasses.replace(origin, layout="2"), {"z": 5 * 1024**2})
    assert made == []
    assert all(torch.equal(weights[name], random_bytes(name, size)) for name, size in SIZES.items())


def start_often(folder: Path, origin: Origin) -> None:
    for turn in range(6):
        start(folder, dataclasses.replace(origin, layout=str(turn % 2)))


def test_processes_that_write_at_once_all_get_what_is_right(tmp_path: Path, origin: Origin) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=start_often, args=(tmp_path / "packs", origin)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(list((tmp_path / "packs").iterdir())) == 1
