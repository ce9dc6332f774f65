"""Which pages a question is about: the same terms however they are written, and the ranks of a plain BM25."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.media.document_index import PageIndex
from tapetum.media.document_words import named_pages, terms_of
from tests.handbook import NUM_PAGES, NUM_QUESTIONS, handbook, questions

WORDS = st.sampled_from(
    ["tower", "bridge", "12", "1,200", "東京タワー", "2024-03-05", "Ätna", "the", "AB-12", "x"]
)
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,234,567 litres", "1234567"),
        ("1.234.567,5", "1234567.5"),
        ("1\u202f234\u202f567", "1234567"),
        ("1\u00a0234 km", "1234"),
        ("1'234'567.25 CHF", "1234567.25"),
        ("costs 3,5 %", "3.5"),
        ("on 5 March 1987", "1987-03-05"),
        ("March 5th, 1987", "1987-03-05"),
        ("the 5th of March 1987", "5.3.1987"),
        ("3/5/1987", "5 March 1987"),
        ("3/5/1987", "March 5, 1987".replace("March 5", "May 3")),
        ("sensor QX-4471", "qx4471"),
        ("invoice INV/2023/0042", "INV-2023-0042"),
        ("infor-\nmation", "information"),
        ("infor\ufffe\r\nmation", "Information"),
        ("infor\ufffemation", "information"),
        ("well-\nknown", "known"),
        ("Companies", "company"),
        ("was approved", "approves"),
        ("running", "run"),
        ("ﬁnance", "Finance"),
        ("STRASSE", "straße"),
        ("東京タワーの高さ", "タワー"),
        ("北", "北"),
        ("서울특별시", "서울"),
    ],
)
def test_what_is_written_in_two_ways_has_a_term_in_common(one: str, other: str) -> None:
    assert set(terms_of(one)) & set(terms_of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1234", "1235"),
        ("12.5", "1.25"),
        ("京都", "東京"),
        ("QX-4471", "QX-4472".replace("QX", "QY")),
        ("bus", "bu"),
    ],
)
def test_what_is_something_else_has_none(one: str, other: str) -> None:
    assert not set(terms_of(one)) & set(terms_of(other))


@pytest.mark.parametrize(
    "text", ["a" * 65_000, "1," * 50_000, "1-" * 50_000, "東" * 65_000, "\ufffe" * 9999, "a-\n" * 30_000]
)
def test_hostile_texts_take_no_long_time(text: str) -> None:
    assert sum(1 for _ in terms_of(text)) < 1_000_000


@pytest.mark.parametrize(
    ("question", "pages"),
    [
        ("What is on page 17?", [17]),
        ("Compare pages 3-5 and 9", [3, 4, 5, 9]),
        ("pp. 2, 4 and the last page", [2, 4, 40]),
        ("the first page", [1]),
        ("page 99, page 0, page 9-2", []),
        ("all 17 pages", []),
    ],
)
def test_pages_are_named_by_their_numbers(question: str, pages: list[int]) -> None:
    assert named_pages(question, 40) == pages


@given(texts=TEXTS)
def test_an_index_crosses_over_as_bytes(texts: list[str]) -> None:
    made = PageIndex.of(texts)
    came = PageIndex.from_parts(made.parts())
    assert came.parts() == made.parts()
    assert came.num_bytes > 0
    assert came.textless == [page for page, text in enumerate(texts) if not text]


@pytest.mark.parametrize("broken", range(5))
def test_parts_that_do_not_belong_together_are_refused(broken: int) -> None:
    parts = list(PageIndex.of(["a b", "b c"]).parts())
    parts[broken] = parts[broken][:-1] if broken else b"a\nb"
    with pytest.raises(ValueError):
        PageIndex.from_parts(parts)


@given(texts=TEXTS, question=st.lists(WORDS, max_size=4).map(" ".join))
def test_pages_are_ranked_as_the_formula_says(texts: list[str], question: str) -> None:
    counted = [Counter(terms_of(text)) for text in texts]
    mean = sum(map(Counter.total, counted)) / len(counted)
    scores = {}
    for page, terms in enumerate(counted):
        for term in dict.fromkeys(terms_of(question)):
            if terms[term]:
                with_it = sum(term in others for others in counted)
                rarity = math.log(1 + (len(texts) - with_it + 0.5) / (with_it + 0.5))
                norm = 1.2 * (0.25 + 0.75 * terms.total() / mean)
                scores[page] = scores.get(page, 0.0) + rarity * terms[term] * 2.2 / (terms[term] + norm)
    expected = sorted(scores, key=lambda page: (-scores[page], page))
    ranked = PageIndex.of(texts).ranked(question)
    assert [scores[page] for page in ranked] == pytest.approx([scores[page] for page in expected])
    assert sorted(ranked) == sorted(expected)


def test_what_was_asked_before_counts_less() -> None:
    index = PageIndex.of(["harbour town", "bridge town", "harbour bridge"])
    assert index.ranked("harbour", "bridge")[:2] == [2, 0]
    assert index.ranked("what about it?", "bridge")[0] == 1


@pytest.mark.parametrize("wording", [0, 1])
def test_the_page_with_the_fact_is_among_the_best_eight(wording: int) -> None:
    pages, _ = handbook(11)
    index = PageIndex.of(pages)
    assert len(pages) == NUM_PAGES
    hits = sum(page - 1 in index.ranked(asked)[:8] for asked, page in questions(11, wording))
    assert hits >= 0.98 * NUM_QUESTIONS
