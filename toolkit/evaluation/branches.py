"""How an agent follows candidates: the branches of its searches, as Pi-Serini's authors describe
them (Hsu, Yang and Lin, 2026; arXiv 2605.10848). The paper counts them by reading; these are rules.

- The terms of a text are its distinct words without case (letters and digits), but for function
  words.
- A name is a term that some earlier output of a tool of the question has with an initial capital or
  a digit, and that no earlier output has with a small initial. Queries that an output repeats are
  no part of it.
- A search is specific to a candidate if a term of its query is a name and is not a term of the
  question. These terms are its candidate terms.
- A branch is a longest series of such searches, in the order of all searches of the question, in
  which each shares a candidate term with the one before. Any other search ends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from soundingline.toolkit.trajectory import SEARCHES, ToolCall, Trajectory

_WORD = re.compile(r"[^\W_]+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be been but by did do does for from had has have he her his how if in "
        "into is it its no not of on or she so than that the their them then there these they this "
        "to was were what when where which who whom whose why will with"
    )
)


def terms(text: str) -> frozenset[str]:
    """The terms of a text.

    >>> sorted(terms("The tower of Brel, 1902"))
    ['1902', 'brel', 'tower']
    """
    return frozenset(_WORD.findall(text.casefold())) - _FUNCTION_WORDS


def branch_measures(trajectory: Trajectory) -> Mapping[str, float]:
    """The branches of a question; empty without a search that ran.

    Returns:
        - `candidate_searches`: searches that are specific to a candidate.
        - `branches_abandoned`: branches that another search follows, and none of whose candidate
          terms is in a later query or in the exact answer.
        - `returns_to_question`: searches with terms of the question only, directly after a search
          that is specific to a candidate.
    """
    question, answer = terms(trajectory.question), terms(trajectory.answer.exact)
    sent: list[str] = []
    queries: list[frozenset[str]] = []
    candidates: list[frozenset[str]] = []  # the candidate terms of each query
    capital: set[str] = set()
    small: set[str] = set()
    calls = [(call, _query(call)) for call in trajectory.calls if not call.error]
    last = max((at for at, (_, query) in enumerate(calls) if query is not None), default=-1)
    for call, query in calls[: last + 1]:  # no search follows later outputs
        if query is not None:
            sent.append(query)
            queries.append(terms(query))
            candidates.append((queries[-1] & (capital - small)) - question)
        output = call.output
        for text in filter(None, sent):
            output = output.replace(text, " ")
        for word in set(_WORD.findall(output)):
            (small if word[0].islower() else capital).add(word.casefold())
    if not queries:
        return {}
    branches = _branches(candidates)
    abandoned = 0
    for last, named in branches:
        later = frozenset[str]().union(answer, *queries[last + 1 :])
        abandoned += last + 1 < len(queries) and not named & later
    returns = sum(
        bool(before) and bool(query) and query <= question
        for before, query in zip(candidates, queries[1:], strict=False)
    )
    return {
        "candidate_searches": float(sum(map(bool, candidates))),
        "branches_abandoned": float(abandoned),
        "returns_to_question": float(returns),
    }


def _query(call: ToolCall) -> str | None:
    """What a call searched for; None if it is no search."""
    query = call.arguments.get("query", call.arguments.get("pattern"))
    return query if call.name in SEARCHES and isinstance(query, str) else None


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
