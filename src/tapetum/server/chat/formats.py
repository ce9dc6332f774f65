"""What an answer must look like: `response_format` and vLLM's several names for the same, as one Grammar.

Owns the shapes and that only one of them is asked for. Whether a grammar can be kept to is the text layer's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from tapetum.core.errors import InvalidParameter
from tapetum.core.request import Grammar, GrammarKind
from tapetum.server.chat.unserved import UnservedFields
from tapetum.text.tools import json_text

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
    asked_for = (
        _format(asked.response_format),
        _schema("structured_outputs.json", inner.json),
        _any_object("structured_outputs.json_object", inner.json_object),
        _written("structured_outputs.regex", "regex", inner.regex),
        _choice("structured_outputs.choice", inner.choice),
        _written("structured_outputs.grammar", "lark", inner.grammar),
        _schema("guided_json", asked.guided_json),
        _written("guided_regex", "regex", asked.guided_regex),
        _choice("guided_choice", asked.guided_choice),
        _written("guided_grammar", "lark", asked.guided_grammar),
    )
    found = [grammar for grammar in asked_for if grammar is not None]
    if len(found) > 1:
        names = " and ".join(grammar.param for grammar in found)
        raise InvalidParameter(
            f"{names} each say what the answer looks like; send one of them", param=found[1].param
        )
    return found[0] if found else None


def _format(asked: ResponseFormat | None) -> Grammar | None:
    match asked:
        case JsonObjectFormat():
            return _any_object("response_format", True)
        case JsonSchemaFormat(json_schema=named):
            return _schema("response_format.json_schema.schema", named.schema)
    return None


def _any_object(param: str, is_asked: bool | None) -> Grammar | None:
    return Grammar(kind="json_object", param=param) if is_asked else None


def _schema(param: str, schema: str | JsonSchema | None) -> Grammar | None:
    if schema is None:
        return None
    source = schema if isinstance(schema, str) else json_text(schema, param)
    return Grammar(kind="json_schema", source=source, param=param)


def _choice(param: str, choice: Sequence[str] | None) -> Grammar | None:
    return None if choice is None else Grammar(kind="choice", source=json_text(choice, param), param=param)


def _written(param: str, kind: GrammarKind, source: str | None) -> Grammar | None:
    return None if source is None else Grammar(kind=kind, source=source, param=param)
