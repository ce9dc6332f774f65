"""Qwen2-VL and Qwen2.5-VL against transformers with the same random checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tapetum.core.errors import CheckpointError
from tapetum.core.plan import Row
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.models.qwen_vl.model import read_config
from tapetum.models.qwen_vl.names import name_table
from tapetum.models.table import load_model
from tapetum.ops.table import OpTable, choose_table, reference_table
from tapetum.runtime.inputs import TokenBook, build_inputs
from tapetum.runtime.store import KVStore
from tests.checkpoints import FAMILIES, load_oracle, write_checkpoint
from tests.geometries import bare
from tests.mini import IMAGE_TOKEN

CPU = torch.device("cpu")
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP
GRIDS = [(1, 8, 8), (1, 4, 14), (1, 2, 2), (1, 10, 6), (1, 8, 8)]


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def load(directory: Path, dtype: torch.dtype = torch.float32, ops: OpTable | None = None):
    return load_model(directory, dtype, CPU, ops or choose_table(CPU, dtype))


def encode(model, patches: list[torch.Tensor], grids: list[tuple[int, int, int]]) -> list[torch.Tensor]:
    return model.begin_encode(patches, bare(grids)).finish()


def stills(grids: list[tuple[int, int, int]], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 256, (t * h * w, 588), generator=generator, dtype=torch.uint8) for t, h, w in grids
    ]


def clips(grids: list[tuple[int, int, int]], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 256, (t * h * w, 1176), generator=generator, dtype=torch.uint8) for t, h, w in grids
    ]


def pixel_values(patches: list[torch.Tensor]) -> torch.Tensor:
    """What transformers' processor would give for these raw patches: [P, C * 2 * 14 * 14]."""
    rows = []
    for patch in patches:
        frames = patch.view(len(patch), 3, -1, 196).float()
        frames = frames.expand(-1, -1, 2, -1)
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
        rows.append(((frames / 255 - mean) / std).reshape(len(patch), -1))
    return torch.cat(rows)


def oracle_features(model: torch.nn.Module, patches: list[torch.Tensor], grids: list) -> list[torch.Tensor]:
    with torch.no_grad():
        output = model.model.visual(pixel_values(patches).to(model.dtype), grid_thw=torch.tensor(grids))
    return list(output.pooler_output.split([t * h * w // 4 for t, h, w in grids]))


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def test_features_equal_transformers(directory: Path) -> None:
    patches = stills(GRIDS)
    theirs = oracle_features(load_oracle(directory), patches, GRIDS)
    ours = encode(load(directory), patches, GRIDS)
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.shape == reference.shape
        assert relative_error(mine, reference) < 1e-4


def test_clip_features_equal_transformers(directory: Path) -> None:
    grids = [(3, 4, 6), (1, 10, 10), (2, 2, 8)]
    patches = clips(grids)
    theirs = oracle_features(load_oracle(directory), patches, grids)
    ours = encode(load(directory), patches, grids)
    assert max(map(relative_error, ours, theirs)) < 1e-4


def test_still_equals_a_clip_of_the_same_frame_twice(directory: Path) -> None:
    still = stills([(1, 8, 6)])[0]
    twice = still.view(-1, 3, 1, 196).expand(-1, -1, 2, -1).reshape(len(still), -1)
    model = load(directory)
    folded, repeated = encode(model, [still], [(1, 8, 6)])[0], encode(model, [twice], [(1, 8, 6)])[0]
    assert relative_error(folded, repeated) < 1e-5


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_packing_does_not_mix_items(directory: Path, dtype: torch.dtype, bound: float) -> None:
    model, patches = load(directory, dtype), stills(GRIDS)
    alone = [encode(model, [patch], [grid])[0] for patch, grid in zip(patches, GRIDS, strict=True)]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        packed = encode(model, [patches[i] for i in order], [GRIDS[i] for i in order])
        assert max(relative_error(item, alone[i]) for item, i in zip(packed, order, strict=True)) < bound
    changed = [255 - patches[0], *patches[1:]]
    again = encode(model, changed, GRIDS)
    assert relative_error(again[0], alone[0]) > 0.05
    assert max(relative_error(again[i], alone[i]) for i in range(1, len(GRIDS))) < bound


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("chunk", [5, 1000])
def test_logits_equal_transformers(directory: Path, dtype: torch.dtype, bound: float, chunk: int) -> None:
    grids = [(1, 8, 8), (1, 4, 6)]
    patches = stills(grids)
    token_ids, positions = prompt_with_pictures(grids)
    oracle = load_oracle(directory, dtype)
    is_picture = (torch.tensor([token_ids]) == IMAGE_TOKEN).int()
    with torch.no_grad():
        theirs = oracle(
            input_ids=torch.tensor([token_ids]),
            pixel_values=pixel_values(patches).to(dtype),
            image_grid_thw=torch.tensor(grids),
            mm_token_type_ids=is_picture,
        ).logits[0]
    ours = all_logits(load(directory, dtype), token_ids, positions, patches, grids, chunk)
    assert relative_error(ours, theirs) < bound


def test_fast_ops_equal_reference_ops(directory: Path) -> None:
    grids = [(1, 8, 8), (1, 4, 6)]
    token_ids, positions = prompt_with_pictures(grids)
    arguments = (token_ids, positions, stills(grids), grids, 7)
    fast = all_logits(load(directory), *arguments)
    plain = all_logits(load(directory, ops=reference_table()), *arguments)
    assert relative_error(fast, plain) < 1e-5


def prompt_with_pictures(grids: list[tuple[int, int, int]]) -> tuple[list[int], np.ndarray]:
    """Text, picture, text, picture, text with hand-made M-RoPE positions."""
    token_ids: list[int] = []
    columns: list[tuple[int, int, int]] = []
    start = 0
    for grid in [None, grids[0], None, grids[1], None]:
        if grid is None:
            token_ids += [17, 300, 421, 5, 900]
            columns += [(start + i,) * 3 for i in range(5)]
        else:
            _, h, w = grid[0], grid[1] // 2, grid[2] // 2
            token_ids += [IMAGE_TOKEN] * (h * w)
            columns += [(start, start + y, start + x) for y in range(h) for x in range(w)]
        start = max(max(column) for column in columns) + 1
    return token_ids, np.array(columns).T


def all_logits(model, token_ids, positions, patches, grids, chunk: int) -> torch.Tensor:
    """Logits of every position, computed in chunks through the paged cache, in scattered blocks."""
    size = 4
    kv, book = KVStore(model.spec, 64, size), TokenBook()
    prompt = Prompt(token_ids=tuple(token_ids), spans=(), position_ids=positions, position_delta=0)
    sampling = SamplingParams(max_tokens=1)
    book.add(
        Request(request_id="a", prompt=prompt, sampling=sampling, max_tokens=1, stop_token_ids=frozenset())
    )
    features = torch.cat(encode(model, patches, grids))
    places = torch.tensor(token_ids) == IMAGE_TOKEN
    embedded = model.embed(torch.tensor(token_ids))
    embedded[places] = features
    blocks = tuple(np.random.default_rng(0).permutation(64)[: -(-len(token_ids) // size)].tolist())
    rows = []
    for start in range(0, len(token_ids), chunk):
        end = min(start + chunk, len(token_ids))
        row = Row(request_id="a", start=start, length=end - start, block_ids=blocks, has_sample=True)
        inputs = build_inputs([row], book, size, model.spec.dtype, CPU)
        every = dataclasses.replace(inputs.layout, sample_rows=torch.arange(end - start))
        rows.append(model.head(model.forward(embedded[start:end], inputs.position_ids, kv.layers, every))[0])
    return torch.cat(rows)


def test_sharded_and_tied_checkpoints_load(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole", "qwen2_vl", is_tied=True)
    sharded = write_checkpoint(tmp_path / "sharded", "qwen2_vl", is_tied=True, shard="200KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    token_ids, positions = prompt_with_pictures([(1, 4, 4), (1, 2, 2)])
    arguments = (token_ids, positions, stills([(1, 4, 4), (1, 2, 2)]), [(1, 4, 4), (1, 2, 2)], 100)
    first, second = load(whole), load(sharded)
    assert torch.equal(all_logits(first, *arguments), all_logits(second, *arguments))
    assert first.weights_fingerprint == second.weights_fingerprint
    assert first.weights_fingerprint != first.encoder_fingerprint


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one", "qwen2_vl", seed=1)
    two = write_checkpoint(tmp_path / "two", "qwen2_vl", seed=2)
    assert load(one).weights_fingerprint != load(two).weights_fingerprint
    assert load(one).encoder_fingerprint != load(two).encoder_fingerprint


def test_a_name_table_is_strict(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    good = write_checkpoint(tmp_path / "model", "qwen2_vl")
    path = good / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.layers.0.mystery": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"no part of the model uses.*mystery"):
        load(good)
    save_file({key: value for key, value in tensors.items() if key != "model.norm.weight"}, path)
    with pytest.raises(CheckpointError, match=r"lacks model\.norm\.weight"):
        load(good)
    save_file({**tensors, "model.norm.weight": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(3,\)"):
        load(good)
    save_file({**tensors, "model.visual.merger.ln_q.weight": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"visual\.merger\.ln_q\.weight' is stored twice"):
        load(good)
    (good / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(CheckpointError, match="no weight_map of tensors to file names"):
        load(good)
    (good / "model.safetensors.index.json").unlink()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="damaged"):
        load(good)


def test_the_name_table_covers_the_bundled_model() -> None:
    from safetensors import safe_open

    from tapetum.assets import MODEL_DIR

    _, decoder, vision = read_config(MODEL_DIR)
    table = name_table(decoder, vision)
    with safe_open(MODEL_DIR / "model.safetensors", "pt") as file:
        assert {source for slot in table.slots for source in slot.sources} == set(file.keys())


@pytest.mark.parametrize(
    "edit,message",
    [
        ({"model_type": "mystery"}, "model_type .mystery.; supported are .*qwen2_5_vl, qwen2_vl"),
        ({"vision_config": 3}, "vision_config is 3, must be an object"),
        ({"tie_word_embeddings": "yes"}, "must be true or false"),
    ],
)
def test_a_wrong_config_is_named(tmp_path: Path, edit: dict, message: str) -> None:
    directory = write_checkpoint(tmp_path / "model", "qwen2_vl")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | edit))
    with pytest.raises(CheckpointError, match=message):
        load(directory)


def test_normalisation_comes_from_the_file_that_processors_read(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "qwen2_vl")
    assert read_config(directory)[2].image_mean == pytest.approx(MEAN)
    other = json.dumps({"image_mean": [0.5] * 3, "image_std": [0.4] * 3})
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (directory / name).write_text(other)
    assert read_config(directory)[2].image_mean == (0.5, 0.5, 0.5)
    part = {"image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    (directory / "processor_config.json").write_text(
        json.dumps({"image_processor": part, "video_processor": part})
    )
    assert read_config(directory)[2].image_std == (0.2, 0.2, 0.2)
    (directory / "processor_config.json").write_text(json.dumps({"image_processor": {"image_mean": 1}}))
    with pytest.raises(CheckpointError, match="list of finite numbers"):
        read_config(directory)


def test_config_keys_that_nobody_reads_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = write_checkpoint(tmp_path / "model", "qwen2_5_vl")
    read_config(directory)
    assert not caplog.records
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["attention_sinks"] = 4
    (directory / "config.json").write_text(json.dumps(config))
    read_config(directory)
    assert "attention_sinks" in caplog.text
