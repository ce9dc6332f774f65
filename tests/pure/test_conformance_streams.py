"""Relations about streams and the media server hold of what is right and fail on what is wrong."""

from __future__ import annotations

import pytest

from tests.conformance.observation import Visits
from tests.pure.conformance_kit import (
    Example,
    answer,
    seen,
    stream,
    with_,
)

EXAMPLES = [
    Example(
        {"stream_text_equals_prefix_of": ["s", "full", "{STOP}"]},
        [with_(seen(s=stream("re", "d"), full=answer("red, green, red")), stop=", ")],
        [
            with_(seen(s=stream("red,"), full=answer("red, green")), stop=", "),
            with_(seen(s=stream("red, green"), full=answer("red, green, red")), stop=", "),
            with_(seen(s=stream("red"), full=answer("red")), stop=", "),
        ],
    ),
    Example(
        {"no_suffix_is_prefix_of_stop": "s"},
        [
            with_(seen(s=stream("red")), stop=", g"),
            with_(seen(s=stream("aa")), stop="aab", stop_source="aaaab"),
        ],
        [with_(seen(s=stream("red", ", ")), stop=", g", stop_source="red, green"), seen(s=stream("red"))],
    ),
    Example(
        {"no_char_in_any_chunk": ["s", "\ufffd"]},
        [seen(s=stream("é", "x"))],
        [seen(s=stream("a", "\ufffd")), seen(s=answer())],
    ),
    Example(
        {"every_chunk_valid_utf8": "s"},
        [seen(s=stream("é"))],
        [
            seen(s=stream(b'{"choices": [{"delta": {"content": "\\ud83d"}}]}')),
            seen(s=stream(b'{"choices": "\xc3"}')),
            seen(s=answer()),
        ],
    ),
    Example(
        {"last_chunk": "s", "choices": 0, "has": "usage"},
        [seen(s=stream("a", usage=True))],
        [seen(s=stream("a")), seen(s=stream("a", b'{"choices": [], "usage": null}'))],
    ),
    Example(
        {"usage_chunks_without_option": ["s", 0]},
        [seen(s=stream("a"))],
        [seen(s=stream("a", usage=True)), seen(s=answer())],
    ),
    Example({"canary_hits": 0}, [with_(seen(), visits=Visits((), 0))], [with_(seen(), visits=Visits((), 1))]),
    Example(
        {"served_query_verbatim": "a=%2B"},
        [with_(seen(), visits=Visits(("", "a=%2B"), 0))],
        [with_(seen(), visits=Visits(("a=+",), 0)), seen()],
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: next(iter(example.check)))
def test_a_relation_holds_of_what_is_right_and_of_nothing_else(example: Example) -> None:
    example.prove()
