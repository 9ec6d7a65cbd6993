"""A navigator's rounds, and its table of documents and requirements, as a trace shows them.

`agents.literature.rounds` tells what a row of `Trajectory.rounds` holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolkit.contracts import DocumentStore, ToolCall, Trajectory, Unit, parent
from toolkit.report.traces.plain import pairs
from toolkit.runs.rounds import (
    ScoredDocument,
    checklist_of,
    items,
    last_checklist,
    mapping,
    number_of,
    scored_documents,
    text_of,
)

VERDICTS = ("satisfied", "not", "unknown")
_MOST_DOCUMENTS = 200  # rows of the table
_FACTS = ("planned_by", "left_out", "unscored", "stopped")

Labels = Mapping[str, Sequence[str]]


def round_values(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Each round with its number, note, checklist and facts (pairs of name and text), and the
    queries with what they brought and the first call that made them."""
    return [
        {
            "number": int(number_of(row.get("round")) or position),
            "note": text_of(row.get("reason")),
            "queries": [
                _query(mapping(query), trajectory.calls) for query in items(row.get("librarians"))
            ],
            "checklist": checklist_of(row),
            "facts": pairs({name.replace("_", " "): row[name] for name in _FACTS if row.get(name)}),
        }
        for position, row in enumerate(trajectory.rounds, start=1)
    ]


def matrix_values(
    trajectory: Trajectory, labels: Labels, passages: DocumentStore | None
) -> dict[str, Any]:
    """The last checklist, and the documents with a cell for each of its requirements (null: without
    a score): first those that the answer lists, in its order, then the others by score; at most 200
    in all. `listed` is the place in the answer, from 1, or null. A cell names the passage that it
    stands on, and `texts` has each passage's text once, as pairs, where `passages` has it."""
    checklist = last_checklist(trajectory.rounds)
    documents = scored_documents(trajectory.rounds)
    ranks = {docid: rank for rank, docid in enumerate(trajectory.answer.documents, start=1)}
    order = sorted(documents, key=lambda docid: -(documents[docid].score or 0.0))
    order.sort(key=lambda docid: ranks.get(docid, len(ranks) + 1))
    rows = []
    shown: dict[str, str] = {}
    for docid in order[:_MOST_DOCUMENTS]:
        units = texts(documents[docid].passages, passages)
        shown.update((unit_id, unit.text) for unit_id, unit in units.items())
        rows.append(
            {
                "docid": docid,
                "title": next((unit.title for unit in units.values()), ""),
                "judged": list(labels.get(parent(docid), ())),
                "listed": ranks.get(docid),
                "score": _rounded(documents[docid].score),
                "overall": _rounded(documents[docid].probability),
                "cells": [_cell(documents[docid], need) for need in checklist],
            }
        )
    listed = [list(pair) for pair in shown.items()]
    return {"checklist": checklist, "documents": rows, "texts": listed}


def texts(unit_ids: Sequence[str], passages: DocumentStore | None) -> dict[str, Unit]:
    """The passages of these ids that the store has."""
    if passages is None:
        return {}
    try:
        return {unit.unit_id: unit for unit in passages.texts(unit_ids)}
    except KeyError:  # of a corpus that has changed since, in part
        units: dict[str, Unit] = {}
        for unit_id in unit_ids:
            with suppress(KeyError):
                units[unit_id] = passages.texts([unit_id])[0]
        return units


def _query(query: Mapping[str, Any], calls: Sequence[ToolCall]) -> dict[str, Any]:
    docids = [text_of(docid) for docid in items(query.get("docids"))]
    text = text_of(query.get("text")) or " ".join(docids)
    # A call names its documents as a list in JSON, or with spaces between them.
    forms = {text, json.dumps(docids)} if text else set()
    called = (
        n for n, call in enumerate(calls, 1) if forms & set(map(str, call.arguments.values()))
    )
    kind = " ".join(filter(None, (text_of(query.get(name)) for name in ("operator", "direction"))))
    candidates, new = (number_of(query.get(name)) for name in ("candidates", "new"))
    return {
        "text": text,
        "operator": kind,
        "reason": text_of(query.get("reason")),
        "error": text_of(query.get("error")),
        "candidates": candidates,
        "new": new,
        "call": next(called, None),
    }


def _cell(document: ScoredDocument, requirement: str) -> dict[str, Any] | None:
    row = document.requirements.get(requirement)
    if row is None:
        return None
    verdict = text_of(row.get("verdict"))
    return {
        "verdict": verdict if verdict in VERDICTS else "unknown",
        "score": _rounded(number_of(row.get("score"))),
        "rationale": text_of(row.get("rationale")),
        "passage": text_of(row.get("passage")),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
