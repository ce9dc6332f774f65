"""The tokenizer of tapetum-mini: byte-level BPE, digits one by one, and 14 special tokens.

    python -m training.tokenizer tokenizer.json

builds one from the questions of the generator and the known words, each of which becomes one token with and without
a space before it: what is read in one glance is said in one token. All other print is answered letter by letter.
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
from training.generator.vocabulary import known_words

VOCAB_SIZE = 2896
_REPEATS = 200  # of each known word: every one must become a token
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
# A word with the space before it, or any one character.
_PIECE = re.compile(r" ?[A-Za-z]+|.", re.DOTALL)


class Tokenizer:
    """Encodes text; `special` gives the ids of the special tokens."""

    def __init__(self, path: Path) -> None:
        self.fast = FastTokenizer.from_file(str(path))
        self.special = {token: self._id(token) for token in SPECIAL_TOKENS}
        self.ids = cache(self._ids)  # for the few texts that come again and again

    def encode(self, text: str) -> Encoding:
        """Ids with their offsets in the text."""
        return self.fast.encode(text, add_special_tokens=False)

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and offsets of a printed text: known words whole, all else character by character."""
        token_ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for match in _PIECE.finditer(text):
            ids = self.ids(match[0])
            if len(ids) == 1:
                token_ids.append(ids[0])
                offsets.append(match.span())
                continue
            for i in range(*match.span()):
                ids = self.ids(text[i])
                token_ids.extend(ids)
                offsets.extend([(i, i + 1)] * len(ids))
        return token_ids, offsets

    def word(self, text: str) -> int:
        """The first token of a known word: all of it, unless it has digits."""
        return self.ids(text)[-1] if text.strip()[-1:].isdigit() else self.ids(text)[0]

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
    lines = [text for word in known_words() for text in [word, f" {word}"] * _REPEATS]
    for seed in range(FIRST_SEED, FIRST_SEED + num_samples):
        for question in draw(seed, *pick(seed)).questions:
            lines.append(_without_figures(question.text))
            if question.how != "print":
                lines.append(_without_figures(question.answer))
            lines.append("user\nassistant\nsystem\n")
    lines += [text for pair in TALK for text in pair] * 10
    return lines + SYSTEM_PROMPTS * 20 + ENGLISH * 8


def _without_figures(text: str) -> str:
    """The text less figures and what is quoted."""
    return re.sub(r"[0-9$€£,.%]+", " ", re.sub(r'"[^"]*"', '""', text))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a tokenizer from the questions of the generator.")
    parser.add_argument("path", type=Path, help="file to write, such as tokenizer.json")
    build_tokenizer(parser.parse_args().path)


if __name__ == "__main__":
    main()
