"""How much of the evidence each exposure tier reached, and at what exposure.

The surfaced tier of an agent that ranks a thousand documents cannot be compared with that of an
agent that ranks five. The funnel therefore reports the number of exposed documents with every
recall, and the curves show recall at equal exposure.

Only questions with at least one relevant document (grade above 0) count here, because recall is
undefined for the others. A judged question without a trajectory has found nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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


def reach_by_layer(trajectories: Sequence[Trajectory], qrels: Qrels) -> dict[str, dict[str, Reach]]:
    """Layer of reading -> question -> its reach, for the layers that were shown."""
    relevant = relevant_documents(qrels)
    reached = {}
    for layer in LAYERS:
        shown = {
            row.qid: {exposure.docid for exposure in row.exposures if exposure.layer == layer}
            for row in trajectories
        }
        if any(shown.values()):
            reached[layer] = _reach(shown, relevant)
    return reached


def _reach(
    exposed: Mapping[str, Collection[str]], relevant: Mapping[str, frozenset[str]]
) -> dict[str, Reach]:
    reached = {}
    for qid, docids in relevant.items():
        seen = set(exposed.get(qid, ()))
        reached[qid] = Reach(len(docids & seen), len(docids), len(seen))
    return reached


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
    funnel = {}
    tokens = layer_tokens(trajectories)
    for judged, grades in qrels.items():
        table = {**reach_by_tier(trajectories, grades), **reach_by_layer(trajectories, grades)}
        if table[TIERS[0]]:
            rows = {tier: _summary(list(reaches.values())) for tier, reaches in table.items()}
            for layer in set(rows) & set(tokens):
                rows[layer]["tokens"] = tokens[layer] / len(table[layer])
            funnel[judged] = rows
    return funnel


def layer_tokens(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Layer of reading -> the tokens of the calls that showed it, over all questions."""
    tokens: dict[str, float] = {}
    for trajectory in trajectories:
        for call in trajectory.calls:
            if (layer := call.notes.get("layer")) in LAYERS:
                tokens[layer] = tokens.get(layer, 0.0) + call.tokens
    return tokens


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
