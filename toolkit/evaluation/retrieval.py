"""Measures of rankings, by ir_measures. Nothing here knows of agents.

Judgements speak of documents. A ranking may name passages: each counts as its document, once, at
the best rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import ir_measures

from toolkit.contracts import parents
from toolkit.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_F1 = re.compile(r"F1@([1-9]\d{0,5})")
DEFAULT_MEASURES = ("AP", "P@30", "nDCG@10", "R@100", "R@1000", "RR")


class RunRow(NamedTuple):
    """One row of a ranking. `unit_id` is a docid or a passage id; only the order of `rank` within
    a question counts, so ranks may start at 0 or at 1."""

    qid: str
    unit_id: str
    rank: int
    score: float = 0.0


def rankings_of(rows: Iterable[RunRow]) -> dict[str, list[str]]:
    """Documents by question, best first, each once at its best rank. The score plays no part: the
    rank is what a user of the system saw."""
    grouped: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        grouped.setdefault(row.qid, []).append((row.rank, row.unit_id))
    return {qid: documents(unit for _, unit in sorted(scored)) for qid, scored in grouped.items()}


def documents(unit_ids: Iterable[str], depth: int | None = None) -> list[str]:
    """The units' documents, each once, in order of first appearance; at most `depth`."""
    return list(dict.fromkeys(parents(tuple(unit_ids))))[:depth]


def parse_measures(names: Sequence[str]) -> list[Any]:
    """ir_measures' measures of these names, and `F1@K`, which it lacks; `InputError` that lists the
    known ones otherwise."""
    return [_parse(name) for name in names]


def measure_rankings(
    rankings: Mapping[str, Sequence[str]],
    judgements: Mapping[str, Mapping[str, int]],
    measures: Sequence[str] = DEFAULT_MEASURES,
) -> dict[str, dict[str, float]]:
    """Measure -> qid -> value, for every question of `judgements`.

    - `rankings`: docids by question, best first, without repetition. A judged question without a
      ranking has the measure's value for an empty one (0), it does not vanish; a ranked question
      without judgements is left out, as in trec_eval.
    - The scores that ir_measures is given are the negated ranks. trec_eval sorts by score and
      breaks ties by docid, descending, so that tied scores would be evaluated in another order
      than the one that was shown.
    """
    parsed = parse_measures(measures)
    run = {
        qid: {docid: float(-rank) for rank, docid in enumerate(rankings[qid], start=1)}
        for qid in judgements
        if rankings.get(qid)
    }
    qrels = {qid: dict(grades) for qid, grades in judgements.items()}
    values: dict[str, dict[str, float]] = {name: {} for name in measures}
    if not qrels or not measures:
        return values
    names = dict(zip(parsed, measures, strict=True))
    for metric in ir_measures.iter_calc(list(names), qrels, run):
        values[names[metric.measure]][metric.query_id] = float(metric.value)
    return {name: {qid: scored[qid] for qid in judgements} for name, scored in values.items()}


@lru_cache
def f1_at(cutoff: int) -> Any:
    """`F1@K` as a measure of ir_measures': of each question, the harmonic mean of P@K and R@K,
    which is 2 hits / (K + relevant documents). A ranking shorter than K counts as filled up with
    irrelevant documents."""

    def f1(qrels: pd.DataFrame, run: pd.DataFrame) -> Iterator[tuple[str, float]]:
        relevant = {
            str(qid): set(rows.loc[rows["relevance"] > 0, "doc_id"])
            for qid, rows in qrels.groupby("query_id")
        }
        hits = dict.fromkeys(relevant, 0)
        for qid, rows in run.groupby("query_id"):
            best = rows.sort_values("score", ascending=False, kind="stable").head(cutoff)
            hits[str(qid)] = len(relevant.get(str(qid), set()) & set(best["doc_id"]))
        for qid, docids in relevant.items():
            yield qid, 2 * hits[qid] / (cutoff + len(docids))

    return ir_measures.define(f1, name=f"F1@{cutoff}", support_cutoff=False)


def _parse(name: str) -> Any:
    if match := _F1.fullmatch(name):
        return f1_at(int(match[1]))
    try:
        measure = ir_measures.parse_measure(name)
        measure.validate_params()
        # Only trying tells whether an installed provider computes it with these parameters.
        list(ir_measures.iter_calc([measure], {"q": {"d": 1}}, {"q": {"d": 1.0}}))
    except (NameError, ValueError, KeyError, AssertionError, TypeError) as error:
        raise InputError(
            f"{name!r} is no measure that can be computed here ({error})",
            valid="ir_measures' names with their cutoff, such as " + ", ".join(DEFAULT_MEASURES),
        ) from error
    return measure
