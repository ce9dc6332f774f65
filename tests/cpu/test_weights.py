"""Weights of a checkpoint: read when asked for, left in the file where they can, packed once for many starts."""

from __future__ import annotations

import gc
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tapetum.models import weights as weights_module
from tapetum.models.packs import Packs
from tapetum.models.table import load_model
from tapetum.models.weights import Checkpoint, NameTable, Slot, Source, Weights
from tapetum.native.library import load
from tapetum.ops.table import native_table, reference_table
from tests.checkpoints import write_checkpoint
from tests.geometries import bare

CPU, BF16 = torch.device("cpu"), torch.bfloat16
WIDTH, ROWS = 1024, 6144
SLOTS = (
    Slot("embed", ("e",), (ROWS, WIDTH)),
    Slot("joined", ("q", "k"), (2 * ROWS, WIDTH)),
    Slot("norm", ("n",), (WIDTH,)),
)
MATRIX_BYTES = ROWS * WIDTH * 2
needs_library = pytest.mark.skipif(load() is None, reason="the native library is not built")


@pytest.fixture(autouse=True)
def every_size_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "Packs", partial(Packs, worth_bytes=1))


def write(directory: Path, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(ROWS, WIDTH, generator=generator).to(BF16) for name in "eqk"}
    save_file({**tensors, "n": torch.ones(WIDTH, dtype=BF16)}, directory / "model.safetensors")


def open_weights(directory: Path, folder: Path | None) -> tuple[Checkpoint, Weights]:
    ops = native_table(BF16)
    assert ops is not None
    checkpoint = Checkpoint(directory, NameTable(SLOTS))
    return checkpoint, checkpoint.weights(BF16, CPU, ops, folder)


def outputs(directory: Path, folder: Path | None) -> tuple[Tensor, ...]:
    """What the layers of both matrices compute; everything that is kept has been written when this returns."""
    checkpoint, weights = open_weights(directory, folder)
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(9)).to(BF16) * weights.take("norm")
    results = weights.linear("embed")(x), weights.linear("joined", activation="silu_mul")(x)
    weights.take("embed")
    weights.finish(checkpoint.is_current)
    join_writers()
    return results


def join_writers() -> None:
    for thread in threading.enumerate():
        if thread.name == "tapetum-packs":
            thread.join()


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    gc.collect()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


@needs_library
def test_a_warm_start_reads_no_matrix_and_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    cold = outputs(tmp_path, tmp_path / "packs")
    joins: list[str] = []
    monkeypatch.setattr(
        Checkpoint,
        "_join",
        lambda self, slot, join=Checkpoint._join: joins.append(slot.name) or join(self, slot),
    )
    before = anonymous_bytes()
    checkpoint, weights = open_weights(tmp_path, tmp_path / "packs")
    layers = weights.linear("embed"), weights.linear("joined", activation="silu_mul")
    grown = anonymous_bytes() - before
    assert joins == []
    assert grown < MATRIX_BYTES / 4  # of the three matrices that are there now
    embedding, norm = weights.take("embed"), weights.take("norm")
    assert anonymous_bytes() - before < MATRIX_BYTES / 4  # the embedding stays in the file
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(9)).to(BF16) * norm
    assert same(cold, (layers[0](x), layers[1](x)))
    assert embedding.shape == (ROWS, WIDTH)
    weights.finish(checkpoint.is_current)


@needs_library
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_checkpoint_of_equal_size_and_date_with_other_values_is_noticed(
    tmp_path: Path, is_replaced: bool
) -> None:
    write(tmp_path, seed=0)
    file = tmp_path / "model.safetensors"
    status, old_bytes = file.stat(), bytearray(file.read_bytes())
    old = outputs(tmp_path, tmp_path / "packs")
    gc.collect()  # nothing has the file mapped any more
    old_bytes[-MATRIX_BYTES // 2] ^= 0x40  # one value, far from where any tensor begins
    if is_replaced:
        file.unlink()
    file.write_bytes(old_bytes)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    new = outputs(tmp_path, tmp_path / "packs")
    assert not same(old, new)
    assert same(new, outputs(tmp_path, None))
    assert same(new, outputs(tmp_path, tmp_path / "packs"))


@needs_library
def test_a_checkpoint_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    write(tmp_path)
    checkpoint, weights = open_weights(tmp_path, tmp_path / "packs")
    for slot in SLOTS[:2]:
        weights.linear(slot.name)
    weights.take("norm")
    assert checkpoint.is_current()
    os.utime(tmp_path / "model.safetensors")
    assert not checkpoint.is_current()
    weights.finish(checkpoint.is_current)
    join_writers()
    assert list((tmp_path / "packs").iterdir()) == []


@needs_library
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_a_model_of_kept_weights_is_the_same_model(tmp_path: Path, family: str) -> None:
    directory = write_checkpoint(tmp_path / "model", family, is_tied=family == "qwen2_vl")
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 128, generator=generator).to(BF16)
    patches = torch.randint(0, 256, (16, 588), generator=generator, dtype=torch.uint8)
    results = []
    for folder in (None, tmp_path / "packs", tmp_path / "packs"):
        ops = native_table(BF16)
        assert ops is not None
        model = load_model(directory, BF16, CPU, ops, folder)
        results.append((*model.head(hidden), *model.begin_encode([patches], bare([(1, 4, 4)])).finish()))
        join_writers()
    assert len(list((tmp_path / "packs").iterdir())) == 1
    assert same(results[0], results[1]) and same(results[1], results[2])


def test_a_tensor_that_is_held_is_read_once() -> None:
    reads: list[str] = []

    def read(name: str) -> Tensor:
        reads.append(name)
        return torch.zeros(4, 4)

    sources = {name: Source((4, 4), partial(read, name)) for name in ("embed", "other")}
    weights = Weights(sources, torch.float32, reference_table())
    embedding = weights.take("embed")
    layer = weights.linear("embed")
    assert reads == ["embed"]
    assert torch.equal(layer(torch.ones(1, 4)), embedding[:1])
    with pytest.raises(AssertionError, match="other"):
        weights.finish(lambda: True)
