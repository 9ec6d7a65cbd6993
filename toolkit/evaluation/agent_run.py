"""From the trajectories of a run to its numbers.

Denominators. Measures of quality are means over ALL questions of the split that the benchmark can
judge; a question without a trajectory, and one whose trajectory failed, counts 0. Measures of
effort (calls, tokens, seconds, money) are means over the recorded trajectories, failed ones
included: a question that was not asked has cost nothing, and a 0 for it would flatter the run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from toolkit.contracts import STATUSES, TIERS, Topic, Trajectory, parent
from toolkit.errors import InputError
from toolkit.evaluation.answers import AnswerVerdict, ExactAnswerJudge, Judge
from toolkit.evaluation.calibration import calibration_error, calibration_error_published
from toolkit.evaluation.evaluations import Evaluation, denominators, means
from toolkit.evaluation.funnel import (
    SHOWN,
    Judgements,
    evidence_funnel,
    exposure_curves,
    reach_by_tier,
    relevant_documents,
)
from toolkit.evaluation.retrieval import DEFAULT_MEASURES, documents, measure_rankings

FINAL_DEPTH = 1000
PerQuestion = dict[str, dict[str, float]]


def evaluate_run(
    trajectories: Iterable[Trajectory],
    *,
    topics: Sequence[Topic],
    judgements: Mapping[str, Judgements],
    answers: Mapping[str, Sequence[str]],
    measures: Sequence[str] = DEFAULT_MEASURES,
    judge: Judge | None = None,
    tier: str = "evidence",
) -> Evaluation:
    """All measures of a run over the questions `topics`.

    - `measures`, by ir_measures' names: of the final ranking (see `final_ranking`) against
      `judgements[tier]`.
    - `accuracy`, `answer_f1`: over questions with an accepted answer; `judge` defaults to
      `ExactAnswerJudge()`.
    - `completion`: share of status `completed`, over all questions.
    - `recall_<exposure tier>`: over questions with a relevant document in `judgements[tier]`.
    - `citation_precision`, `citation_recall`: of the documents that the answer cites, over the
      same questions; an answer without citations counts 0 in both.
    - `calibration_error`: over answers with a stated confidence, 0 to 100.
    - `search_calls` (successful ones), `tool_calls`, `tool_errors`, `documents_exposed` (distinct
      documents previewed or opened), `tokens_exposed` (of all tool output), `seconds`, and
      `usage_<name>`: over recorded trajectories.
    - `accuracy_published`, `calibration_error_published`: what BrowseComp-Plus's evaluator would
      give: recorded trajectories as the denominator; an absent confidence taken for 100 and the
      last bin left out.

    `InputError` where a trajectory belongs to none of `topics`.
    """
    recorded = [_lean(trajectory) for trajectory in trajectories]
    asked = {topic.qid: None for topic in topics}
    _check_questions(recorded, asked)
    judged = {name: _only(grades, asked) for name, grades in judgements.items()}
    evidence = judged.get(tier, {})
    accepted = {qid: answers[qid] for qid in asked if answers.get(qid)}
    ended = [trajectory for trajectory in recorded if trajectory.status != "failed"]
    rankings = {trajectory.qid: final_ranking(trajectory) for trajectory in ended}
    verdicts = _verdicts(ended, accepted, judge or ExactAnswerJudge())
    per_question: PerQuestion = {
        **measure_rankings(rankings, evidence, measures),
        **_answer_measures(verdicts, accepted),
        "completion": _scores(asked, {t.qid: float(t.status == "completed") for t in ended}),
        **_recalls(ended, evidence),
        **_citations(ended, evidence),
        **_effort(recorded),
    }
    extra, extra_counts = _over_answers(recorded, ended, verdicts, accepted)
    return Evaluation(
        metrics={**means(per_question), **extra},
        per_question={measure: values for measure, values in per_question.items() if values},
        denominators={**denominators(per_question), **extra_counts},
        counts=_counts(recorded, asked, evidence, accepted),
        rankings=rankings,
        funnel=evidence_funnel(ended, judged),
        curves=exposure_curves(ended, evidence) if relevant_documents(evidence) else {},
        verdicts=verdicts,
    )


def final_ranking(trajectory: Trajectory, depth: int = FINAL_DEPTH) -> list[str]:
    """The agent's word on relevance as one ranking: documents cited, then opened, then previewed,
    then surfaced, each tier in order of first exposure, each document once, at most `depth` (as
    deep as runs are submitted to TREC)."""
    ordered = (docid for tier in reversed(TIERS) for docid in trajectory.tiers.get(tier, ()))
    return documents(ordered, depth)


def _lean(trajectory: Trajectory) -> Trajectory:
    """Without the texts, which fill memory and say nothing here; one copy of each docid."""
    return replace(
        trajectory,
        messages=(),
        calls=tuple(replace(call, output="", ranking=(), shown=()) for call in trajectory.calls),
        tiers={tier: tuple(map(sys.intern, ids)) for tier, ids in trajectory.tiers.items()},
    )


def _check_questions(recorded: Sequence[Trajectory], asked: Mapping[str, None]) -> None:
    strangers = [trajectory.qid for trajectory in recorded if trajectory.qid not in asked]
    if strangers:
        raise InputError(
            f"{len(strangers)} of {len(recorded)} trajectories, such as that of question "
            f"{strangers[0]!r}, answer no question of this split",
            valid="the benchmark and split that the run was made with",
            do="name them as in the run's manifest.json",
        )


def _only(grades: Judgements, asked: Iterable[str]) -> Judgements:
    return {qid: grades[qid] for qid in asked if qid in grades}


def _scores(qids: Iterable[str], known: Mapping[str, float]) -> dict[str, float]:
    return {qid: known.get(qid, 0.0) for qid in qids}


def _verdicts(
    ended: Sequence[Trajectory], accepted: Mapping[str, Sequence[str]], judge: Judge
) -> list[AnswerVerdict]:
    return [
        judge.verdict(trajectory.qid, trajectory.answer, accepted[trajectory.qid])
        for trajectory in ended
        if trajectory.qid in accepted
    ]


def _answer_measures(
    verdicts: Sequence[AnswerVerdict], accepted: Mapping[str, Sequence[str]]
) -> PerQuestion:
    return {
        "accuracy": _scores(
            accepted, {verdict.qid: float(verdict.correct) for verdict in verdicts}
        ),
        "answer_f1": _scores(accepted, {verdict.qid: verdict.f1 for verdict in verdicts}),
    }


def _recalls(ended: Sequence[Trajectory], evidence: Judgements) -> PerQuestion:
    return {
        f"recall_{tier}": {qid: reach.recall for qid, reach in reaches.items()}
        for tier, reaches in reach_by_tier(ended, evidence).items()
    }


def _citations(ended: Sequence[Trajectory], evidence: Judgements) -> PerQuestion:
    relevant = relevant_documents(evidence)
    precision, recall = {}, {}
    for trajectory in ended:
        # A passage is cited as `d1%p3`; it is one citation, of its document.
        cited = {parent(docid) for docid in trajectory.answer.citations}
        wanted = relevant.get(trajectory.qid, frozenset())
        if cited and wanted:
            precision[trajectory.qid] = len(cited & wanted) / len(cited)
            recall[trajectory.qid] = len(cited & wanted) / len(wanted)
    return {
        "citation_precision": _scores(relevant, precision),
        "citation_recall": _scores(relevant, recall),
    }


def _effort(recorded: Sequence[Trajectory]) -> PerQuestion:
    efforts = {trajectory.qid: _effort_of(trajectory) for trajectory in recorded}
    measures = dict.fromkeys(measure for effort in efforts.values() for measure in effort)
    return {
        measure: {qid: effort.get(measure, 0.0) for qid, effort in efforts.items()}
        for measure in measures
    }


def _effort_of(trajectory: Trajectory) -> dict[str, float]:
    calls = trajectory.calls
    shown = {docid for tier in SHOWN for docid in trajectory.tiers.get(tier, ())}
    return {
        "search_calls": float(sum(call.name == "search" and not call.error for call in calls)),
        "tool_calls": float(len(calls)),
        "tool_errors": float(sum(bool(call.error) for call in calls)),
        "documents_exposed": float(len(shown)),
        "tokens_exposed": float(sum(call.tokens for call in calls)),
        "seconds": float(trajectory.seconds),
        **{f"usage_{name}": float(value) for name, value in trajectory.usage.items()},
    }


def _over_answers(
    recorded: Sequence[Trajectory],
    ended: Sequence[Trajectory],
    verdicts: Sequence[AnswerVerdict],
    accepted: Mapping[str, Sequence[str]],
) -> tuple[dict[str, float], dict[str, int]]:
    """Measures over a set of answers, which have no value for one question: values, counts."""
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    right = {verdict.qid: verdict.correct for verdict in verdicts}
    stated = {t.qid: t.answer.confidence for t in ended if t.qid in right}
    claims = {qid: value for qid, value in stated.items() if value is not None}
    if claims:
        values["calibration_error"] = calibration_error(
            list(claims.values()), [right[qid] for qid in claims]
        )
        counts["calibration_error"] = len(claims)
    found = [trajectory for trajectory in recorded if trajectory.qid in accepted]
    if not found:
        return values, counts
    values["accuracy_published"] = sum(right.values()) / len(found)
    counts["accuracy_published"] = len(found)
    published = calibration_error_published(
        [100.0 if t.answer.confidence is None else t.answer.confidence for t in found],
        [right.get(t.qid, False) for t in found],
    )
    if published is not None:
        values["calibration_error_published"] = published
        counts["calibration_error_published"] = len(found)
    return values, counts


def _counts(
    recorded: Sequence[Trajectory],
    asked: Mapping[str, None],
    evidence: Judgements,
    accepted: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    statuses = Counter(trajectory.status for trajectory in recorded)
    answered = sum(t.status != "failed" and bool(t.answer.exact.strip()) for t in recorded)
    return {
        "questions": len(asked),
        "recorded": len(recorded),
        "missing": len(asked) - len(recorded),
        "answered": answered,
        "unjudged": len(asked) - len(evidence),
        "without_accepted_answer": len(asked) - len(accepted),
        **{status: statuses.get(status, 0) for status in STATUSES},
    }
