"""What an answer must look like: `response_format` and vLLM's several names for the same, as one Grammar.

Owns the shapes and that only one of them is asked for. Whether a grammar can be kept to is the text layer's to say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from tapetum.core.errors import InvalidParameter, RequestError
from tapetum.core.request import Grammar, GrammarKind
from tapetum.server.chat.unserved import UnservedFields

JsonSchema = dict[str, object] | bool
Choices = Annotated[list[str], Meta(min_length=1)]


class TextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Anything."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(Struct, frozen=True, kw_only=True):
    schema: JsonSchema
    name: str | None = None
    strict: bool | None = None  # the answer keeps to the schema either way


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of them; a schema may be written as text."""

    json: str | JsonSchema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class FormatFields(UnservedFields, frozen=True, kw_only=True):
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


def grammar_of(asked: FormatFields) -> Grammar | None:
    """The grammar of the answer's text, if any; raises InvalidParameter where several are asked for."""
    inner = asked.structured_outputs or StructuredOutputs()
    named = {
        "response_format": _format(asked.response_format),
        "structured_outputs.json": _schema(inner.json),
        "structured_outputs.json_object": Grammar(kind="json_object") if inner.json_object else None,
        "structured_outputs.regex": _written("regex", inner.regex),
        "structured_outputs.choice": _choice(inner.choice),
        "structured_outputs.grammar": _written("lark", inner.grammar),
        "guided_json": _schema(asked.guided_json),
        "guided_regex": _written("regex", asked.guided_regex),
        "guided_choice": _choice(asked.guided_choice),
        "guided_grammar": _written("lark", asked.guided_grammar),
    }
    found = {name: grammar for name, grammar in named.items() if grammar is not None}
    if len(found) > 1:
        raise InvalidParameter(
            f"{' and '.join(found)} each say what the answer looks like; send one of them",
            param=list(found)[1],
        )
    return next(iter(found.values()), None)


def _format(asked: ResponseFormat | None) -> Grammar | None:
    match asked:
        case JsonObjectFormat():
            return Grammar(kind="json_object")
        case JsonSchemaFormat(json_schema=named):
            return _schema(named.schema)
    return None


def _schema(schema: str | JsonSchema | None) -> Grammar | None:
    if schema is None:
        return None
    return Grammar(kind="json_schema", source=schema if isinstance(schema, str) else _as_text(schema))


def _choice(choice: Sequence[str] | None) -> Grammar | None:
    return None if choice is None else Grammar(kind="choice", source=_as_text(choice))


def _written(kind: GrammarKind, source: str | None) -> Grammar | None:
    return None if source is None else Grammar(kind=kind, source=source)


def _as_text(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError("a JSON schema is nested too deeply; flatten it") from error
