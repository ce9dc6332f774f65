"""Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

from tests.checkpoints import load_oracle, write_checkpoint
from tests.families.kit import Family, Inputs, Messages, Oracle, conversations, expanded, media

MERGED = 4  # patches of a visual token


def family(name: str) -> Family:
    return Family(
        name=name,
        write=lambda directory, seed: write_checkpoint(directory, name, seed=seed),
        oracle=oracle,
        conversations=partial(conversations, has_clips=True),
    )


def oracle(directory: Path, dtype: torch.dtype = torch.float32) -> Oracle:
    model, images = load_oracle(directory, dtype), AutoImageProcessor.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return Oracle(
        model=model,
        tokenizer=tokenizer,
        read=lambda messages: read(messages, model, tokenizer, images),
        mean=images.image_mean,
        std=images.image_std,
    )


@dataclass(frozen=True)
class Item:
    """A picture or clip as the picture processor makes it, frame by frame."""

    kind: str
    grid: tuple[int, int, int]
    pixels: torch.Tensor  # [P, 3 * 2 * p * p]

    @property
    def values(self) -> np.ndarray:
        """As Tapetum keeps them: of a picture, whose frame is repeated, only one."""
        if self.kind == "video":
            return self.pixels.numpy()
        return self.pixels.view(len(self.pixels), 3, 2, -1)[:, :, 0].flatten(1).numpy()


def read(messages: Messages, model: torch.nn.Module, tokenizer, images) -> Inputs:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    items = [item_of(part, images) for part in media(messages)]
    pads = [f"<|{item.kind}_pad|>" for item in items]
    counts = [int(np.prod(item.grid)) // MERGED for item in items]
    text = expanded(text, ((pad, pad * count) for pad, count in zip(pads, counts, strict=True)))
    return inputs(tokenizer(text, return_tensors="pt"), items, model)


def inputs(encoded, items: list[Item], model: torch.nn.Module) -> Inputs:
    """The arguments of the model over the tokens of an expanded prompt."""
    token_ids = encoded["input_ids"]
    kinds = torch.zeros_like(token_ids)
    kinds[token_ids == model.config.image_token_id] = 1
    kinds[token_ids == model.config.video_token_id] = 2
    arguments = {
        "input_ids": token_ids,
        "attention_mask": encoded["attention_mask"],
        "mm_token_type_ids": kinds,
    }
    grids: dict[str, torch.Tensor | None] = {"image_grid_thw": None, "video_grid_thw": None}
    for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        if of_kind := [item for item in items if item.kind == kind]:
            arguments[name] = torch.cat([item.pixels for item in of_kind]).to(model.dtype)
            grids[f"{kind}_grid_thw"] = torch.tensor([item.grid for item in of_kind])
    arguments |= {name: grid for name, grid in grids.items() if grid is not None}
    rope = {"second_per_grid_ts": torch.ones(len(items))}  # two frames of two a second
    positions, _ = model.model.get_rope_index(
        token_ids, kinds, **grids, **rope, attention_mask=encoded["attention_mask"]
    )
    return Inputs(
        arguments=arguments,
        position_ids=positions[:, 0].numpy(),
        pixel_values=tuple(item.values for item in items),
    )


def item_of(part: dict[str, object], images) -> Item:
    if part["type"] == "image":
        return Item("image", *pixels_of(part["image"], images))
    frames = part["video"]
    assert isinstance(frames, list)
    folded = [pixels_of(frame, images) for frame in frames + frames[-1:] * (len(frames) % 2)]
    _, h, w = folded[0][0]
    single = [pixels.view(h * w, 3, 2, -1)[:, :, 0] for _, pixels in folded]  # [P, C, y x]
    pairs = [torch.stack(pair, 2).flatten(1) for pair in zip(single[::2], single[1::2], strict=True)]
    return Item("video", (len(pairs), h, w), torch.cat(pairs))


def pixels_of(picture: object, images) -> tuple[tuple[int, int, int], torch.Tensor]:
    picture = picture if isinstance(picture, Image.Image) else Image.open(str(picture)).convert("RGB")
    output = images(images=[picture], return_tensors="pt")
    t, h, w = output["image_grid_thw"][0].tolist()
    return (t, h, w), output["pixel_values"]
