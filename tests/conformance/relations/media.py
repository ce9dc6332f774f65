"""Relations about the media server: what it was asked for, who else was asked, what its faults are called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.conformance.observation import Unmet
from tests.conformance.trial import Trial

_OF_NO_PICTURE = ("image", "picture", "format", "decode", "html", "content", "type")
_OF_NO_BYTES = ("empty", "no bytes", "0 bytes", "no body", "no content")


def canary_hits(trial: Trial, number: int) -> None:
    found = trial.seen.visits.canary_hits
    if found != number:
        raise Unmet(f"the second listener sees {number} connections; seen: {found}")


def served_query_verbatim(trial: Trial, query: str) -> None:
    if query not in trial.seen.visits.queries:
        raise Unmet(f"the media server gets the query {query}; seen: {list(trial.seen.visits.queries)}")


def error_names_remote_status(trial: Trial, name: str) -> None:
    """A status that is no success by its number; a body without a picture by what is wrong with it."""
    routes = {route["route"]: route for route in trial.seen.routes}
    for index, reply in enumerate(trial.seen.named(name)):
        fetched = [routes[path] for path in _paths(reply.asked) if path in routes]
        if not fetched:
            raise Unmet(f"{name}[{index}] asked for nothing that the media server has")
        message = (reply.error or "").lower()
        words = _words_for(fetched[0])
        if not any(word in message for word in words):
            raise Unmet(f"{name}[{index}] names one of {list(words)}; seen: {reply.outcome}")


def _words_for(route: dict) -> tuple[str, ...]:
    status = route.get("status", 200)
    if not 200 <= status < 300:
        return (str(status),)
    if not route.get("body"):
        return (*_OF_NO_BYTES, *((str(status),) if status != 200 else ()))
    return _OF_NO_PICTURE


def _paths(asked: dict) -> Iterator[str]:
    """The paths of all references in a request."""
    for message in json.loads(json.dumps(asked)).get("messages", ()):
        for part in message["content"] if isinstance(message["content"], list) else ():
            for value in part.values():
                reference = value.get("url") if isinstance(value, dict) else value
                if isinstance(reference, str) and reference.startswith("http"):
                    yield urlsplit(reference).path
