"""A vocabulary as grammars look through it.

Owns two corrections. llguidance takes any added token of the form `<...>` for a special one, which no text of a
grammar holds: a model that writes `<tool_call>` or `<think>` as one token, as Qwen's do, could not write it then. And
where only one text can follow, llguidance asks for its tokens as the tokenizer writes them; a tokenizer that composes
characters first would write another text, which the grammar forbids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

import llguidance
import tokenizers

_OF_THE_VOCABULARY = ("Prepend", "Replace", "ByteLevel")  # how a vocabulary spells text, which stays the same
_KEY = '"normalizer":'
_NUMBER = re.compile(rb"([0-9.eE+-]+)(?:[\s,\]}].*)?", re.DOTALL)

NumberTokens = Mapping[
    bytes, tuple[int, ...]
]  # those that go on with a number of JSON, by what they add to it


def build_trie(tokenizer_json: str, *, special_ids: Collection[int], end_mark: int) -> llguidance.LLTokenizer:
    """All tokens but `special_ids` stand for their text; `end_mark` is where an answer may end. `tokenizer_json` is
    as the tokenizers library writes it on one line.
    """
    exact_json = _exact_json(tokenizer_json)
    trie = llguidance.LLTokenizer(exact_json, eos_token=end_mark)
    taken = [token_id for token_id in range(trie.vocab_size) if trie.is_special_token(token_id)]
    if set(taken) <= set(special_ids):
        return trie
    words = _Words(trie, special_ids, exact_json)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(words))


def number_tokens(trie: llguidance.LLTokenizer) -> NumberTokens:
    found: dict[bytes, list[int]] = {}
    for token_id in range(trie.vocab_size):
        if (match := _NUMBER.fullmatch(trie.decode_bytes([token_id]))) and not trie.is_special_token(
            token_id
        ):
            found.setdefault(match[1], []).append(token_id)
    return {head: tuple(ids) for head, ids in found.items()}


def _exact_json(tokenizer_json: str) -> str:
    """The tokenizer, writing text as it stands. To parse all of it would hold the interpreter for long."""
    start = tokenizer_json.index(_KEY) + len(_KEY)  # in a string its quotes would be escaped
    normalizer, end = json.JSONDecoder().raw_decode(tokenizer_json, start)
    return tokenizer_json[:start] + json.dumps(_exact(normalizer)) + tokenizer_json[end:]


def _exact(normalizer: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """The parts of a normalizer that leave the text as it is."""
    if normalizer is None:
        return None
    parts = normalizer.get("normalizers")
    if isinstance(parts, list):
        kept = [exact for part in parts if (exact := _exact(part)) is not None]
        return {**normalizer, "normalizers": kept} if kept else None
    return normalizer if normalizer["type"] in _OF_THE_VOCABULARY else None


class _Words:
    """The vocabulary in the form that llguidance.TokenizerWrapper takes, whose names these are."""

    def __init__(
        self,
        trie: llguidance.LLTokenizer,
        special_ids: Collection[int],
        exact_json: str,
    ) -> None:
        self.eos_token_id = trie.eos_token
        self.bos_token_id = None
        self.tokens = [trie.decode_bytes([token_id]) for token_id in range(trie.vocab_size)]
        self.special_token_ids = sorted(special_ids)
        self._backend = tokenizers.Tokenizer.from_str(exact_json)
        self._backend.encode_special_tokens = True  # special tokens in text are text

    def __call__(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)
