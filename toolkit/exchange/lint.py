"""Faults in a set of run files, and the published figures with and without each fault. Answers are
judged by the exact rule, which needs no model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from soundingline.toolkit.data import Qrels, parent
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.evaluation.published import (
    browsecomp_plus_measures,
    count_calls,
    published_status,
    retrieved_docids,
)
from soundingline.toolkit.exchange.transcript import NO_OUTPUT
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.trajectory import Trajectory, final_message

_BRACKETS = (re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】"))
_ID = re.compile(r"(?=\S*\d)\S{1,64}")
_NOTICEABLE = 1e-9

# By the location of the file, without texts (`agent_run.without_texts`).
Rows = Mapping[str, Trajectory]
Figures = Mapping[str, float]
Repair = Callable[[Trajectory], Trajectory | None]  # None leaves the file out


@dataclass(frozen=True)
class Finding:
    """One kind of fault: the number and the locations of what has it, and the published figures
    that change, each with and without the fault, or the effect in words (`at_most`)."""

    code: str
    count: int
    places: Sequence[str]
    changes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    at_most: str = ""


@dataclass(frozen=True)
class GroundTruth:
    """The benchmark that the files are compared with: the ids of all questions, accepted answers by
    qid, grades by qid and docid, and the ids of the corpus (None: not read)."""

    qids: Sequence[str] = ()
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    qrels: Qrels = field(default_factory=dict)
    documents: Set[str] | None = None


def findings(
    rows: Rows, truth: GroundTruth, foreign: Sequence[str] = (), judges: Mapping[str, str] = {}
) -> list[Finding]:
    """The faults that occur, those that change figures first. `foreign` has the locations of files
    that are not run files, and `judges` the judge of each verdict by its location."""
    before = _figures(rows.values(), truth)
    present = Counter(row.qid for row in rows.values())
    missing = [qid for qid in truth.qids if qid not in present]
    files = sum(count for qid, count in present.items() if qid in truth.answers)
    share = files / max(files + len(missing), 1)
    published = {"accuracy_published", "completion_published"} & set(before)
    changes = _changes(before, {name: before[name] * share for name in sorted(published)})
    faults = [Finding("missing_qids", len(missing), missing, changes)]
    for code, wrong, repair in _faults(rows, truth):
        changes = {}
        if wrong and repair:
            repaired = [repair(row) if at in wrong else row for at, row in rows.items()]
            changes = _changes(before, _figures(filter(None, repaired), truth))
        faults.append(Finding(code, len(wrong), wrong, changes))
    # A harness that resumes takes an incomplete file as done and never repeats its question.
    wrong = [at for at, row in rows.items() if published_status(row) != "completed"]
    at_most = f"accuracy_published by up to {len(wrong) / max(len(rows), 1):.3f}, if repeated"
    faults.append(Finding("incomplete_taken_for_done", len(wrong), wrong, at_most=at_most))
    settings = Counter(map(_settings, rows.values())).most_common()
    usual = [row for row in rows.values() if _settings(row) == settings[0][0]]
    others = len(rows) - len(usual)
    changes = _changes(before, _figures(usual, truth)) if others else {}
    faults.append(Finding("several_models_or_settings", others, _lines(settings), changes))
    faults.append(Finding("foreign_or_damaged_json", len(foreign), foreign))
    verdicts = Counter(judges.values()).most_common()
    minority = len(judges) - verdicts[0][1] if verdicts else 0
    at_most = f"accuracy by up to {minority / max(len(judges), 1):.3f}"
    places = _lines(verdicts)
    faults.append(Finding("verdicts_of_different_judges", minority, places, at_most=at_most))
    occurring = [finding for finding in faults if finding.count]
    return sorted(occurring, key=lambda finding: not (finding.changes or finding.at_most))


def _lines(counts: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{name}: {count}" for name, count in counts]


def _faults(rows: Rows, truth: GroundTruth) -> Iterator[tuple[str, list[str], Repair | None]]:
    """Each kind of fault: its name, the files that have it, and what repairs a file."""

    def files(fault: Callable[[Trajectory], bool]) -> list[str]:
        return [at for at, row in rows.items() if fault(row)]

    def source(**fields: Callable[[Trajectory], Any]) -> Repair:
        """Replaces facts about the file."""
        return lambda row: replace(
            row, source={**row.source, **{name: value(row) for name, value in fields.items()}}
        )

    first: dict[str, str] = {}
    again = [at for at, row in rows.items() if first.setdefault(row.qid, at) != at]
    yield "duplicate_qids", again, lambda row: None
    known, corpus = set(truth.qids), truth.documents
    yield "qids_of_no_question", files(lambda row: bool(known) and row.qid not in known), None
    lost = files(lambda row: any(call.error == NO_OUTPUT for call in row.calls))
    yield "tool_outputs_not_on_record", lost, None
    unseen = files(lambda row: _answered(row) and not row.source.get("ends_with_answer", True))
    yield "answers_without_a_last_output_text", unseen, source(ends_with_answer=lambda row: True)
    empty = files(lambda row: published_status(row) == "completed" and not _answered(row))
    yield "completed_without_an_answer", empty, None
    counted = source(tool_call_counts=lambda row: count_calls(row.calls))
    yield "counts_that_contradict_the_calls", files(_wrong_counts), counted
    differing = files(lambda row: set(retrieved_docids(row)) != set(_recorded_docids(row)))
    recorded = source(retrieved_docids=_recorded_docids)
    yield "retrieved_docids_that_contradict_the_calls", differing, recorded
    if corpus is not None:
        lacking = files(lambda row: not set(retrieved_docids(row)) <= corpus)
        present = source(
            retrieved_docids=lambda row: [
                docid
                for name in retrieved_docids(row)
                if (docid := name if name in corpus else _document(name)) in corpus
            ]
        )
        yield "documents_that_the_corpus_lacks", lacking, present
    invented = files(lambda row: _without_invented(row) is not row)
    yield "citations_never_shown", invented, _without_invented


def _figures(trajectories: Iterable[Trajectory], truth: GroundTruth) -> Figures:
    rows, judge, answers = list(trajectories), ExactAnswerJudge(), truth.answers
    correct = [
        bool(accepted) and judge.verdict(row.qid, row.answer, accepted).correct
        for row in rows
        for accepted in [answers.get(row.qid, ())]
    ]
    figures = browsecomp_plus_measures(rows, correct, truth.answers, truth.qrels)
    return {name: value for name, (value, _) in figures.items()}


def _changes(before: Figures, after: Figures) -> dict[str, tuple[float, float]]:
    pairs = {name: (before[name], value) for name, value in after.items() if name in before}
    return {name: (a, b) for name, (a, b) in pairs.items() if abs(a - b) > _NOTICEABLE}


def _settings(row: Trajectory) -> str:
    metadata = row.source.get("metadata") or {}
    settings = {name: metadata.get(name) for name in ("model", "reasoning", "prompt_variant", "k")}
    settings["models"] = row.source.get("models")
    return f"{settings['model'] or 'unnamed'} ({fingerprint(settings)[:6]})"


def _answered(row: Trajectory) -> bool:
    return bool(row.answer.exact.strip())


def _wrong_counts(row: Trajectory) -> bool:
    """Some harnesses count calls that failed, and others do not."""
    listed = row.source.get("tool_call_counts") or {}
    successes = sum(count_calls(row.calls).values())
    return bool(listed) and not successes <= sum(listed.values()) <= len(row.calls)


def _recorded_docids(row: Trajectory) -> list[str]:
    """The ids that the field of the file should list: whole rankings in the format of Pi-Serini,
    and otherwise what pages showed. A file without the field lists nothing else."""
    if row.source.get("retrieved_docids") is None:
        return retrieved_docids(row)
    tier = "surfaced" if row.source.get("format") == "pi_serini" else "previewed"
    return list(row.tiers.get(tier, ()))


def _document(docid: str) -> str:
    plain = parent(docid.removeprefix("browsecomp_plus_"))
    head, _, number = plain.rpartition("_")
    return head if number.isdecimal() else plain


def _invented(name: str, row: Trajectory) -> bool:
    """Whether a name in brackets looks like an id (a digit and no space) that was never shown."""
    shown = {*row.tiers.get("surfaced", ()), *row.tiers.get("opened", ())}
    docid = name.partition("†")[0].strip()
    return bool(_ID.fullmatch(docid)) and not {docid, _document(docid)} & shown


def _without_invented(row: Trajectory) -> Trajectory:
    """The trajectory without citations of ids that were never shown; the same one without any."""
    final = final_message(row)
    if final is None or not row.answer.exact:
        return row

    def shown_only(match: re.Match[str]) -> str:
        names = [name for name in match[1].split(",") if not _invented(name, row)]
        return f"{match[0][0]}{','.join(names)}{match[0][-1]}"

    text = str(final["content"])
    for brackets in _BRACKETS:
        text = brackets.sub(shown_only, text)
    same = text == final["content"]
    return row if same else replace(row, messages=(*row.messages[:-1], {**final, "content": text}))
