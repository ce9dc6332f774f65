"""`/docs`: the API as one HTML page that needs nothing from elsewhere. No scripts, no fonts, no network.

Owns how it looks. What it says comes from the operations and the shapes of their records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape

from msgspec import UNSET, Struct, UnsetType, field

from tapetum import __version__
from tapetum.server.operations import Operation

DEFAULT_BASE = "http://127.0.0.1:8000"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { font-size: 1.05rem; margin-top: 2rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h2 b { background: #246; color: #fff; border-radius: 3px; padding: .1rem .4rem; margin-right: .5rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; background: #f4f4f2; border-radius: 3px; }
code { padding: .1rem .2rem; }
pre { padding: .7rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { border-bottom: 1px solid #eee; padding: .2rem .6rem .2rem 0; vertical-align: top; }
@media (prefers-color-scheme: dark) {
  body { background: #181a1b; color: #ddd; }
  code, pre { background: #26292b; }
  td, h2 { border-color: #333; }
  a { color: #8bf; }
}
"""


class Shape(Struct, frozen=True, kw_only=True):
    """As much of a JSON schema as is shown."""

    ref: str | UnsetType = field(name="$ref", default=UNSET)
    description: str = ""
    type: str = ""
    enum: list[object] = []
    any_of: list[Shape] = field(name="anyOf", default=[])
    items: Shape | bool | UnsetType = UNSET
    prefix_items: list[Shape] = field(name="prefixItems", default=[])
    values: Shape | bool | UnsetType = field(name="additionalProperties", default=UNSET)
    properties: dict[str, Shape] = {}
    required: list[str] = []
    default: object = UNSET


def page(
    operations: Iterable[Operation],
    names: Mapping[type, str],
    shapes: Mapping[str, Shape],
    base: str = DEFAULT_BASE,
) -> str:
    """Every route with what it takes and gives and a line to try it, then every record. `base`: the server's URL."""
    routes = "".join(_operation(operation, names, base) for operation in operations)
    records = "".join(_record(name, shapes[name]) for name in sorted(shapes))
    title = f"Tapetum {__version__}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><h1>{title}</h1>'
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. With API keys, add '
        f'<code>-H "Authorization: Bearer KEY"</code>.</p>{routes}<h1>Records</h1>{records}</body></html>'
    )


def _operation(operation: Operation, names: Mapping[type, str], base: str) -> str:
    answer = operation.answer
    rows = [("200", _link(names[answer]) if isinstance(answer, type) else escape(answer))]
    if operation.request is not None:
        rows.insert(0, ("takes", _link(names[operation.request])))
    if operation.event is not None:
        ending = ", then <code>[DONE]</code>" if operation.has_done else ""
        rows.append(("stream", f"events of {_link(names[operation.event])}{ending}"))
    if operation.errors:
        rows.append((", ".join(map(str, sorted(operation.errors))), _link("ErrorBody")))
    return (
        f"<h2><b>{operation.method.upper()}</b><code>{escape(operation.path)}</code></h2>"
        f"<p>{escape(operation.summary)}</p><pre>{escape(curl(operation, base))}</pre>{_table(rows)}"
    )


def curl(operation: Operation, base: str = DEFAULT_BASE) -> str:
    """A line to try it with."""
    line = f"curl {base}{operation.path.replace('{name}', 'default')}"
    if not operation.example:
        return line
    return f"{line} -d '{json.dumps(operation.example, ensure_ascii=False)}'"


def _record(name: str, shape: Shape) -> str:
    rows = []
    for key, part in shape.properties.items():
        told = _words(part)
        if key not in shape.required:
            known = part.default not in (UNSET, None)
            told += f", {escape(json.dumps(part.default))} if left out" if known else ", may be left out"
        rows.append((f"<code>{escape(key)}</code>", told))
    return f'<h2 id="{name}"><code>{name}</code></h2><p>{escape(shape.description)}</p>{_table(rows)}'


def _words(shape: Shape) -> str:
    """The type of a value, in HTML."""
    if isinstance(shape.ref, str):
        return _link(shape.ref.rpartition("/")[2])
    if shape.any_of:
        return " or ".join(_words(part) for part in shape.any_of)
    if shape.enum:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in shape.enum)
    if shape.prefix_items:
        return f"list of {len(shape.prefix_items)}: " + ", ".join(_words(part) for part in shape.prefix_items)
    if shape.type == "array":
        return f"list of {_words(shape.items)}" if isinstance(shape.items, Shape) else "list"
    if isinstance(shape.values, Shape):
        return f"object of {_words(shape.values)}"
    return escape(shape.type or "anything")


def _link(name: str) -> str:
    return f'<a href="#{name}">{name}</a>'


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return f"<table>{''.join(f'<tr><td>{left}</td><td>{right}</td></tr>' for left, right in rows)}</table>"
