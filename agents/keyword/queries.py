"""From a question to the clues in it, and from clues and what was read to queries.

A clue is a quoted string, a number, a capitalised name or another content word of the question.
Nothing here knows a benchmark: only spelling, sentence structure and rarity are used.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from soundingline.agents.keyword.answer_types import candidates
from soundingline.agents.keyword.evidence import Sentence
from soundingline.agents.keyword.words import WORD, is_content, stem, words

QUOTED = re.compile(r"[\"“”«»]([^\"“”«»]{2,120})[\"“”«»]|(?<!\w)['‘]([^'‘’]{2,120})['’](?!\w)")
# Runs of marks and of white space are tried from their beginning only.
_CLAUSE = re.compile(
    r"(?<![.;?!])[.;?!]+\s+|[;:]\s+|,\s+"
    r"|(?<!\s)\s+(?=(?:and|but|that|which|who|whose|where|when|while)\s)"
)


class Clue(NamedTuple):
    """One word of the question: as written, its stem, its kind (`quoted`, `number`, `name` or
    `word`), its weight (0 to 1), and the numbers of the clauses that it stands in."""

    text: str
    stem: str
    kind: str
    weight: float
    clauses: frozenset[int] = frozenset()


class Query(NamedTuple):
    """A query and one line that says why it is asked."""

    text: str
    reason: str


# How much more a marked word counts than a plain one of the same rarity.
_EMPHASIS = {"quoted": 1.3, "number": 1.2, "name": 1.3, "word": 1.0}


def find_clues(question: str, rarity: Callable[[str], float]) -> list[Clue]:
    """The clues of a question in its order, each stem once; words of weight 0 are left out."""
    quoted = [match.span() for match in QUOTED.finditer(question)]
    openings = [start for start, _ in quoted]
    breaks = [match.end() for match in _CLAUSE.finditer(question)]
    clues: dict[str, Clue] = {}
    clauses: dict[str, set[int]] = {}
    for match in WORD.finditer(question):
        word, start = match.group(), match.start()
        weight = rarity(word) if is_content(word) else 0.0
        if weight <= 0:
            continue
        last = bisect_right(openings, start) - 1
        kind = _kind(question, start, word, last >= 0 and start < quoted[last][1])
        clue = Clue(word, stem(word), kind, min(1.0, weight * _EMPHASIS[kind]))
        clues.setdefault(clue.stem, clue)
        clauses.setdefault(clue.stem, set()).add(bisect_right(breaks, start))
    return [clue._replace(clauses=frozenset(clauses[key])) for key, clue in clues.items()]


def _kind(question: str, start: int, word: str, inside_quotes: bool) -> str:
    if inside_quotes:
        return "quoted"
    if word[0].isdigit():
        return "number"
    if word[0].isupper() and not _opens_sentence(question, start):
        return "name"
    return "word"


def _opens_sentence(text: str, position: int) -> bool:
    """Whether a sentence or a quotation begins at `position`."""
    end = position
    while end > 0 and text[end - 1].isspace():
        end -= 1
    last = text[end - 1 : end]
    return not last or last in '"“«' or (last in ".?!" and end < position)


def weights(clues: Sequence[Clue]) -> dict[str, float]:
    """Stem -> weight."""
    return {clue.stem: clue.weight for clue in clues}


def first_queries(clues: Sequence[Clue], *, limit: int, terms: int) -> list[Query]:
    """At most `limit` different queries of at most `terms` words each: the whole question, its
    names, numbers and quotations, each clause by itself (the most telling first), the rarest words.
    """
    marked = [clue for clue in clues if clue.kind != "word"]
    rarest = heaviest(clues, min(4, terms))
    choices = [
        (heaviest(clues, terms), "All telling words of the question."),
        (heaviest(marked, terms), "Its names, numbers and quotations alone."),
        *((heaviest(clause, terms), "One clue of the question.") for clause in _clauses(clues)),
        (rarest, "Its rarest words."),
    ]
    queries: dict[frozenset[str], Query] = {}
    for chosen, reason in choices:
        if chosen:
            stems = frozenset(clue.stem for clue in chosen)
            queries.setdefault(stems, Query(" ".join(clue.text for clue in chosen), reason))
    return list(queries.values())[:limit]


def _clauses(clues: Sequence[Clue]) -> list[list[Clue]]:
    """Clauses with at least three clues, the heaviest first; a single clause is the question."""
    clauses: dict[int, list[Clue]] = {}
    for clue in clues:
        for clause in sorted(clue.clauses):
            clauses.setdefault(clause, []).append(clue)
    if len(clauses) < 2:
        return []
    long = [clause for clause in clauses.values() if len(clause) >= 3]
    return sorted(long, key=lambda clause: -sum(clue.weight for clue in clause))


def heaviest(clues: Sequence[Clue], limit: int) -> list[Clue]:
    """The `limit` clues of most weight, in the question's order."""
    indexes = set(sorted(range(len(clues)), key=lambda i: (-clues[i].weight, i))[:limit])
    return [clue for i, clue in enumerate(clues) if i in indexes]


def follow_up(
    clues: Sequence[Clue],
    covered: Mapping[str, float],
    terms: Sequence[str],
    *,
    limit: int,
) -> Query | None:
    """A query of `terms` (learnt from reading) and of the clues that reading did not cover.

    `covered` gives each stem's share of coverage (0 to 1). All clues serve where all are covered.
    None where there is nothing new to ask.
    """
    if not terms:
        return None
    open_clues = [clue for clue in clues if covered.get(clue.stem, 0.0) < 0.5] or list(clues)
    chosen = heaviest(open_clues, max(1, limit - len(terms)))
    text = " ".join([*terms, *(clue.text for clue in chosen)])
    return Query(text, f"Follow up on {', '.join(terms)}, found while reading.")


def feedback_terms(
    sentences: Sequence[Sentence],
    known: Collection[str],
    rarity: Callable[[str], float],
    *,
    limit: int,
    best: int = 20,
) -> list[str]:
    """Pseudo-relevance feedback: at most `limit` terms (names or single words) that the `best`
    sentences hold and that are not `known` (stems asked before), the most telling first.

    A term's weight is the squared coverage of its best sentence (not a sum, which favours what is
    common to many weak sentences) times its rarity; a name is as rare as its rarest word, and takes
    the place of the words in it.
    """
    if limit < 1:
        return []
    scores: dict[str, float] = {}
    as_written: dict[str, str] = {}
    for sentence in sorted(sentences, key=lambda s: -s.score)[:best]:
        for term in sorted(_terms(sentence.text)):
            key = " ".join(stem(word) for word in words(term))
            as_written.setdefault(key, term)
            score = sentence.score**2 * max(map(rarity, words(term)))
            scores[key] = max(scores.get(key, 0.0), score)
    chosen: list[str] = []
    known_stems = set(known)
    for key in sorted(scores, key=lambda key: (-scores[key], key)):
        if scores[key] > 0 and not known_stems.issuperset(key.split()):
            chosen.append(as_written[key])
            known_stems.update(key.split())
        if len(chosen) == limit:
            break
    return chosen


def _terms(text: str) -> set[str]:
    """Names, and content words outside them."""
    names = {name.text for name in candidates("name", text)}
    inside = {word for name in names for word in words(name)}
    return names | {word for word in words(text) if is_content(word) and word not in inside}
