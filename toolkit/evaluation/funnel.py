"""How much of the evidence each exposure tier reached, and at what exposure.

The surfaced tier of an agent that ranks a thousand documents cannot be compared with that of an
agent that ranks five. The funnel therefore reports the number of exposed documents with every
recall, and the curves show recall at equal exposure.

Only questions with at least one relevant document (grade above 0) count here, because recall is
undefined for the others. A judged question without a trajectory counts as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from soundingline.toolkit.data import Qrels
from soundingline.toolkit.search.tool import LAYERS
from soundingline.toolkit.trajectory import TIERS, Trajectory

SHOWN = ("previewed", "opened")


class Reach(NamedTuple):
    """What one question reached in one tier: `found` of `relevant` documents, among `documents`
    exposed ones."""

    found: int
    relevant: int
    documents: int

    @property
    def recall(self) -> float:
        return self.found / self.relevant


def relevant_documents(qrels: Qrels) -> dict[str, frozenset[str]]:
    """The documents with a grade above 0 of each question that has any."""
    relevant = {
        qid: frozenset(docid for docid, grade in grades.items() if grade > 0)
        for qid, grades in qrels.items()
    }
    return {qid: docids for qid, docids in relevant.items() if docids}


def reach_by_tier(trajectories: Sequence[Trajectory], qrels: Qrels) -> dict[str, dict[str, Reach]]:
    """Exposure tier -> question -> its reach, for every question with a relevant document."""
    relevant = relevant_documents(qrels)
    return {
        tier: _reach({row.qid: row.tiers.get(tier, ()) for row in trajectories}, relevant)
        for tier in TIERS
    }


def _reach_by_layer(
    trajectories: Sequence[Trajectory], qrels: Qrels
) -> dict[str, dict[str, Reach]]:
    """Layer of reading -> question -> its reach, for the layers that were shown."""
    relevant, shown = relevant_documents(qrels), dict[str, dict[str, set[str]]]()
    for row in trajectories:
        for exposure in row.exposures:
            if exposure.layer in LAYERS:
                of_layer = shown.setdefault(exposure.layer, {})
                of_layer.setdefault(row.qid, set()).add(exposure.docid)
    return {layer: _reach(shown[layer], relevant) for layer in LAYERS if layer in shown}


def _reach(
    exposed: Mapping[str, Collection[str]], relevant: Mapping[str, frozenset[str]]
) -> dict[str, Reach]:
    seen = {qid: set(exposed.get(qid, ())) for qid in relevant}
    return {
        qid: Reach(len(docids & seen[qid]), len(docids), len(seen[qid]))
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
        (found of all relevant documents) and `documents` (the mean number of documents that a
        question exposed). Judged tiers without relevant documents are left out. If the search tool
        shows layers of documents (`soundingline.toolkit.search.literature`), each layer has a row
        as well, with `tokens`, the mean tokens of the calls of a question that showed it.
    """
    tokens = Counter[str]()  # of the calls that showed a layer, over all questions
    for trajectory in trajectories:
        for call in trajectory.calls:
            tokens[str(call.notes.get("layer"))] += call.tokens
    funnel = {}
    for judged, grades in qrels.items():
        reached = {**reach_by_tier(trajectories, grades), **_reach_by_layer(trajectories, grades)}
        if not reached[TIERS[0]]:
            continue
        funnel[judged] = {step: _summary(list(rows.values())) for step, rows in reached.items()}
        for layer in set(LAYERS) & reached.keys() & tokens.keys():
            funnel[judged][layer]["tokens"] = tokens[layer] / len(reached[layer])
    return funnel


def _summary(reaches: list[Reach]) -> dict[str, float]:
    return {
        "macro": float(np.mean([reach.recall for reach in reaches])),
        "micro": sum(reach.found for reach in reaches) / sum(reach.relevant for reach in reaches),
        "documents": float(np.mean([reach.documents for reach in reaches])),
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
    judged = [trajectory for trajectory in trajectories if trajectory.qid in relevant]
    return {unit: _curve(judged, relevant, unit, points) for unit in ("documents", "tokens")}


def _curve(
    trajectories: Sequence[Trajectory],
    relevant: Mapping[str, frozenset[str]],
    unit: str,
    points: int,
) -> list[tuple[float, float]]:
    steps: list[tuple[int, float]] = []
    top = 1
    for trajectory in trajectories:
        wanted = relevant[trajectory.qid]
        first: dict[str, int] = {}
        for exposure in trajectory.exposures:
            if exposure.tier in SHOWN:
                exposed = getattr(exposure, unit)
                top = max(top, exposed)
                first.setdefault(exposure.docid, exposed)
        gain = 1 / (len(wanted) * len(relevant))
        steps.extend((exposed, gain) for docid, exposed in first.items() if docid in wanted)
    steps.sort()
    grid = np.unique(np.rint(np.geomspace(1, top, points)).astype(np.int64))
    gained = np.concatenate([[0.0], np.cumsum([gain for _, gain in steps])])
    reached = gained[np.searchsorted([exposed for exposed, _ in steps], grid, side="right")]
    # Shares of several questions may add up to a little more than 1.
    return [(float(x), min(1.0, float(y))) for x, y in zip(grid, reached, strict=True)]
