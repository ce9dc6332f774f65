"""The tower of Qwen3-VL against transformers, deep features and all, and configs that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tapetum.core.errors import CheckpointError
from tapetum.models.table import load_model
from tapetum.ops.table import choose_table
from tests.families.qwen3_vl import oracle, write
from tests.geometries import bare

CPU = torch.device("cpu")
GRIDS = [(1, 8, 6), (3, 4, 14), (1, 2, 2)]  # two pictures, and a clip between them


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"), 3)


def patches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    folds = [1, 2, 1]
    return [
        torch.randint(0, 256, (t * h * w, 3 * fold * 256), generator=generator, dtype=torch.uint8)
        for fold, (t, h, w) in zip(folds, GRIDS, strict=True)
    ]


def pixel_values(item: torch.Tensor) -> torch.Tensor:
    """What the processor of transformers would give: normalised, the frame of a picture twice."""
    frames = item.view(len(item), 3, -1, 256).expand(-1, -1, 2, -1)
    return ((frames.float() / 255 - 0.5) / 0.5).reshape(len(item), -1)


@torch.no_grad()
def test_features_of_all_levels_equal_transformers(directory: Path) -> None:
    tower = oracle("qwen3_vl", directory, torch.float32).model.model.visual
    theirs = tower(torch.cat([pixel_values(item) for item in patches()]), grid_thw=torch.tensor(GRIDS))
    expected = torch.cat((theirs.pooler_output, *theirs.deepstack_features), 1)
    model = load_model(directory, torch.float32, CPU, choose_table(CPU, torch.float32))
    ours = torch.cat(model.begin_encode(patches(), bare(GRIDS)).finish())
    assert ours.shape == expected.shape == (sum(t * h * w // 4 for t, h, w in GRIDS), model.spec.feature_size)
    assert model.spec.feature_size == 3 * model.spec.hidden_size
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("section", "edit", "message"),
    [
        ("vision_config", {"num_position_embeddings": 50}, "50, must be a square"),
        ("vision_config", {"deepstack_visual_indexes": [0, 3]}, r"\(0, 3\), must ascend and be layers"),
        ("vision_config", {"deepstack_visual_indexes": [1, 0]}, r"\(1, 0\), must ascend and be layers"),
        ("vision_config", {"hidden_act": "silu"}, "hidden_act is 'silu', only 'gelu_pytorch_tanh'"),
        ("vision_config", {"out_hidden_size": 64}, "gives width 64, the decoder takes 128"),
        ("text_config", {"num_hidden_layers": 1}, "2 deepstack_visual_indexes, but the decoder has only 1"),
    ],
)
def test_a_wrong_config_is_named(
    directory: Path, tmp_path: Path, section: str, edit: dict[str, object], message: str
) -> None:
    config = json.loads((directory / "config.json").read_text())
    config[section] |= edit
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (tmp_path / name).write_text((directory / name).read_text())
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path, torch.float32, CPU, choose_table(CPU, torch.float32))
