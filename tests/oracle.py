"""transformers as the oracle: the same checkpoint, the same messages, its own template, processor and generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer

from tests.checkpoints import load_oracle

Messages = Sequence[dict[str, object]]


@dataclass(frozen=True)
class OracleAnswer:
    prompt_token_ids: tuple[int, ...]
    position_ids: torch.Tensor  # [3, T]
    grids: list[tuple[int, int, int]]
    token_ids: tuple[int, ...]
    text: str


class Oracle:
    """Answers greedily. Clips are fed frame by frame through the picture processor, two frames to a patch."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        self.model = load_oracle(directory, dtype)
        self.model.generation_config.eos_token_id = None  # every answer has the length asked for
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.images = AutoImageProcessor.from_pretrained(directory)

    @torch.no_grad()
    def ask(self, messages: Messages, max_tokens: int) -> OracleAnswer:
        inputs, grids = self.inputs(messages)
        positions = self.model.model.get_rope_index(
            inputs["input_ids"],
            inputs["mm_token_type_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            video_grid_thw=inputs.get("video_grid_thw"),
            second_per_grid_ts=torch.ones(len(grids)),
            attention_mask=torch.ones_like(inputs["input_ids"]),
        )[0][:, 0]
        generated = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        prompt = inputs["input_ids"][0]
        output = generated[0, len(prompt) :]
        return OracleAnswer(
            tuple(prompt.tolist()), positions, grids, tuple(output.tolist()), self.tokenizer.decode(output)
        )

    def inputs(self, messages: Messages) -> tuple[dict[str, torch.Tensor], list[tuple[int, int, int]]]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        values: dict[str, list[torch.Tensor]] = {"image": [], "video": []}
        grids: dict[str, list[tuple[int, int, int]]] = {"image": [], "video": []}
        order: list[tuple[int, int, int]] = []
        expanded = ""
        for part in _media(messages):
            kind = str(part["type"])
            pixels, grid = self._pixels(part["image"]) if kind == "image" else self._clip(part["video"])
            values[kind].append(pixels)
            grids[kind].append(grid)
            order.append(grid)
            pad = f"<|{kind}_pad|>"
            before, text = text.split(pad, 1)
            expanded += before + pad * (grid[0] * grid[1] * grid[2] // 4)
        text = expanded + text
        encoded = self.tokenizer(text, return_tensors="pt")
        token_ids = encoded["input_ids"]
        kinds = torch.zeros_like(token_ids)
        kinds[token_ids == self.model.config.image_token_id] = 1
        kinds[token_ids == self.model.config.video_token_id] = 2
        result = {
            "input_ids": token_ids,
            "attention_mask": encoded["attention_mask"],
            "mm_token_type_ids": kinds,
        }
        for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            if values[kind]:
                result[name] = torch.cat(values[kind]).to(self.model.dtype)
                result[f"{kind}_grid_thw"] = torch.tensor(grids[kind])
        return result, order

    def _pixels(self, picture: object) -> tuple[torch.Tensor, tuple[int, int, int]]:
        picture = picture if isinstance(picture, Image.Image) else Image.open(str(picture)).convert("RGB")
        output = self.images(images=[picture], return_tensors="pt")
        t, h, w = output["image_grid_thw"][0].tolist()
        return output["pixel_values"], (t, h, w)

    def _clip(self, frames: object) -> tuple[torch.Tensor, tuple[int, int, int]]:
        assert isinstance(frames, list)
        folded = [self._pixels(frame) for frame in frames + frames[-1:] * (len(frames) % 2)]
        h, w = folded[0][1][1:]
        single = [pixels.view(h * w, 3, 2, -1)[:, :, 0] for pixels, _ in folded]  # [P, C, y x]
        pairs = [torch.stack(pair, 2).flatten(1) for pair in zip(single[::2], single[1::2], strict=True)]
        return torch.cat(pairs), (len(pairs), h, w)


def _media(messages: Messages) -> list[dict[str, object]]:
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part for part in parts if part["type"] in ("image", "video")]
