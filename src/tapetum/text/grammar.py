"""What an answer must look like: grammars, refused before they cost anything, then followed token by token.

Owns the meaning of each kind of Grammar, the limits on one, and the masks of tokens that may come next. Does not own
which tokens end an answer (the request's) or how a mask bears on logits (runtime). Built on llguidance, which lets
go of the interpreter lock while it works.

    json_object   any JSON object; no source
    json_schema   JSON that a schema, written as JSON, accepts; a keyword that cannot be kept to is refused
    regex         text that matches from its first to its last character
    choice        one of a JSON list of strings
    lark          text of a Lark grammar in llguidance's dialect; llama.cpp's GBNF is read too
    tools         what `tool_grammar` writes

Numbers of JSON and of calls come to an end, whatever their schema says (numbers.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import llguidance

from tapetum.core.checks import shown
from tapetum.core.errors import EngineError, InvalidParameter
from tapetum.core.request import Grammar
from tapetum.text.numbers import Numbers
from tapetum.text.schemas import bounded, flaw_of, stated_numbers
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.tools import MAX_JSON_CHARS

MAX_CHARS = MAX_JSON_CHARS  # of what a client has written, be it JSON or not
_MAX_REASON = 300  # characters of what the library says
_NUM_TRIED = 8  # tokens; some costs of a grammar show only once an answer has begun
_WHITESPACE = " "  # one space at most, since a model may prefer white space to coming to an end
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=300_000,
    step_lexer_fuel=100_000,  # about 7 ms; all rows of a step wait for it
    max_lexer_states=50_000,
    verbose_errors=False,
)


def check_grammar(grammar: Grammar, tokenizer: Tokenizer) -> None:
    """Raises InvalidParameter for a grammar that is too large, that cannot be read, or that no answer satisfies.

    It can be written for this to take very long; `trial` puts a bound on that.
    """
    constraint = Constraint(grammar, tokenizer, frozenset())
    for schema in _schemas(grammar):
        if flaw := flaw_of(schema):
            raise refusal(grammar.param, flaw)
    for _ in range(_NUM_TRIED):
        if constraint.is_over:
            return
        constraint.advance(_first(constraint.mask))


class Constraint:
    """One answer on its way through a grammar. Made on any thread, then used by one at a time.

    `ends` are the tokens that may end the answer wherever the grammar lets it end. Raises InvalidParameter like
    `check_grammar`.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self._param = grammar.param
        self._ends = ends
        self._end_mark = tokenizer.trie.eos_token
        self._trie = tokenizer.trie
        self._matcher = llguidance.LLMatcher(self._trie, _compiled(grammar), log_level=0, limits=_LIMITS)
        self._numbers = _numbers(grammar, tokenizer)
        self._look_ahead()
        if self._is_over:
            raise refusal(grammar.param, "only an answer without text satisfies it")

    @property
    def mask(self) -> bytes:
        """The tokens that may come next, one bit each, from the lowest bit of the first byte; the rest may not.

        Where one text alone can follow, it may be just the token which that is usually written with.
        """
        return self._mask

    @property
    def is_over(self) -> bool:
        """Nothing can follow but an end."""
        return self._is_over

    def advance(self, token_id: int) -> None:
        """The answer goes on with a token of the mask, or with an end, which changes nothing.

        Raises EngineError for another token, InvalidParameter where the grammar becomes too costly to follow.
        """
        if token_id in self._ends:
            return
        if not _holds(self._mask, token_id):
            raise EngineError(f"token {token_id} is not one that the grammar allows here")
        if not self._matcher.consume_token(token_id):
            raise refusal(self._param, _reason(self._matcher))
        if self._numbers is not None:
            self._numbers.read(self._trie.decode_bytes([token_id]))
        self._look_ahead()

    def _look_ahead(self) -> None:
        mask = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise refusal(self._param, _reason(self._matcher))
        _set(mask, self._end_mark, False)
        can_end = self._matcher.is_accepting()
        if self._numbers is not None:
            short = self._numbers.keep_short(mask)
            mask = short if can_end or not _is_empty(short) else mask
        self._is_over = _is_empty(mask)
        if can_end:
            for token_id in self._ends:
                _set(mask, token_id, True)
        self._mask = bytes(mask)


def check_size(grammar: Grammar) -> None:
    """Raises InvalidParameter. Tools have been measured as their client wrote them."""
    if len(grammar.source) > MAX_CHARS and grammar.kind != "tools":
        raise refusal(grammar.param, f"it has {len(grammar.source)} characters, limit {MAX_CHARS}")


def _compiled(grammar: Grammar) -> str:
    """The grammar in the library's own form, which it has yet to read."""
    check_size(grammar)
    try:
        grammar.source.encode()
        match grammar.kind:
            case "json_object":
                return _schema({"type": "object"})
            case "json_schema":
                return _schema(json.loads(grammar.source))
            case "regex":
                return llguidance.LLMatcher.grammar_from_regex(grammar.source)
            case "choice":
                return llguidance.LLMatcher.grammar_from_lark(_alternatives(json.loads(grammar.source)))
            case "lark" | "tools":
                return llguidance.grammar_from("grammar", grammar.source)
    except RecursionError as error:
        raise refusal(grammar.param, "it is nested too deeply") from error
    except ValueError as error:  # of JSON, of text that is no Unicode, of GBNF
        raise refusal(grammar.param, str(error)) from error


def _schema(schema: object) -> str:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ValueError(f"the schema is {shown(schema)}, must be an object")
    return llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(bounded(schema)),
        overrides={"whitespace_pattern": _WHITESPACE, "lenient": False, "coerce_one_of": False},
    )


def _schemas(grammar: Grammar) -> Iterator[object]:
    """The JSON schemas in a grammar that has been read."""
    if grammar.kind == "json_schema":
        yield json.loads(grammar.source)
    elif grammar.kind == "tools":
        for line in grammar.source.split("\n"):
            _, mark, schema = line.partition(" %json ")
            if mark:
                yield json.loads(schema)


def _numbers(grammar: Grammar, tokenizer: Tokenizer) -> Numbers | None:
    """None where an answer is no JSON."""
    if grammar.kind not in ("json_object", "json_schema", "tools"):
        return None
    stated = (number for schema in _schemas(grammar) for number in stated_numbers(schema))
    return Numbers(tokenizer.number_tokens, stated, in_calls=grammar.kind == "tools")


def _alternatives(choices: object) -> str:
    """A Lark grammar for one of some strings."""
    if not isinstance(choices, list) or not all(isinstance(text, str) and text for text in choices):
        raise ValueError(f"the choices are {shown(choices)}, must be a list of strings, none of them empty")
    if not choices:
        raise ValueError("there are 0 choices, must be at least one")
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)


def _holds(mask: bytes, token_id: int) -> bool:
    return token_id >> 3 < len(mask) and bool(mask[token_id >> 3] & 1 << (token_id & 7))


def _first(mask: bytes) -> int:
    """The lowest token of a mask that has one."""
    place = next(place for place, byte in enumerate(mask) if byte)
    byte = mask[place]
    return 8 * place + (byte & -byte).bit_length() - 1


def _is_empty(mask: bytearray) -> bool:
    return mask.count(0) == len(mask)


def _set(mask: bytearray, token_id: int, is_allowed: bool) -> None:
    place, bit = token_id >> 3, 1 << (token_id & 7)
    if place < len(mask):
        mask[place] = mask[place] | bit if is_allowed else mask[place] & ~bit


def _reason(matcher: llguidance.LLMatcher) -> str:
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    return "no text satisfies it" if reason == "NoExtensionBias" else reason


def refusal(param: str, reason: str) -> InvalidParameter:
    if len(reason) > _MAX_REASON:  # it quotes the source in its middle
        reason = f"{reason[: _MAX_REASON // 2]} ... {reason[-_MAX_REASON // 2 :]}"
    return InvalidParameter(
        f"{param} asks for an answer of a form that cannot be kept to: {reason}; change or simplify it",
        param=param,
    )
