"""Published models of text by their config.json alone: sizes, names, and what nobody reads."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tapetum.models.table import read_blueprint

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
PARAMETERS = {  # as their pages on the hub count them
    "llama-3.2-1b-instruct": 1_235_814_400,
    "smollm2-135m-instruct": 134_515_008,
    "mistral-7b-instruct-v0.3": 7_248_023_552,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-3-1b-it": 999_885_952,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_published_config_gives_a_model_of_its_size(name: str, caplog: pytest.LogCaptureFixture) -> None:
    blueprint = read_blueprint(CONFIGS / name)
    assert sum(prod(slot.shape) for slot in blueprint.table.slots) == PARAMETERS[name]
    assert not caplog.records


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "qwen3-30b-a3b"])
def test_names_and_shapes_are_those_of_transformers(name: str) -> None:
    """Of experts, which transformers joins when it reads them, test_families.py looks at the files."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(CONFIGS / name))
    theirs = dict(model.state_dict())
    table = read_blueprint(CONFIGS / name).table
    assert table.differences(list(theirs)) == ((), ())
    for slot in table.slots:
        assert slot.shape == torch.cat([theirs[source] for source in slot.sources]).shape


def test_windows_and_turns_of_published_models() -> None:
    gemma = read_blueprint(CONFIGS / "gemma-3-1b-it").decoder
    assert gemma.windows == ((512,) * 5 + (0,)) * 4 + (512, 512)
    assert [len(set(rope.frequencies)) for rope in gemma.ropes] == [128, 128]
    assert gemma.query_scale == 1.0 and gemma.embed_scale == 1152**0.5
    for name in ("mistral-7b-instruct-v0.3", "qwen2.5-7b-instruct", "qwen3-8b"):
        assert not any(read_blueprint(CONFIGS / name).decoder.windows)
