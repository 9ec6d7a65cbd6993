"""How an agent follows candidates: the branches of its searches, as Pi-Serini's authors describe
them (Hsu, Yang and Lin, 2026; arXiv 2605.10848). The paper counts them by reading; these are
rules.

- The terms of a text are its distinct words without case (letters and digits), but for function
  words.
- A name is a term that some earlier output of a tool of the question has with an initial capital
  or a digit, and that no earlier output has with a small initial. Queries that an output repeats
  are not part of it.
- A search is specific to a candidate if a term of its query is a name and is not a term of the
  question. These terms are its candidate terms.
- A branch is a longest series of such searches, in the order of all searches of the question, in
  which each shares a candidate term with the one before. Any other search ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from soundingline.toolkit.queries import terms, words_of
from soundingline.toolkit.search.answers import shown_texts
from soundingline.toolkit.trajectory import Trajectory

_JSON = ("{", "[{", "[\n")


class AgentSearch(NamedTuple):
    """A search that ran: its query, the terms, and which of them are candidate terms and terms that
    came from earlier outputs."""

    query: str
    terms: frozenset[str]
    candidates: frozenset[str]
    read: frozenset[str]


def searches_of(trajectory: Trajectory) -> list[AgentSearch]:
    """The searches of a question that ran, in their order.

    A term keeps its source, which is decided at its first use: later outputs may hold it because
    the agent searched for it.
    """
    question = terms(trajectory.question)
    calls = [(call, call.query) for call in trajectory.calls if not call.error]
    last = max((at for at, (_, query) in enumerate(calls) if query is not None), default=-1)
    queries = [terms(query) for _, query in calls if query is not None]
    named = frozenset[str]().union(*queries) - question  # the terms that outputs may have
    searches: list[AgentSearch] = []
    used: set[str] = set()
    read: set[str] = set()
    words: set[str] = set()
    capital: set[str] = set()
    small: set[str] = set()
    for call, query in calls[: last + 1]:  # no search follows later outputs
        if query is not None:
            query_terms = queries[len(searches)]
            shown = {term for term in query_terms & named if term in capital or term in small}
            read |= shown - used
            used |= query_terms
            names = frozenset(term for term in shown if term not in small)
            search = AgentSearch(query, query_terms, names, query_terms & read)
            searches.append(search)
        output = call.output
        if output.startswith(_JSON):  # in which line breaks and accents are escapes
            output = "\n".join(shown.text for shown in shown_texts([call]))
        for text in filter(None, (search.query for search in searches)):
            output = output.replace(text, " ")
        folded = output.casefold()
        if not any(term in folded for term in named - small):
            continue  # Most outputs have none, which this finds without splitting them.
        for word in set(words_of(output)) - words:
            words.add(word)
            (small if word[0].islower() else capital).add(word.casefold())
    return searches


def branch_measures(trajectory: Trajectory, searches: Sequence[AgentSearch]) -> dict[str, float]:
    """The branches of a question and its `searches_of`; empty without one.

    Returns:
        - `candidate_searches`: searches that are specific to a candidate.
        - `branches_abandoned`: branches that another search follows, and none of whose candidate
          terms is in a later query or in the exact answer.
        - `returns_to_question`: searches with terms of the question only, directly after a search
          that is specific to a candidate.
    """
    if not searches:
        return {}
    question, answer = terms(trajectory.question), terms(trajectory.answer.exact)
    queries = [search.terms for search in searches]
    candidates = [search.candidates for search in searches]
    branches = _branches(candidates)
    abandoned = 0
    for last, shared in branches:
        later = frozenset[str]().union(answer, *queries[last + 1 :])
        abandoned += last + 1 < len(queries) and not shared & later
    returns = sum(
        bool(before) and bool(query) and query <= question
        for before, query in zip(candidates, queries[1:], strict=False)
    )
    return {
        "candidate_searches": float(sum(map(bool, candidates))),
        "branches_abandoned": float(abandoned),
        "returns_to_question": float(returns),
    }


def _branches(candidates: Sequence[frozenset[str]]) -> list[tuple[int, frozenset[str]]]:
    """The last search of each branch, from 0, and the candidate terms of all its searches."""
    branches: list[tuple[int, frozenset[str]]] = []
    for number, named in enumerate(candidates):
        if number and named & candidates[number - 1]:
            _, before = branches.pop()
            branches.append((number, before | named))
        elif named:
            branches.append((number, named))
    return branches
