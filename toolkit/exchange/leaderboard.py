"""An entry of BrowseComp-Plus's leaderboard: the JSON that its evaluator writes.

The figures are the published evaluator's (`toolkit.evaluation.published`), as all entries hold
those. What it leaves open, the submitter fills in by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.contracts import Trajectory
from toolkit.evaluation.funnel import Judgements
from toolkit.evaluation.published import (
    judged_response,
    published_measures,
    published_recall,
    tool_call_counts,
)

OPEN = "change me when submitting"


def entry(
    recorded: Sequence[Trajectory],
    right: Mapping[str, bool],
    accepted: Mapping[str, Sequence[str]],
    judged: Judgements,
    *,
    llm: str,
    retriever: str,
    date: str,
) -> dict[str, Any]:
    """The entry of a run; the arguments are those of `published_measures`, but `right` is by qid,
    and what the run is called. Percentages have two decimals; None where there is nothing to
    compute one from."""
    files = [row for row in recorded if row.qid in accepted]
    correct = [right.get(row.qid, False) for row in files]
    values, _ = published_measures(files, correct, accepted, judged)
    return {
        "LLM": llm,
        "Accuracy (%)": _percent(values.get("accuracy_published")),
        "Recall (%)": _percent(values.get("recall_published")),
        "avg_tool_stats": _mean_calls(files),
        "Calibration Error (%)": round(values.get("calibration_error_published", 0.0), 2),
        "Retriever": retriever,
        "Link": OPEN,
        "Evaluation Date": date,
        "per_query_metrics": [
            {
                "query_id": row.qid,
                "correct": bool(judged_response(row)) and right.get(row.qid, False),
                "recall": _percent(published_recall(row, judged.get(row.qid, {}))),
            }
            for row in files
        ],
    }


def _mean_calls(files: Sequence[Trajectory]) -> dict[str, float]:
    sums: dict[str, int] = {}
    for row in files:
        for tool, count in tool_call_counts(row).items():
            sums[tool] = sums.get(tool, 0) + count
    return {tool: total / len(files) for tool, total in sums.items()}


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
