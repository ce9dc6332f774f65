"""A checkpoint with a head of its own answers by it, whatever its config.json says of ties; as in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tapetum import LLM, SamplingParams
from tapetum.models.table import read_blueprint
from tapetum.models.weights import Checkpoint
from tests.families import idefics, internvl, llava, qwen_vl, text
from tests.families.kit import Family

TOKENS = 8
EXACT = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_cache_bytes": 64 << 20}
FAMILIES = (
    qwen_vl.family("qwen2_vl"),
    idefics.family("smolvlm"),
    internvl.family("internvl"),
    llava.family("llava_next"),
    text.family("qwen2"),
    text.family("gemma3_text"),
)


def write(family: Family, directory: Path, *, above: bool, inside: bool, is_copy: bool = False) -> Path:
    """A checkpoint with a head, tied by its config.json: `above` in the whole, `inside` in the part of the decoder."""
    family.write(directory, 3)
    config = json.loads((directory / "config.json").read_text())
    config["tie_word_embeddings"] = above
    if "text_config" in config:
        config["text_config"]["tie_word_embeddings"] = inside
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("lm_head.weight")}
    (embed,) = (tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight"))
    other = torch.randn(embed.shape, generator=torch.Generator().manual_seed(5)) / embed.shape[1] ** 0.5
    tensors["lm_head.weight"] = embed.clone() if is_copy else other
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("above", "inside"), [(True, True), (False, True), (True, False)])
def test_answers_by_the_head_that_is_there(family: Family, above: bool, inside: bool, tmp_path: Path) -> None:
    directory = write(family, tmp_path, above=above, inside=inside)
    messages = family.conversations()[0]
    oracle = family.oracle(directory, torch.float32)
    with LLM(str(directory), **EXACT) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
        (output,) = llm.chat(messages, sampling, use_tqdm=False)
    assert output.outputs[0].token_ids == oracle.ask(oracle.read(messages), TOKENS).token_ids


def test_a_head_that_repeats_the_embedding_is_not_kept_twice(tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    for directory, is_copy in ((same, True), (other, False)):
        directory.mkdir()
        write(text.family("qwen2"), directory, above=True, inside=True, is_copy=is_copy)
        table = read_blueprint(directory).table
        assert bool(Checkpoint(directory, table).own_head()) is not is_copy
