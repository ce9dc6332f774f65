"""Whether an answer is the JSON that its request asked for."""

from __future__ import annotations

import json

import jsonschema

from tests.conformance.observation import Unmet
from tests.conformance.reply import shortened


def check_schema(asked: dict, text: str) -> None:
    """Raises Unmet unless the text parses and fits the schema of the request's `response_format`."""
    schema = _schema(asked.get("response_format") or {})
    if schema is None:
        raise Unmet("the request has no response_format that asks for JSON, so there is nothing to fit")
    try:
        jsonschema.validate(json.loads(text), schema)
    except ValueError as error:
        raise Unmet(f"the text is JSON; seen: {shortened(text)!r}, {error}") from error
    except jsonschema.ValidationError as error:
        raise Unmet(f"the text fits its schema; seen: {shortened(text)!r}, {error.message}") from error


def _schema(response_format: dict) -> dict | None:
    if response_format.get("type") == "json_object":
        return {"type": "object"}
    return response_format.get("json_schema", {}).get("schema")
