"""Measures of answers that are ranked lists of documents.

What of a list counts, by cutoff K of `CUTOFFS`; all are means over questions, each alike:

- `P@K`, `R@K` and `nDCG@K` are ir_measures', against the targets, and `F1@K` is the harmonic mean
  of a question's P@K and R@K, 0 where both are 0 (Du et al., Towards Self-Evolving Agentic
  Literature Retrieval, 2026, section 3.2). As in trec_eval, a list shorter than K is divided by K
  all the same: its empty places count as wrong. So P@20 of a question with 5 targets is at most
  0.25, and F1@20 at most 0.4.
- `checklist@K`: the share of the question's requirements that a document meets, averaged over the
  documents among the first K that were returned (fewer than K where the list is shorter); 0 for an
  empty list. A target meets all, and a document of which nothing is known meets none. Over the
  questions with a checklist of which the benchmark knows who meets what.
- `hallucination_rate`: the share of the ids returned that the corpus lacks, over the questions that
  returned any.
- `documents_returned`: the length of the list, over the recorded questions.

A question whose set of targets is empty has no recall. It is in none of P, R, F1 and nDCG, and is
counted as `without_targets`; the other measures have it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from toolkit.contracts import DocumentSets
from toolkit.corpus.resolve import AMBIGUOUS

CUTOFFS = (1, 5, 10, 20, 50)
SET_MEASURES = tuple(f"{name}@{k}" for name in ("P", "R", "F1", "nDCG") for k in CUTOFFS)
HEADLINE = ("F1@20", "nDCG@20")  # those that a table has room for

Absent = Callable[[Collection[str]], Collection[str]]
Rankings = Mapping[str, Sequence[str]]
PerQuestion = dict[str, dict[str, float]]


def with_set_measures(measures: Sequence[str], sets: DocumentSets) -> list[str]:
    """The measures of rankings, and `SET_MEASURES` where the benchmark asks for documents."""
    return list(dict.fromkeys([*measures, *(SET_MEASURES if sets.targets else ())]))


def with_targets(
    judgements: Mapping[str, Mapping[str, int]], sets: DocumentSets
) -> dict[str, Mapping[str, int]]:
    """The judgements without the questions whose set of targets is empty."""
    empty = {qid for qid, targets in sets.targets.items() if not targets}
    return {qid: grades for qid, grades in judgements.items() if qid not in empty}


def checklist_measures(
    rankings: Rankings, sets: DocumentSets, qids: Collection[str]
) -> PerQuestion:
    """`checklist@K` of those of the questions `qids` of which it is known who meets what."""
    known = [qid for qid in qids if sets.checklists.get(qid) and sets.satisfaction.get(qid)]
    if not known:
        return {}
    shares = {qid: _shares(qid, rankings.get(qid, ()), sets) for qid in known}
    return {
        f"checklist@{k}": {qid: _mean(values[:k]) for qid, values in shares.items()}
        for k in CUTOFFS
    }


def list_measures(rankings: Rankings, sets: DocumentSets, absent: Absent) -> PerQuestion:
    """`hallucination_rate` and `documents_returned` of questions that ask for documents. `absent`
    tells which of some docids the corpus lacks."""
    set_rankings = {qid: docids for qid, docids in rankings.items() if qid in sets.targets}
    if not set_rankings:
        return {}
    returned = {docid for docids in set_rankings.values() for docid in docids}
    # What several documents of the corpus could be meant by is wrong, and not invented.
    lacking = {docid for docid in absent(returned) if not docid.startswith(AMBIGUOUS)}
    return {
        "hallucination_rate": {
            qid: sum(docid in lacking for docid in docids) / len(docids)
            for qid, docids in set_rankings.items()
            if docids
        },
        "documents_returned": {qid: float(len(docids)) for qid, docids in set_rankings.items()},
    }


def none_absent(docids: Collection[str]) -> Collection[str]:
    """For rankings that can only hold documents of the corpus."""
    return ()


def set_counts(sets: DocumentSets, qids: Collection[str]) -> dict[str, int]:
    """`asking_for_documents` and `without_targets` among the questions; nothing where none asks."""
    targets_asked = [sets.targets[qid] for qid in qids if qid in sets.targets]
    if not targets_asked:
        return {}
    empty = sum(not targets for targets in targets_asked)
    return {"asking_for_documents": len(targets_asked), "without_targets": empty}


def _shares(qid: str, docids: Sequence[str], sets: DocumentSets) -> list[float]:
    """The share of its requirements that each document meets: all, of a target."""
    shares = {docid: _mean(met) for docid, met in sets.satisfaction[qid].items()}
    shares.update(dict.fromkeys(sets.targets.get(qid, ()), 1.0))
    return [shares.get(docid, 0.0) for docid in docids[: max(CUTOFFS)]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
