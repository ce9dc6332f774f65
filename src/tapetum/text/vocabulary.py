"""A vocabulary as grammars look through it.

Owns one correction: llguidance takes any added token of the form `<...>` for a special one, which no text of a
grammar holds. A model that writes `<tool_call>` or `<think>` as one token, as Qwen's do, could not write it then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import llguidance


def build_trie(
    tokenizer_json: str,
    *,
    special_ids: Collection[int],
    end_mark: int,
    encode: Callable[[str], Sequence[int]],
) -> llguidance.LLTokenizer:
    """All tokens but `special_ids` stand for their text. `end_mark` is where an answer may end, `encode` how text
    without special tokens is written.
    """
    trie = llguidance.LLTokenizer(tokenizer_json, eos_token=end_mark)
    taken = [token_id for token_id in range(trie.vocab_size) if trie.is_special_token(token_id)]
    if set(taken) <= set(special_ids):
        return trie
    words = _Words(trie, special_ids, encode)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(words))


class _Words:
    """The vocabulary in the form that llguidance.TokenizerWrapper takes, whose names these are."""

    def __init__(
        self,
        trie: llguidance.LLTokenizer,
        special_ids: Collection[int],
        encode: Callable[[str], Sequence[int]],
    ) -> None:
        self.eos_token_id = trie.eos_token
        self.bos_token_id = None
        self.tokens = [trie.decode_bytes([token_id]) for token_id in range(trie.vocab_size)]
        self.special_token_ids = sorted(special_ids)
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return list(self._encode(text))
