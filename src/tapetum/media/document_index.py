"""Which pages of a document a question is about: BM25 over the terms of their texts.

Owns the counts of a document in a few flat arrays, so that what it weighs is known, and their form on the way from
the process that counts. Nothing is learnt and nothing is drawn: the same document and question give the same pages.
Source of the formula: Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009, with the usual k1 and b.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tapetum.media.document_words import terms_of

_K1, _B = 1.2, 0.75
_MAX_COUNT = 2**16 - 1
_MAX_QUESTION_CHARS = 2**14  # of a question; the end of a longer one counts
_EARLIER = 0.25  # what was asked before counts so much


@dataclass(frozen=True, slots=True, eq=False)
class PageIndex:
    """`pages[starts[i]:starts[i + 1]]` are the pages with the term `i`, ascending from 0, with its counts there."""

    terms: dict[str, int]
    starts: array[int]
    pages: array[int]
    counts: array[int]
    lengths: array[int]  # terms of each page; 0 = it has no text

    @classmethod
    def of(cls, texts: Iterable[str]) -> PageIndex:
        """Of the text of each page, in order."""
        postings: dict[str, tuple[array[int], array[int]]] = {}
        lengths = array("I")
        for page, text in enumerate(texts):
            counted = Counter(terms_of(text))
            lengths.append(counted.total())
            for term, count in counted.items():
                pages, counts = postings.setdefault(term, (array("I"), array("H")))
                pages.append(page)
                counts.append(min(count, _MAX_COUNT))
        starts, pages, counts = array("I", [0]), array("I"), array("H")
        for found, times in postings.values():
            pages.extend(found)
            counts.extend(times)
            starts.append(len(pages))
        return cls({term: place for place, term in enumerate(postings)}, starts, pages, counts, lengths)

    @classmethod
    def from_parts(cls, parts: Sequence[bytes | bytearray]) -> PageIndex:
        """What `parts` has given; raises ValueError for bytes that it cannot have."""
        words, *arrays = parts
        made = [array(kind) for kind in "IIHI"]
        for values, raw in zip(made, arrays, strict=True):
            values.frombytes(raw)
        starts, pages, counts, lengths = made
        terms = {term: place for place, term in enumerate(words.decode().split("\n"))} if words else {}
        is_whole = len(starts) == len(terms) + 1 and len(pages) == len(counts) == starts[-1]
        if not is_whole or max(pages, default=-1) >= len(lengths):
            raise ValueError("the parts of an index do not belong together")
        return cls(terms, starts, pages, counts, lengths)

    def parts(self) -> tuple[bytes, ...]:
        """Everything in it as bytes; terms hold no line breaks."""
        arrays = (self.starts, self.pages, self.counts, self.lengths)
        return ("\n".join(self.terms).encode(), *(values.tobytes() for values in arrays))

    @property
    def num_bytes(self) -> int:
        """Of memory, nearly."""
        arrays = (self.starts, self.pages, self.counts, self.lengths)
        return (
            sys.getsizeof(self.terms)
            + sum(map(sys.getsizeof, self.terms))
            + 32 * len(self.terms)  # the number of a term
            + sum(map(sys.getsizeof, arrays))
        )

    @property
    def textless(self) -> list[int]:
        return [page for page, length in enumerate(self.lengths) if length == 0]

    def ranked(self, question: str, earlier: str = "") -> list[int]:
        """The pages that share a term with the question, the best first, equal ones in their order. What was asked
        before, in `earlier`, counts less."""
        wanted: dict[str, float] = dict.fromkeys(terms_of(earlier[-_MAX_QUESTION_CHARS:]), _EARLIER)
        wanted |= dict.fromkeys(terms_of(question[-_MAX_QUESTION_CHARS:]), 1.0)
        num_pages = len(self.lengths)
        mean = sum(self.lengths) / num_pages if num_pages else 0.0
        scores: dict[int, float] = {}
        for term, weight in wanted.items():
            place = self.terms.get(term)
            if place is None:
                continue
            start, end = self.starts[place], self.starts[place + 1]
            rarity = weight * math.log(1 + (num_pages - (end - start) + 0.5) / (end - start + 0.5))
            for page, count in zip(self.pages[start:end], self.counts[start:end], strict=True):
                norm = _K1 * (1 - _B + _B * self.lengths[page] / mean)
                scores[page] = scores.get(page, 0.0) + rarity * count * (_K1 + 1) / (count + norm)
        return sorted(scores, key=lambda page: (-scores[page], page))
