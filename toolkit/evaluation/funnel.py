"""How much of the evidence each exposure tier reached, and at what exposure.

Tiers of agents that rank other numbers of documents cannot be compared directly. The funnel has the
number of exposed documents with every recall, and the curves show recall at equal exposure. Only
questions with a relevant document (grade above 0) count; one without a trajectory counts as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from soundingline.toolkit.data import Qrels
from soundingline.toolkit.search.tool import LAYERS
from soundingline.toolkit.trajectory import TIERS, Trajectory

SHOWN = ("previewed", "opened")
Reach = dict[str, tuple[int, int, int]]
"""Question -> the relevant documents that it reached, all relevant ones, and all exposed ones."""


def relevant_documents(qrels: Qrels) -> dict[str, frozenset[str]]:
    """The documents with a grade above 0 of each question that has any."""
    relevant = {
        qid: frozenset(docid for docid, grade in grades.items() if grade > 0)
        for qid, grades in qrels.items()
    }
    return {qid: docids for qid, docids in relevant.items() if docids}


def reach_by_tier(trajectories: Sequence[Trajectory], qrels: Qrels) -> dict[str, Reach]:
    """The reach of each exposure tier, of every question with a relevant document."""
    relevant = relevant_documents(qrels)
    return {
        tier: _reach({row.qid: row.tiers.get(tier, ()) for row in trajectories}, relevant)
        for tier in TIERS
    }


def _reach(exposed: Mapping[str, Collection[str]], relevant: Mapping[str, frozenset[str]]) -> Reach:
    seen = {qid: set(exposed.get(qid, ())) for qid in relevant}
    return {
        qid: (len(docids & seen[qid]), len(docids), len(seen[qid]))
        for qid, docids in relevant.items()
    }


def evidence_funnel(
    trajectories: Sequence[Trajectory], qrels: Mapping[str, Qrels]
) -> dict[str, dict[str, dict[str, float]]]:
    """Recall and exposure by tier.

    Args:
        trajectories: at most one for each question.
        qrels: judged tier -> question -> docid -> grade.

    Returns: Judged tier -> exposure tier -> `macro` (the mean of the questions' recalls), `micro`
        (reached of all relevant documents) and `documents` (the mean number of documents that a
        question exposed). Judged tiers without relevant documents are left out. If the search tool
        shows layers of documents (`soundingline.toolkit.search.literature`), each layer has a row
        as well, with `tokens`, the mean tokens of the calls of a question that showed it.
    """
    tokens = Counter[str]()  # of the calls that showed a layer, over all questions
    layers: dict[str, dict[str, set[str]]] = {}  # layer -> question -> the documents shown so
    for row in trajectories:
        for call in row.calls:
            tokens[str(call.notes.get("layer"))] += call.tokens
        for exposure in row.exposures:
            layers.setdefault(exposure.layer, {}).setdefault(row.qid, set()).add(exposure.docid)
    funnel = {}
    for judged, grades in qrels.items():
        if not (relevant := relevant_documents(grades)):
            continue
        shown = {layer: _reach(layers[layer], relevant) for layer in LAYERS if layer in layers}
        funnel[judged] = {
            step: _summary(reach)
            for step, reach in {**reach_by_tier(trajectories, grades), **shown}.items()
        }
        for layer in shown.keys() & tokens.keys():
            funnel[judged][layer]["tokens"] = tokens[layer] / len(relevant)
    return funnel


def _summary(reach: Reach) -> dict[str, float]:
    reached, relevant, documents = np.array(list(reach.values())).T
    return {
        "macro": float(np.mean(reached / relevant)),
        "micro": float(reached.sum() / relevant.sum()),
        "documents": float(documents.mean()),
    }


def exposure_curves(
    trajectories: Sequence[Trajectory], qrels: Qrels, points: int = 60
) -> dict[str, list[tuple[float, float]]]:
    """Mean recall of the shown (previewed or opened) documents against exposure.

    The recall of a question is a step function, and a question that stopped keeps its last value.

    Args:
        trajectories: at most one for each question.
        qrels: question -> docid -> grade.
        points: the largest number of points of a curve.

    Returns:
        `documents` and `tokens` -> a list of (exposed so far, mean recall over the questions),
        ascending. The exposures are whole numbers, evenly spaced by logarithm from 1 to the largest
        exposure of any question; `[(1, 0)]` if nothing was shown.
    """
    relevant = relevant_documents(qrels)
    curves = {}
    for unit in ("documents", "tokens"):
        steps: list[tuple[int, float]] = []
        top = 1
        for trajectory in trajectories:
            wanted = relevant.get(trajectory.qid, frozenset())
            first: dict[str, int] = {}
            for exposure in trajectory.exposures if wanted else ():
                if exposure.tier in SHOWN:
                    exposed = getattr(exposure, unit)
                    top = max(top, exposed)
                    first.setdefault(exposure.docid, exposed)
            steps += [
                (exposed, 1 / (len(wanted) * len(relevant)))
                for docid, exposed in first.items()
                if docid in wanted
            ]
        steps.sort()
        grid = np.unique(np.rint(np.geomspace(1, top, points)).astype(np.int64))
        gained = np.concatenate([[0.0], np.cumsum([gain for _, gain in steps])])
        reached = gained[np.searchsorted([exposed for exposed, _ in steps], grid, side="right")]
        # Shares of several questions may add up to a little more than 1.
        recalls = np.minimum(reached, 1.0).tolist()
        curves[unit] = list(zip(map(float, grid), recalls, strict=True))
    return curves
