"""InternVL: in the layout of transformers, and its original one, where the same checkpoint is written anew.

transformers knows only its own layout, so the oracle of the original one is the checkpoint it was made of, which lies
beside it: a Llama decoder there is an InternLM2 here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    InternVLConfig,
    InternVLForConditionalGeneration,
)

from tests.families.kit import (
    Family,
    Inputs,
    Messages,
    Oracle,
    Part,
    conversations,
    counted,
    expanded,
    media,
    randomise,
    write_tokenizer,
)

TILE, PATCH, TILE_TOKENS = 56, 14, 4
PLACEHOLDER, VIDEO = "<IMG_CONTEXT>", "<video>"
MARKS = ("<img>", "</img>", PLACEHOLDER)
BEGIN = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
END = (
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATE = (
    BEGIN + "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif content['type'] == 'video' %}{{ '<video>\n' }}{% elif content['type'] == 'text' %}"
    "{{ content['text'] }}{% endif %}{% endfor %}{% endif %}" + END
)
TEXT_TEMPLATE = BEGIN + "{{ message['content'] }}" + END
PIXELS = {
    "crop_to_patches": False,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "GotOcr2ImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "max_patches": 12,
    "min_patches": 1,
    "processor_class": "InternVLProcessor",
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"height": TILE, "width": TILE},
}
SMALL_TOWER = {"attention_bias": True}
LARGE_TOWER = {
    "attention_bias": False,
    "norm_type": "rms_norm",
    "use_qk_norm": True,
}  # as InternViT 6B has it
REFERENCE = "reference"  # the folder of the checkpoint that transformers reads


def family(name: str) -> Family:
    is_original = name == "internvl_chat"
    return Family(
        name=name,
        write=partial(write_original, text_type="llama", tower=LARGE_TOWER) if is_original else write,
        oracle=lambda directory, dtype: oracle(directory / REFERENCE if is_original else directory, dtype),
        conversations=partial(conversations, has_clips=True),
    )


def write(
    directory: Path, seed: int, *, text_type: str = "qwen2", tower: Mapping[str, object] = SMALL_TOWER
) -> Path:
    """A checkpoint in the layout of transformers."""
    directory.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(directory, (*MARKS, VIDEO), TEMPLATE)
    text = {
        "model_type": text_type,
        "vocab_size": ids[VIDEO] + 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "image_size": [TILE, TILE],
        "patch_size": [PATCH, PATCH],
        **tower,
    }
    config = InternVLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids[PLACEHOLDER],
        image_seq_length=TILE_TOKENS,
        tie_word_embeddings=False,
    )
    model = InternVLForConditionalGeneration(config).eval()
    randomise(model, seed)
    model.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return directory


def write_original(
    directory: Path, seed: int, *, text_type: str, tower: Mapping[str, object] = SMALL_TOWER
) -> Path:
    """A checkpoint in the original layout, made of one in that of transformers, which stays in a folder of it."""
    reference = write(directory / REFERENCE, seed, text_type=text_type, tower=tower)
    write_tokenizer(directory, MARKS, TEXT_TEMPLATE)
    config = json.loads((reference / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    tensors = load_file(reference / "model.safetensors")
    save_file(original_tensors(tensors, text), directory / "model.safetensors")
    if text_type == "llama":
        text |= {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False}
        for key in ("attention_bias", "mlp_bias"):
            del text[key]
    keys = {"attention_bias": "qkv_bias", "use_qk_norm": "qk_normalization"}
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "norm_type")
    vision = {keys.get(key, key): vision[key] for key in (*kept, *keys)}
    vision |= {"model_type": "intern_vit_6b", "image_size": TILE, "patch_size": PATCH, "use_flash_attn": True}
    config = {
        "model_type": "internvl_chat",
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": TILE,
        "llm_config": text,
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internlm2-chat",
        "use_thumbnail": True,
        "vision_config": vision,
    }
    (directory / "config.json").write_text(json.dumps(config))
    pixels = {
        "image_mean": PIXELS["image_mean"],
        "image_std": PIXELS["image_std"],
        "size": TILE,
        "resample": 3,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(pixels))
    return directory


ORIGINAL_NAMES = {
    "vision_tower.": "vision_model.",
    "embeddings.cls_token": "embeddings.class_embedding",
    "embeddings.position_embeddings": "embeddings.position_embedding",
    "embeddings.patch_embeddings.projection": "embeddings.patch_embedding",
    "encoder.layer.": "encoder.layers.",
    "attention.q_proj": "attn.qkv",
    "attention.projection_layer": "attn.proj",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_1": "ls1",
    "lambda_2": "ls2",
    "multi_modal_projector.layer_norm": "mlp1.0",
    "multi_modal_projector.linear_1": "mlp1.1",
    "multi_modal_projector.linear_2": "mlp1.3",
}
INTERNLM2_NAMES = {
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wqkv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def original_tensors(
    tensors: Mapping[str, torch.Tensor], text: Mapping[str, object]
) -> dict[str, torch.Tensor]:
    is_internlm2 = text["model_type"] == "llama"
    done = {}
    for name, tensor in tensors.items():
        is_text = name.startswith("language_model.")
        if ".q_proj." in name and (is_internlm2 or not is_text):
            q, k, v = (tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj"))
            tensor = grouped(q, k, v, text) if is_text else torch.cat((q, k, v))
        elif is_text and not is_internlm2:
            done[name] = tensor
            continue
        elif ".k_proj." in name or ".v_proj." in name:
            continue
        for theirs, original in (INTERNLM2_NAMES if is_text else ORIGINAL_NAMES).items():
            name = name.replace(theirs, original)
        done[name] = tensor.contiguous()
    return done


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, text: Mapping[str, object]) -> torch.Tensor:
    """Key head by key head: its queries, the key, the value."""
    heads, width = text["num_key_value_heads"], text["head_dim"]
    parts = [part.view(heads, -1, width, part.shape[1]) for part in (q, k, v)]
    return torch.cat(parts, 1).flatten(0, 2)


def oracle(directory: Path, dtype: torch.dtype) -> Oracle:
    model = InternVLForConditionalGeneration.from_pretrained(directory, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    images = AutoImageProcessor.from_pretrained(directory)
    return Oracle(
        model=model,
        tokenizer=tokenizer,
        read=lambda messages: read(messages, model, tokenizer, images),
        mean=images.image_mean,
        std=images.image_std,
    )


def read(messages: Messages, model: torch.nn.Module, tokenizer, images) -> Inputs:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    items = [tiles_of(part, images) for part in media(messages)]
    text = expanded(
        text, (insert(part, len(tiles)) for part, tiles in zip(media(messages), items, strict=True))
    )
    encoded = tokenizer(text, return_tensors="pt")
    arguments = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
    if items:
        arguments["pixel_values"] = torch.cat(items).to(model.dtype)
    return Inputs(
        arguments=arguments,
        position_ids=counted(encoded["input_ids"]),
        pixel_values=tuple(map(patches_of, items)),
    )


def tiles_of(part: Part, images) -> torch.Tensor:
    """[tiles, 3, TILE, TILE]: pictures are cut, as the joint processor of transformers has them, frames are not."""
    if part["type"] == "image":
        return images(images=[part["image"]], crop_to_patches=True, return_tensors="pt")["pixel_values"]
    return images(images=part["video"], crop_to_patches=False, return_tensors="pt")["pixel_values"]


def patches_of(tiles: torch.Tensor) -> np.ndarray:
    side = TILE // PATCH
    patches = tiles.view(len(tiles), 3, side, PATCH, side, PATCH).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(len(tiles) * side * side, -1).numpy()


def insert(part: Part, num_tiles: int) -> tuple[str, str]:
    """The slot of an item, and what `InternVLProcessor` writes there."""
    if part["type"] == "image":
        return PLACEHOLDER, f"<img>{PLACEHOLDER * TILE_TOKENS * num_tiles}</img>"
    frame = f"<img>{PLACEHOLDER * TILE_TOKENS}</img>"
    return VIDEO, "\n".join(f"Frame{number}: {frame}" for number in range(1, num_tiles + 1))
