"""BrowseComp-Plus's own figures for a run, computed from the same verdicts, and calibration errors.

Published tables report the figures of BrowseComp-Plus's evaluator. Ours are `<measure>_published`,
in addition to our own measures; `browsecomp_plus_measures` says how that evaluator counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from soundingline.toolkit.data import Qrels
from soundingline.toolkit.evaluation.statistics import equal_ties
from soundingline.toolkit.trajectory import SEARCHES, RecordedCall, Trajectory, final_response

# The statuses of ours for which other harnesses write `completed`: the agent gave an answer, also
# if it was reminded to.
_COMPLETED = ("completed", "steered")
_BRACKETS = (re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】"))
_NUMBER = re.compile(r"\d+")
_NO_SEARCH = "read_search_results"  # pages through a ranking
_SEARCH_WORDS = ("retrieval", *SEARCHES)


def published_status(trajectory: Trajectory) -> str:
    """The status in the run file: the recorded one of an import, else the exported one."""
    if "status" in trajectory.source:
        return str(trajectory.source["status"])
    return "completed" if trajectory.status in _COMPLETED else trajectory.status


def judged_response(trajectory: Trajectory) -> str:
    """The text that is judged; empty for an answer that counts as wrong without a judge."""
    at_end = trajectory.source.get("ends_with_answer", True)
    completed = published_status(trajectory) == "completed"
    return final_response(trajectory) if completed and at_end else ""


def retrieved_docids(trajectory: Trajectory) -> list[str]:
    """The `retrieved_docids` of the run file: the recorded ones if it was imported, otherwise the
    documents that result pages showed, in order."""
    recorded = trajectory.source.get("retrieved_docids")
    shown = trajectory.tiers.get("previewed", ())
    return list(map(str, shown if recorded is None else recorded))


def tool_call_counts(trajectory: Trajectory) -> dict[str, int]:
    """Successful calls by tool, from the run file if it was imported."""
    recorded = trajectory.source.get("tool_call_counts")
    return dict(recorded) if recorded is not None else count_calls(trajectory.calls)


def count_calls(calls: Iterable[RecordedCall]) -> dict[str, int]:
    """Calls without an error by tool, in order of first use."""
    return dict(Counter(call.name for call in calls if not call.error))


def published_recall(trajectory: Trajectory, grades: Mapping[str, int]) -> float | None:
    """The share of a question's judged documents among the retrieved ones; None without any."""
    retrieved = set(retrieved_docids(trajectory))
    return len(grades.keys() & retrieved) / len(grades) if grades else None


def browsecomp_plus_measures(
    recorded: Sequence[Trajectory],
    right: Sequence[bool],
    accepted: Mapping[str, Sequence[str]],
    judged: Qrels,
    confidences: Mapping[str, float] | None = None,
) -> dict[str, tuple[float, int]]:
    """The figures of BrowseComp-Plus's evaluator, which counts as follows:

    - A question without a run file is in no denominator. Only an answer whose status is `completed`
      and whose file ends with the answer's text is judged; all others are wrong.
    - Recall is the share of the judged documents, whatever their grade, that are among the file's
      `retrieved_docids`. Opened documents do not count. Failed questions count.
    - Citations are all runs of digits in square or lenticular brackets, so `[12_3]` cites two
      documents. Their precision and recall are means over the judged answers with a citation.
    - An answer without a confidence counts as 100 % confident.

    One thing differs: that evaluator divides by zero at a question without judgements, which is
    left out of recall here.

    Args:
        recorded: all trajectories, with their final messages. Those without an accepted answer are
            left out, unless no question has one.
        right: whether the judge finds the answer of each trajectory correct.
        accepted: question -> accepted answers.
        judged: question -> docid -> grade, of the evidence.
        confidences: question -> confidence, of the answers in the calibration error; None for all
            answers with what they state.

    Returns:
        `<measure>_published` -> its value, and the number of questions or answers.
    """
    pairs = zip(recorded, right, strict=True)
    answerable = [pair for pair in pairs if pair[0].qid in accepted or not accepted]
    if not answerable:
        return {}
    recalls = [published_recall(row, judged.get(row.qid, {})) for row, _ in answerable]
    figures: dict[str, list[float]] = {
        "search_calls": [
            sum(
                count
                for name, count in tool_call_counts(row).items()
                if _NO_SEARCH not in name and any(word in name for word in _SEARCH_WORDS)
            )
            for row, _ in answerable
        ],
        "completion": [published_status(row) == "completed" for row, _ in answerable],
        "recall": [value for value in recalls if value is not None],
    }
    if accepted:
        figures["accuracy"] = [
            bool(judged_response(row)) and correct for row, correct in answerable
        ]
    values = {name: (sum(row) / len(row), len(row)) for name, row in figures.items() if row}
    if accepted:
        answered = [(row, correct) for row, correct in answerable if judged_response(row)]
        if confidences is None:
            stated = ((row.qid, row.answer.confidence) for row, _ in answered)
            confidences = {qid: 100.0 if value is None else value for qid, value in stated}
        counted = [(row.qid, correct) for row, correct in answered if row.qid in confidences]
        stated_confidences = [confidences[qid] for qid, _ in counted]
        verdicts = [correct for _, correct in counted]
        error = rms_calibration_error(stated_confidences, verdicts, published=True)
        values["calibration_error"] = (error, len(counted))
        if judged:
            values |= _citations([row for row, _ in answered], judged)
    return {f"{name}_published": value for name, value in values.items()}


def _citations(answered: Iterable[Trajectory], judged: Qrels) -> dict[str, tuple[float, int]]:
    precision, recall = [], []
    for row in answered:
        evidence, text = judged.get(row.qid, {}).keys(), judged_response(row)
        bracketed = [inner for brackets in _BRACKETS for inner in brackets.findall(text)]
        if cited := {number for inner in bracketed for number in _NUMBER.findall(inner)}:
            shared = len(cited & evidence)
            precision.append(shared / len(cited))
            recall.append(shared / len(evidence) if evidence else 0.0)
    count = len(precision)
    return {
        "citation_precision": (sum(precision) / max(count, 1), count),
        "citation_recall": (sum(recall) / max(count, 1), count),
    }


def rms_calibration_error(
    confidences: Sequence[float],
    correct: Sequence[bool],
    bin_size: int = 100,
    *,
    published: bool = False,
) -> float:
    """The RMS calibration error with adaptive bins (Hendrycks et al., 2019), in per cent (0 to
    100); `ValueError` without answers.

    Answers are sorted by confidence (0 to 100) and cut into bins of `bin_size`; the last bin takes
    the remainder. Those of equal confidence, also but for rounding, keep their order.

    The error that BrowseComp-Plus's evaluator has `published` leaves the last, most confident bin
    out of the sum but keeps its answers in the total, so that 130 answers at full confidence, all
    wrong, have 0, as any fewer than `bin_size` answers have.
    """
    if published and len(confidences) < bin_size:
        return 0.0
    if not confidences:
        raise ValueError("calibration needs at least one answer")
    values = confidences if published else equal_ties(confidences)
    stated = np.asarray(values, dtype=float) / 100
    right = np.asarray(correct, dtype=float)
    ends = [bin_size * number for number in range(1, max(1, len(stated) // bin_size))]
    bins = np.split(np.argsort(stated, kind="stable"), ends)
    total = 0.0
    for rows in bins[:-1] if published else bins:
        total += len(rows) * (stated[rows].mean() - right[rows].mean()) ** 2
    return float(100 * np.sqrt(total / len(stated)))
