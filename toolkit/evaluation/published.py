"""What BrowseComp-Plus's own evaluator gives for a run, from the same verdicts.

Its figures stand in published tables, so they are reported here under `<measure>_published`, beside
the right ones and never in their place. How it counts:

- A question without a file is in no denominator. Only an answer whose status is completed and whose
  file ends with its text is judged; all others are wrong.
- Recall is the share of the judged documents, whatever their grade, among the file's
  `retrieved_docids`: a set, in which opened documents do not count. Failed questions count.
- Citations are all runs of digits in square or lenticular brackets, so that `[12_3]` cites two
  documents; their precision and recall are means over the judged answers that cite anything.
- The calibration error leaves the last, most confident bin out; below 100 judged answers it is 0.
  An answer without a confidence counts as 100 % sure.

Not copied: a question without judgements divides by zero there, and is left out of recall here.
Our `grep` counts as a search, although that evaluator knows searches by their names alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from toolkit.contracts import ToolCall, Trajectory
from toolkit.evaluation.calibration import calibration_error_published
from toolkit.evaluation.funnel import Judgements
from toolkit.runs.records import SEARCHES, final_response

# A status of ours for which a harness of the field writes `completed`: the agent gave an answer,
# be it because it was told to.
_COMPLETED = ("completed", "steered")
_BRACKETS = (re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】"))
_NUMBER = re.compile(r"\d+")
_NOT_COUNTED = "read_search_results"  # pages through a ranking; it does not search


def published_status(trajectory: Trajectory) -> str:
    """The status of its file: its own where it was imported, else the one that an export gets."""
    if "status" in trajectory.source:
        return str(trajectory.source["status"])
    return "completed" if trajectory.status in _COMPLETED else trajectory.status


def judged_response(trajectory: Trajectory) -> str:
    """The text that is judged; empty for an answer that counts as wrong unjudged."""
    at_end = trajectory.source.get("ends_with_answer", True)
    completed = published_status(trajectory) == "completed"
    return final_response(trajectory) if completed and at_end else ""


def retrieved_docids(trajectory: Trajectory) -> list[str]:
    """The file's `retrieved_docids`: as recorded where it was imported, else the documents that
    result pages showed, in order."""
    recorded = trajectory.source.get("retrieved_docids")
    shown = trajectory.tiers.get("previewed", ())
    return list(map(str, shown if recorded is None else recorded))


def tool_call_counts(trajectory: Trajectory) -> dict[str, int]:
    """Successful calls by tool, as the file says or as they are recorded."""
    recorded = trajectory.source.get("tool_call_counts")
    return dict(recorded) if recorded is not None else count_calls(trajectory.calls)


def count_calls(calls: Iterable[ToolCall]) -> dict[str, int]:
    """Calls without an error by tool, in order of first use."""
    counts: dict[str, int] = {}
    for call in calls:
        if not call.error:
            counts[call.name] = counts.get(call.name, 0) + 1
    return counts


def search_count(counts: Mapping[str, float]) -> float:
    """Those of the calls that search."""
    names = [name for name in counts if _NOT_COUNTED not in name]
    words = ("retrieval", *SEARCHES)
    return sum(counts[name] for name in names if any(word in name for word in words))


def cited_numbers(text: str) -> set[str]:
    """The ids that the evaluator finds in a response."""
    bracketed = [inner for brackets in _BRACKETS for inner in brackets.findall(text)]
    return {number for inner in bracketed for number in _NUMBER.findall(inner)}


def published_recall(trajectory: Trajectory, grades: Mapping[str, int]) -> float | None:
    """Share of a question's judged documents that its file lists as retrieved; None without any."""
    retrieved = set(retrieved_docids(trajectory))
    return len(grades.keys() & retrieved) / len(grades) if grades else None


def published_measures(
    recorded: Sequence[Trajectory],
    right: Sequence[bool],
    accepted: Mapping[str, Sequence[str]],
    judged: Judgements,
) -> tuple[dict[str, float], dict[str, int]]:
    """The evaluator's figures by `<measure>_published`, and the number of questions or answers that
    each is taken over.

    - `recorded`: all trajectories, with their last messages; those without an accepted answer have
      no ground truth and are left out, unless no question has one.
    - `right`: the judge's word on each of them. `judged`: grades by qid and docid, of the evidence.
    """
    pairs = zip(recorded, right, strict=True)
    known = [pair for pair in pairs if pair[0].qid in accepted or not accepted]
    if not known:
        return {}, {}
    files = [row for row, _ in known]
    counts = [search_count(tool_call_counts(row)) for row in files]
    completed = [published_status(row) == "completed" for row in files]
    values = {
        "search_calls_published": sum(counts) / len(files),
        "completion_published": sum(completed) / len(files),
    }
    totals = dict.fromkeys(values, len(files))
    by_file = [published_recall(row, judged.get(row.qid, {})) for row in files]
    recalls = [value for value in by_file if value is not None]
    if recalls:
        values["recall_published"] = sum(recalls) / len(recalls)
        totals["recall_published"] = len(recalls)
    if not accepted:
        return values, totals
    answered = [(row, correct) for row, correct in known if judged_response(row)]
    correct = [verdict for _, verdict in answered]
    stated = [row.answer.confidence for row, _ in answered]
    values["accuracy_published"] = sum(correct) / len(files)
    totals["accuracy_published"] = len(files)
    values["calibration_error_published"] = calibration_error_published(
        [100.0 if value is None else value for value in stated], correct
    )
    totals["calibration_error_published"] = len(answered)
    if judged:
        cited = {row.qid: cited_numbers(judged_response(row)) for row, _ in answered}
        values.update(_citations(cited, judged))
        citing = sum(map(bool, cited.values()))
        totals |= {name: citing for name in values if name.startswith("citation")}
    return values, totals


def _citations(cited_by: Mapping[str, set[str]], judged: Judgements) -> dict[str, float]:
    precisions, recalls = [], []
    for qid, cited in cited_by.items():
        wanted = judged.get(qid, {}).keys()
        if cited:
            precisions.append(len(cited & wanted) / len(cited))
            recalls.append(len(cited & wanted) / len(wanted) if wanted else 0.0)
    return {
        "citation_precision_published": sum(precisions) / len(precisions) if precisions else 0.0,
        "citation_recall_published": sum(recalls) / len(recalls) if recalls else 0.0,
    }
