"""From a teacher's judgements to the pairs that a cross-encoder is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.errors import InputError
from toolkit.sealing import read_text


class TrainingPair(NamedTuple):
    """A query, a passage, and the score from 0 to 1 that a model has to give them. A student's
    logit is trained towards it, say by cross-entropy (`BCEWithLogitsLoss`, which is also the
    default of sentence-transformers' `CrossEncoder` with one label)."""

    query: str
    text: str
    score: float


def training_pairs(path: Path | str) -> Iterator[TrainingPair]:
    """The pairs of a file of rows as `experiments.export format=judgements` writes them: each
    requirement with the passage that its score stands on, and, where the teacher told an overall
    probability, the whole question with each passage of the document.

    That is what `scorer=student` asks: a requirement scores its best passage, and a document the
    best of all its passages. A requirement without a passage trains nothing. Each pair once, with
    its last score. `InputError` for a line that is no such row.
    """
    pairs: dict[tuple[str, str], float] = {}
    for number, line in enumerate(_lines(Path(path)), start=1):
        if not line.strip():
            continue
        try:
            for pair in _pairs(json.loads(line)):
                pairs[pair.query, pair.text] = pair.score
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"line {number} of {path} is no row of judgements: {error!r}",
                valid='{"query", "docid", "chunks", "requirements", "overall"}',
                do="write it with: python -m experiments.export RUN format=judgements out=FOLDER",
            ) from error
    for (query, text), score in pairs.items():
        yield TrainingPair(query, text, score)


def _pairs(row: dict[str, Any]) -> Iterator[TrainingPair]:
    texts = {str(chunk["id"]): str(chunk["text"]) for chunk in row["chunks"]}
    for scored in row["requirements"]:
        text = texts.get(str(scored.get("passage") or ""))
        if text:
            yield TrainingPair(str(scored["requirement"]), text, _score(scored["score"]))
    if row.get("overall") is not None:
        for text in texts.values():
            yield TrainingPair(str(row["query"]), text, _score(row["overall"]))


def _score(value: Any) -> float:
    score = float(value)
    if not 0 <= score <= 1:
        raise ValueError(f"the score {value!r} is not within 0 and 1")
    return score


def _lines(path: Path) -> list[str]:
    try:
        return read_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the judgements {path}: {error}") from error
