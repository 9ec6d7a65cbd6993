"""From the trajectories of a run to its measures.

Means of quality are over all questions of the split that the benchmark can judge: one that failed
or has no trajectory counts 0. Means of effort are over the recorded trajectories, failed ones
included, and of these over those whose amount is known: nothing unknown counts as 0.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    answer_tokens,
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
    reach_by_tier,
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
    before: frozenset[str] | None = None
    for query, own, _, read in searches:
        row: dict[str, float] = {"words": len(query.split()), "operators": has_operator(query)}
        row["quoted"] = bool(parse_query(query).phrases)
        text = " ".join(query.casefold().split())
        if own:
            sources = {"question": own & asked, "shown": read, "neither": own - asked - read}
            row |= {f"from_{name}": len(part) / len(own) for name, part in sources.items()}
        if before is not None:
            kind = reformulation(before, own)
            row |= {name: name == kind for name in ("added", "dropped", "exchanged", "new")}
            row["repeated"] = text in earlier
        rows.append(row)
        earlier.add(text)
        before = own
    turns = {"": rows, "_first": rows[:1], "_second": rows[1:2], "_later": rows[2:]}
    values = {"text_queries": float(len(rows))} if rows else {}
    for turn, part in turns.items():
        for name in _QUERY_FEATURES:
            if known := [row[name] for row in part if name in row]:
                values[f"query_{name}{turn}"] = sum(known) / len(known)
    return values


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
    accepted = {qid: benchmark.answers[qid] for qid in qids if benchmark.answers.get(qid)}
    texts = texts or benchmark.document_texts
    needed = needed_texts(benchmark.topics, accepted, evidence, benchmark.needed_facts, texts)
    recorded: list[Trajectory] = []
    shown: dict[str, bool] = {}
    searching: PerQuestion = {}
    listed: dict[str, set[str]] = {}
    for trajectory in trajectories:
        searches = searches_of(trajectory)
        measured = branch_measures(trajectory, searches)
        measured |= query_measures(trajectory.question, searches)
        for name, value in measured.items():
            searching.setdefault(name, {})[trajectory.qid] = value
        shown[trajectory.qid] = needed.are_shown(trajectory)
        listed[trajectory.qid] = _listed(trajectory)
        usage = reprice(trajectory.usage, prices or {})
        recorded.append(replace(without_texts(trajectory), usage=usage))
    _check_questions(recorded, qids)
    ended = [trajectory for trajectory in recorded if trajectory.status != "failed"]
    rankings = {trajectory.qid: final_ranking(trajectory) for trajectory in ended}
    judge = judge or ExactAnswerJudge()
    verdicts = [
        judge.verdict(row.qid, row.answer, accepted[row.qid])
        for row in ended
        if row.qid in accepted
    ]
    correct = {verdict.qid: verdict.correct for verdict in verdicts}
    counted = [row for row in ended if forced_answers or row.status not in FORCED_STATUSES]
    qids_counted = {row.qid for row in counted}
    f1 = {verdict.qid: verdict.f1 for verdict in verdicts if verdict.qid in qids_counted}
    counted_correct = {qid: right for qid, right in correct.items() if qid in qids_counted}
    with_forced = {} if forced_answers else {"accuracy_with_forced": _or_zero(accepted, correct)}
    checklists, satisfaction = benchmark.checklists, benchmark.satisfaction
    relevant = relevant_documents(evidence)
    records = {
        row.qid: step_record(
            row,
            relevant.get(row.qid, ()),
            shown=shown[row.qid],
            right=counted_correct.get(row.qid, False),
            answered=_has_answer(row),
        )
        for row in recorded
    }
    per_question = {
        **measure_rankings(
            rankings, evidence, with_judged(with_list_measures(measures, targets), evidence)
        ),
        **checklist_measures(rankings, qids, targets, checklists, satisfaction),
        **list_measures(rankings, targets, benchmark.missing_documents),
        **answer_coverage(rankings, accepted, texts),
        "accuracy": _or_zero(accepted, counted_correct),
        **with_forced,
        "answer_f1": _or_zero(accepted, f1),
        **step_measures(records, needed.qids),
        "completion": _or_zero(qids, {row.qid: row.status == "completed" for row in ended}),
        **_evidence_measures(ended, evidence, {row.qid: listed[row.qid] for row in ended}),
        "citations_invented": {row.qid: _invented_citations(row) for row in ended},
        **_guesses([row for row in recorded if row.qid in accepted], accepted),
        **_effort(recorded),
        **searching,
    }
    evaluation = Evaluation(
        counts={
            **_counts(recorded, qids, evidence, accepted),
            **{f"{LEFT_OUT}_{reason}": n for reason, n in needed.left_out.items() if n},
            **list_counts(targets, qids),
            **_round_counts(recorded),
            "without_verdict": sum(bool(verdict.error) for verdict in verdicts),
        },
        rankings=rankings,
        funnel=evidence_funnel(ended, qrels),
        curves=exposure_curves(ended, evidence) if relevant else {},
        verdicts=verdicts,
        judge=(judge.label or judge.name) if verdicts else "",
        prices={role: used.dated for role, (_, used) in (prices or {}).items() if used.known},
    )
    right = [correct.get(row.qid, False) for row in recorded]
    stated = judge.confidences() if isinstance(judge, ImportedVerdicts) else None
    published = browsecomp_plus_measures(recorded, right, accepted, evidence, stated)
    return evaluation.with_values(per_question, {**_calibration(counted, correct), **published})


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
    parts, evaluations = folder.repeats(), []
    changed = InputError(
        f"trajectories of {folder.path} were written while it was evaluated",
        do="evaluate it again once the run has ended",
    )
    if len(parts) != len(judges):
        raise changed
    for part, judge in zip(parts, judges, strict=True):
        trajectories = part.trajectories()
        evaluation = evaluate_run(
            trajectories, benchmark, measures=measures, judge=judge, **options
        )
        evaluations.append(evaluation)
        if part.number > 1:
            write_verdicts(part, evaluation.verdicts)
            ranking = trec_run(evaluation.rankings, f"{folder.name}-repeat{part.number}")
            write_text(part.path / RANKINGS, ranking)
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


def _has_answer(trajectory: Trajectory) -> bool:
    """Whether the question has an answer in the required format that names anything."""
    lacks_format = (final_message(trajectory) or {}).get(NO_FORMAT)
    return not lacks_format and answer_tokens(trajectory.answer.exact) not in ([], ["unknown"])


def _or_zero(qids: Iterable[str], known: Mapping[str, float]) -> dict[str, float]:
    return {qid: float(known.get(qid, 0)) for qid in qids}


def _listed(trajectory: Trajectory) -> set[str]:
    """The documents on result pages, with an excerpt or without."""
    pages = [call for call in trajectory.calls if call.searched or call.name in _BROWSING]
    return {parent(unit) for call in pages for unit in call.shown}


def _evidence_measures(
    ended: Sequence[Trajectory], evidence: Qrels, listed: Mapping[str, Collection[str]]
) -> PerQuestion:
    """Recall by exposure tier, precision and recall of citations, and of runs with calls for
    further pages the recall of what pages `listed`."""
    relevant = relevant_documents(evidence)
    precision, recall = {}, {}
    for trajectory in ended:
        # A passage is cited as `d1%p3`, which is a citation of its document.
        cited = {parent(docid) for docid in trajectory.answer.citations}
        wanted = relevant.get(trajectory.qid, frozenset())
        if cited and wanted:
            precision[trajectory.qid] = len(cited & wanted) / len(cited)
            recall[trajectory.qid] = len(cited & wanted) / len(wanted)
    calls = chain.from_iterable(row.calls for row in ended)
    browsed = any(call.name in _BROWSING and not call.error for call in calls)
    on_pages = {
        qid: len(documents.intersection(listed.get(qid, ()))) / len(documents)
        for qid, documents in relevant.items()
    }
    return {
        **{
            f"recall_{tier}": {qid: reached / of for qid, (reached, of, _) in reach.items()}
            for tier, reach in reach_by_tier(ended, evidence).items()
        },
        **({"recall_listed": on_pages} if browsed else {}),
        "citation_precision": _or_zero(relevant, precision),
        "citation_recall": _or_zero(relevant, recall),
    }


def _invented_citations(trajectory: Trajectory) -> float:
    shown = set(chain.from_iterable(trajectory.tiers.values()))
    answer = f"{trajectory.answer.explanation}\n{trajectory.answer.exact}"
    return float(len(invented_citations(answer, shown)))


def _guesses(rows: Sequence[Trajectory], accepted: Mapping[str, Sequence[str]]) -> PerQuestion:
    """How many phrases and rewritten queries of a question contain an accepted answer."""
    phrases: dict[str, float] = {}
    rewritten: dict[str, float] = {}
    for trajectory in rows:
        qid, answers = trajectory.qid, accepted[trajectory.qid]
        searches = [call.notes for call in trajectory.calls]
        notes = [row["enrichment"] for row in searches if "enrichment" in row]
        if enriched := [*chain.from_iterable(_checked(qid, notes, list[list[_Enriched]]))]:
            added = {each["phrase"] for row in enriched for each in row["phrases"] if each["kept"]}
            phrases[qid] = float(sum(holds_answer(phrase, answers) for phrase in added))
        notes = [row for search in searches for row in rewrites(search)]
        if queries := _checked(qid, notes, list[_Rewritten]):
            rewritten[qid] = float(len(guessed_rewrites(queries, trajectory.question, answers)))
    return {PHRASES_WITH_ANSWER: phrases, REWRITES_WITH_ANSWER: rewritten}


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


def _effort(recorded: Sequence[Trajectory]) -> PerQuestion:
    measures: PerQuestion = {}
    usage = dict.fromkeys(name for trajectory in recorded for name in trajectory.usage)
    for trajectory in recorded:
        calls = trajectory.calls
        succeeded = Counter(call.name for call in calls if not call.error)
        exposed = {docid for tier in SHOWN for docid in trajectory.tiers.get(tier, ())}
        values = {
            "search_calls": sum(call.searched for call in calls),
            **{name: sum(succeeded[tool] for tool in tools) for name, tools in _TOOLS.items()},
            "tool_calls": len(calls),
            "tool_errors": sum(bool(call.error) for call in calls),
            "documents_exposed": len(exposed),
            "tokens_exposed": sum(call.tokens for call in calls),
            # Run files of other harnesses have a zero if they do not record the time.
            "seconds": trajectory.seconds if trajectory.seconds or not trajectory.source else None,
            **{f"usage_{name}": known_usage(trajectory.usage, name) for name in usage},
        }
        for measure, value in values.items():
            if value is not None:
                measures.setdefault(measure, {})[trajectory.qid] = float(value)
    return measures


def _calibration(
    ended: Sequence[Trajectory], correct: Mapping[str, bool]
) -> dict[str, tuple[float, int]]:
    # By id, because bins separate answers of equal confidence in the order of the arguments.
    claims = [
        (confidence, correct[row.qid])
        for row in sorted(ended, key=lambda row: row.qid)
        if row.qid in correct and (confidence := row.answer.confidence) is not None
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
) -> dict[str, int]:
    statuses = Counter(trajectory.status for trajectory in recorded)
    reasons = Counter(trajectory.reason for trajectory in recorded if trajectory.reason)
    polar = Counter(filter(None, map(polar_answer, accepted.values())))
    calls = [call for trajectory in recorded for call in trajectory.calls]
    refused = Counter(  # run files of other harnesses have sentences in place of codes
        f"refused_{call.error if call.error.isidentifier() else 'other'}"
        for call in calls
        if call.error
    )
    different = sum(len(set(map(_call_text, trajectory.calls))) for trajectory in recorded)
    answered = uncalled = formless = 0
    for trajectory in recorded:
        answer, final = trajectory.answer, final_message(trajectory)
        if trajectory.status != "failed":
            has_answer = bool(answer.exact.strip() or answer.documents)
            lacks_format = bool(final and final.get(NO_FORMAT))
            answered += has_answer and not lacks_format
            uncalled += not trajectory.calls and bool(has_answer or answer.explanation)
            formless += lacks_format
    return {
        "questions": len(qids),
        "recorded": len(recorded),
        "missing": len(qids) - len(recorded),
        "answered": answered,
        "no_call": uncalled,
        "reminded": sum(
            any(message.get("demand") == "reminder" for message in trajectory.messages)
            for trajectory in recorded
        ),
        "no_format": formless,
        "unjudged": len(qids) - len(evidence),
        "without_accepted_answer": len(qids) - len(accepted),
        **({"yes_no": polar.total(), "yes_no_by_chance": max(polar.values())} if polar else {}),
        **{status: statuses[status] for status in STATUSES},
        **{f"ended_{reason}": count for reason, count in sorted(reasons.items())},
        "calls": len(calls),
        "repeated": len(calls) - different,
        "refused": refused.total(),
        **dict(sorted(refused.items())),
    }


def _call_text(call: RecordedCall) -> str:
    """The call without its reason; equal texts are equal calls."""
    arguments = {name: value for name, value in call.arguments.items() if name != "reason"}
    return json.dumps([call.name, arguments], sort_keys=True)


def _round_counts(recorded: Sequence[Trajectory]) -> dict[str, int]:
    """Of agents that work in rounds: uncalibrated questions and documents without a score."""
    rounds = [trajectory.rounds for trajectory in recorded if trajectory.rounds]
    if not rounds:
        return {}
    raw = [any(row.get("probability") == "raw" for row in rows) for rows in rounds]
    unscored = [sum(row.get("unscored", {}).values()) for rows in rounds for row in rows]
    return {"uncalibrated": sum(raw), "unscored_documents": sum(unscored)}
