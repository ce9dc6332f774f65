"""Added tokens that are no special tokens stand for their text under a grammar."""

from __future__ import annotations

import json

import pytest
import tokenizers

from tapetum.assets import MODEL_DIR
from tapetum.core.request import Grammar
from tapetum.text.grammar import Constraint
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.tool_grammar import tool_grammar
from tapetum.text.tools import Tool, ToolChoice

WORDS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<é x>")
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """As those of Qwen2.5 and Qwen3, which have such words as single tokens."""
    backend = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    backend.add_tokens([tokenizers.AddedToken(word, special=False, normalized=False) for word in WORDS])
    return Tokenizer(backend, slots={})


def follows(grammar: Grammar | None, tokenizer: Tokenizer, ids: tuple[int, ...]) -> bool:
    """Whether the grammar lets every token through, and no special token at any place."""
    assert grammar is not None
    constraint = Constraint(grammar, tokenizer, frozenset())
    for token_id in ids:
        allowed = [index for index in range(8 * len(constraint.mask)) if _is_set(constraint.mask, index)]
        if token_id not in allowed or tokenizer.special_ids.intersection(allowed):
            return False
        constraint.advance(token_id)
    return True


def _is_set(mask: bytes, index: int) -> bool:
    return bool(mask[index >> 3] >> (index & 7) & 1)


def test_calls_and_thoughts_are_written_with_their_own_tokens(tokenizer: Tokenizer) -> None:
    call = tokenizer.encode_plain(CALL)
    assert {call[0], call[-1]} == {tokenizer.token_id("<tool_call>"), tokenizer.token_id("</tool_call>")}
    tools = (Tool(name="look"),)
    thought = tokenizer.encode_plain("<think>hm <é x></think>\n\n")
    for mode in ("auto", "required"):
        grammar = tool_grammar(tools, ToolChoice(mode=mode), thinking="perhaps")  # type: ignore[arg-type]
        assert follows(grammar, tokenizer, thought + call)
        assert not follows(grammar, tokenizer, (*call[:1], *thought))


def test_a_grammar_may_ask_for_the_text_of_any_word(tokenizer: Tokenizer) -> None:
    for word in WORDS:
        ids = tokenizer.encode_plain(word)
        assert len(ids) == 1
        assert follows(Grammar(kind="choice", source=json.dumps([word])), tokenizer, ids)


def test_special_tokens_keep_their_ids(tokenizer: Tokenizer) -> None:
    for name, token_id in tokenizer.special_tokens.items():
        assert tokenizer.trie.is_special_token(token_id)
        assert tokenizer.trie.decode_bytes([token_id]) == name.encode()
    assert tokenizer.trie.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "with words"])
def test_text_comes_as_it_stands_though_the_tokenizer_composes_characters(
    tokenizer: Tokenizer, is_plain: bool
) -> None:
    text = "e\u0301 a\u0323\u0301 \u212b and on"
    if is_plain:
        tokenizer = Tokenizer.load(MODEL_DIR)
    assert tokenizer.decode(tokenizer.encode_plain(text)) != text
    constraint, written = (
        Constraint(Grammar(kind="choice", source=json.dumps([text])), tokenizer, frozenset()),
        b"",
    )
    while not constraint.is_over:
        token_id = next(index for index in range(8 * len(constraint.mask)) if _is_set(constraint.mask, index))
        written += tokenizer.token_bytes(token_id)
        constraint.advance(token_id)
    assert written.decode() == text
