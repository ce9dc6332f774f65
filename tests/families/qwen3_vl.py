"""Qwen3-VL, dense and with experts."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize
from transformers.video_utils import VideoMetadata

from tapetum.assets import MODEL_DIR
from tests.families.kit import (
    Family,
    Inputs,
    Messages,
    Oracle,
    clip_part,
    conversations,
    media,
    randomise,
    user,
    words,
)
from tests.families.qwen_vl import Item, inputs, item_of

PIXELS = {"image": (4096, 65_536), "video": (4096, 131_072)}  # a picture; all frames of a clip
RATE = 2.0  # frames a second of a clip that comes as a list
CLASSES = {
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration),
}
COPIED = (
    "tokenizer.json tokenizer_config.json chat_template.jinja vocab.json merges.txt generation_config.json"
)


def family(name: str) -> Family:
    return Family(
        name=name,
        write=partial(write, name),
        oracle=partial(oracle, name),
        conversations=lambda: [*conversations(has_clips=True), *more_clips()],
    )


def more_clips() -> list[Messages]:
    """Many frames, so that their share of the pixels is small; one frame wider than long; several clips in turns."""
    return [
        [user(clip_part(80, 11, 96, 64), words(80))],
        [user(clip_part(81, 2, 700, 20), words(81))],
        [
            user(clip_part(82, 5, 64, 64), words(82)),
            {"role": "assistant", "content": "A river"},
            user(clip_part(83, 2, 20, 20), words(83)),
        ],
    ]


def write(name: str, directory: Path, seed: int) -> Path:
    config_class, model_class = CLASSES[name]
    own = json.loads((MODEL_DIR / "config.json").read_text())
    has_experts = name == "qwen3_vl_moe"
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    config = config_class(
        text_config=text_config(name, own["vocab_size"]),
        vision_config={
            "depth": 3,
            "hidden_size": 64,
            "num_heads": 2,
            "intermediate_size": 96,
            "out_hidden_size": 128,
            "num_position_embeddings": 49,
            "deepstack_visual_indexes": [0, 1],
        },
        tie_word_embeddings=not has_experts,
        **{key: own[key] for key in ids},
    )
    model = model_class(config).eval()
    randomise(model, seed)
    model.save_pretrained(directory)
    if has_experts:
        as_published(directory)
    for file in COPIED.split():
        shutil.copy(MODEL_DIR / file, directory / file)
    for kind, file in (("image", "preprocessor_config.json"), ("video", "video_preprocessor_config.json")):
        (directory / file).write_text(json.dumps(processor_file(kind)))
    return directory


def as_published(directory: Path) -> None:
    """As Qwen's own checkpoints are: experts are [inputs, outputs], and their number has its old name."""
    path = directory / "model.safetensors"
    tensors = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["text_config"]["num_experts"] = config["text_config"].pop("num_local_experts")
    (directory / "config.json").write_text(json.dumps(config))


def text_config(name: str, vocab_size: int) -> dict[str, object]:
    experts = {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "mlp_only_layers": [1],
    }
    return {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": name != "qwen3_vl_moe",
        **(experts if name == "qwen3_vl_moe" else {}),
    }


def processor_file(kind: str) -> dict[str, object]:
    names = {
        "image": {"image_processor_type": "Qwen2VLImageProcessorFast"},
        "video": {"video_processor_type": "Qwen3VLVideoProcessor"},
    }
    low, high = PIXELS[kind]
    return {
        "size": {"longest_edge": high, "shortest_edge": low},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        **names[kind],
    }


def oracle(name: str, directory: Path, dtype: torch.dtype) -> Oracle:
    model = CLASSES[name][1].from_pretrained(directory, dtype=dtype).eval()
    processor = bare_processor(directory)
    return Oracle(
        model=model,
        tokenizer=processor.tokenizer,
        read=lambda messages: read(messages, model, processor),
        mean=processor.image_processor.image_mean,
        std=processor.image_processor.image_std,
    )


def bare_processor(directory: Path) -> Qwen3VLProcessor:
    """The rules of transformers' processor, which itself is not to be had without torchvision."""
    processor = object.__new__(Qwen3VLProcessor)
    processor.tokenizer = AutoTokenizer.from_pretrained(directory)
    processor.image_processor = AutoImageProcessor.from_pretrained(directory)
    processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    processor.image_token, processor.video_token = "<|image_pad|>", "<|video_pad|>"
    processor.vision_start_token, processor.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    return processor


def read(messages: Messages, model: torch.nn.Module, processor: Qwen3VLProcessor) -> Inputs:
    tokenizer = processor.tokenizer
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = media(messages)
    items = [
        clip_of(part, processor) if part["type"] == "video" else item_of(part, processor.image_processor)
        for part in parts
    ]
    stills = torch.tensor([item.grid for item in items if item.kind == "image"])
    clips = {
        "video_grid_thw": torch.tensor([item.grid for item in items if item.kind == "video"]),
        "video_metadata": [
            VideoMetadata(
                total_num_frames=len(part["video"]), fps=RATE, frames_indices=list(range(len(part["video"])))
            )
            for part in parts
            if part["type"] == "video"
        ],
    }
    (text,), _ = processor.get_text_with_replacements(
        [text],
        [processor.replace_image_token({"image_grid_thw": stills}, index) for index in range(len(stills))],
        [processor.replace_video_token(clips, index) for index in range(len(clips["video_metadata"]))],
    )
    return inputs(tokenizer(text, return_tensors="pt"), items, model)


def clip_of(part: dict[str, object], processor: Qwen3VLProcessor) -> Item:
    """Frames, scaled by transformers' rule for clips, through the picture processor."""
    frames = part["video"]
    assert isinstance(frames, list)
    width, height = frames[0].size
    low, high = PIXELS["video"]
    h, w = smart_resize(
        len(frames), height, width, temporal_factor=2, factor=32, min_pixels=low, max_pixels=high
    )
    scaled = [frame.resize((w, h), Image.Resampling.BICUBIC) for frame in frames]
    return item_of({"type": "video", "video": scaled}, partial(processor.image_processor, do_resize=False))
