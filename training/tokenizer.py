"""The tokenizer of tapetum-mini: byte-level BPE of 1,010 entries, digits one by one, and 14 special tokens.

    python -m training.tokenizer tokenizer.json

builds one from the questions of the generator. Names, wares and cities are left out of its text, so that they stay
in pieces and the model must read them letter by letter.
"""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Encoding, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from training.conversation import ENGLISH, SYSTEM_PROMPTS, TALK
from training.generator import draw, pick
from training.generator.vocabulary import CITIES, COUNTRIES, ITEMS, NAMES, STORE_KINDS, STORES

VOCAB_SIZE = 1024
FIRST_SEED = 10**9
SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
# Of the Qwen2 tokenizer: contractions, letters with one sign before them, single digits, signs, line ends, spaces.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Kinds of questions whose answers are sentences of the model, not text printed in the picture.
_SPOKEN = frozenset(
    (
        "color",
        "where",
        "shape",
        "yesno",
        "desc",
        "neg",
        "type",
        "same",
        "more",
        "direction",
        "extreme",
        "big",
        "rel",
        "bg",
        "cmp",
        "bycolor",
    )
)


class Tokenizer:
    """Encodes text; `special` gives the ids of the special tokens."""

    def __init__(self, path: Path) -> None:
        self.fast = FastTokenizer.from_file(str(path))
        self.special = {token: self._id(token) for token in SPECIAL_TOKENS}
        self.ids = cache(self._ids)  # for the few texts that come again and again

    def encode(self, text: str) -> Encoding:
        """Ids with their offsets in the text."""
        return self.fast.encode(text, add_special_tokens=False)

    def _id(self, token: str) -> int:
        token_id = self.fast.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no {token}; build one with python -m training.tokenizer")
        return token_id

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text).ids)


def build_tokenizer(path: Path, num_samples: int = 1500) -> None:
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # as Qwen's own tokenizers
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        min_frequency=3,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(num_samples), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(path))


def _lines(num_samples: int) -> list[str]:
    content = {word for pool in (ITEMS, NAMES, CITIES, COUNTRIES, STORES, STORE_KINDS) for word in pool}
    content |= {item.upper() for item in ITEMS}
    lines = []
    for seed in range(FIRST_SEED, FIRST_SEED + num_samples):
        for question in draw(seed, *pick(seed)).questions:
            lines.append(_without(content, re.sub(r'"[^"]*"', '""', question.text)))
            if question.kind in _SPOKEN:
                lines.append(_without(content, question.answer))
            lines.append("user\nassistant\nsystem\n")
    lines += [text for pair in TALK for text in pair] * 10
    return lines + SYSTEM_PROMPTS * 20 + ENGLISH * 8


def _without(content: set[str], text: str) -> str:
    """The text less figures and what pictures show."""
    words = re.sub(r"[0-9$€£,.%]+", " ", text).split(" ")
    return " ".join(word for word in words if word.strip("?.,") not in content)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a tokenizer from the questions of the generator.")
    parser.add_argument("path", type=Path, help="file to write, such as tokenizer.json")
    build_tokenizer(parser.parse_args().path)


if __name__ == "__main__":
    main()
