"""What an evaluation gives, and the evaluation of rankings that no agent made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolkit.contracts import Topic
from toolkit.evaluation.answers import AnswerVerdict
from toolkit.evaluation.retrieval import (
    DEFAULT_MEASURES,
    RunRow,
    measure_rankings,
    rankings_of,
)


@dataclass(frozen=True)
class Evaluation:
    """All numbers of one run. `metrics`, `per_question`, `funnel`, `curves` and `counts` are those
    of a `Cell`.

    - `denominators`: measure -> number of questions that its value is taken over.
    - `verdicts`: the judge's word on each recorded answer.
    - `repeats`: measure -> qid -> its value in each repeat; empty where each question was asked
      once.
    - `rankings`: qid -> docids, best first, as they were measured and as `run.trec` holds them.
    """

    metrics: Mapping[str, float]
    per_question: Mapping[str, Mapping[str, float]]
    denominators: Mapping[str, int]
    counts: Mapping[str, int]
    rankings: Mapping[str, Sequence[str]]
    funnel: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    verdicts: Sequence[AnswerVerdict] = ()
    repeats: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)


def evaluate_ranking(
    rows: Iterable[RunRow],
    judgements: Mapping[str, Mapping[str, int]],
    measures: Sequence[str] = DEFAULT_MEASURES,
    topics: Sequence[Topic] | None = None,
) -> Evaluation:
    """Measures of rankings without an agent; means are over the judged questions.

    `judgements`: qid -> docid -> grade, one tier. `topics` limits the evaluation to these
    questions; without it all judged questions count. `counts`: `questions`, `answered` (with a
    ranking), `failed` (0) and `unjudged`.
    """
    rankings = rankings_of(rows)
    qids = [topic.qid for topic in topics] if topics is not None else list(judgements)
    judged = {qid: judgements[qid] for qid in qids if qid in judgements}
    rankings = {qid: rankings[qid] for qid in qids if qid in rankings}
    per_question = measure_rankings(rankings, judged, measures)
    counts = {
        "questions": len(qids),
        "answered": len(rankings),
        "failed": 0,
        "unjudged": len(qids) - len(judged),
    }
    return Evaluation(
        metrics=means(per_question),
        per_question=per_question,
        denominators=denominators(per_question),
        counts=counts,
        rankings=rankings,
    )


def means(per_question: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Mean of each measure over its questions; a measure without questions is left out."""
    return {
        measure: float(np.mean(list(values.values())))
        for measure, values in per_question.items()
        if values
    }


def denominators(per_question: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """Number of questions of each measure."""
    return {measure: len(values) for measure, values in per_question.items() if values}
