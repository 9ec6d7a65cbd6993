"""The queries that agents write: their terms and operators, and how they change from one to the
next."""

from __future__ import annotations

import re
from typing import NamedTuple

TURNS = {"first": "the first query", "second": "the second query", "later": "the later queries"}
_WORD = re.compile(r"[^\W_]+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be been but by did do does for from had has have he her his how if in "
        "into is it its no not of on or she so than that the their them then there these they this "
        "to was were what when where which who whom whose why will with"
    )
)
_MARKS = re.compile("[\u201c\u201d\u201e]")
_CLAUSE = re.compile(r'(?:(?<=\s)|^)(-?)"([^"]*)"|(")([^"]*)"|(?:(?<=\s)|^)-(\w\S*)')
# What web search engines read as an operator, beside quotation marks and a minus.
_OPERATOR = re.compile(
    r"(?<![^\s(])(?:\+\w|(?:site|in(?:title|url|text)|filetype|before|after):\w"
    r"|(?:AND|OR|NOT)(?=\s))"
)


class ParsedQuery(NamedTuple):
    """A query without operators (`text`), the required phrases, and the excluded words and
    phrases."""

    text: str
    phrases: tuple[str, ...]
    excluded: tuple[str, ...]


def parse_query(query: str) -> ParsedQuery:
    """The quoted phrases and exclusions of a query, by the rules of
    `soundingline.pipelines.lexical.operators`.

    >>> parse_query('"tide mill" town -river')
    ParsedQuery(text=' tide mill  town  ', phrases=('tide mill',), excluded=('river',))
    """
    phrases, excluded = [], []

    def clause(match: re.Match[str]) -> str:
        minus, quoted, _, inner, word = match.groups()
        if word or minus:
            excluded.append((word or quoted).replace('"', " "))
            return " "
        phrases.append(quoted or inner or "")
        return f" {phrases[-1]} "

    text = _CLAUSE.sub(clause, _MARKS.sub('"', query)).replace('"', " ")
    return ParsedQuery(text, *(tuple(filter(str.strip, each)) for each in (phrases, excluded)))


def has_operator(query: str) -> bool:
    """Whether a query has an exclusion, `+word`, AND, OR, NOT, or a field such as `site:`, whether
    or not the search tool honours it.

    >>> [has_operator(query) for query in ("mill site:a.org", "mill OR weir", "well-known or old")]
    [True, True, False]
    """
    return bool(_OPERATOR.search(query) or parse_query(query).excluded)


def words_of(text: str) -> list[str]:
    """The runs of letters and digits of a text, in their order and with their case."""
    return _WORD.findall(text)


def terms(text: str) -> frozenset[str]:
    """The terms of a text: its distinct words without case, but for function words.

    >>> sorted(terms("The tower of Brel, 1902"))
    ['1902', 'brel', 'tower']
    """
    return frozenset(_WORD.findall(text.casefold())) - _FUNCTION_WORDS


def reformulation(before: frozenset[str], after: frozenset[str]) -> str:
    """How the terms of a query differ from those of the query before it: `new` if they share none,
    `added` or `dropped` if one set contains the other, `exchanged` if each has a term that the
    other has not; empty for equal sets.

    >>> reformulation(terms("tide mill"), terms("tide mill Brel"))
    'added'
    """
    if before == after:
        return ""
    if not before & after:
        return "new"
    return "added" if before < after else "dropped" if after < before else "exchanged"
