"""From the trajectories of a run to its numbers.

Denominators. Measures of quality are means over ALL questions of the split that the benchmark can
judge; a question without a trajectory, and one whose trajectory failed, counts 0. Measures of
effort (calls, tokens, seconds, money) are means over the recorded trajectories, failed ones
included: a question that was not asked has cost nothing, and a 0 for it would flatter the run.
Money and tokens that are unknown (a reply without a price or without counts) are no 0 either: the
mean is over the questions of which they are known, and the denominators say how many these are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from toolkit.contracts import STATUSES, TIERS, Answer, DocumentSets, Topic, Trajectory
from toolkit.errors import InputError
from toolkit.evaluation.agent_measures import (
    PerQuestion,
    answer_measures,
    call_counts,
    citations,
    effort,
    invented,
    over_answers,
    phrases_with_answer,
    reason_counts,
    recalls,
    rewrites_with_answer,
    scores,
)
from toolkit.evaluation.answer_coverage import Texts, answer_coverage, no_texts
from toolkit.evaluation.answers import AnswerVerdict, ExactAnswerJudge, Judge
from toolkit.evaluation.evaluations import Evaluation, denominators, means
from toolkit.evaluation.funnel import (
    Judgements,
    evidence_funnel,
    exposure_curves,
    relevant_documents,
)
from toolkit.evaluation.published import published_measures
from toolkit.evaluation.retrieval import DEFAULT_MEASURES, documents, measure_rankings
from toolkit.evaluation.sets import (
    Absent,
    checklist_measures,
    list_measures,
    none_absent,
    set_counts,
    with_set_measures,
    with_targets,
)
from toolkit.runs.records import NO_FORMAT, final_message

FINAL_DEPTH = 1000
NO_SETS = DocumentSets()
_COUNTED = ("probability", "unscored")  # of a round


def evaluate_run(
    trajectories: Iterable[Trajectory],
    *,
    topics: Sequence[Topic],
    judgements: Mapping[str, Judgements],
    answers: Mapping[str, Sequence[str]],
    measures: Sequence[str] = DEFAULT_MEASURES,
    judge: Judge | None = None,
    tier: str = "evidence",
    sets: DocumentSets = NO_SETS,
    absent: Absent = none_absent,
    texts: Texts = no_texts,
) -> Evaluation:
    """All measures of a run over the questions `topics`.

    - `measures`, by ir_measures' names: of the final ranking (see `final_ranking`) against
      `judgements[tier]`.
    - `accuracy`, `answer_f1`: over questions with an accepted answer; `judge` defaults to
      `ExactAnswerJudge()`.
    - `AnswerCoverage@5`, `AnswerCoverage@10`: of the final ranking, where `texts` gives its
      documents; see `toolkit.evaluation.answer_coverage`.
    - `completion`: share of status `completed`, over all questions.
    - `recall_<exposure tier>`: over questions with a relevant document in `judgements[tier]`.
    - `citation_precision`, `citation_recall`: of the documents that the answer cites, over the
      same questions; an answer without citations counts 0 in both.
    - `citations_invented`: citations in the answer that name no document which this question
      brought up (`search.answers.invented_citations`), over questions that did not fail.
    - `phrases_with_answer`, `rewrites_with_answer`: where searches were enriched, or rewritten (see
      the functions of these names in `agent_measures`).
    - `calibration_error`: over answers with a stated confidence, 0 to 100.
    - `search_calls`, `browse_calls`, `read_calls` (successful ones), `tool_calls`, `tool_errors`,
      `documents_exposed` (distinct documents previewed or opened), `tokens_exposed` (of all tool
      output), `seconds`: over recorded trajectories. `usage_<name>`: over those of which the
      number is known; left out where it is known of none.
    - `<measure>_published` for accuracy, recall, search_calls, completion, calibration_error,
      citation_precision and citation_recall: what BrowseComp-Plus's evaluator would give on the
      verdicts of `judge`; see `toolkit.evaluation.published`.

    - Where questions ask for documents (`sets`): the measures of `toolkit.evaluation.sets`.
      `absent` tells which of some docids the corpus lacks; by default none.

    `counts` has `no_call`, the answers that came without any call of a tool, `reminded`, the
    questions whose model was reminded of the answer's format, and `no_format`, those of them whose
    answer lacks it even so and is not among those `answered`; calls, refused ones and reasons as in
    `agent_measures.call_counts` and `reason_counts`.

    `InputError` where a trajectory belongs to none of `topics`.
    """
    recorded = [lean(trajectory) for trajectory in trajectories]
    questions = {topic.qid: None for topic in topics}
    _check_questions(recorded, questions)
    judged = {name: _only(grades, questions) for name, grades in judgements.items()}
    evidence = with_targets(judged.get(tier, {}), sets)
    accepted = {qid: answers[qid] for qid in questions if answers.get(qid)}
    ended = [trajectory for trajectory in recorded if trajectory.status != "failed"]
    rankings = {trajectory.qid: final_ranking(trajectory) for trajectory in ended}
    verdicts = _verdicts(ended, accepted, judge or ExactAnswerJudge())
    per_question: PerQuestion = {
        **measure_rankings(rankings, evidence, with_set_measures(measures, sets)),
        **checklist_measures(rankings, sets, questions),
        **list_measures(rankings, sets, absent),
        **answer_coverage(rankings, accepted, accepted, texts),
        **answer_measures(verdicts, accepted),
        "completion": scores(questions, {t.qid: float(t.status == "completed") for t in ended}),
        **recalls(ended, evidence),
        **citations(ended, evidence),
        **invented(ended),
        **phrases_with_answer(recorded, accepted),
        **rewrites_with_answer(recorded, accepted),
        **effort(recorded),
    }
    by_question = {verdict.qid: verdict.correct for verdict in verdicts}
    right = [by_question.get(trajectory.qid, False) for trajectory in recorded]
    extra, extra_counts = over_answers(ended, verdicts)
    published, published_counts = published_measures(recorded, right, accepted, evidence)
    return Evaluation(
        metrics={**means(per_question), **extra, **published},
        per_question={measure: values for measure, values in per_question.items() if values},
        denominators={**denominators(per_question), **extra_counts, **published_counts},
        counts={
            **_counts(recorded, questions, evidence, accepted),
            **set_counts(sets, questions),
            **_round_counts(recorded),
            "without_verdict": sum(bool(verdict.error) for verdict in verdicts),
        },
        rankings=rankings,
        funnel=evidence_funnel(ended, judged),
        curves=exposure_curves(ended, evidence) if relevant_documents(evidence) else {},
        verdicts=verdicts,
    )


def final_ranking(trajectory: Trajectory, depth: int = FINAL_DEPTH) -> list[str]:
    """The agent's word on relevance as one ranking: the documents that its answer lists, where it
    lists any, and nothing else. Otherwise documents cited, then opened, then previewed, then
    surfaced, each tier in order of first exposure. Each document once, at most `depth` (as deep as
    runs are submitted to TREC)."""
    if trajectory.answer.documents:
        return documents(trajectory.answer.documents, depth)
    ordered = chain.from_iterable(trajectory.tiers.get(tier, ()) for tier in reversed(TIERS))
    return documents(ordered, depth)


def lean(trajectory: Trajectory) -> Trajectory:
    """Without the texts, which fill memory and say nothing here, but for the final one and what was
    demanded; one copy of each docid."""
    final = final_message(trajectory)
    demands = tuple(message for message in trajectory.messages if message.get("demand"))
    return replace(
        trajectory,
        messages=(*demands, final) if final else demands,
        calls=tuple(replace(call, output="", ranking=(), shown=()) for call in trajectory.calls),
        tiers={tier: tuple(map(sys.intern, ids)) for tier, ids in trajectory.tiers.items()},
        rounds=tuple(
            {key: row[key] for key in _COUNTED if key in row} for row in trajectory.rounds
        ),
    )


def _check_questions(recorded: Sequence[Trajectory], questions: Mapping[str, None]) -> None:
    strangers = [trajectory.qid for trajectory in recorded if trajectory.qid not in questions]
    if strangers:
        raise InputError(
            f"{len(strangers)} of {len(recorded)} trajectories, such as that of question "
            f"{strangers[0]!r}, answer no question of this split",
            valid="the benchmark and split that the run was made with",
            do="name them as in the run's manifest.json",
        )
    (qid, times), *_ = Counter(trajectory.qid for trajectory in recorded).most_common(1) or [
        ("", 0)
    ]
    if times > 1:
        raise InputError(f"question {qid!r} has {times} trajectories", valid="one a question")


def _only(grades: Judgements, questions: Iterable[str]) -> Judgements:
    return {qid: grades[qid] for qid in questions if qid in grades}


def _verdicts(
    ended: Sequence[Trajectory], accepted: Mapping[str, Sequence[str]], judge: Judge
) -> list[AnswerVerdict]:
    return [
        judge.verdict(trajectory.qid, trajectory.answer, accepted[trajectory.qid])
        for trajectory in ended
        if trajectory.qid in accepted
    ]


def _answered(answer: Answer) -> bool:
    return bool(answer.exact.strip() or answer.documents)


def _uncalled(trajectory: Trajectory) -> bool:
    """Whether it is an answer that came without any call of a tool."""
    answer = trajectory.answer
    final = answer.explanation or _answered(answer)
    return bool(final) and trajectory.status != "failed" and not trajectory.calls


def _round_counts(recorded: Sequence[Trajectory]) -> dict[str, int]:
    """Of agents that work in rounds: questions whose scorer's probability was not calibrated, and
    documents that could not be scored. Nothing where no agent does."""
    rounds = [trajectory.rounds for trajectory in recorded if trajectory.rounds]
    if not rounds:
        return {}
    return {
        "uncalibrated": sum(
            any(row.get("probability") == "raw" for row in rows) for rows in rounds
        ),
        "unscored_documents": sum(
            sum(row.get("unscored", {}).values()) for rows in rounds for row in rows
        ),
    }


def _reminded(trajectory: Trajectory) -> bool:
    return any(message.get("demand") == "reminder" for message in trajectory.messages)


def _formless(trajectory: Trajectory) -> bool:
    final = final_message(trajectory)
    return trajectory.status != "failed" and bool(final and final.get(NO_FORMAT))


def _counts(
    recorded: Sequence[Trajectory],
    questions: Mapping[str, None],
    evidence: Judgements,
    accepted: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    statuses = Counter(trajectory.status for trajectory in recorded)
    formless = [_formless(trajectory) for trajectory in recorded]
    answered = sum(
        trajectory.status != "failed" and _answered(trajectory.answer) and not lacking
        for trajectory, lacking in zip(recorded, formless, strict=True)
    )
    return {
        "questions": len(questions),
        "recorded": len(recorded),
        "missing": len(questions) - len(recorded),
        "answered": answered,
        "no_call": sum(map(_uncalled, recorded)),
        "reminded": sum(map(_reminded, recorded)),
        "no_format": sum(formless),
        "unjudged": len(questions) - len(evidence),
        "without_accepted_answer": len(questions) - len(accepted),
        **{status: statuses.get(status, 0) for status in STATUSES},
        **reason_counts(recorded),
        **call_counts(recorded),
    }
