"""From the trajectories of a run to its measures.

Means of quality are over all questions of the split that the benchmark can judge: one that failed
or has no trajectory counts 0. Means of effort are over the recorded trajectories, failed ones
included, and of these over those whose amount is known: nothing unknown counts as 0.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.data import Qrels, parent
from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.evaluation.answers import (
    ExactAnswerJudge,
    Judge,
    holds_answer,
    polar_answer,
)
from soundingline.toolkit.evaluation.branches import AgentSearch, branch_measures, searches_of
from soundingline.toolkit.evaluation.evaluation import (
    RANKINGS,
    EvaluatedRun,
    Evaluation,
    average_repeats,
    load_run,
    trec_run,
    write_evaluation,
    write_verdicts,
)
from soundingline.toolkit.evaluation.funnel import (
    LEFT_OUT,
    SHOWN,
    evidence_funnel,
    exposure_curves,
    needed_texts,
    relevant_documents,
    step_measures,
    step_record,
)
from soundingline.toolkit.evaluation.judge import ImportedVerdicts, record_judges
from soundingline.toolkit.evaluation.published import (
    browsecomp_plus_measures,
    rms_calibration_error,
)
from soundingline.toolkit.evaluation.retrieval import (
    DEFAULT_MEASURES,
    PerQuestion,
    Texts,
    answer_coverage,
    by_measure,
    checklist_measures,
    documents,
    list_counts,
    list_measures,
    measure_rankings,
    with_judged,
    with_list_measures,
    with_targets,
)
from soundingline.toolkit.files import write_text
from soundingline.toolkit.llm.prices import PriceTables, reprice
from soundingline.toolkit.queries import has_operator, parse_query, reformulation, terms
from soundingline.toolkit.runs.run_folder import RunFolder
from soundingline.toolkit.search.answers import invented_citations
from soundingline.toolkit.trajectory import (
    FORCED_STATUSES,
    NO_FORMAT,
    STATUSES,
    TIERS,
    RecordedCall,
    Trajectory,
    final_message,
    known_usage,
)

_QUERY_FEATURES = (
    *("words", "quoted", "operators", "from_question", "from_shown", "from_neither"),
    *("repeated", "added", "dropped", "exchanged", "new"),
)


def query_measures(question: str, searches: Sequence[AgentSearch]) -> dict[str, float]:
    """The query log of a question: what the agent's own queries are like.

    Returns:
        `text_queries`, their number, and means over the queries that have a value, `query_<name>`,
        and `query_<name>_<turn>` over the first, the second and the later ones; empty without one.
        - `words`: its words, as separated by white space.
        - `quoted`, `operators`: 1 with a quoted phrase, or an operator (`queries.has_operator`).
        - `from_question`, `from_shown`, `from_neither`: the shares of its terms that are in the
          question, that an output held before their first use, and the others.
        - `repeated`: 1 if it is an earlier query, but for case and white space; none for the first.
        - `added`, `dropped`, `exchanged`, `new`: 1 if that is its `queries.reformulation`.
    """
    asked, rows, earlier = terms(question), list[dict[str, float]](), set[str]()
    for search, before in zip(searches, [None, *searches], strict=False):
        query, own_terms = search.query, search.terms
        row: dict[str, float] = {"words": len(query.split()), "operators": has_operator(query)}
        row["quoted"] = bool(parse_query(query).phrases)
        text = " ".join(query.casefold().split())
        if own_terms:
            from_shown = search.read
            row["from_question"] = len(own_terms & asked) / len(own_terms)
            row["from_shown"] = len(from_shown) / len(own_terms)
            row["from_neither"] = len(own_terms - asked - from_shown) / len(own_terms)
        if before is not None:
            change = reformulation(before.terms, own_terms)
            row |= {name: name == change for name in ("added", "dropped", "exchanged", "new")}
            row["repeated"] = text in earlier
        rows.append(row)
        earlier.add(text)
    turns = {"": rows, "_first": rows[:1], "_second": rows[1:2], "_later": rows[2:]}
    values = {"text_queries": float(len(rows))} if rows else {}
    for turn, of_turn in turns.items():
        for name in _QUERY_FEATURES:
            if numbers := [row[name] for row in of_turn if name in row]:
                values[f"query_{name}{turn}"] = sum(numbers) / len(numbers)
    return values


_LOST = Trajectory("", "", "failed")
PHRASES_WITH_ANSWER = "phrases_with_answer"
REWRITES_WITH_ANSWER = "rewrites_with_answer"
_BROWSING = ("read_search_results",)
_TOOLS = {
    "browse_calls": _BROWSING,
    "read_calls": ("read_document", "get_document", "read"),
}


class _Phrase(TypedDict):
    phrase: str
    kept: bool


class _Enriched(TypedDict):
    phrases: list[_Phrase]


class _Rewritten(TypedDict):
    raw: NotRequired[str]
    rewritten: str


def evaluate_run(
    trajectories: Iterable[Trajectory],
    benchmark: Benchmark,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    judge: Judge | None = None,
    texts: Texts | None = None,
    forced_answers: bool = True,
    prices: PriceTables | None = None,
) -> Evaluation:
    """Compute all measures of a run, those that `soundingline.toolkit.report.measures` defines.

    Args:
        trajectories: at most one for each question.
        benchmark: rankings and recall are measured against its judgements of the tier `evidence`.
        measures: names of ir_measures, for the final ranking.
        judge: `ExactAnswerJudge()` by default.
        texts: titles and texts of documents, for answer coverage; None to read the documents of the
            benchmark.
        forced_answers: whether an answer counts that was demanded after a limit was reached (status
            in `FORCED_STATUSES`). False for studies without such answers: the question then counts
            0 in `accuracy` and `answer_f1`, and `accuracy_with_forced` counts it.
        prices: the tables by which dollars are computed anew, see `prices.reprice`; None for the
            recorded dollars.

    Raises:
        InputError: for a trajectory of an unknown question, and for two of one question.
    """
    qids, targets = [topic.qid for topic in benchmark.topics], benchmark.targets
    qrels = {
        tier: {qid: grades[qid] for qid in qids if qid in grades}
        for tier, grades in benchmark.qrels.items()
    }
    evidence = with_targets(qrels["evidence"], targets)
    relevant = relevant_documents(evidence)
    accepted = {qid: benchmark.answers[qid] for qid in qids if benchmark.answers.get(qid)}
    texts = texts or benchmark.document_texts
    needed = needed_texts(benchmark.topics, accepted, evidence, benchmark.needed_facts, texts)
    recorded: list[Trajectory] = []
    answer_shown: set[str] = set()
    searching: dict[str, dict[str, float]] = {}
    listed: dict[str, set[str]] = {}
    for trajectory in trajectories:
        qid, searches = trajectory.qid, searches_of(trajectory)
        searching[qid] = branch_measures(trajectory, searches)
        searching[qid] |= query_measures(trajectory.question, searches)
        if needed.are_shown(trajectory):
            answer_shown.add(qid)
        listed[qid] = _listed(trajectory)
        usage = reprice(trajectory.usage, prices or {})
        recorded.append(replace(without_texts(trajectory), usage=usage))
    _check_questions(recorded, qids)
    ended = {row.qid: row for row in recorded if row.status != "failed"}
    rankings = {qid: final_ranking(row) for qid, row in ended.items()}
    judge = judge or ExactAnswerJudge()
    verdicts = {
        qid: judge.verdict(qid, row.answer, accepted[qid])
        for qid, row in ended.items()
        if qid in accepted
    }
    correct = {qid: verdict.correct for qid, verdict in verdicts.items()}
    counted = {
        qid: verdict
        for qid, verdict in verdicts.items()
        if forced_answers or ended[qid].status not in FORCED_STATUSES
    }
    counted_correct = {qid: verdict.correct for qid, verdict in counted.items()}
    with_forced = {} if forced_answers else {"accuracy_with_forced": _or_zero(accepted, correct)}
    steps = {
        qid: step_record(
            ended.get(qid, _LOST),
            relevant.get(qid, ()),
            shown=qid in answer_shown,
            right=counted_correct.get(qid, False),
        )
        for qid in needed.qids
    }
    usages = dict.fromkeys(name for row in recorded for name in row.usage)
    per_question = {
        **measure_rankings(
            rankings, evidence, with_judged(with_list_measures(measures, targets), evidence)
        ),
        **checklist_measures(rankings, qids, targets, benchmark.checklists, benchmark.satisfaction),
        **list_measures(rankings, targets, benchmark.missing_documents),
        **answer_coverage(rankings, accepted, texts),
        "accuracy": _or_zero(accepted, counted_correct),
        **with_forced,
        "answer_f1": _or_zero(accepted, {qid: verdict.f1 for qid, verdict in counted.items()}),
        **step_measures(steps),
        "completion": _or_zero(
            qids, {qid: row.status == "completed" for qid, row in ended.items()}
        ),
        **_evidence_measures(ended, relevant, listed),
        "citations_invented": {qid: _invented_citations(row) for qid, row in ended.items()},
        **by_measure(
            {row.qid: _guesses(row, accepted[row.qid]) for row in recorded if row.qid in accepted}
        ),
        **by_measure({row.qid: _effort(row, usages) for row in recorded}),
        **by_measure(searching),
    }
    left_out = {f"{LEFT_OUT}_{reason}": n for reason, n in needed.left_out.items() if n}
    evaluation = Evaluation(
        counts={
            **_counts(recorded, qids, evidence, accepted, left_out | list_counts(targets, qids)),
            "without_verdict": sum(bool(verdict.error) for verdict in verdicts.values()),
        },
        rankings=rankings,
        funnel=evidence_funnel(list(ended.values()), qrels),
        curves=exposure_curves(list(ended.values()), evidence) if relevant else {},
        verdicts=list(verdicts.values()),
        judge=(judge.label or judge.name) if verdicts else "",
        prices={role: used.dated for role, (_, used) in (prices or {}).items() if used.known},
    )
    confidences = {qid: ended[qid].answer.confidence for qid in counted}
    right = [correct.get(row.qid, False) for row in recorded]
    stated = judge.confidences() if isinstance(judge, ImportedVerdicts) else None
    published = browsecomp_plus_measures(recorded, right, accepted, evidence, stated)
    return evaluation.with_values(
        per_question, {**_calibration(confidences, counted_correct), **published}
    )


def evaluate_run_folder(
    folder: RunFolder,
    benchmark: Benchmark,
    judges: Sequence[Judge],
    measures: Sequence[str],
    *,
    state: str,
    **options: Any,
) -> EvaluatedRun:
    """Evaluate the trajectories of a run folder and write the evaluation there.

    Args:
        folder: the run folder.
        benchmark, measures, options: see `evaluate_run`.
        judges: one judge for each of the folder's repeats.
        state: the folder's `state()` from before the judges read its trajectories. `InputError` if
            trajectories were written in the meantime.
    """
    repeats, evaluations = folder.repeats(), []
    changed = InputError(
        f"trajectories of {folder.path} were written while it was evaluated",
        do="evaluate it again once the run has ended",
    )
    if len(repeats) != len(judges):
        raise changed
    for repeat, judge in zip(repeats, judges, strict=True):
        trajectories = repeat.trajectories()
        evaluation = evaluate_run(
            trajectories, benchmark, measures=measures, judge=judge, **options
        )
        evaluations.append(evaluation)
        if repeat.number > 1:
            write_verdicts(repeat, evaluation.verdicts)
            ranking = trec_run(evaluation.rankings, f"{folder.name}-repeat{repeat.number}")
            write_text(repeat.path / RANKINGS, ranking)
    evaluation = average_repeats(evaluations) if len(evaluations) > 1 else evaluations[0]
    write_evaluation(folder.path, evaluation, state=state)
    record_judges(folder)
    if folder.state() != state:
        raise changed
    return load_run(folder.path)


def final_ranking(trajectory: Trajectory, depth: int = 1000) -> list[str]:
    """The documents of a trajectory as one ranking, each once, at most `depth` (by default as deep
    as runs are submitted to TREC).

    If the answer lists documents, these are the ranking. Otherwise cited documents come first, then
    opened, previewed and surfaced ones, each tier in the order of first exposure.
    """
    if trajectory.answer.documents:
        return documents(trajectory.answer.documents, depth)
    ordered = chain.from_iterable(trajectory.tiers.get(tier, ()) for tier in reversed(TIERS))
    return documents(ordered, depth)


def without_texts(trajectory: Trajectory) -> Trajectory:
    """The trajectory without the texts that no measure needs, to save memory. The final message and
    reminders stay; equal docids share one string."""
    final = final_message(trajectory)
    demands = tuple(message for message in trajectory.messages if message.get("demand"))
    return replace(
        trajectory,
        messages=(*demands, final) if final else demands,
        calls=tuple(
            replace(
                call, output="", ranking=call.ranking[:1], shown=()
            )  # see `RecordedCall.searched`
            for call in trajectory.calls
        ),
        tiers={tier: tuple(map(sys.intern, ids)) for tier, ids in trajectory.tiers.items()},
        rounds=tuple(
            {key: row[key] for key in ("probability", "unscored") if key in row}
            for row in trajectory.rounds
        ),
    )


def _check_questions(recorded: Sequence[Trajectory], qids: Sequence[str]) -> None:
    times = Counter(trajectory.qid for trajectory in recorded)
    unknown = [qid for qid in times if qid not in set(qids)]
    if unknown:
        raise InputError(
            f"{sum(times[qid] for qid in unknown)} of {len(recorded)} trajectories, such as that "
            f"of question {unknown[0]!r}, answer no question of this split",
            valid="the benchmark and split that the run was made with",
            do="name them as in the run's manifest.json",
        )
    for qid, count in times.items():
        if count > 1:
            raise InputError(f"question {qid!r} has {count} trajectories", valid="one a question")


def _or_zero(qids: Iterable[str], values: Mapping[str, float]) -> dict[str, float]:
    return {qid: float(values.get(qid, 0)) for qid in qids}


def _listed(trajectory: Trajectory) -> set[str]:
    """The documents on result pages, with an excerpt or without."""
    pages = [call for call in trajectory.calls if call.searched or call.name in _BROWSING]
    return {parent(unit) for call in pages for unit in call.shown}


def _evidence_measures(
    ended: Mapping[str, Trajectory],
    relevant: Mapping[str, frozenset[str]],
    listed: Mapping[str, set[str]],
) -> PerQuestion:
    """Recall by exposure tier, precision and recall of citations, and of runs with calls for
    further pages the recall of what pages `listed`, of every question with a relevant document."""
    calls = chain.from_iterable(row.calls for row in ended.values())
    browsed = any(call.name in _BROWSING and not call.error for call in calls)
    rows = {}
    for qid, docids in relevant.items():
        trajectory = ended.get(qid, _LOST)
        # A passage is cited as `d1%p3`, which is a citation of its document.
        cited = {parent(docid) for docid in trajectory.answer.citations}
        by_tier = {tier: trajectory.tiers.get(tier, ()) for tier in TIERS}
        if browsed:
            by_tier["listed"] = tuple(listed[qid]) if qid in ended else ()
        rows[qid] = {
            **{
                f"recall_{tier}": len(docids.intersection(shown)) / len(docids)
                for tier, shown in by_tier.items()
            },
            "citation_precision": len(docids & cited) / max(1, len(cited)),
            "citation_recall": len(docids & cited) / len(docids),
        }
    return by_measure(rows)


def _invented_citations(trajectory: Trajectory) -> float:
    shown = set(chain.from_iterable(trajectory.tiers.values()))
    answer = f"{trajectory.answer.explanation}\n{trajectory.answer.exact}"
    return float(len(invented_citations(answer, shown)))


def _guesses(trajectory: Trajectory, answers: Sequence[str]) -> dict[str, float]:
    """How many phrases and rewritten queries of a question contain an accepted answer."""
    qid, guesses = trajectory.qid, dict[str, float]()
    searches = [call.notes for call in trajectory.calls]
    notes = [row["enrichment"] for row in searches if "enrichment" in row]
    if enriched := [*chain.from_iterable(_checked(qid, notes, list[list[_Enriched]]))]:
        added = {item["phrase"] for row in enriched for item in row["phrases"] if item["kept"]}
        guesses[PHRASES_WITH_ANSWER] = sum(holds_answer(phrase, answers) for phrase in added)
    notes = [row for search in searches for row in rewrites(search)]
    if queries := _checked(qid, notes, list[_Rewritten]):
        guessed = guessed_rewrites(queries, trajectory.question, answers)
        guesses[REWRITES_WITH_ANSWER] = len(guessed)
    return guesses


def _checked(qid: str, notes: Any, kind: Any) -> Any:
    where = f"the notes on the searches of question {qid!r}"
    do = "delete its trajectory and run again, or restore it from a copy"
    return parse(kind, notes, where=where, do=do, strict=True)


def rewrites(notes: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """The `raw` and `rewritten` queries that rewriters noted about a search."""
    return [row for name, row in notes.items() if name.partition("_")[0] == "rewrite"]


def guessed_rewrites(
    rows: Iterable[Mapping[str, str]], question: str, answers: Sequence[str]
) -> set[str]:
    """The rewritten queries with an accepted answer that question and raw query do not have."""
    if holds_answer(question, answers):
        return set()
    return {
        row["rewritten"]
        for row in rows
        if holds_answer(row["rewritten"], answers) and not holds_answer(row.get("raw", ""), answers)
    }


def _effort(trajectory: Trajectory, usages: Iterable[str]) -> dict[str, float | None]:
    """The effort of a question, with the `usages` that any question of the run has."""
    calls = trajectory.calls
    succeeded = Counter(call.name for call in calls if not call.error)
    return {
        "search_calls": sum(call.searched for call in calls),
        **{name: sum(succeeded[tool] for tool in tools) for name, tools in _TOOLS.items()},
        "tool_calls": len(calls),
        "tool_errors": sum(bool(call.error) for call in calls),
        "documents_exposed": len({d for tier in SHOWN for d in trajectory.tiers.get(tier, ())}),
        "tokens_exposed": sum(call.tokens for call in calls),
        # Run files of other harnesses have a zero if they do not record the time.
        "seconds": trajectory.seconds if trajectory.seconds or not trajectory.source else None,
        **{f"usage_{name}": known_usage(trajectory.usage, name) for name in usages},
    }


def _calibration(
    confidences: Mapping[str, float | None], correct: Mapping[str, bool]
) -> dict[str, tuple[float, int]]:
    # By id, because bins separate answers of equal confidence in the order of the arguments.
    claims = [
        (confidence, correct[qid])
        for qid, confidence in sorted(confidences.items())
        if confidence is not None
    ]
    if not claims:
        return {}
    error = rms_calibration_error([stated for stated, _ in claims], [right for _, right in claims])
    return {"calibration_error": (error, len(claims))}


def _counts(
    recorded: Sequence[Trajectory],
    qids: Sequence[str],
    evidence: Qrels,
    accepted: Mapping[str, Sequence[str]],
    of_questions: Mapping[str, int],
) -> dict[str, int]:
    polar = Counter(filter(None, map(polar_answer, accepted.values())))
    counts = sum(map(_counts_of, recorded), Counter[str]())
    reasons, errors = (
        sorted(name for name in counts if name.startswith(prefix))
        for prefix in ("ended_", "refused_")
    )
    of_rounds = ("uncalibrated", "unscored_documents") if counts["with_rounds"] else ()
    return {
        "questions": len(qids),
        "recorded": len(recorded),
        "missing": len(qids) - len(recorded),
        **{name: counts[name] for name in ("answered", "no_call", "reminded", "no_format")},
        "unjudged": len(qids) - len(evidence),
        "without_accepted_answer": len(qids) - len(accepted),
        **({"yes_no": polar.total(), "yes_no_by_chance": max(polar.values())} if polar else {}),
        **{name: counts[name] for name in (*STATUSES, *reasons, "calls", "repeated", "refused")},
        **{name: counts[name] for name in errors},
        **of_questions,
        **{name: counts[name] for name in of_rounds},
    }


def _counts_of(trajectory: Trajectory) -> Counter[str]:
    """What a trajectory adds to the counts of its run."""
    answer, final, calls = trajectory.answer, final_message(trajectory) or {}, trajectory.calls
    ended, no_format = trajectory.status != "failed", bool(final.get(NO_FORMAT))
    has_answer = bool(answer.exact.strip() or answer.documents)
    errors = [call.error for call in calls if call.error]
    demands = [message.get("demand") for message in trajectory.messages]
    rounds = trajectory.rounds
    counts = Counter[str](
        answered=int(ended and has_answer and not no_format),
        no_call=int(ended and not calls and bool(has_answer or answer.explanation)),
        reminded=int("reminder" in demands),
        no_format=int(ended and no_format),
        calls=len(calls),
        repeated=len(calls) - len(set(map(_call_text, calls))),
        refused=len(errors),
        with_rounds=int(bool(rounds)),
        # Of agents that work in rounds: uncalibrated questions and documents without a score.
        uncalibrated=int(any(row.get("probability") == "raw" for row in rounds)),
        unscored_documents=sum(sum(row.get("unscored", {}).values()) for row in rounds),
    )
    counts.update(
        [trajectory.status, *([f"ended_{trajectory.reason}"] if trajectory.reason else [])]
    )
    # Run files of other harnesses have sentences in place of codes.
    counts.update(f"refused_{error if error.isidentifier() else 'other'}" for error in errors)
    return counts


def _call_text(call: RecordedCall) -> str:
    """The call without its reason; equal texts are equal calls."""
    arguments = {name: value for name, value in call.arguments.items() if name != "reason"}
    return json.dumps([call.name, arguments], sort_keys=True)
