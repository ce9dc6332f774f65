"""Checkpoints of Gemma 3 and Idefics3 that are written otherwise: other spellings of names, shapes that do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tapetum.core.errors import CheckpointError
from tapetum.models.table import load_model
from tapetum.ops.table import reference_table
from tests.families import gemma3, idefics

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma3.write(tmp_path_factory.mktemp("gemma3"), 3)


SPELLINGS = {
    "published": (("vision_tower.", "vision_tower.vision_model."),),
    "nested": (
        ("language_model.model.", "model.language_model."),
        ("vision_tower.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    ),
    "nested with the tower's inner name": (
        ("language_model.model.", "model.language_model."),
        ("vision_tower.", "model.vision_tower.vision_model."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    ),
}


def spelled(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for ours, theirs in pairs:
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    return name


def rewritten(directory: Path, target: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """The checkpoint with other tensors."""
    shutil.copytree(directory, target, dirs_exist_ok=True)
    save_file(change(load_file(directory / "model.safetensors")), target / "model.safetensors")
    return target


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_names_is_read(gemma: Path, tmp_path: Path, spelling: str) -> None:
    def respelled(tensors: Tensors) -> Tensors:
        renamed = {spelled(name, SPELLINGS[spelling]): tensor for name, tensor in tensors.items()}
        assert renamed.keys() != tensors.keys()
        return renamed

    places = gemma, rewritten(gemma, tmp_path, respelled)
    there, here = (load_model(place, torch.float32, CPU, reference_table()) for place in places)
    tokens = torch.arange(5)
    assert torch.equal(here.embed(tokens), there.embed(tokens))


def test_a_projection_of_another_shape_is_refused(gemma: Path, tmp_path: Path) -> None:
    name = "multi_modal_projector.mm_input_projection_weight"
    changed = rewritten(gemma, tmp_path, lambda tensors: tensors | {name: tensors[name].t().contiguous()})
    with pytest.raises(CheckpointError, match=f"{name} has shape"):
        load_model(changed, torch.float32, CPU, reference_table())


def test_positions_that_are_no_square_of_the_image_size_are_refused(tmp_path: Path) -> None:
    name = "model.vision_model.embeddings.position_embedding.weight"
    (tmp_path / "written").mkdir()
    written = idefics.write_idefics3(tmp_path / "written", 3)
    changed = rewritten(
        written, tmp_path / "changed", lambda tensors: tensors | {name: tensors[name][:-1].clone()}
    )
    with pytest.raises(CheckpointError, match=rf"{name} has shape \(48, 32\)"):
        load_model(changed, torch.float32, CPU, reference_table())
