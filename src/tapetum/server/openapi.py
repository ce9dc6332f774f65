"""`/openapi.json`: the API in OpenAPI 3.1, written from the records that the routes read and write; `/docs`: as a page.

Owns the form of the document; what is in it stands in operations.py. A field of an answer that is left out at times
(UNSET) is optional, all others are required. Fields of requests that are known only to be refused are not shown. Not
in it, because OpenAPI has no words for it: the WebSocket `/v1/chat/ws`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
from msgspec import inspect
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tapetum import __version__
from tapetum.server.docs_page import DEFAULT_BASE, Shape, page
from tapetum.server.errors import ErrorBody
from tapetum.server.operations import JSON, OPERATIONS, Operation
from tapetum.server.serving import Serving
from tapetum.server.stream import as_json

Json = dict[str, object]
_ANYTHING = {"description": "any JSON"}
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request cannot be served as it is; the message says why.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body came too slowly, a picture could not be fetched in time, or the request's own time is over.",
    413: "The body or a picture is too large.",
    429: "The queue is full, or the key has asked as much as it may; come back after `Retry-After` seconds.",
    500: "The server failed; only this request is lost.",
    503: "The server loads, shuts down, or its engine has ended; come back after `Retry-After` seconds.",
}


def routes(serving: Serving) -> list[Route]:
    @cache  # written when it is first asked for: a server starts without it
    def told() -> tuple[bytes, dict[type, str], dict[str, Shape]]:
        names, shapes = schemas()
        text = as_json(document(names, shapes, has_keys=serving.has_keys))
        return text, names, msgspec.convert(shapes, dict[str, Shape])

    async def openapi(request: Request) -> Response:
        return Response(told()[0], media_type=JSON)

    async def docs(request: Request) -> Response:
        _, names, shapes = told()
        return Response(page(OPERATIONS, names, shapes, _base(request)), media_type="text/html")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _base(request: Request) -> str:
    """Where the client found the server. Of a host only what is one goes into lines that are made to be run."""
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host}" if _HOST.fullmatch(host) else DEFAULT_BASE


def document(names: dict[type, str], shapes: Json, *, has_keys: bool) -> Json:
    """With keys it says where they go."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, names)
    components: Json = {
        "schemas": shapes,
        "responses": {f"Error{status}": _error(status, names[ErrorBody]) for status in _ERRORS},
    }
    told: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Tapetum",
            "version": __version__,
            "description": "A vision-language model behind OpenAI's API.",
        },
        "paths": paths,
        "components": components,
    }
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        told["security"] = [{"key": []}]
    return told


def _operation(operation: Operation, names: dict[type, str]) -> Json:
    word = re.sub(r"\W+", "_", operation.path).strip("_")
    told: Json = {"summary": operation.summary, "operationId": f"{operation.method}_{word}"}
    if parameters := re.findall(r"{(\w+)}", operation.path):
        told["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if operation.request is not None:
        shape: Json = {"schema": _ref(names[operation.request])}
        if operation.example:
            shape["example"] = operation.example
        told["requestBody"] = {"required": True, "content": {JSON: shape}}
    responses: Json = {"200": {"description": "What was asked for.", "content": _content(operation, names)}}
    for status in sorted(operation.errors):
        responses[str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    return {**told, "responses": responses}


def _content(operation: Operation, names: dict[type, str]) -> Json:
    if isinstance(operation.answer, str):
        return {operation.answer: {"schema": {} if operation.answer == JSON else {"type": "string"}}}
    content: Json = {JSON: {"schema": _ref(names[operation.answer])}}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": _event(operation, names)}
    return content


def _event(operation: Operation, names: dict[type, str]) -> Json:
    """Of each event of a stream."""
    assert operation.event is not None
    kinds = [_ref(names[operation.event]), _ref(names[ErrorBody])]
    said: Json = {"contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    ending: list[Json] = [{"const": "[DONE]"}] if operation.has_done else []
    return {
        "type": "object",
        "description": "With `stream`: the answer in pieces, or an error that breaks it off.",
        "properties": {"data": {"type": "string", "anyOf": [said, *ending]}},
        "required": ["data"],
    }


def _error(status: int, name: str) -> Json:
    told: Json = {"description": _ERRORS[status], "content": {JSON: {"schema": _ref(name)}}}
    if status in (429, 503):
        told["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
    return told


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def schemas() -> tuple[dict[type, str], Json]:
    """Every record by its name in the document, and what each looks like."""
    answers = [one for each in OPERATIONS for one in (each.answer, each.event) if isinstance(one, type)]
    written = list(_records([*answers, ErrorBody]))
    read = list(_records([one.request for one in OPERATIONS if one.request is not None]))
    classes = list(dict.fromkeys([*written, *read]))
    described = msgspec.json.schema_components(classes, schema_hook=lambda _: _ANYTHING, ref_template=_REF)
    # records of one name are told apart by their modules; all are below this one
    refs, shapes = msgspec.json.decode(as_json(described).replace(b"tapetum.server.", b""))
    names = {record: ref["$ref"].rpartition("/")[2] for record, ref in zip(classes, refs, strict=True)}
    for record in set(written) - set(read):
        shapes[names[record]]["required"] = _written(record)
    for record in read:
        properties = shapes[names[record]]["properties"]
        for name in [name for name, shape in properties.items() if shape == {**_ANYTHING, "default": None}]:
            del properties[name]
    return names, shapes


def _written(record: type) -> list[str]:
    """The fields that are always there in an answer: all but those that are UNSET at times."""
    shape = inspect.type_info(record)
    assert isinstance(shape, (inspect.StructType, inspect.DataclassType)), "only records have names"
    tag = [shape.tag_field] if isinstance(shape, inspect.StructType) and shape.tag_field else []
    return tag + [item.encode_name for item in shape.fields if not _may_be_unset(item)]


def _may_be_unset(item: inspect.Field) -> bool:
    """Not required, and yet without a value to fall back to."""
    return not item.required and item.default is item.default_factory is msgspec.NODEFAULT


def _records(types: Iterable[type]) -> Iterator[type]:
    """The types and all records they consist of, each once."""
    seen: set[type] = set()
    rest: list[object] = list(inspect.multi_type_info(types))
    while rest:
        shape = rest.pop()
        if isinstance(shape, (inspect.StructType, inspect.DataclassType)):
            if shape.cls in seen:
                continue
            seen.add(shape.cls)
            yield shape.cls
            rest += [item.type for item in shape.fields]
        for name in ("type", "item_type", "key_type", "value_type"):
            rest += [getattr(shape, name)] if hasattr(shape, name) else []
        for name in ("types", "item_types"):
            rest += getattr(shape, name, ())
