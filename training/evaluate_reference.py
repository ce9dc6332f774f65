"""The evaluation of `tapetum evaluate`, answered by transformers instead of this engine: what the engine must equal.

    python -m training.evaluate_reference --model DIRECTORY --n 300

asks the same questions, one after another, greedy, and prints the same table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2VLForConditionalGeneration

from tapetum.assets import MODEL_DIR
from tapetum.evaluate import ALL_TASKS, SAMPLING, Case, Report, draw_cases, score
from training.generator.canvas import CELL
from training.patches import clip_patches

MERGED = 4  # patches of a visual token


class Reference:
    """A Qwen2-VL checkpoint in transformers, without its processor class, which wants torchvision."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.image_processor = AutoImageProcessor.from_pretrained(folder)
        self.model = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()

    @torch.no_grad()
    def ask(self, case: Case) -> str:
        """The greedy answer to a question after pictures or the frames of a clip, perhaps after earlier turns."""
        video = case.images if case.task == "clip" else ()
        images = () if video else case.images
        prompt = str(
            self.tokenizer.apply_chat_template(case.messages, tokenize=False, add_generation_prompt=True)  # type: ignore[arg-type]
        )
        inputs: dict[str, Tensor] = {}
        if images:
            inputs |= dict(self.image_processor(images=list(images), return_tensors="pt"))
            prompt = _expand(prompt, "<|image_pad|>", inputs["image_grid_thw"])
        if video:
            inputs |= _clip(video)
            prompt = _expand(prompt, "<|video_pad|>", inputs["video_grid_thw"])
        encoded = self.tokenizer(prompt, return_tensors="pt")
        token_ids = encoded["input_ids"]
        kinds = torch.zeros_like(token_ids)
        kinds[token_ids == self.model.config.image_token_id] = 1
        kinds[token_ids == self.model.config.video_token_id] = 2
        out = self.model.generate(
            **encoded, **inputs, mm_token_type_ids=kinds, max_new_tokens=SAMPLING.max_tokens, do_sample=False
        )
        return str(self.tokenizer.decode(out[0, token_ids.shape[1] :], skip_special_tokens=True))


def _expand(prompt: str, placeholder: str, grids: Tensor) -> str:
    """One placeholder for every visual token, in the order of the grids."""
    first, *rest = prompt.split(placeholder)
    pieces = [first]
    for grid, text in zip(grids, rest, strict=True):
        pieces.append(placeholder * (int(grid.prod()) // MERGED) + text)
    return "".join(pieces)


def _clip(frames: Sequence[Image.Image]) -> dict[str, Tensor]:
    """Clips of the generator are whole cells in size and within the limits: nothing to resize."""
    width, height = frames[0].size
    patches = np.concatenate(clip_patches(list(frames), (width // CELL, height // CELL)))
    grid = [len(frames) // 2, height // CELL * 2, width // CELL * 2]
    return {"pixel_values_videos": torch.from_numpy(patches), "video_grid_thw": torch.tensor([grid])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint through transformers.")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--n", type=int, default=100, help="questions of each task")
    parser.add_argument("--tasks", default=",".join(ALL_TASKS), help="with commas between")
    options = parser.parse_args()
    reference, answers = Reference(options.model), []
    tasks = options.tasks.split(",")
    for case in tqdm(draw_cases(tasks, options.n), total=options.n * len(tasks)):
        answers.append(score(case, reference.ask(case)))
    print(Report(tuple(answers)).table())


if __name__ == "__main__":
    main()
