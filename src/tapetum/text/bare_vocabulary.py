"""A tokenizer from vocab.json and merges.txt, for checkpoints that hold those of Qwen2 and no tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tapetum.core.errors import CheckpointError
from tapetum.core.files import read_json

_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_vocabulary(directory: Path) -> tokenizers.Tokenizer:
    """As transformers' Qwen2Tokenizer makes it; raises CheckpointError where the files are not there."""
    vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
    config = read_json(directory / "tokenizer_config.json") or {}
    if config.get("tokenizer_class") not in _CLASSES or not (vocabulary.is_file() and merges.is_file()):
        raise CheckpointError(
            f"{directory} has no tokenizer.json; write one with "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        backend = tokenizers.Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{vocabulary} and merges.txt cannot be read: {error}; fetch the checkpoint again"
        ) from error
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for token_id, token in sorted(_added(directory, config.get("added_tokens_decoder")).items()):
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise CheckpointError(
                f"{directory}: token {token.content} is to be {token_id}, but is {backend.token_to_id(token.content)} "
                "behind vocab.json; take all files of the tokenizer from one checkpoint"
            )
    return backend


def _added(directory: Path, declared: object) -> dict[int, AddedToken]:
    """By id: tokenizer_config.json says them with their flags, added_tokens.json only their texts.

    Nobody should be able to type a token of which nothing is known, so it is special.
    """
    if not isinstance(declared, dict):
        texts = read_json(directory / "added_tokens.json") or {}
        declared = {token_id: {"content": text, "special": True} for text, token_id in texts.items()}
    return {
        int(str(token_id)): AddedToken(
            str(token.get("content")),
            single_word=bool(token.get("single_word")),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
            normalized=bool(token.get("normalized")),
            special=bool(token.get("special")),
        )
        for token_id, token in declared.items()
        if str(token_id).isdecimal() and isinstance(token, dict)
    }
