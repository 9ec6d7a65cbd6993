"""Measures of rankings: those of ir_measures, answer coverage, and measures of document lists.

Relevance judgements are of documents. If a ranking holds passages, each passage counts as its
document, once, at the best rank. Nothing in this module depends on agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any

import ir_measures

from soundingline.toolkit.corpus.resolve import AMBIGUOUS
from soundingline.toolkit.data import LARGEST_GRADE, Qrels, parents
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.answers import findable, found_in

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MEASURES = ("AP", "P@30", "nDCG@10", "R@100", "R@1000", "RR")
CUTOFFS = (1, 5, 10, 20, 50)
LIST_MEASURES = tuple(f"{name}@{k}" for name in ("P", "R", "F1", "nDCG") for k in CUTOFFS)
LIST_HEADLINE = ("F1@20", "nDCG@20")  # the list measures that a table has room for
_COVERAGE_DEPTHS = (5, 10)
# ir_measures describes a missing parameter by the object that is its default.
_MISSING = re.compile(r"invalid param (\w+)=<object object at \w+>")
_F1 = re.compile(r"F1@([1-9]\d{0,5})")

PerQuestion = dict[str, dict[str, float]]
"""Measure -> question -> value."""
Rankings = Mapping[str, Sequence[str]]
"""Question -> docids, best first."""
Targets = Mapping[str, Collection[str]]
"""Question -> the documents that it asks for; there may be none."""
Texts = Callable[[Collection[str]], Iterable[tuple[str, str]]]
"""Of some docids those that the corpus has, each with its title and text."""


def by_measure(rows: Mapping[str, Mapping[str, float | None]]) -> PerQuestion:
    """Measure -> question -> value, of question -> measure -> value; None is left out."""
    measures: PerQuestion = {}
    for qid, row in rows.items():
        for name, value in row.items():
            if value is not None:
                measures.setdefault(name, {})[qid] = float(value)
    return measures


def documents(unit_ids: Iterable[str], depth: int | None = None) -> list[str]:
    """The documents of the units, each once, in order of first appearance; at most `depth`."""
    return list(dict.fromkeys(parents(tuple(unit_ids))))[:depth]


JUDGED = "Judged@10"


def parse_measures(names: Sequence[str]) -> list[Any]:
    """The measures of ir_measures with these names, and `F1@K`; `InputError` for any other."""
    return [_parse(name) for name in names]


def _parse(name: str) -> Any:
    if match := _F1.fullmatch(name):
        return f1_at(int(match[1]))
    try:
        measure = ir_measures.parse_measure(name)
        if measure.params.get("cutoff") == 0:  # trec_eval would abort the process.
            raise ValueError("a cutoff is at least 1")
        # Only an attempt shows whether an installed provider computes it with these parameters.
        list(ir_measures.iter_calc([measure], {"1": {"1": 1}}, {"1": {"1": 1.0}}))
    except Exception as error:  # each provider raises what its library or its program does
        reason = _MISSING.sub(r"\1 is missing", str(error))
        raise InputError(
            f"{name!r} is not a measure that can be computed here ({reason})",
            valid="ir_measures' names with their cutoff, such as " + ", ".join(DEFAULT_MEASURES),
        ) from error
    return measure


@lru_cache
def f1_at(cutoff: int) -> Any:
    """`F1@K` as a measure of ir_measures: the harmonic mean of a question's P@K and R@K, which is
    2 hits / (K + relevant documents). The empty places of a ranking shorter than K are wrong."""

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


def measure_rankings(
    rankings: Rankings, qrels: Qrels, measures: Sequence[str] = DEFAULT_MEASURES
) -> PerQuestion:
    """Measure -> question -> value, by ir_measures, for every question of `qrels`. A judged
    question without a ranking has the value of an empty ranking (0). A ranked question without
    judgements is left out, as in trec_eval. `InputError` for a grade above `LARGEST_GRADE`, and for
    one that a measure does not define."""
    parsed = parse_measures(measures)
    numbers = _IdNumbers()
    # trec_eval sorts by score and breaks ties by docid, descending. Negated ranks as scores keep
    # the order that was shown.
    run = {
        numbers[qid]: {numbers[docid]: float(-rank) for rank, docid in enumerate(rankings[qid], 1)}
        for qid in qrels
        if rankings.get(qid)
    }
    numbered = {
        numbers[qid]: {numbers[docid]: grade for docid, grade in measured_grades(qid, row).items()}
        for qid, row in qrels.items()
    }
    values: PerQuestion = {name: {} for name in measures}
    if not numbered or not measures:
        return values
    names = dict(zip(parsed, measures, strict=True))
    for metric in calculate(list(names), numbered, run):
        values[names[metric.measure]][metric.query_id] = float(metric.value)
    return {
        name: {qid: by_number[numbers[qid]] for qid in qrels} for name, by_number in values.items()
    }


def measured_grades(qid: str, grades: Mapping[str, int]) -> dict[str, int]:
    """The grades of a question as measures read them: those below 0 as 0, judged and not relevant.
    trec_eval would take such documents as not judged, and fails where a question has no other."""
    for docid, grade in grades.items():
        if grade > LARGEST_GRADE:
            raise InputError(
                f"document {docid!r} has the grade {grade} for question {qid!r}",
                valid=f"at most {LARGEST_GRADE:,}",
            )
    return {docid: max(grade, 0) for docid, grade in grades.items()}


def calculate(
    measures: Sequence[Any], qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]]
) -> list[Any]:
    """The values by question that ir_measures computes from `measured_grades`."""
    try:
        return list(ir_measures.iter_calc(list(measures), qrels, run))
    except CalledProcessError as error:  # gdeval.pl, which computes no other measures
        raise InputError(
            f"{' or '.join(map(str, measures))} cannot be computed for these judgements",
            valid="grades up to 4 for ERR and nDCG(dcg='exp-log2')",
        ) from error


class _IdNumbers(dict[str, str]):
    """A number for each id that is looked up, from 1, in order of first appearance.

    Some providers of ir_measures write files for a program: gdeval.pl, which computes ERR, only
    reads numbers as question ids, and none of them reads white space in an id.
    """

    def __missing__(self, name: str) -> str:
        self[name] = str(len(self) + 1)
        return self[name]


def answer_coverage(
    rankings: Rankings, accepted: Mapping[str, Sequence[str]], texts: Texts
) -> PerQuestion:
    """Answer Coverage (SIRA, section 4.3): whether one of the first 5 or 10 documents contains an
    accepted answer, as whole tokens, normalised as by `ExactAnswerJudge`; 0 or 1 by question.

    Documents count whole, whatever the unit of the index is, so that units can be compared. A
    question without a ranking counts 0. Questions whose only answers are `yes` or `no` are left
    out: such an answer may occur in any text. `texts` has the titles and texts of documents.
    """
    answers = {qid: findable(listed) for qid, listed in accepted.items()}
    answers = {qid: phrases for qid, phrases in answers.items() if phrases}
    if not answers:
        return {}
    positions: dict[str, list[tuple[str, int]]] = {}
    for qid in answers:
        for rank, docid in enumerate(rankings.get(qid, ())[: max(_COVERAGE_DEPTHS)], start=1):
            positions.setdefault(docid, []).append((qid, rank))
    first: dict[str, int] = {}
    for docid, text in texts(positions.keys()):
        present = found_in(text, [phrase for qid, _ in positions[docid] for phrase in answers[qid]])
        for qid, rank in positions[docid]:
            if not present.isdisjoint(answers[qid]):
                first[qid] = min(rank, first.get(qid, rank))
    return {
        f"AnswerCoverage@{depth}": {
            qid: float(first.get(qid, depth + 1) <= depth) for qid in answers
        }
        for depth in _COVERAGE_DEPTHS
    }


def with_list_measures(measures: Sequence[str], targets: Targets) -> list[str]:
    """The measures, and `LIST_MEASURES` if questions ask for documents (Du et al., Towards
    Self-Evolving Agentic Literature Retrieval, 2026, section 3.2). As in trec_eval, P@K divides by
    K even if the list is shorter, so P@20 of a question with 5 targets is at most 0.25."""
    return list(dict.fromkeys([*measures, *(LIST_MEASURES if targets else ())]))


def with_judged(measures: Sequence[str], qrels: Qrels) -> list[str]:
    """The measures, and `Judged@10` where documents are judged not to be relevant: a system that
    finds documents which nobody has judged is measured too low. Where every judged document is
    relevant, an unjudged one cannot be told from one that was found not to be."""
    has_negatives = any(grade < 1 for row in qrels.values() for grade in row.values())
    return list(dict.fromkeys([*measures, *((JUDGED,) if has_negatives else ())]))


def with_targets(qrels: Qrels, targets: Targets) -> dict[str, Mapping[str, int]]:
    """The qrels without the questions whose set of targets is empty, which have no recall: they are
    left out of P, R, F1 and nDCG, and counted as `without_targets`."""
    empty = {qid for qid, docids in targets.items() if not docids}
    return {qid: grades for qid, grades in qrels.items() if qid not in empty}


def checklist_measures(
    rankings: Rankings,
    qids: Collection[str],
    targets: Targets,
    checklists: Mapping[str, Sequence[str]],
    satisfaction: Mapping[str, Mapping[str, Sequence[bool]]],
) -> PerQuestion:
    """`checklist@K` of those of the questions `qids` with a checklist and records of which document
    meets what: the share of the requirements that a document meets, averaged over the first K
    documents (fewer if the list is shorter); 0 for an empty list. A target meets all requirements,
    and a document without a record meets none."""
    shares = {}
    for qid in qids:
        if checklists.get(qid) and satisfaction.get(qid):
            of_document = {docid: _mean(met) for docid, met in satisfaction[qid].items()}
            of_document.update(dict.fromkeys(targets.get(qid, ()), 1.0))
            best = rankings.get(qid, ())[: max(CUTOFFS)]
            shares[qid] = [of_document.get(docid, 0.0) for docid in best]
    return {
        f"checklist@{k}": {qid: _mean(values[:k]) for qid, values in shares.items()}
        for k in (CUTOFFS if shares else ())
    }


def list_measures(
    rankings: Rankings,
    targets: Targets,
    missing: Callable[[Collection[str]], Collection[str]] | None = None,
) -> PerQuestion:
    """`hallucination_rate`, the share of the returned ids that are missing from the corpus (without
    empty lists), and `documents_returned` of questions that ask for documents. `missing` finds the
    docids that are not in the corpus; None if there are none."""
    lists = {qid: docids for qid, docids in rankings.items() if qid in targets}
    if not lists:
        return {}
    returned = {docid for docids in lists.values() for docid in docids}
    # A title that several documents of the corpus have is wrong, but not invented.
    lacking = missing(returned) if missing else ()
    invented = {docid for docid in lacking if not docid.startswith(AMBIGUOUS)}
    return {
        "hallucination_rate": {
            qid: _mean([docid in invented for docid in docids])
            for qid, docids in lists.items()
            if docids
        },
        "documents_returned": {qid: float(len(docids)) for qid, docids in lists.items()},
    }


def list_counts(targets: Targets, qids: Collection[str]) -> dict[str, int]:
    """`asking_for_documents` and `without_targets`; empty if no question asks for documents."""
    lists = [targets[qid] for qid in qids if qid in targets]
    if not lists:
        return {}
    empty = sum(not docids for docids in lists)
    return {"asking_for_documents": len(lists), "without_targets": empty}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
