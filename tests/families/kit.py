"""What the module of a family gives, and what such modules share.

A family is a small random checkpoint that transformers has written, conversations to ask it, and an oracle: the same
checkpoint in transformers with its own tokenizer, template and picture processor. Nothing here knows Tapetum.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tapetum.assets import MODEL_DIR

Part = dict[str, object]
Messages = Sequence[dict[str, object]]
WORDS = "river stone window total market 12.50 bridge What is the color of circle table 7 Names".split()  # noqa: SIM905
PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")  # in a config
SIZES = ((224, 224), (300, 120), (90, 300), (28, 28), (1, 1), (640, 480), (1400, 10), (12, 1200))


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A conversation as the processor of transformers hands it to the model."""

    arguments: dict[str, torch.Tensor]  # of forward and generate; a batch of one
    position_ids: np.ndarray  # [3, T]; three times the same where positions count up
    pixel_values: tuple[
        np.ndarray, ...
    ] = ()  # of each item: normalised, [P, values] in the order of its patches

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.arguments["input_ids"][0].tolist())


@dataclass(frozen=True, kw_only=True)
class Answer:
    logits: torch.Tensor  # [vocabulary] behind the last token of the prompt
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """A checkpoint in transformers."""

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerBase
    read: Callable[[Messages], Inputs]
    mean: Sequence[float]  # what normalises a raw pixel between 0 and 1, by colour
    std: Sequence[float]

    @torch.no_grad()
    def ask(self, inputs: Inputs, max_tokens: int, guess: Sequence[int] = ()) -> Answer:
        """Greedily, and as many tokens as were asked for: nothing ends an answer.

        A guess that is right saves the time: one forward over all of it shows that each of its tokens is the most
        likely behind those before it. One that is not is put aside, and so is one that might stand for a picture.
        """
        config = self.model.config.to_dict()
        if len(guess) == max_tokens and not {config.get(key) for key in PLACEHOLDERS}.intersection(guess):
            logits = self.model(**_longer(inputs.arguments, guess)).logits[0, -max_tokens - 1 :].float()
            if logits[:-1].argmax(-1).tolist() == list(guess):
                return Answer(logits=logits[0], token_ids=tuple(guess))
        self.model.generation_config.eos_token_id = None
        generated = self.model.generate(
            **inputs.arguments,
            max_new_tokens=max_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        answer = generated.sequences[0, len(inputs.token_ids) :]
        return Answer(logits=generated.logits[0][0].float(), token_ids=tuple(answer.tolist()))


def _longer(arguments: dict[str, torch.Tensor], token_ids: Sequence[int]) -> dict[str, torch.Tensor]:
    """The arguments of a prompt with more text behind it; kinds of tokens are 0 for text."""
    shape, more = arguments["input_ids"].shape, torch.tensor([token_ids])
    behind = {"input_ids": more, "attention_mask": torch.ones_like(more)}
    return {
        name: torch.cat((value, behind.get(name, torch.zeros_like(more)).to(value.dtype)), 1)
        if value.shape == shape
        else value
        for name, value in arguments.items()
    }


@dataclass(frozen=True, kw_only=True)
class Family:
    """One entry of the table of families."""

    name: str  # also the key of what is measured
    write: Callable[[Path, int], Path]  # (directory, seed) -> the directory, which is then a checkpoint
    oracle: Callable[[Path, torch.dtype], Oracle]
    conversations: Callable[[], list[Messages]]
    chunks: tuple[int, ...] = (16, 48)  # tokens of a step in which a prompt is cut


def conversations(*, sizes: Iterable[tuple[int, int]] = SIZES, has_clips: bool = False) -> list[Messages]:
    """No picture, one of many shapes, several, several turns, and clips if the family takes them."""
    single = [[user(image_part(seed, *size), words(seed))] for seed, size in enumerate(sizes)]
    texts = [[user(words(seed, 12))] for seed in (20, 21)]
    plain = [[{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello"}]]
    several = [
        [user(image_part(30, 200, 100), image_part(31, 100, 200), words(30))],
        [user(words(32), image_part(32, 112, 112), words(33), image_part(34, 112, 140), words(35))],
        [user(image_part(36, 84, 84), image_part(36, 84, 84), image_part(37, 84, 84))],
        [user(words(38, 30), image_part(38, 250, 170))],
    ]
    turns = [
        [
            user(image_part(40 + turn, 140, 112), words(40 + turn)),
            {"role": "assistant", "content": "Athens"},
            user(words(50 + turn), *([image_part(60 + turn, 112, 112)] if turn else [])),
        ]
        for turn in range(3)
    ]
    # Each clip spans fewer time positions than rows or columns: there transformers' rule of M-RoPE and ours agree.
    clips = [
        [user(clip_part(70, 4, 140, 112), words(70))],
        [user(clip_part(71, 3, 112, 140), words(71), image_part(72, 112, 112), words(72))],
        [user(clip_part(73, 2, 140, 140), clip_part(74, 4, 168, 112))],
    ]
    return [*single, *texts, *plain, *several, *turns, *(clips if has_clips else ())]


def picture(seed: int, width: int, height: int) -> Image.Image:
    source = random.Random(seed)
    image = Image.new("RGB", (width, height), tuple(source.randrange(256) for _ in range(3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = source.randrange(width), source.randrange(height)
        box = (x, y, x + source.randrange(4, 90), y + source.randrange(4, 90))
        draw.rectangle(box, fill=tuple(source.randrange(256) for _ in range(3)))
    draw.text((4, 4), " ".join(source.choices(WORDS, k=3)), fill=(0, 0, 0))
    return image


def image_part(seed: int, width: int, height: int) -> Part:
    return {"type": "image", "image": picture(seed, width, height)}


def clip_part(seed: int, frames: int, width: int, height: int) -> Part:
    return {"type": "video", "video": [picture(seed + index, width, height) for index in range(frames)]}


def words(seed: int, count: int = 6) -> Part:
    return {"type": "text", "text": " ".join(random.Random(seed).choices(WORDS, k=count))}


def user(*parts: Part) -> dict[str, object]:
    return {"role": "user", "content": list(parts)}


def media(messages: Messages) -> list[Part]:
    """Pictures and clips of a conversation, in order."""
    contents = [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part for part in parts if part["type"] in ("image", "video")]


def expanded(text: str, replacements: Iterable[tuple[str, str]]) -> str:
    """`text` with each (slot, what stands there) put in, from left to right."""
    done = ""
    for slot, replacement in replacements:
        before, text = text.split(slot, 1)
        done += before + replacement
    return done + text


def counted(token_ids: torch.Tensor) -> np.ndarray:
    """Positions that count up, [3, T], of tokens [1, T]."""
    return np.broadcast_to(np.arange(token_ids.shape[1]), (3, token_ids.shape[1]))


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights of a size at which a greedy answer is not one token repeated."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                one = parameter[0, 0] if "experts" in name else parameter[0]  # the weights behind one value
                parameter.normal_(0, 1.0 / one.numel() ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.05)
            else:
                parameter.normal_(1, 0.1)


def write_tokenizer(directory: Path, special_tokens: Sequence[str], template: str) -> dict[str, int]:
    """The bundled tokenizer with more special tokens and another chat template -> the ids of those tokens."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": list(special_tokens)}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in special_tokens}
