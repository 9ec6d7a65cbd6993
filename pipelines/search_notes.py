"""What stages have to say about one search, beside its ranking, and whose search it is.

A ranking frame is no place for it: a search that finds nothing has no rows, and many retrievers
drop columns that they do not know. Whoever runs a pipeline for one search collects notes around it,
and a stage notes what the search's record should hold. Outside such a block notes go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_question: ContextVar[str] = ContextVar("question of a search", default="")
_notes: ContextVar[dict[str, Any] | None] = ContextVar("notes of a search", default=None)


@contextmanager
def collecting(qid: str = "") -> Iterator[Mapping[str, Any]]:
    """The notes of the stages that run in this block, in this thread, for the question `qid`.
    Blocks may be nested: a note goes to the innermost."""
    notes: dict[str, Any] = {}
    token, asking = _notes.set(notes), _question.set(qid)
    try:
        yield notes
    finally:
        _notes.reset(token)
        _question.reset(asking)


def question() -> str:
    """The id of the question whose search this thread works on, for stages that account for what
    they spend and are given no `qid`; empty outside of a search and where nobody tells."""
    return _question.get()


def note(name: str, value: Any) -> None:
    """Note a plain JSON value. A second one of the same name is kept as `<name>_2`, and so on."""
    notes = _notes.get()
    if notes is None:
        return
    names = (name if number == 1 else f"{name}_{number}" for number in range(1, len(notes) + 2))
    notes[next(free for free in names if free not in notes)] = value
