"""JSON schemas that no value satisfies, since each would have to contain another without end.

Looks at what it is sure of: a keyword that it does not know is taken to hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

_MAX_ROUNDS = 64  # of looking for values of parts that refer to one another


class Recursion:
    """Which parts of a schema have a value that comes to an end, where parts refer to one another."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._found: dict[str, object] = {}  # the parts that are referred to, by reference
        self._ending: set[str] = set()  # those of which it is known
        self._has_own_roots = False  # parts with an $id, where a reference may mean something else
        self._collect(root)

    def has_end(self) -> bool:
        """False where every value would have to contain another without end; true where it cannot be told."""
        if self._has_own_roots:
            return True
        for _ in range(_MAX_ROUNDS):
            num_before = len(self._ending)
            self._ending |= {
                name for name in self._found.keys() - self._ending if self._ends(self._found[name])
            }
            if len(self._ending) == num_before:
                return self._ends(self._root)
        return True

    def _collect(self, part: object) -> None:
        if isinstance(part, list):
            for inner in part:
                self._collect(inner)
        elif isinstance(part, Mapping):
            name = part.get("$ref")
            if isinstance(name, str) and name not in self._found:
                self._found[name] = _part(self._root, name)
            self._has_own_roots |= part is not self._root and "$id" in part
            for inner in part.values():
                self._collect(inner)

    def _ends(self, schema: object) -> bool:
        """Whether it has a value, as far as is known; each keyword by itself."""
        if not isinstance(schema, Mapping) or schema.keys() & {"const", "enum"}:
            return True
        name, kind = schema.get("$ref"), schema.get("type")
        if isinstance(name, str):  # older drafts have nothing beside it count
            return name in self._ending
        kinds = kind if isinstance(kind, list) else [kind]
        return (
            all(map(self._ends, _listed(schema, "allOf")))
            and all(
                any(map(self._ends, options))
                for key in ("anyOf", "oneOf")
                if (options := _listed(schema, key))
            )
            and any(self._ends_as(kind, schema) for kind in kinds)
        )

    def _ends_as(self, kind: object, schema: Mapping[str, object]) -> bool:
        if kind == "object":
            properties, others = schema.get("properties"), schema.get("additionalProperties")
            known = properties if isinstance(properties, Mapping) else {}
            others = others if "patternProperties" not in schema else True
            needed = [name for name in _listed(schema, "required") if isinstance(name, str)]
            return all(self._ends(known.get(name, others)) for name in needed)
        if kind == "array":
            first, least = _listed(schema, "prefixItems"), schema.get("minItems")
            least = max(least, 0) if isinstance(least, int) else 0
            items = [schema.get("items")] if least > len(first) else []
            return all(map(self._ends, [*first[:least], *items]))
        return True


def _listed(schema: Mapping[str, object], key: str) -> list[object]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _part(root: object, name: str) -> object:
    """What a reference within the schema points to; None, which allows anything, if we cannot tell."""
    if name != "#" and not name.startswith("#/"):
        return None
    found = root
    for step in name.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found
