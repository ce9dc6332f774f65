"""Write weights and tokenizer as a Hugging Face directory that any Qwen2-VL engine reads.

    python -m training.export run/last.pt tapetum-mini

takes the averaged weights of a checkpoint of the trainer. The heads that only training needs are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tapetum.assets import MODEL_DIR
from training.network import NetworkConfig
from training.patches import MAX_PIXELS, MAX_PIXELS_OF_FRAME, MEAN, MIN_PIXELS, STD
from training.tokenizer import SPECIAL_TOKENS, Tokenizer

MAX_LENGTH = 2048  # tokens
MAX_NEW_TOKENS = 96
Json = dict[str, object]

# Pictures and clips of a message come before its text, wherever the request has them: so the model was trained.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% endif %}{% endfor %}"
    "{% for content in message['content'] %}"
    "{% if 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def export(state: Mapping[str, Tensor], tokenizer_path: Path, folder: Path, config: NetworkConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous().clone()
        for name, tensor in state.items()
        if not name.startswith("heads.")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer(tokenizer_path)
    ids = tokenizer.special
    _write(folder / "config.json", _model_config(config, ids))
    _write(folder / "generation_config.json", _generation_config(ids))
    image, video = _processor("image", MAX_PIXELS), _processor("video", MAX_PIXELS_OF_FRAME)
    _write(folder / "preprocessor_config.json", image)
    _write(folder / "video_preprocessor_config.json", video | {"do_sample_frames": False})
    _write_tokenizer(folder, tokenizer)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _model_config(config: NetworkConfig, ids: dict[str, int]) -> Json:
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": MAX_LENGTH,
        "max_window_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "sliding_window": MAX_LENGTH,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": _vision_config(config),
        "rope_scaling": {"type": "mrope", "mrope_section": list(config.mrope_section)},
        "vocab_size": config.vocab_size,
    }


def _vision_config(config: NetworkConfig) -> Json:
    return {
        "depth": config.vision_depth,
        "embed_dim": config.vision_size,
        "mlp_ratio": config.vision_ratio,
        "num_heads": config.vision_heads,
        "in_chans": 3,
        "in_channels": 3,
        "hidden_size": config.hidden_size,
        "hidden_act": "quick_gelu",
        "patch_size": config.patch_size,
        "spatial_merge_size": config.merge_size,
        "spatial_patch_size": config.patch_size,
        "temporal_patch_size": config.temporal_patch_size,
        "model_type": "qwen2_vl",
    }


def _generation_config(ids: dict[str, int]) -> Json:
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "max_new_tokens": MAX_NEW_TOKENS,
    }


def _processor(kind: str, max_pixels: int) -> Json:
    return {
        "min_pixels": MIN_PIXELS,
        "max_pixels": max_pixels,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": max_pixels},
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "rescale_factor": 1 / 255,
        "resample": 3,  # bicubic
        "image_mean": [round(float(value), 8) for value in MEAN],
        "image_std": [round(float(value), 8) for value in STD],
        f"{kind}_processor_type": f"Qwen2VL{kind.capitalize()}Processor",
        "processor_class": "Qwen2VLProcessor",
    }


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    (folder / "tokenizer.json").write_text(tokenizer.fast.to_str(pretty=False), encoding="utf-8")
    model = json.loads(tokenizer.fast.to_str())["model"]
    _write(folder / "vocab.json", model["vocab"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    lines = "\n".join(["#version: 0.2", *merges])
    (folder / "merges.txt").write_text(lines + "\n", encoding="utf-8")
    _write(folder / "tokenizer_config.json", _tokenizer_config(tokenizer.special))
    _write(folder / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _tokenizer_config(ids: dict[str, int]) -> Json:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": "Qwen2VLProcessor",
        "model_max_length": MAX_LENGTH,
        "add_prefix_space": False,
        "bos_token": None,
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": SPECIAL_TOKENS[1:],
        "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {str(id_): {"content": token} | flags for token, id_ in ids.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write a checkpoint of the trainer as a Hugging Face directory."
    )
    parser.add_argument("checkpoint", type=Path, help="last.pt of a run")
    parser.add_argument("folder", type=Path, help="directory to write")
    parser.add_argument("--tokenizer", type=Path, default=MODEL_DIR / "tokenizer.json", help="the run's own")
    options = parser.parse_args()
    state = torch.load(options.checkpoint, weights_only=True)["averages"]
    export(state, options.tokenizer, options.folder, NetworkConfig())


if __name__ == "__main__":
    main()
