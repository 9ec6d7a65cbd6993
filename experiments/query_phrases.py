"""What was made of the queries of a ranking: phrases and rewritten queries are kept with the run,
guesses counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.contracts import Topic
from toolkit.evaluation.agent_measures import GUESSED, REWRITTEN, guessed_rewrites, rewrites
from toolkit.evaluation.answers import holds_answer
from toolkit.files import write_atomic

NAME = "phrases.jsonl"
REWRITES = "rewrites.jsonl"


def keep_phrases(
    folder: Path, notes: Mapping[str, Any], answers: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Write what was proposed for each query, what was kept and why not to `phrases.jsonl`.

    `notes` are those of the search, `answers` the accepted answers by question. Gives, by question
    with such, how many of the kept phrases hold one, as a measure: prompts forbid to guess, because
    a query with its answer finds the documents that a benchmark was made of. Nothing without an
    enriched query.
    """
    rows = [{**row, "phrases": list(row["phrases"])} for row in notes.get("enrichment", ())]
    if not rows:
        return {}
    guessed: dict[str, float] = {}
    for row in rows:
        if accepted := answers.get(row["qid"]):
            for phrase in row["phrases"]:
                phrase["holds_answer"] = holds_answer(phrase["phrase"], accepted)
            guesses = (phrase["kept"] and phrase["holds_answer"] for phrase in row["phrases"])
            guessed[row["qid"]] = float(sum(guesses))
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_atomic(folder / NAME, "".join(lines))
    return {GUESSED: guessed} if guessed else {}


def keep_rewrites(folder: Path, notes: Mapping[str, Any], topics: Sequence[Topic]) -> None:
    """Write each query as it was, as it was rewritten, and what happened on the way to
    `rewrites.jsonl`; nothing without a rewriter."""
    qids: dict[str, list[str]] = {}
    for topic in topics:
        qids.setdefault(topic.text, []).append(topic.qid)
    rows = [{"qid": qid, **row} for row in rewrites(notes) for qid in qids.get(row["raw"], ())]
    if rows:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_atomic(folder / REWRITES, "".join(lines))


def guessing_rewrites(
    notes: Mapping[str, Any], topics: Sequence[Topic], answers: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """By question with accepted answers, as a measure: how many rewritten queries hold one that
    the question does not have. Nothing without a rewriter."""
    rows: dict[str, list[Mapping[str, str]]] = {}
    for row in rewrites(notes):
        rows.setdefault(row["raw"], []).append(row)
    guessed: dict[str, float] = {}
    for topic in topics:
        accepted = answers.get(topic.qid)
        if accepted and topic.text in rows:
            guesses = guessed_rewrites(rows[topic.text], topic.text, accepted)
            guessed[topic.qid] = float(len(guesses))
    return {REWRITTEN: guessed} if guessed else {}
