"""The relations of the conformance runner: all are there, all have examples, and none is misread."""

from __future__ import annotations

import pytest

from tests.conformance import public_faults, relations
from tests.pure import test_conformance_answers, test_conformance_engine, test_conformance_streams


def test_every_relation_of_the_form_is_known_and_has_an_example() -> None:
    modules = (test_conformance_answers, test_conformance_streams, test_conformance_engine)
    shown = {name for module in modules for example in module.EXAMPLES for name in example.check}
    assert public_faults.RELATIONS.keys() == relations.RELATIONS.keys()
    assert shown >= relations.RELATIONS.keys()


@pytest.mark.parametrize(
    "check",
    [
        {"every_smile": "r"},
        {"every_status": "r"},
        {"every_status": "r", "in": [200], "within": 3},
        {"every_equal": "r.text", "not_all_equal": "r.text"},
        {},
    ],
)
def test_a_check_with_unknown_or_missing_words_is_told(check: dict) -> None:
    assert relations.check_form(check)
