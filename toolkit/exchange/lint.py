"""What cannot be trusted in a set of run files.

`linted` makes a `LintRow` of each file: what the checks need, without the texts. `findings` gives
one `Finding` a kind of fault, with what the published figures would be without it where that can
be computed. Correctness is by the exact rule, which needs no model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from toolkit.contracts import Trajectory, parent
from toolkit.evaluation.agent_run import lean
from toolkit.evaluation.answers import ExactAnswerJudge
from toolkit.evaluation.funnel import Judgements
from toolkit.evaluation.published import (
    count_calls,
    published_measures,
    published_status,
    retrieved_docids,
    tool_call_counts,
)
from toolkit.exchange.transcript import NO_OUTPUT
from toolkit.files import fingerprint

_TIME = re.compile(r"(\d{8}T\d{6})")
_BRACKETS = (re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】"))
_ID = re.compile(r"(?=\S*\d)\S{1,64}")
_LATE = 10  # times the usual gap between files, and
_HOUR = 3600  # seconds at least, that a later start is told by
_NOTICEABLE = 1e-9

Figures = Mapping[str, float]


class LintRow(NamedTuple):
    """A file: where it stands, its trajectory without texts, and what the texts told. `settings`
    is a text that is equal for files of one model and its settings."""

    place: str
    trajectory: Trajectory
    settings: str
    cited: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    ends_with_answer: bool = True
    answered: bool = True
    seconds: float | None = None


class Finding(NamedTuple):
    """A kind of fault: how often, where first, and which figures would change, as pairs of the
    figure as it is and without the fault. `at_most` tells what cannot be computed."""

    code: str
    number: int
    places: Sequence[str]
    changes: Mapping[str, tuple[float, float]] = {}
    at_most: str = ""


@dataclass(frozen=True)
class Truth:
    """What the files are held against: answers, judgements (None where no benchmark is chosen),
    and `documents`, the ids of the corpus (None where they are not read)."""

    qids: Sequence[str] = ()
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    judged: Judgements = field(default_factory=dict)
    documents: Collection[str] | None = None


def linted(location: str, trajectory: Trajectory) -> LintRow:
    """The row of one file."""
    metadata = trajectory.source.get("metadata") or {}
    settings = {name: metadata.get(name) for name in ("model", "reasoning", "prompt_variant", "k")}
    settings["models"] = trajectory.source.get("models")
    text = str(trajectory.messages[-1].get("content") or "") if trajectory.messages else ""
    shown = {docid for tier in ("surfaced", "opened") for docid in trajectory.tiers.get(tier, ())}
    return LintRow(
        place=location,
        trajectory=lean(trajectory),
        settings=f"{settings['model'] or 'unnamed'} ({fingerprint(settings)[:6]})",
        cited=cited_ids(text) if trajectory.answer.exact else frozenset(),
        shown=frozenset(shown),
        ends_with_answer=bool(trajectory.source.get("ends_with_answer", True)),
        answered=bool(trajectory.answer.exact.strip()),
        seconds=_written(location),
    )


def findings(rows: Sequence[LintRow], truth: Truth, foreign: Sequence[str] = ()) -> list[Finding]:
    """All findings, those that change figures first. `foreign` are places that hold no run file."""
    before = _figures([row.trajectory for row in rows], truth)
    results = [check(rows, truth, before) for check in _CHECKS]
    results.append(Finding("foreign_or_damaged_json", len(foreign), foreign))
    present = [finding for finding in results if finding.number]
    return sorted(present, key=lambda finding: not (finding.changes or finding.at_most))


def _finding(
    code: str,
    rows: Sequence[LintRow],
    before: Figures | None = None,
    after: Figures | None = None,
    at_most: str = "",
) -> Finding:
    changes = {
        name: (before[name], value)
        for name, value in (after or {}).items()
        if before and name in before and abs(before[name] - value) > _NOTICEABLE
    }
    return Finding(code, len(rows), [row.place for row in rows], changes, at_most)


def _figures(trajectories: Sequence[Trajectory], truth: Truth) -> Figures:
    judge = ExactAnswerJudge()
    right = [
        judge.verdict(row.qid, row.answer, truth.answers[row.qid]).correct
        if truth.answers.get(row.qid)
        else False
        for row in trajectories
    ]
    values, _ = published_measures(trajectories, right, truth.answers, truth.judged)
    return values


def _duplicates(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    first: dict[str, LintRow] = {}
    for row in rows:
        first.setdefault(row.trajectory.qid, row)
    again = [row for row in rows if first[row.trajectory.qid] is not row]
    after = _figures([row.trajectory for row in first.values()], truth)
    return _finding("duplicate_qids", again, before, after)


def _missing(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    present = {row.trajectory.qid for row in rows}
    missing = [qid for qid in truth.qids if qid not in present]
    files = len([row for row in rows if row.trajectory.qid in truth.answers])
    changes = {}
    for name in ("accuracy_published", "completion_published"):
        if name in before and missing:
            value = before[name] * files / (files + len(missing))
            if abs(value - before[name]) > _NOTICEABLE:
                changes[name] = (before[name], value)
    return Finding("missing_qids", len(missing), missing, changes)


def _strange(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    known = set(truth.qids)
    strange = [row for row in rows if known and row.trajectory.qid not in known]
    return _finding("qids_of_no_question", strange)


def _incomplete(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    """A file is enough for a harness that resumes: these questions are never asked again."""
    incomplete = [row for row in rows if published_status(row.trajectory) != "completed"]
    share = len(incomplete) / len(rows) if rows else 0.0
    at_most = f"accuracy_published by up to {share:.3f}, if they were asked again"
    return _finding("incomplete_taken_for_done", incomplete, at_most=at_most)


def _no_output(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    lost = [row for row in rows if any(c.error == NO_OUTPUT for c in row.trajectory.calls)]
    return _finding("tool_outputs_not_on_record", lost)


def _late(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    """Files that were written long after the others, by the times in their names."""
    timed = sorted((row for row in rows if row.seconds is not None), key=_seconds)
    gaps = [_seconds(b) - _seconds(a) for a, b in pairwise(timed)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    later = [at for at, gap in enumerate(gaps, 1) if gap > max(_LATE * usual, _HOUR)]
    late = timed[later[0] :] if later and later[0] > len(timed) / 2 else []
    rest = [row.trajectory for row in rows if row not in late]
    return _finding("asked_again_later", late, before, _figures(rest, truth) if late else None)


def _mixed(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    counts = Counter(row.settings for row in rows)
    if len(counts) < 2:
        return Finding("several_models_or_settings", 0, ())
    (usual, _), *_ = counts.most_common(1)
    others = [row for row in rows if row.settings != usual]
    after = _figures([row.trajectory for row in rows if row.settings == usual], truth)
    finding = _finding("several_models_or_settings", others, before, after)
    return finding._replace(places=[f"{name}: {count}" for name, count in counts.most_common()])


def _not_last(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    """An answer behind which the file goes on is taken for none."""
    ignored = [row for row in rows if row.answered and not row.ends_with_answer]
    locations = {row.place for row in ignored}
    mended = [
        _said(row.trajectory, ends_with_answer=True) if row.place in locations else row.trajectory
        for row in rows
    ]
    return _finding("answers_without_a_last_output_text", ignored, before, _figures(mended, truth))


def _empty(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    completed = (row for row in rows if published_status(row.trajectory) == "completed")
    empty = [row for row in completed if not row.answered]
    return _finding("completed_without_an_answer", empty)


def _counts(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    wrong = [
        row
        for row in rows
        if row.trajectory.source.get("tool_call_counts")
        if sum(tool_call_counts(row.trajectory).values()) != _successes(row.trajectory)
    ]
    mended = [
        _said(row.trajectory, tool_call_counts=count_calls(row.trajectory.calls)) for row in rows
    ]
    after = _figures(mended, truth) if wrong else None
    return _finding("counts_that_contradict_the_calls", wrong, before, after)


def _retrieved(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    """The list that recall is computed from, against what the outputs show."""
    wrong = [
        row
        for row in rows
        if row.trajectory.source.get("retrieved_docids") is not None
        if set(retrieved_docids(row.trajectory)) != set(_recorded(row.trajectory))
    ]
    locations = {row.place for row in wrong}
    mended = [
        _said(row.trajectory, retrieved_docids=_recorded(row.trajectory))
        if row.place in locations
        else row.trajectory
        for row in rows
    ]
    after = _figures(mended, truth) if wrong else None
    return _finding("retrieved_docids_that_contradict_the_calls", wrong, before, after)


def _lacking(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    documents = truth.documents
    if documents is None:
        return Finding("documents_that_the_corpus_lacks", 0, ())
    lacking = [
        row for row in rows if any(d not in documents for d in retrieved_docids(row.trajectory))
    ]
    locations = {row.place for row in lacking}
    mended = [
        _said(row.trajectory, retrieved_docids=_in_corpus(row.trajectory, documents))
        if row.place in locations
        else row.trajectory
        for row in rows
    ]
    after = _figures(mended, truth) if lacking else None
    return _finding("documents_that_the_corpus_lacks", lacking, before, after)


def _uncited(rows: Sequence[LintRow], truth: Truth, before: Figures) -> Finding:
    invented = [row for row in rows if any(not _was_shown(docid, row) for docid in row.cited)]
    locations = {row.place for row in invented}
    mended = [_citing_shown(row) if row.place in locations else row.trajectory for row in rows]
    after = _figures(mended, truth) if invented else None
    return _finding("citations_never_shown", invented, before, after)


_CHECKS: tuple[Callable[[Sequence[LintRow], Truth, Figures], Finding], ...] = (
    _duplicates,
    _missing,
    _strange,
    _incomplete,
    _no_output,
    _late,
    _mixed,
    _not_last,
    _empty,
    _counts,
    _retrieved,
    _lacking,
    _uncited,
)


def judges_of(verdicts: Iterable[tuple[str, str]]) -> Finding:
    """Verdicts by different judges: pairs of a place and the judge's name."""
    locations: dict[str, list[str]] = {}
    for location, judge in verdicts:
        locations.setdefault(judge, []).append(location)
    if len(locations) < 2:
        return Finding("verdicts_of_different_judges", 0, ())
    named = [f"{judge}: {len(files)}" for judge, files in locations.items()]
    most = max(len(files) for files in locations.values())
    total = sum(len(files) for files in locations.values())
    at_most = f"accuracy by up to {(total - most) / total:.3f}"
    return Finding("verdicts_of_different_judges", total - most, named, at_most=at_most)


def _said(trajectory: Trajectory, **changed: Any) -> Trajectory:
    """The same trajectory, whose file says another thing."""
    return replace(trajectory, source={**trajectory.source, **changed})


def _successes(trajectory: Trajectory) -> int:
    return sum(count_calls(trajectory.calls).values())


def _recorded(trajectory: Trajectory) -> list[str]:
    """What the file's list should hold: whole rankings where it lists those, else shown pages."""
    tier = "surfaced" if trajectory.source.get("format") == "pi_serini" else "previewed"
    return list(trajectory.tiers.get(tier, ()))


def _in_corpus(trajectory: Trajectory, documents: Collection[str]) -> list[str]:
    """The ids that are documents, and the documents of those that are passages."""
    docids = retrieved_docids(trajectory)
    parents = (docid if docid in documents else _document(docid) for docid in docids)
    return [docid for docid in parents if docid in documents]


def _document(docid: str) -> str:
    plain = parent(docid.removeprefix("browsecomp_plus_"))
    head, _, number = plain.rpartition("_")
    return head if number.isdecimal() else plain


def cited_ids(text: str) -> frozenset[str]:
    """What stands in brackets and looks like an id: it has a digit and no space."""
    inner = (content for brackets in _BRACKETS for content in brackets.findall(text))
    return frozenset(_ids(name for content in inner for name in content.split(",")))


def _ids(names: Iterable[str]) -> list[str]:
    """Those of the names within brackets that look like ids."""
    bare = (name.partition("†")[0].strip() for name in names)
    return [name for name in bare if _ID.fullmatch(name)]


def _citing_shown(row: LintRow) -> Trajectory:
    """The same answer without the citations of what was never shown."""

    def shown_alone(brackets: re.Match[str]) -> str:
        names = brackets[1].split(",")
        shown = [name for name in names if all(_was_shown(docid, row) for docid in _ids([name]))]
        return f"{brackets[0][0]}{','.join(shown)}{brackets[0][-1]}"

    *before, final = row.trajectory.messages
    text = str(final.get("content") or "")
    for pattern in _BRACKETS:
        text = pattern.sub(shown_alone, text)
    return replace(row.trajectory, messages=(*before, {**final, "content": text}))


def _was_shown(docid: str, row: LintRow) -> bool:
    return docid in row.shown or _document(docid) in row.shown


def _seconds(row: LintRow) -> float:
    return row.seconds or 0.0


def _written(location: str) -> float | None:
    match = _TIME.search(location.replace("\\", "/").rpartition("/")[2])
    try:
        return datetime.strptime(match[1], "%Y%m%dT%H%M%S").timestamp() if match else None
    except ValueError:
        return None
