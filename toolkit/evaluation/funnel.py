"""How much of the evidence reached each tier, and at what exposure.

The surfaced tier of an agent that ranks a thousand documents cannot be compared with that of one
that ranks five. The funnel therefore tells the documents exposed beside every recall, and the
curves tell recall at equal exposure.

Only questions with at least one relevant document (grade above 0) count here: recall is undefined
without. A question of the judgements whose trajectory is not given counts as nothing found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from toolkit.contracts import TIERS, Trajectory
from toolkit.corpus.layers import LAYERS

Judgements = Mapping[str, Mapping[str, int]]
SHOWN = ("previewed", "opened")


class Reach(NamedTuple):
    """One question, one tier: relevant documents `found` of `relevant`, among `documents`."""

    found: int
    relevant: int
    documents: int

    @property
    def recall(self) -> float:
        return self.found / self.relevant


def relevant_documents(judgements: Judgements) -> dict[str, frozenset[str]]:
    """Documents with a grade above 0 by question; questions without any are left out."""
    relevant = {
        qid: frozenset(docid for docid, grade in grades.items() if grade > 0)
        for qid, grades in judgements.items()
    }
    return {qid: docids for qid, docids in relevant.items() if docids}


def reach_by_tier(
    trajectories: Iterable[Trajectory], judgements: Judgements
) -> dict[str, dict[str, Reach]]:
    """Exposure tier -> qid -> `Reach`, for every question with a relevant document."""
    relevant = relevant_documents(judgements)
    reached = {
        tier: {qid: Reach(0, len(docids), 0) for qid, docids in relevant.items()} for tier in TIERS
    }
    for trajectory in trajectories:
        relevant_docids = relevant.get(trajectory.qid)
        for tier in TIERS if relevant_docids else ():
            exposed = set(trajectory.tiers.get(tier, ()))
            count = len(relevant_docids & exposed) if relevant_docids else 0
            reached[tier][trajectory.qid] = Reach(count, len(relevant_docids or ()), len(exposed))
    return reached


def evidence_funnel(
    trajectories: Sequence[Trajectory], judgements: Mapping[str, Judgements]
) -> dict[str, dict[str, dict[str, float]]]:
    """Judged tier -> exposure tier -> `macro` (mean of the questions' recalls), `micro` (found of
    all relevant documents) and `documents` (mean number exposed a question). A judged tier
    without relevant documents is left out.

    Where the interface tells which layer of a document it shows (`toolkit.corpus.layers`), each
    layer has a row beside the tiers, with `tokens` besides: mean tokens, a question, of the calls
    that showed it."""
    funnel = {}
    tokens = layer_tokens(trajectories)
    for judged, grades in judgements.items():
        table = {**reach_by_tier(trajectories, grades), **reach_by_layer(trajectories, grades)}
        if table[TIERS[0]]:
            rows = {tier: _summary(list(reaches.values())) for tier, reaches in table.items()}
            for layer in set(rows) & set(tokens):
                rows[layer]["tokens"] = tokens[layer] / len(table[layer])
            funnel[judged] = rows
    return funnel


def reach_by_layer(
    trajectories: Sequence[Trajectory], judgements: Judgements
) -> dict[str, dict[str, Reach]]:
    """Layer of reading -> qid -> `Reach`, as `reach_by_tier`; of the layers that were shown."""
    relevant = relevant_documents(judgements)
    reached: dict[str, dict[str, Reach]] = {}
    for layer in LAYERS:
        shown = {
            trajectory.qid: {row.docid for row in trajectory.exposures if row.layer == layer}
            for trajectory in trajectories
        }
        if any(shown.values()):
            reached[layer] = {
                qid: Reach(
                    len(docids & shown.get(qid, set())), len(docids), len(shown.get(qid, ()))
                )
                for qid, docids in relevant.items()
            }
    return reached


def layer_tokens(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Layer of reading -> tokens of the calls that showed it, of all questions together."""
    tokens: dict[str, float] = {}
    for trajectory in trajectories:
        for call in trajectory.calls:
            if (layer := call.notes.get("layer")) in LAYERS:
                tokens[layer] = tokens.get(layer, 0.0) + call.tokens
    return tokens


def exposure_curves(
    trajectories: Sequence[Trajectory], judgements: Judgements, points: int = 60
) -> dict[str, list[tuple[float, float]]]:
    """Mean recall of what was shown (previewed or opened) against `documents` and `tokens` shown.

    Each curve is a list of (exposed so far, mean recall over the questions), ascending, on one
    grid for all questions: at most `points` whole numbers, evenly spaced by logarithm, from 1 to
    the largest exposure of any question. A question's recall is a step function, and a question
    that stopped keeps its last value. `[(1, 0)]` where nothing was shown.
    """
    relevant = relevant_documents(judgements)
    judged = [trajectory for trajectory in trajectories if trajectory.qid in relevant]
    return {unit: _curve(judged, relevant, unit, points) for unit in ("documents", "tokens")}


def _summary(reaches: list[Reach]) -> dict[str, float]:
    return {
        "macro": float(np.mean([reach.recall for reach in reaches])),
        "micro": sum(reach.found for reach in reaches) / sum(reach.relevant for reach in reaches),
        "documents": float(np.mean([reach.documents for reach in reaches])),
    }


def _curve(
    trajectories: Sequence[Trajectory],
    relevant: Mapping[str, frozenset[str]],
    unit: str,
    points: int,
) -> list[tuple[float, float]]:
    steps: list[tuple[int, float]] = []
    top = 1
    for trajectory in trajectories:
        relevant_documents = relevant[trajectory.qid]
        first: dict[str, int] = {}
        for exposure in trajectory.exposures:
            if exposure.tier in SHOWN:
                exposed = getattr(exposure, unit)
                top = max(top, exposed)
                first.setdefault(exposure.docid, exposed)
        gain = 1 / (len(relevant_documents) * len(relevant))
        steps.extend(
            (exposed, gain) for docid, exposed in first.items() if docid in relevant_documents
        )
    steps.sort()
    grid = np.unique(np.rint(np.geomspace(1, top, points)).astype(np.int64))
    gained = np.concatenate([[0.0], np.cumsum([gain for _, gain in steps])])
    reached = gained[np.searchsorted([exposed for exposed, _ in steps], grid, side="right")]
    return [(float(x), float(y)) for x, y in zip(grid, reached, strict=True)]
