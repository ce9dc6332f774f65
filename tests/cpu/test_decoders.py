"""Decoders against transformers with the same random checkpoint, and one way of computing them against another."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tapetum import LLM
from tapetum.core.errors import CheckpointError, InvalidParameter
from tapetum.core.files import ConfigReader
from tapetum.core.plan import Row
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.engine.options import config_from
from tapetum.engine.service import AsyncEngine
from tapetum.models.base import VisionLanguageModel
from tapetum.models.composed import Blueprint, compose
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.decoder import DecoderConfig, decoder_slots, read_decoder
from tapetum.models.decoder_rope import Rope, Sections, read_rope
from tapetum.models.table import load_model
from tapetum.models.weights import NameTable
from tapetum.ops.parts import DeepFeatures
from tapetum.ops.table import OpTable, native_table, reference_table, torch_table
from tapetum.runtime.inputs import TokenBook, build_inputs
from tapetum.runtime.store import KVStore
from tests.cpu.test_batch_invariance import PROMPT, Run, Share, decode, prefill
from tests.families.text import OWN, write_checkpoint

CPU = torch.device("cpu")
LENGTH = 150  # several windows, and several times what positions were stretched from
needs_native = pytest.mark.skipif(
    native_table(torch.float32) is None, reason="the native library is not built: make native"
)


@pytest.fixture(scope="module", params=OWN)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param, 5)


def native(dtype: torch.dtype, *, is_whole: bool = True) -> OpTable:
    ops = native_table(dtype)
    assert ops is not None and ops.decoder is not None
    return ops if is_whole else dataclasses.replace(ops, decoder=None)


def load(directory: Path, ops: OpTable, dtype: torch.dtype = torch.float32) -> VisionLanguageModel:
    return load_model(directory, dtype, CPU, ops)


def tokens(length: int = LENGTH) -> list[int]:
    return torch.randint(0, 1000, (length,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.inference_mode()
def all_logits(
    model: VisionLanguageModel, token_ids: Sequence[int], chunk: int = LENGTH, deep: Tensor | None = None
) -> Tensor:
    """Of every position, through blocks that lie scattered; `deep` [T, levels x hidden] is added to all tokens."""
    kv, book, size = KVStore(model.spec, 64, 16), TokenBook(), 16
    positions = np.tile(np.arange(len(token_ids)), (3, 1))
    prompt = Prompt(token_ids=tuple(token_ids), spans=(), position_ids=positions, position_delta=0)
    sampling = SamplingParams(max_tokens=1)
    book.add(
        Request(request_id="a", prompt=prompt, sampling=sampling, max_tokens=1, stop_token_ids=frozenset())
    )
    blocks = tuple(np.random.default_rng(0).permutation(64)[: -(-len(token_ids) // size)].tolist())
    rows = []
    for start in range(0, len(token_ids), chunk):
        end = min(start + chunk, len(token_ids))
        row = Row(
            request_id="a",
            start=start,
            length=end - start,
            block_ids=blocks[: -(-end // size)],
            has_sample=True,
        )
        inputs = build_inputs([row], book, size, model.spec.dtype, CPU)
        every = dataclasses.replace(inputs.layout, sample_rows=torch.arange(end - start))
        added = () if deep is None else two_runs(deep[start:end])
        x = model.embed(torch.tensor(token_ids[start:end]))
        rows.append(model.head(model.forward(x, inputs.position_ids, kv.layers, every, added))[0])
    return torch.cat(rows)


def two_runs(values: Tensor) -> list[DeepFeatures]:
    half = len(values) // 2
    return [DeepFeatures(0, half, values[:half]), DeepFeatures(half, len(values), values[half:])]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def test_logits_of_every_position_equal_transformers(directory: Path) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = oracle(torch.tensor([tokens()])).logits[0]
    for ops in (torch_table(CPU, torch.float32), reference_table(), native_table(torch.float32)):
        if ops is not None:
            assert relative_error(all_logits(load(directory, ops), tokens(), 40), theirs) < 1e-4, ops.name


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_call_and_any_chunks_give_the_bits_of_the_operations(directory: Path, dtype: torch.dtype) -> None:
    whole = all_logits(load(directory, native(dtype), dtype), tokens())
    single = load(directory, native(dtype, is_whole=False), dtype)
    for chunk in (LENGTH, 31, 1):
        assert torch.equal(all_logits(single, tokens(), chunk), whole), chunk


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_every_company(directory: Path, dtype: torch.dtype) -> None:
    model = load(directory, native(dtype), dtype)
    alone, beside = Run(model), Run(model)
    for run in (alone, beside):
        run.add("a")
    for step in prefill("a") + decode("a"):
        alone.step(step)
    others = [f"b{index}" for index in range(3)]
    for index, name in enumerate(others):
        beside.add(name, seed=index + 1, total=120)
    for number, step in enumerate(prefill("a", 23) + decode("a")):
        shares: list[Share] = [(name, 5 * number, 5) for name in others]
        beside.step([*shares[:2], *step, *shares[2:]])
    for key, logits in alone.logits.items():
        assert torch.equal(beside.logits[key], logits), key
    assert ("a", PROMPT) in alone.logits
    assert torch.equal(alone.pages("a"), beside.pages("a"))


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_deep_features_are_added_behind_the_first_layers(tmp_path: Path, name: str, levels: int) -> None:
    directory = write_checkpoint(tmp_path, name, 6)
    oracle = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    width = oracle.config.hidden_size
    deep = torch.randn(LENGTH, levels * width, generator=torch.Generator().manual_seed(2))
    for level in range(levels):
        values = deep[:, level * width : (level + 1) * width]
        oracle.model.layers[level].register_forward_hook(lambda _, __, out, values=values: out + values)
    with torch.no_grad():
        theirs = oracle(torch.tensor([tokens()])).logits[0]
    plain = load(directory, torch_table(CPU, torch.float32))
    assert relative_error(all_logits(plain, tokens(), 40, deep), theirs) < 1e-4
    if native_table(torch.float32) is not None:
        whole = all_logits(load(directory, native(torch.float32)), tokens(), 40, deep)
        single = all_logits(load(directory, native(torch.float32, is_whole=False)), tokens(), LENGTH, deep)
        assert torch.equal(whole, single)
        assert relative_error(whole, theirs) < 1e-4


@pytest.mark.parametrize("is_published", [True, False])
def test_experts_of_one_tensor_are_those_of_many(tmp_path: Path, is_published: bool) -> None:
    many = write_checkpoint(tmp_path / "many", "qwen3_moe", 7, mlp_only_layers=[])
    config = json.loads((many / "config.json").read_text())
    wanted = all_logits(load(many, torch_table(CPU, torch.float32)), tokens(40))
    tensors = load_file(many / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.mlp.experts."
        experts = [
            [tensors.pop(f"{name}{expert}.{part}_proj.weight") for part in ("gate", "up", "down")]
            for expert in range(config["num_local_experts"])
        ]
        joined = torch.stack([torch.cat(parts[:2]) for parts in experts])
        down = torch.stack([parts[2] for parts in experts])
        for part, tensor in (("gate_up_proj", joined), ("down_proj", down)):
            tensors[name + part] = tensor.transpose(1, 2).contiguous() if is_published else tensor
    save_file(tensors, many / "model.safetensors")
    config["model_type"] = "qwen3_vl_moe_text"
    config["rope_parameters"] |= {"mrope_section": [4, 2, 2]}  # positions of text are the same on all axes
    decoder = read_decoder(ConfigReader(config, "config.json"), is_tied=False)
    assert decoder.experts is not None and decoder.experts.is_fused
    assert relative_error(fused_logits(many, decoder), wanted) < 1e-5


def fused_logits(directory: Path, decoder: DecoderConfig) -> Tensor:
    table = NameTable(decoder_slots(decoder))
    blueprint = Blueprint(model_type="qwen3_vl_moe_text", decoder=decoder, table=table)
    model = compose(directory, blueprint, torch.float32, CPU, torch_table(CPU, torch.float32))
    return all_logits(model, tokens(40))


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 1_000_000.0},
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0},
        {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
        {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 1_000_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
        {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.9},
        {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 2.0,
            "attention_factor": 1.3,
            "truncate": False,
        },
    ],
)
def test_frequencies_are_the_bits_of_transformers(parameters: dict[str, object]) -> None:
    config = AutoConfig.for_model(
        "llama",
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters=parameters,
    )
    rope = read_rope(ConfigReader(parameters, "rope_parameters"), 1.0, 128, 4096)
    if parameters["rope_type"] == "default":
        wanted, scale = 1.0 / 1_000_000.0 ** (torch.arange(0, 128, 2).float() / 128), 1.0
    else:
        wanted, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    assert torch.equal(torch.tensor(rope.frequencies), wanted)
    assert rope.scale == pytest.approx(scale, rel=1e-12)
    assert set(rope.axes) == {0}


@needs_native
def test_heads_too_wide_for_native_attention_take_that_of_torch(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "llama", 9, head_dim=320, num_key_value_heads=1)
    wanted = all_logits(load(directory, reference_table()), tokens())
    assert relative_error(all_logits(load(directory, native(torch.float32)), tokens(), 31), wanted) < 1e-5


def test_interleaved_sections_are_those_of_transformers() -> None:
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    config = AutoConfig.for_model("qwen3_vl_text", rope_parameters={"mrope_section": [24, 20, 20]})
    axes = torch.arange(3.0)[:, None, None, None].expand(3, 1, 1, 64).clone()
    mixed = Qwen3VLTextRotaryEmbedding(config).recomposition_frequencies(axes)
    rope = read_rope(ConfigReader({}, "rope"), 1e6, 128, 4096, Sections((24, 20, 20), is_interleaved=True))
    assert rope.axes == tuple(mixed.flatten()[:64].int().tolist())


@pytest.mark.parametrize(
    "name", [*OWN, "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"]
)
def test_what_a_config_does_not_say_is_what_transformers_takes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # heads of 128 values, that sections fit
    width = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4}
    full = {**AutoConfig.for_model(name, **width).to_dict(), "model_type": name}
    reader = ConfigReader(full, "config.json")
    wanted = read_decoder(reader, is_tied=False)
    reader.finish((*IGNORED_KEYS, "tie_word_embeddings"))
    assert not caplog.records
    silent = read_decoder(ConfigReader({"model_type": name, **width}, "config.json"), is_tied=False)
    assert silent == wanted


def test_gemma_of_old_and_new_keys() -> None:
    base = {"model_type": "gemma3_text", "num_hidden_layers": 8, "sliding_window": 512}
    old = {**base, "sliding_window_pattern": 3, "rope_theta": 5e5, "rope_local_base_freq": 2e4}
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    new = {
        **base,
        "layer_types": ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(8)],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    }
    configs = [read_decoder(ConfigReader(values, "config.json"), is_tied=True) for values in (old, new)]
    assert configs[0] == configs[1]
    assert configs[0].windows == (512, 512, 0, 512, 512, 0, 512, 512)
    assert configs[0].layer_ropes == (1, 1, 0, 1, 1, 0, 1, 1)
    assert all(isinstance(rope, Rope) for rope in configs[0].ropes)


def test_a_window_that_is_null_is_none() -> None:
    for values, window in (({}, 4096), ({"sliding_window": None}, 0), ({"sliding_window": 64}, 64)):
        config = read_decoder(ConfigReader({"model_type": "mistral", **values}, "config.json"), is_tied=False)
        assert set(config.windows) == {window}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("mamba", {}, "model_type of the decoder is 'mamba', supported are gemma3_text, "),
        ("llama", {"rope_scaling": {"type": "longrope"}}, "rope_type is 'longrope', supported are default, "),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling has no 'factor'"),
        ("llama", {"head_dim": 33}, "head_dim is 33, must be even"),
        (
            "llama",
            {"num_key_value_heads": 5},
            "num_attention_heads is 32, must be a multiple of num_key_value",
        ),
        ("qwen3_moe", {"num_experts": 4}, "num_experts_per_tok is 8, must be at most num_experts, 4"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True, only False is supported"),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu', supported are silu, gelu_pytorch_tanh"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is set"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma3_text", {"layer_types": ["chunked_attention"] * 26}, "layer_types names chunked_attention"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        ("qwen2_vl_text", {"rope_scaling": {"mrope_section": [1, 2]}}, "three numbers that add to 64"),
    ],
)
def test_what_is_not_supported_is_named(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_decoder(ConfigReader({"model_type": name, **values}, "config.json"), is_tied=False)


def test_a_model_of_text_takes_no_picture(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "llama", 8)
    part = {"type": "image", "image": Image.new("RGB", (50, 50))}
    with (
        LLM(str(directory), dtype="float32", device="cpu", kv_cache_bytes=1 << 24) as llm,
        pytest.raises(InvalidParameter, match="1 picture, this model takes no pictures; leave them out"),
    ):
        llm.chat([{"role": "user", "content": [part]}], SamplingParams(max_tokens=1), use_tqdm=False)


async def test_a_model_of_text_answers_the_golden_request(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "llama", 8)
    config = config_from(str(directory), {"dtype": "float32", "device": "cpu", "kv_cache_bytes": 1 << 24})
    async with AsyncEngine(config) as service:
        await service.prove()
        assert service.is_ready
