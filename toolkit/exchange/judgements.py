"""What a run's scorer gave its documents, as rows to train a smaller one with (the distillation of
PaSaMaster: Du et al., 2026, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from toolkit.contracts import DocumentStore, Trajectory, Unit
from toolkit.runs.rounds import scored_documents


def judgement_rows(
    trajectory: Trajectory, passages: DocumentStore, repeat: int = 1
) -> Iterator[dict[str, Any]]:
    """A row for each document that the rounds of a trajectory scored, in the form of
    `toolkit.search.scoring.judgement_row`: `query`, `docid`, `chunks` (the passages that the scores
    stand on, whole), `requirements` (`requirement`, `verdict`, `score`, `rationale`, `passage`),
    `overall` and its `origin`; and `repeat`, the how many-th time the question was asked.
    `scorer=file` reads such rows.

    A passage that the store lacks is left out, and so is a document without any score.
    """
    for docid, document in scored_documents(trajectory.rounds).items():
        if not document.requirements:
            continue
        units: list[Unit] = []
        for unit_id in document.passages:
            with suppress(KeyError):
                units += passages.texts([unit_id])
        yield {
            "query": trajectory.question,
            "docid": docid,
            "chunks": [{"id": unit.unit_id, "text": unit.text} for unit in units],
            "requirements": [
                {"requirement": need, **cell} for need, cell in document.requirements.items()
            ],
            "overall": document.probability,
            "origin": document.origin,
            "repeat": repeat,
        }
