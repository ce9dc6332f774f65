"""Gemma 3 with pan and scan, a window that is shorter than a picture, and its own processor as the oracle."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoImageProcessor, AutoTokenizer, Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

from tests.families.idefics import patches_of
from tests.families.kit import (
    Family,
    Inputs,
    Messages,
    Oracle,
    conversations,
    counted,
    media,
    randomise,
    write_tokenizer,
)

TEMPLATE = (
    "<bos>{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}"
    "{{ '<start_of_image>' if part['type'] == 'image' else part['text'] | trim }}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
ROLES = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
SIDE, PATCH, TOKENS = 112, 14, 16
WINDOW = 12
CROPS = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 40,
    "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def family() -> Family:
    return Family(name="gemma3", write=write, oracle=oracle, conversations=conversations, chunks=(16, 23, 48))


def write(directory: Path, seed: int) -> Path:
    ids = write_tokenizer(directory, ["<bos>", "<start_of_turn>", "<end_of_turn>", *ROLES.values()], TEMPLATE)
    text = {
        "vocab_size": len(AutoTokenizer.from_pretrained(directory)),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "vision_use_head": False,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=TOKENS,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )
    model = Gemma3ForConditionalGeneration(config)
    randomise(model, seed)
    with torch.no_grad():
        model.get_input_embeddings().weight.div_(5)  # or the head, which it is too, repeats the last token
        for name, parameter in model.named_parameters():
            if "norm" in name and parameter.dim() == 1 and "vision_tower" not in name:
                parameter.sub_(1.0)  # what is stored is added to 1
    model.save_pretrained(directory)
    Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, **CROPS).save_pretrained(directory)
    return directory


def oracle(directory: Path, dtype: torch.dtype = torch.float32) -> Oracle:
    model = Gemma3ForConditionalGeneration.from_pretrained(directory, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory, extra_special_tokens=ROLES)
    images = AutoImageProcessor.from_pretrained(directory)
    processor = Gemma3Processor(images, tokenizer, image_seq_length=TOKENS)
    return Oracle(
        model=model,
        tokenizer=tokenizer,
        read=lambda messages: read(messages, model, processor),
        mean=images.image_mean,
        std=images.image_std,
    )


def read(messages: Messages, model: torch.nn.Module, processor: Gemma3Processor) -> Inputs:
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pictures = [part["image"] for part in media(messages)]
    encoded = dict(
        processor(images=[pictures] if pictures else None, text=[text], return_tensors="pt", **CROPS)
    )
    squares: list[torch.Tensor] = []
    if pictures:
        pixels = encoded["pixel_values"]
        crops = processor.image_processor(images=pictures, **CROPS)["num_crops"]
        squares = list(torch.split(pixels, [1 + count for count in crops]))
        encoded["pixel_values"] = pixels.to(model.dtype)
    encoded.pop("num_crops", None)
    return Inputs(
        arguments=encoded,
        position_ids=counted(encoded["input_ids"]),
        pixel_values=tuple(patches_of(pixels) for pixels in squares),
    )
