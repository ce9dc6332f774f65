"""Idefics3 and SmolVLM.

The processor of Idefics3 works with the Pillow picture processor and is the oracle of pictures for both. That of
SmolVLM wants torchvision for clips; its own method writes the words of a clip, and its frames are pictures that are not
split.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.families.kit import (
    Family,
    Inputs,
    Messages,
    Oracle,
    conversations,
    counted,
    expanded,
    media,
    randomise,
    write_tokenizer,
)

TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'] is string %}{{ ': ' + message['content'] }}{% else %}"
    "{{ ':' if message['content'][0]['type'] == 'image' else ': ' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}{{ '<' + part['type'] + '>' }}{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
TOKENS = ["<fake_token_around_image>", "<image>", "<end_of_utterance>"]
# SmolVLM names tiles by tokens, but has them for so many rows and columns only; Idefics3 by plain words.
NAMES = ["<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))]
NUMBERS = {2: "two", 3: "three", 4: "four"}
SIZES = ((224, 224), (300, 120), (90, 300), (28, 28), (1, 1), (640, 480), (1400, 10), (12, 1200), (113, 112))
PATCH, MERGED = 14, 2
TEXT = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def family(name: str) -> Family:
    return Family(
        name=name,
        write=write_smolvlm if name == "smolvlm" else write_idefics3,
        oracle=oracle,
        conversations=partial(conversations, sizes=SIZES, has_clips=name == "smolvlm"),
    )


def write_idefics3(directory: Path, seed: int) -> Path:
    """Positions of a larger picture than a tile, and a head of its own."""
    ids = write_tokenizer(directory, TOKENS, TEMPLATE)
    config = Idefics3Config(
        text_config=TEXT | {"vocab_size": len(AutoTokenizer.from_pretrained(directory))},
        vision_config=VISION | {"image_size": 7 * PATCH, "patch_size": PATCH},
        image_token_id=ids["<image>"],
        scale_factor=MERGED,
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 220}, max_image_size={"longest_edge": 4 * PATCH})
    images.save_pretrained(directory)
    return _write(directory, Idefics3ForConditionalGeneration(config), seed)


def write_smolvlm(directory: Path, seed: int) -> Path:
    """Tiles with some pixels beyond the last patch, and a head that is the embedding."""
    ids = write_tokenizer(directory, TOKENS + NAMES, TEMPLATE)
    config = SmolVLMConfig(
        text_config=TEXT | {"vocab_size": len(AutoTokenizer.from_pretrained(directory))},
        vision_config=VISION | {"image_size": 4 * PATCH + 5, "patch_size": PATCH},
        image_token_id=ids["<image>"],
        scale_factor=MERGED,
        tie_word_embeddings=True,
    )
    tile = 4 * PATCH + 5
    images = SmolVLMImageProcessorPil(size={"longest_edge": 3 * tile}, max_image_size={"longest_edge": tile})
    images.save_pretrained(directory)
    path = directory / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    settings["video_sampling"] = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": tile}}
    path.write_text(json.dumps(settings))
    return _write(directory, SmolVLMForConditionalGeneration(config), seed)


def _write(directory: Path, model: torch.nn.Module, seed: int) -> Path:
    randomise(model, seed)
    model.save_pretrained(directory)
    return directory


def oracle(directory: Path, dtype: torch.dtype = torch.float32) -> Oracle:
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype).eval()
    tokenizer, images = (
        AutoTokenizer.from_pretrained(directory),
        AutoImageProcessor.from_pretrained(directory),
    )
    tile = images.max_image_size["longest_edge"] // PATCH // MERGED
    processor = Idefics3Processor(images, tokenizer, image_seq_len=tile**2)
    return Oracle(
        model=model,
        tokenizer=tokenizer,
        read=lambda messages: read(messages, model, processor),
        mean=images.image_mean,
        std=images.image_std,
    )


def read(messages: Messages, model: torch.nn.Module, processor: Idefics3Processor) -> Inputs:
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = media(messages)
    pixels = [_tiles(part, processor.image_processor) for part in parts]
    written = [
        _expanded(part, processor) if part["type"] == "image" else _clip_words(len(tiles), processor)
        for part, tiles in zip(parts, pixels, strict=True)
    ]
    slots = [f"<{part['type']}>" for part in parts]
    text = expanded(text, zip(slots, written, strict=True))
    arguments = dict(processor.tokenizer(text, return_tensors="pt"))
    if pixels:
        arguments["pixel_values"] = torch.cat(pixels)[None].to(model.dtype)
    return Inputs(
        arguments=arguments,
        position_ids=counted(arguments["input_ids"]),
        pixel_values=tuple(patches_of(tiles) for tiles in pixels),
    )


def _tiles(part: dict[str, object], images) -> torch.Tensor:
    """[tiles, 3, side, side]; the frames of a clip are not split."""
    if part["type"] == "image":
        return images(images=[part["image"]], return_tensors="pt")["pixel_values"][0]
    frames = part["video"]
    assert isinstance(frames, list)
    return images(images=frames, do_image_splitting=False, return_tensors="pt")["pixel_values"][0]


def _expanded(part: dict[str, object], processor: Idefics3Processor) -> str:
    picture = part["image"]
    assert isinstance(picture, Image.Image)
    output = processor.image_processor(images=[picture], return_row_col_info=True)
    return processor.replace_image_token({"rows": output["rows"], "cols": output["cols"]}, 0)


def _clip_words(frames: int, processor: Idefics3Processor) -> str:
    """Of frames at the rate of the checkpoint, one a second."""
    this = SimpleNamespace(
        image_seq_len=processor.image_seq_len,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
    )
    clip = SimpleNamespace(fps=1, duration=frames, timestamps=range(frames))
    inputs = {"pixel_values": np.empty((1, frames)), "video_metadata": [clip]}
    with mock.patch.object(processing_smolvlm, "num2words", NUMBERS.get):
        return processing_smolvlm.SmolVLMProcessor.replace_video_token(this, inputs, 0)


def patches_of(tiles: torch.Tensor) -> np.ndarray:
    """[tiles, 3, side, side] -> [patches, values], tile by tile and row by row."""
    count = tiles.shape[-1] // PATCH
    whole = tiles[..., : count * PATCH, : count * PATCH]
    grid = whole.unflatten(3, (count, PATCH)).unflatten(2, (count, PATCH))  # [tiles, 3, y, p, x, p]
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2).numpy()
