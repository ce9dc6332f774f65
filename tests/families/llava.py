"""LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision, with tiles of a few patches and the fields of that size.

The combined processor of OneVision needs torchvision for its clips, so its rule for the number of tokens is asked
without it, and the frames of a clip are the overviews that the picture processor makes of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    LlavaProcessor,
)
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from tests.families.kit import (
    Family,
    Inputs,
    Messages,
    Oracle,
    Part,
    clip_part,
    conversations,
    counted,
    expanded,
    image_part,
    media,
    randomise,
    user,
    words,
    write_tokenizer,
)

PATCH = 7
ASPECT = "anyres_max_2"
IMAGE, VIDEO = "<image>", "<video>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}"
    "{% elif part['type'] == 'video' %}{{ '<video>\n' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ ' ' }}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of the three."""

    config: type
    model: type
    image_processor: str
    tile: int
    text: str  # model_type of the decoder
    vision: str
    fields: tuple[tuple[int, int], ...] = ()  # height, width
    has_clips: bool = False

    @property
    def side(self) -> int:
        return self.tile // PATCH


KINDS = {
    "llava": Kind(
        config=LlavaConfig,
        model=LlavaForConditionalGeneration,
        image_processor="CLIPImageProcessor",
        tile=28,
        text="llama",
        vision="clip_vision_model",
    ),
    "llava_next": Kind(
        config=LlavaNextConfig,
        model=LlavaNextForConditionalGeneration,
        image_processor="LlavaNextImageProcessor",
        tile=28,
        text="mistral",
        vision="clip_vision_model",
        fields=((28, 56), (56, 28), (56, 56), (84, 28), (28, 84)),
    ),
    "llava_onevision": Kind(  # with an odd number of patches a side, and pixels beyond the last
        config=LlavaOnevisionConfig,
        model=LlavaOnevisionForConditionalGeneration,
        image_processor="LlavaOnevisionImageProcessor",
        tile=24,
        text="qwen2",
        vision="siglip_vision_model",
        fields=tuple((24 * rows, 24 * columns) for rows in range(1, 4) for columns in range(1, 4)),
        has_clips=True,
    ),
}


def family(name: str) -> Family:
    return Family(
        name=name,
        write=lambda directory, seed: write(directory, KINDS[name], seed),
        oracle=lambda directory, dtype: oracle(directory, name, dtype),
        conversations=lambda: [*conversations(), *(clips() if KINDS[name].has_clips else ())],
    )


def clips() -> list[Messages]:
    """transformers takes several clips of one prompt only if they have equally many frames."""
    return [
        [user(clip_part(70, 4, 140, 112), words(70))],
        [user(clip_part(71, 3, 112, 140), words(71), image_part(72, 112, 60), words(72))],
        [user(clip_part(73, 2, 140, 140), clip_part(74, 2, 168, 12), words(73))],
        [user(clip_part(75, 1, 30, 30), words(75))],
    ]


def write(directory: Path, kind: Kind, seed: int) -> Path:
    directory.mkdir(exist_ok=True)
    ids = write_tokenizer(directory, (IMAGE, VIDEO), TEMPLATE)
    is_siglip = kind.vision == "siglip_vision_model"
    text = {
        "model_type": kind.text,
        "vocab_size": ids[VIDEO] + 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": is_siglip,
    }
    vision = {
        "model_type": kind.vision,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "image_size": kind.tile,
        "patch_size": PATCH,
        **({"vision_use_head": False} if is_siglip else {}),
    }
    more: dict[str, object] = {"image_token_index": ids[IMAGE]}
    more["vision_feature_select_strategy"] = "full" if is_siglip else "default"
    if kind.fields:
        more["image_grid_pinpoints"] = [list(field) for field in kind.fields]
    if kind.has_clips:
        more |= {"video_token_index": ids[VIDEO], "vision_aspect_ratio": ASPECT}
    model = kind.model(kind.config(text_config=text, vision_config=vision, **more)).eval()
    randomise(model, seed)
    model.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(pixels_of(kind)))
    return directory


def pixels_of(kind: Kind) -> dict[str, object]:
    """preprocessor_config.json"""
    is_siglip = kind.vision == "siglip_vision_model"
    square = {"height": kind.tile, "width": kind.tile}
    own = {"size": square} if is_siglip else {"size": {"shortest_edge": kind.tile}, "crop_size": square}
    if not is_siglip:
        own |= {"do_center_crop": True}
    if kind.fields:
        own |= {"do_pad": True, "image_grid_pinpoints": [list(field) for field in kind.fields]}
    return {
        **own,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": HALF if is_siglip else CLIP_MEAN,
        "image_std": HALF if is_siglip else CLIP_STD,
        "image_processor_type": kind.image_processor,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }


def oracle(directory: Path, name: str, dtype: torch.dtype) -> Oracle:
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    images = AutoImageProcessor.from_pretrained(directory)
    replace = replacement(name, tokenizer, images)
    return Oracle(
        model=model,
        tokenizer=tokenizer,
        read=lambda messages: read(messages, KINDS[name], model, tokenizer, images, replace),
        mean=images.image_mean,
        std=images.image_std,
    )


def replacement(name: str, tokenizer, images) -> Callable[[dict, int], str]:
    """What the combined processor writes for a picture."""
    if name != "llava_onevision":
        processor_class = LlavaProcessor if name == "llava" else LlavaNextProcessor
        processor = processor_class(
            images,
            tokenizer,
            patch_size=PATCH,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
        return processor.replace_image_token
    rules = SimpleNamespace(
        image_processor=images,
        num_image_tokens=KINDS[name].side ** 2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=ASPECT,
        image_token=IMAGE,
    )
    for method in ("_get_unpadded_features", "_get_number_of_features"):
        setattr(rules, method, partial(getattr(LlavaOnevisionProcessor, method), rules))
    return partial(LlavaOnevisionProcessor.replace_image_token, rules)


def read(
    messages: Messages, kind: Kind, model: torch.nn.Module, tokenizer, images, replace: Callable
) -> Inputs:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = media(messages)
    pictures = [part["image"] for part in parts if part["type"] == "image"]
    clips = [clip_of(part, images) for part in parts if part["type"] == "video"]
    arguments = dict(images(images=pictures, return_tensors="pt")) if pictures else {}
    marks = [(IMAGE, replace(arguments, index)) for index in range(len(pictures))]
    shown = [tiles_of(arguments, index, kind) for index in range(len(pictures))]
    half = -(-kind.side // 2)
    queues = {
        "image": iter(zip(marks, shown, strict=True)),
        "video": iter([((VIDEO, VIDEO * (len(clip) * half * half + 1)), clip) for clip in clips]),
    }
    items = [next(queues[part["type"]]) for part in parts]
    if clips:
        arguments["pixel_values_videos"] = torch.stack(clips)
    arguments = {name: of_dtype(value, model.dtype) for name, value in arguments.items()}
    encoded = tokenizer(expanded(text, [mark for mark, _ in items]), return_tensors="pt")
    arguments |= {name: encoded[name] for name in ("input_ids", "attention_mask")}
    return Inputs(
        arguments=arguments,
        position_ids=counted(encoded["input_ids"]),
        pixel_values=tuple(patches_of(tiles, kind) for _, tiles in items),
    )


def of_dtype(value: object, dtype: torch.dtype) -> object:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def tiles_of(arguments: dict, index: int, kind: Kind) -> torch.Tensor:
    """[tiles, 3, tile, tile] of a picture, without the black ones that fill up a batch."""
    tiles = arguments["pixel_values"][index]
    if not kind.fields:
        return tiles[None]
    fields = [list(field) for field in kind.fields]
    return tiles[: image_size_to_num_patches(arguments["image_sizes"][index], fields, kind.tile)]


def clip_of(part: Part, images) -> torch.Tensor:
    """[frames, 3, tile, tile]: of each frame what the picture processor has for an overview."""
    frames = [images(images=[frame], return_tensors="pt")["pixel_values"][0, 0] for frame in part["video"]]
    return torch.stack(frames)


def patches_of(tiles: torch.Tensor, kind: Kind) -> np.ndarray:
    """[tiles * patches, values]"""
    side, kept = kind.side, kind.side * PATCH
    patches = tiles[:, :, :kept, :kept].reshape(len(tiles), 3, side, PATCH, side, PATCH)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(len(tiles) * side * side, -1).numpy()
