"""Models in GGUF files: of every architecture the same numbers as in safetensors, and a trained one that answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tapetum import LLM, SamplingParams
from tapetum.core.config import ModelConfig
from tapetum.core.errors import CheckpointError
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.models.gguf.folder import checkpoint_folder
from tapetum.models.stores import open_store
from tapetum.models.table import load_model
from tapetum.ops.table import torch_table
from tests.cpu.test_decoders import all_logits, tokens
from tests.families.text import write_checkpoint
from tests.gguf_convert import convert, permuted
from tests.gguf_files import embedding, gguf, metadata, smollm_file, write_gguf

CPU = torch.device("cpu")
PROMPTS = ("The capital of France is", "Once upon a time, there was a")
# what a GGUF file can say of a model, where the small checkpoints of the families have more
CHANGES: dict[str, dict[str, object]] = {
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    },
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"attention_bias": False},
    "qwen3_moe": {"mlp_only_layers": []},
    "gemma3_text": {
        "num_hidden_layers": 7,
        "query_pre_attn_scalar": 32,
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_converted_checkpoint_is_the_same_model(tmp_path: Path, name: str) -> None:
    directory = write_checkpoint(tmp_path / "model", name, 3, **CHANGES[name])
    folder = checkpoint_folder(convert(directory, tmp_path / "model.gguf"), tmp_path / "cache")
    ops = torch_table(CPU, torch.float32)
    whole, read = (load_model(path, torch.float32, CPU, ops) for path in (directory, folder))
    error = (all_logits(whole, tokens(60)) - all_logits(read, tokens(60))).abs().max()
    # what is stored is exact but for Gemma's norms, to which the converter adds one
    assert error <= (1e-4 if name == "gemma3_text" else 1e-6)


def test_tensors_are_read_where_they_lie_and_in_the_type_they_have(tmp_path: Path) -> None:
    values = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    kinds = {
        "F32": values.numpy(),
        "F16": values.half().numpy(),
        "BF16": values.bfloat16().view(torch.int16).numpy(),
    }
    for kind, stored in kinds.items():
        data = stored if kind != "BF16" else stored.view(np.uint8)
        path = write_gguf(tmp_path / f"{kind}.gguf", metadata(), {"token_embd.weight": (data, kind)})
        store = open_store(checkpoint_folder(path, tmp_path / "cache"))
        read = store.read("model.embed_tokens.weight")
        assert read.dtype == {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        assert torch.equal(read.float(), values.to(read.dtype).float())
        assert store.head("model.embed_tokens.weight", 8) == stored.tobytes()[:8]


def test_one_file_stands_for_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = tmp_path / "files"
    files.mkdir()
    one = write_gguf(files / "one.gguf", metadata(), embedding())
    write_gguf(files / "mmproj-one.gguf", metadata(), embedding())
    folder = find_model(ModelConfig(model=str(one)))
    assert find_model(ModelConfig(model=str(files))) == folder
    assert find_model(ModelConfig(model=str(folder))) == folder
    write_gguf(files / "other.gguf", metadata(), embedding())
    with pytest.raises(
        CheckpointError.__base__, match=r"several GGUF files; name one of one\.gguf, other\.gguf"
    ):
        find_model(ModelConfig(model=str(files)))


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_folder(smollm_file(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def trained(smollm: Path) -> Iterator[LLM]:
    with LLM(smollm, dtype="float32", threads=1, pack_cache="", max_model_len=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle() -> LlamaForCausalLM:
    """In transformers, with weights that the `gguf` package has unpacked."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, eos_token_id=None, bos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm_file()).tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = stored[names.get_name(name, try_suffixes=(".weight",))]
            values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
            if name.split(".")[-2] in ("q_proj", "k_proj"):
                heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
                values = unpermuted(values, heads)
            parameter.copy_(values)
    return model


def unpermuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows in the order which `permuted` takes to theirs."""
    order = permuted(torch.arange(len(tensor)), heads)
    return tensor[torch.argsort(order)]


def test_a_trained_model_answers(trained: LLM) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    answers = [output.outputs[0].text for output in trained.generate(list(PROMPTS), sampling)]
    assert "Paris" in answers[0]
    assert "town" in answers[1]
    (answer,) = trained.chat([{"role": "user", "content": "Who wrote Romeo and Juliet?"}], sampling)
    assert "Shakespeare" in answer.outputs[0].text


def test_a_trained_model_says_what_transformers_says_token_for_token(
    trained: LLM, smollm: Path, oracle: LlamaForCausalLM
) -> None:
    tokenizer = ModelFiles.load(smollm).tokenizer
    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    for prompt, output in zip(PROMPTS, trained.generate(list(PROMPTS), sampling), strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.no_grad():
            theirs = oracle.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=16,
                min_new_tokens=16,
                do_sample=False,
            )
        assert list(output.outputs[0].token_ids) == theirs[0, ids.shape[1] :].tolist()


def test_logits_of_a_trained_model_equal_transformers(smollm: Path, oracle: LlamaForCausalLM) -> None:
    ids = ModelFiles.load(smollm).tokenizer.encode("".join(f"{prompt} " for prompt in PROMPTS))
    model = load_model(smollm, torch.float32, CPU, torch_table(CPU, torch.float32))
    with torch.no_grad():
        theirs = oracle(torch.tensor([ids])).logits[0]
    ours = all_logits(model, ids, len(ids))
    assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_text_and_chats_of_a_trained_model_are_told_apart(smollm: Path, trained: LLM) -> None:
    tokenizer = ModelFiles.load(smollm).tokenizer
    for text in ("Hello, world! 12345", "  déjà vu\n\n日本 🙂", "<|im_start|>"):
        assert tokenizer.decode(tokenizer.encode_plain(text)) == text
    assert tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n")[0] == tokenizer.special_tokens["<|im_start|>"]
    assert tokenizer.special_tokens["<|im_start|>"] not in tokenizer.encode_plain("<|im_start|>")
    (output,) = trained.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=1))
    assert tokenizer.decode(output.prompt_token_ids, skip_special=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
