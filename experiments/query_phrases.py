"""The phrases that enriched the queries of a ranking: kept with the run, and guesses counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.evaluation.answers import holds_answer
from toolkit.files import write_atomic

NAME = "phrases.jsonl"
GUESSED = "phrases_with_answer"


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
