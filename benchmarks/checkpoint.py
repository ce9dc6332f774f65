"""Random bf16 checkpoints with the true Qwen2-VL architecture, for speed only.

    python benchmarks/checkpoint.py --shape mini --out DIR

Shapes: `mini` 148 M parameters (hidden 512, 12 layers, vision 384 x 12), `2b` the dimensions of Qwen2-VL-2B. Weights
are deterministic for a seed. The vocabulary has its real size (151,936 rows), so the head costs what it costs; text
goes through the bundled tokenizer, whose ids are the first 1,024 rows. Rows that it cannot print are scaled down:
greedy text never ends early and every token is visible.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tapetum.assets import MODEL_DIR

VOCABULARY = 151_936
MAX_PIXELS = 12_845_056
SHAPES: dict[str, dict[str, object]] = {
    "mini": {
        "text": {
            "hidden_size": 512,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
        },
        "mlp": 2048,
        "mrope": [8, 12, 12],
        "vision": {"depth": 12, "embed_dim": 384, "num_heads": 6},
    },
    "2b": {
        "text": {
            "hidden_size": 1536,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
        },
        "mlp": 8960,
        "mrope": [16, 24, 24],
        "vision": {"depth": 32, "embed_dim": 1280, "num_heads": 16},
    },
}


def write_checkpoint(shape: str, directory: Path, seed: int = 1) -> Path:
    """Write config, weights, tokenizer and processor files; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = make_config(shape)
    save_file(make_weights(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "vocab.json",
        "merges.txt",
    ):
        shutil.copy(MODEL_DIR / name, directory / name)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        values = json.loads((MODEL_DIR / name).read_text())
        values |= {"min_pixels": 3136, "max_pixels": MAX_PIXELS}
        values["size"] = {"shortest_edge": 3136, "longest_edge": MAX_PIXELS}
        (directory / name).write_text(json.dumps(values))
    ends = {"eos_token_id": config["eos_token_id"], "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(ends))
    return directory


def make_config(shape: str) -> dict[str, object]:
    sizes = SHAPES[shape]
    bundled = json.loads((MODEL_DIR / "config.json").read_text())
    ids = {key: bundled[key] for key in bundled if key.endswith("_token_id")}
    vision = {
        **sizes["vision"],
        "hidden_size": sizes["text"]["hidden_size"],
        "mlp_ratio": 4,
        "in_chans": 3,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "model_type": "qwen2_vl",
    }
    return {
        **ids,
        **sizes["text"],
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_act": "silu",
        "intermediate_size": sizes["mlp"],
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": sizes["mrope"]},
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "vision_config": vision,
    }


def make_weights(config: dict[str, object], seed: int) -> dict[str, Tensor]:
    from tapetum.core.files import ConfigReader
    from tapetum.models.decoder import decoder_slots, read_decoder

    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).mul_(0.02).bfloat16()

    decoder = read_decoder(ConfigReader(config, "config"), is_tied=True)
    tensors: dict[str, Tensor] = {}
    for slot in decoder_slots(decoder):
        key_rows = decoder.num_kv_heads * decoder.head_dim
        for source in slot.sources:
            rows = key_rows if "k_proj" in source or "v_proj" in source else slot.shape[0]
            rows = decoder.hidden_size if "q_proj" in source else rows
            rows = decoder.intermediate_size if "gate_proj" in source or "up_proj" in source else rows
            is_norm = "norm" in source
            tensors[source] = torch.ones(rows).bfloat16() if is_norm else draw(rows, *slot.shape[1:])
    scale_unprintable(tensors["model.embed_tokens.weight"])
    tensors |= make_vision_weights(config["vision_config"], draw)
    return tensors


def make_vision_weights(vision: dict[str, int], draw) -> dict[str, Tensor]:
    width, out = vision["embed_dim"], vision["hidden_size"]
    tensors = {"visual.patch_embed.proj.weight": draw(width, 3, 2, 14, 14)}

    def linear(name: str, width_in: int, width_out: int) -> None:
        tensors[name + ".weight"], tensors[name + ".bias"] = draw(width_out, width_in), draw(width_out)

    def norm(name: str) -> None:
        tensors[name + ".weight"], tensors[name + ".bias"] = torch.ones(width).bfloat16(), draw(width)

    for index in range(vision["depth"]):
        block = f"visual.blocks.{index}."
        norm(block + "norm1")
        norm(block + "norm2")
        linear(block + "attn.qkv", width, 3 * width)
        linear(block + "attn.proj", width, width)
        linear(block + "mlp.fc1", width, 4 * width)
        linear(block + "mlp.fc2", 4 * width, width)
    norm("visual.merger.ln_q")
    linear("visual.merger.mlp.0", 4 * width, 4 * width)
    linear("visual.merger.mlp.2", 4 * width, out)
    return tensors


def scale_unprintable(embedding: Tensor) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    scale = torch.full((len(embedding), 1), 0.25)
    for token_id in range(tokenizer.get_vocab_size(with_added_tokens=False)):
        text = tokenizer.decode([token_id])
        if text.isascii() and text.isprintable() and text.strip():
            scale[token_id] = 1.0
    embedding.mul_(scale.bfloat16())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="mini")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(write_checkpoint(arguments.shape, arguments.out, arguments.seed))


if __name__ == "__main__":
    main()
