"""A navigator's rounds, and its table of documents and requirements, as a trace shows them.

A navigator leaves each round with the message that ends it, under `round`:

    {"number": 1, "note": "...",
     "queries": [{"query": "...", "operator": "search"}],
     "checklist": [{"requirement": "...", "excluded": false}],
     "documents": [{"docid": "d1", "title": "...", "score": 0.8, "overall": 0.9,
                    "chunks": [{"id": "d1%p2", "text": "..."}],
                    "requirements": [{"requirement": "...", "verdict": "satisfied", "score": 1.0,
                                      "rationale": "...", "passage": "d1%p2"}]}]}

Every part may be missing. A later round replaces what an earlier one says of the same document and
requirement; a requirement that the last checklist lacks is in no column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.contracts import ToolCall, Trajectory, parent
from toolkit.report.traces.plain import pairs

ROUND = "round"
VERDICTS = ("satisfied", "not", "unknown")
_MOST_DOCUMENTS = 200  # rows of the table
_KNOWN = ("number", "note", "queries", "checklist", "documents")

Labels = Mapping[str, Sequence[str]]


def round_values(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Each round with its number, note, queries (with the first call that made each), checklist
    and further facts as pairs of name and text."""
    return [_round(row, number, trajectory.calls) for number, row in _rounds(trajectory)]


def matrix_values(trajectory: Trajectory, labels: Labels) -> dict[str, Any]:
    """The last checklist, and the documents with a cell for each of its requirements (null: without
    a score): first those that the answer lists, in its order, then the others by score; at most 200
    in all. `listed` is the place in the answer, from 1, or null."""
    rounds = [row for _, row in _rounds(trajectory)]
    checklist = next((row for row in map(_checklist, reversed(rounds)) if row), [])
    columns = [requirement["text"] for requirement in checklist]
    scored: dict[str, dict[str, Any]] = {}
    for row in rounds:
        for document in _mappings(row.get("documents")):
            docid = _string(document.get("docid"))
            before = scored.setdefault(docid, {"cells": {}})
            before.update(_facts(document), cells={**before["cells"], **_cells(document)})
    places = {docid: place for place, docid in enumerate(trajectory.answer.documents, start=1)}
    order = sorted(scored, key=_listed_first(places, scored))
    documents = [
        {
            "docid": docid,
            "title": scored[docid]["title"],
            "judged": list(labels.get(parent(docid), ())),
            "listed": places.get(docid),
            "score": scored[docid]["score"],
            "overall": scored[docid]["overall"],
            "cells": [scored[docid]["cells"].get(text) for text in columns],
        }
        for docid in order[:_MOST_DOCUMENTS]
    ]
    return {"checklist": checklist, "documents": documents}


def _rounds(trajectory: Trajectory) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    for message in trajectory.messages:
        row = message.get(ROUND)
        if isinstance(row, Mapping):
            number += 1
            yield number, row


def _round(row: Mapping[str, Any], number: int, calls: Sequence[ToolCall]) -> dict[str, Any]:
    return {
        "number": number,
        "note": _string(row.get("note")),
        "queries": [_query(query, calls) for query in _mappings(row.get("queries"))],
        "checklist": _checklist(row),
        "facts": pairs({name: value for name, value in row.items() if name not in _KNOWN}),
    }


def _query(query: Mapping[str, Any], calls: Sequence[ToolCall]) -> dict[str, Any]:
    text = _string(query.get("query"))
    called = (n for n, call in enumerate(calls, 1) if text and text in call.arguments.values())
    return {"text": text, "operator": _string(query.get("operator")), "call": next(called, None)}


def _checklist(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"text": _string(item.get("requirement")), "excluded": bool(item.get("excluded"))}
        for item in _mappings(row.get("checklist"))
    ]


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "title": _string(document.get("title")),
        "score": _number(document.get("score")),
        "overall": _number(document.get("overall")),
    }


def _cells(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By requirement: verdict, score, rationale, and passages as pairs of id and text."""
    texts = {
        _string(chunk.get("id")): _string(chunk.get("text"))
        for chunk in _mappings(document.get("chunks"))
    }
    cells = {}
    for row in _mappings(document.get("requirements")):
        verdict, passage = _string(row.get("verdict")), _string(row.get("passage"))
        cells[_string(row.get("requirement"))] = {
            "verdict": verdict if verdict in VERDICTS else "unknown",
            "score": _number(row.get("score")),
            "rationale": _string(row.get("rationale")),
            "passages": [[passage, texts.get(passage, "")]] if passage else [],
        }
    return cells


def _listed_first(
    places: Mapping[str, int], scored: Mapping[str, Mapping[str, Any]]
) -> Callable[[str], tuple[float, float]]:
    def key(docid: str) -> tuple[float, float]:
        return places.get(docid, float("inf")), -(scored[docid]["score"] or 0.0)

    return key


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    rows = values if isinstance(values, list | tuple) else ()
    return [row for row in rows if isinstance(row, Mapping)]


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return round(float(value), 4) if usable else None
