"""The terms by which pages are found: what a text says, in a form that does not depend on how it is written.

Owns what counts as the same: letters without case, accents of compatibility forms, endings of English words, words
that a line break has cut, thousands that are grouped, dates in figures or in words, runs of Chinese, Japanese and
Korean as pairs of letters. A text and a question go the same way, so no form need be right, only the same. Needs
nothing but the standard library: the process that reads documents counts them too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH = {name[:size]: number for number, name in enumerate(_MONTHS, 1) for size in (3, len(name))}
_MONTH["sept"] = 9
_MONTH_NAME = "|".join(sorted(_MONTH, key=len, reverse=True))
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_CUT_WORD = re.compile(  # PDFium gives a hyphen at the end of a line as the first of these
    r"(?<![^\W\d_])([^\W\d_]++)(?:[\ufffe\x02\u00ad][ \t]*(?:\r?\n)?|[-\u2010\u2011][ \t]*\r?\n)[ \t]*([^\W\d_]+)"
)
_GROUPED = re.compile(
    r"(?<![\w.,])\d{1,3}(?:([,.'’\u00a0\u2009\u202f])\d{3})(?:\1\d{3})*(?![\d])(?:([.,])(\d+))?"
)
_ISO_DATE = re.compile(r"(?<!\d)(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)")
_DAY_FIRST = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th|\.)?\s+(?:of\s+)?({_MONTH_NAME})\.?,?\s+(\d{{4}})(?!\d)"
)
_MONTH_FIRST = re.compile(rf"\b({_MONTH_NAME})\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+(\d{{4}})(?!\d)")
_FIGURES_DATE = re.compile(r"(?<![\d./])(\d{1,2})([./])(\d{1,2})\2(\d{4})(?![\d])")
_PIECE = re.compile(
    rf"(?P<cjk>[{_CJK}]+)"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
    rf"|(?P<word>(?:(?![{_CJK}])[^\W\d_])+)"
)
_CODE = re.compile(r"(?<![a-z0-9])[a-z0-9]++(?:[-/_.:][a-z0-9]++)*+")
_NAMED = re.compile(
    r"\b(?:pages?|pp?\.)\s*(\d{1,6}(?:\s*(?:,|and|&|-|–|to|through)\s*\d{1,6})*)", re.IGNORECASE
)
_PLAIN = re.compile(r"[\d.]+|[a-z./:_-]+")  # figures alone, or no figure
_MAX_TERM = 64  # letters; what is longer is no word


def terms_of(text: str) -> Iterator[str]:
    """Every term of a text, as often as it occurs. What can be read in two ways comes in both."""
    for cut in _CUT_WORD.finditer(text):  # the hyphen may have been the writer's
        yield from (stem(half.casefold()) for half in cut.groups() if len(half) <= _MAX_TERM)
    text = _CUT_WORD.sub(r"\1\2", text)
    for number in _GROUPED.finditer(text):
        yield from _ungrouped(number)
    text = unicodedata.normalize("NFKC", text).casefold()
    yield from _dates(text)
    for code in _CODE.finditer(text):
        if len(code[0]) <= _MAX_TERM and not _PLAIN.fullmatch(code[0]):
            yield re.sub(r"[-/_.:]", "", code[0])
    for piece in _PIECE.finditer(text):
        if piece["cjk"]:
            yield from _pairs(piece[0])
        elif piece["number"]:
            yield from _figures(piece[0])
        elif len(piece[0]) <= _MAX_TERM:
            yield stem(piece[0])


def named_pages(question: str, num_pages: int) -> list[int]:
    """The pages of a document that a question asks for by number, as "page 17", "pages 3-5" or "the last page"."""
    named: list[int] = []
    for found in _NAMED.finditer(question):
        for run in re.split(r",|and|&", found[1]):
            ends = [int(number) for number in re.findall(r"\d+", run)]
            named.extend(range(ends[0], min(ends[-1], num_pages) + 1) if ends else ())
    if re.search(r"\blast page\b", question, re.IGNORECASE):
        named.append(num_pages)
    if re.search(r"\bfirst page\b", question, re.IGNORECASE):
        named.append(1)
    return [page for page in dict.fromkeys(named) if 1 <= page <= num_pages]


def stem(word: str) -> str:
    """A word without the commonest endings of English; nothing of what remains is shorter than three letters."""
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        bare = word.removesuffix(ending)
        if bare != word and len(bare) >= 3 and re.search("[aeiouy]", bare):
            word = bare[:-1] if bare[-1] == bare[-2] and bare[-1] not in "lsz" else bare
            break
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


def _ungrouped(number: re.Match[str]) -> Iterator[str]:
    """A number whose thousands are grouped, plain. Of two readings of a single group, the other comes as figures."""
    mark, point, decimals = number[1], number[2], number[3]
    if decimals is not None and point == mark:
        return
    whole = number[0] if decimals is None else number[0][: -len(decimals) - 1]
    plain = whole.replace(mark, "")
    yield plain if decimals is None else f"{plain}.{decimals}"


def _figures(number: str) -> Iterator[str]:
    """A number as it stands with a point for a comma, and its parts: they may have been what was asked for."""
    yield number.replace(",", ".")
    parts = re.split("[.,]", number)
    if len(parts) > 1:
        yield from parts


def _dates(text: str) -> Iterator[str]:
    for found in _ISO_DATE.finditer(text):
        yield _date(found[1], found[2], found[3])
    for found in _DAY_FIRST.finditer(text):
        yield _date(found[3], _MONTH[found[2]], found[1])
    for found in _MONTH_FIRST.finditer(text):
        yield _date(found[3], _MONTH[found[1]], found[2])
    for found in _FIGURES_DATE.finditer(text):
        yield _date(found[4], found[3], found[1])
        if found[2] == "/":  # the month may come first
            yield _date(found[4], found[1], found[3])


def _date(year: str, month: str | int, day: str) -> str:
    return f"{year}-{int(month):02}-{int(day):02}"


def _pairs(run: str) -> Iterator[str]:
    """Letters that stand together, two by two; a letter that stands alone."""
    if len(run) == 1:
        yield run
    yield from (run[index : index + 2] for index in range(len(run) - 1))
