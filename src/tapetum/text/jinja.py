"""The sandbox in which chat templates run, with the names that templates of the Hugging Face hub rely on.

A template is code that came with a model: it sees plain data only, cannot reach Python's internals and cannot
change what it is given. Names and options are those of transformers, so a template renders the same here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def build_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = PublicNamespace
    return environment


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; a prompt only needs what is inside."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own protocol

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(
            line
        )


class PublicNamespace(Namespace):
    """Variables of a template; the default one would also take names that reach Python's internals."""

    def __init__(self, *mappings: Mapping[str, object], **values: object) -> None:
        attributes: dict[str, object] = dict(*mappings, **values)
        for name in attributes:
            _check_public(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"the chat template sets {name!r} on a namespace; such names are not allowed")


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _new_dict(*mappings: Mapping[str, object], **values: object) -> dict[str, object]:
    return dict(*mappings, **values)
