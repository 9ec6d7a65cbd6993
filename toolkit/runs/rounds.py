"""Rounds of a question: kept on disk while it is under way, so that none is done twice, and what
those of a trajectory tell of its documents.

`agents.literature.rounds` tells what a row holds. Rows are read as far as they go, because a run
may have been written by another version, or by somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.checks import is_number
from toolkit.journal import Journal, read_journal

Rows = Sequence[Mapping[str, Any]]


class RoundsFile:
    """The whole rounds of a question as JSON lines, in a sealed run sealed. Written by one process
    at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """The rounds in their order; none where the file is damaged, which is removed then: they
        can be done again."""
        try:
            return read_journal(self.path)
        except ValueError:
            self.path.unlink()
            return []

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a round; it is on disk when this returns."""
        journal = Journal(self.path)
        try:
            journal.append(record)
        finally:
            journal.close()


class ScoredDocument(NamedTuple):
    """The newest that rounds tell of a document: what it got for each requirement, by the words of
    the requirement (`verdict`, `score`, `rationale`, `passage`); its `score`; the scorer's
    `probability` that it is relevant as a whole, with its `origin`."""

    requirements: Mapping[str, Mapping[str, Any]]
    score: float | None = None
    probability: float | None = None
    origin: str = ""

    @property
    def passages(self) -> list[str]:
        """The unit ids that its scores name, each once."""
        named = (text_of(cell.get("passage")) for cell in self.requirements.values())
        return list(dict.fromkeys(filter(None, named)))


def checklist_of(row: Mapping[str, Any]) -> list[str]:
    """The requirements of a round."""
    return [text for text in items(row.get("checklist")) if isinstance(text, str)]


def last_checklist(rounds: Rows) -> list[str]:
    """The requirements of the last round that has any."""
    return next((checklist for row in reversed(rounds) if (checklist := checklist_of(row))), [])


def scored_documents(rounds: Rows) -> dict[str, ScoredDocument]:
    """By docid, in order of first appearance."""
    documents: dict[str, ScoredDocument] = {}
    for row in rounds:
        for docid, record in mapping(row.get("documents")).items():
            before = documents.get(docid, ScoredDocument({}))
            cells = mapping(record.get("requirements")) if isinstance(record, Mapping) else {}
            scored = {need: cell for need, cell in cells.items() if isinstance(cell, Mapping)}
            facts = mapping(record)
            documents[docid] = ScoredDocument(
                {**before.requirements, **scored},
                number_of(facts.get("score")),
                number_of(facts.get("probability")),
                text_of(facts.get("origin")),
            )
    return documents


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """The items of a list; none of anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def text_of(value: Any) -> str:
    """The value where it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number_of(value: Any) -> float | None:
    """The value where it is a number, else None."""
    return float(value) if is_number(value) else None
