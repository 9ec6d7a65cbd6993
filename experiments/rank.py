"""`soundingline rank`: a pipeline without an agent, on a benchmark's own questions.

Measures come from `ir_measures`; the run is written like any other, so that
`soundingline compare` takes it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from soundingline.agents.base import Budget
from soundingline.experiments.build import make
from soundingline.experiments.collection import texts_in
from soundingline.experiments.config import Settings
from soundingline.experiments.naming import RANKING, cell_name, factors, fingerprints, run_folder
from soundingline.experiments.pipeline import (
    BoundPipeline,
    PipelineOpener,
    Stages,
    build_pipeline,
    corpus_costs,
)
from soundingline.experiments.rollouts import Progress, fallbacks
from soundingline.experiments.run_context import RunContext, open_run
from soundingline.experiments.sweep import obfuscate_cells
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.stage import search_notes
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, LiveNote, print_next, progress_bar
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import (
    EvaluatedRun,
    Evaluation,
    evaluate_ranking,
    load_run,
    write_evaluation,
)
from soundingline.toolkit.evaluation.agent_run import (
    PHRASES_WITH_ANSWER,
    REWRITES_WITH_ANSWER,
    guessed_rewrites,
    rewrites,
)
from soundingline.toolkit.evaluation.answers import holds_answer
from soundingline.toolkit.evaluation.evaluation import RANKINGS
from soundingline.toolkit.evaluation.retrieval import (
    LIST_HEADLINE,
    answer_coverage,
    checklist_measures,
    list_counts,
    measure_rankings,
    parse_measures,
    with_judged,
    with_list_measures,
    with_targets,
)
from soundingline.toolkit.files import write_quoting
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.report import ReportData, comparison_table


def query_costs(
    stages: Stages, counted: Mapping[str, Mapping[str, float]], seconds: float, queries: int
) -> dict[str, float]:
    """The mean of a query: `seconds` of the whole pipeline; tokens of the replies that it used,
    asked for now or kept, where the tokens of all are known; dollars where the price of every model
    is known as well, at the rates of requests below any `long_context`."""
    costs = {"seconds": seconds / max(1, queries)}
    if not stages.models:
        return costs

    def of_query(group: str, name: str) -> float:
        """The mean count of a stage, or of the query side of an enrichment."""
        numbers = counted.get(group, {})
        total = numbers.get(f"reply_{name}", 0) + numbers.get(f"query_reply_{name}", 0)
        return total / max(1, queries)

    if any(of_query(group, "unreported") for group in stages.models):
        return costs
    costs |= {"input_tokens": 0.0, "output_tokens": 0.0}
    dollars = 0.0
    for group, (model, _) in stages.models.items():
        read, written = of_query(group, "input_tokens"), of_query(group, "output_tokens")
        costs["input_tokens"] += read
        costs["output_tokens"] += written
        rates = model.price.input or 0.0, model.price.output or 0.0
        dollars += (read * rates[0] + written * rates[1]) / 1_000_000
    if all(model.price.known for model, _ in stages.models.values()):
        costs["dollars"] = dollars
    return costs


def keep_phrases(
    folder: Path, notes: Mapping[str, Any], answers: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Write what was proposed for each query, what was kept and why not to `phrases.jsonl`.

    `notes` are those of the search, `answers` the accepted answers by question. Returns, by
    question with answers, how many of the kept phrases contain one, as a measure: prompts forbid to
    guess, because a query with its answer finds the documents that a benchmark was made of. Nothing
    without an enriched query.
    """
    rows = [{**row, "phrases": list(row["phrases"])} for row in notes.get("enrichment", ())]
    guessed: dict[str, float] = {}
    for row in rows:
        if accepted := answers.get(row["qid"]):
            for phrase in row["phrases"]:
                phrase["holds_answer"] = holds_answer(phrase["phrase"], accepted)
            guesses = (phrase["kept"] and phrase["holds_answer"] for phrase in row["phrases"])
            guessed[row["qid"]] = float(sum(guesses))
    _write_lines(folder / "phrases.jsonl", rows)
    return {PHRASES_WITH_ANSWER: guessed} if guessed else {}


def keep_rewrites(
    folder: Path,
    notes: Mapping[str, Any],
    topics: Sequence[Topic],
    answers: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, float]]:
    """Write each query as it was, as it was rewritten, and what happened on the way to
    `rewrites.jsonl`. Returns, by question with accepted answers, how many rewritten queries contain
    one that is missing from the question, as a measure. Nothing without a rewriter."""
    by_query: dict[str, list[Mapping[str, str]]] = {}
    for row in rewrites(notes):
        by_query.setdefault(row["raw"], []).append(row)
    qids: dict[str, list[str]] = {}
    guessed: dict[str, float] = {}
    for topic in topics:
        qids.setdefault(topic.text, []).append(topic.qid)
        accepted = answers.get(topic.qid)
        if accepted and topic.text in by_query:
            guesses = guessed_rewrites(by_query[topic.text], topic.text, accepted)
            guessed[topic.qid] = float(len(guesses))
    rows = [{"qid": qid, **row} for row in rewrites(notes) for qid in qids.get(row["raw"], ())]
    _write_lines(folder / "rewrites.jsonl", rows)
    return {REWRITES_WITH_ANSWER: guessed} if guessed else {}


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        write_quoting(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def rank(settings: Settings, opened: PipelineOpener | None = None) -> EvaluatedRun:
    """Rank the questions of a benchmark with a pipeline, without an agent.

    Measures come from `ir_measures`; the run is written like any other, so that
    `soundingline compare` takes it. A benchmark without judgements gives `run.trec`, and no
    measures. `opened` gives the pipeline if it has been opened already.
    """
    config = settings.config
    if not config.measures:
        raise InputError("measures=[] names no measure", do="name one, or leave measures= out")
    parse_measures(list(config.measures))
    folder = run_folder(settings, cell_name(settings, RANKING))
    budget: Budget = make(config.budget)
    built = opened() if opened else build_pipeline(config, budget)
    measures = with_list_measures(list(config.measures), built.benchmark.targets)
    shown = [*config.measures, *(LIST_HEADLINE if len(measures) > len(config.measures) else ())]
    if built.obfuscated:
        obfuscate_cells(settings)
    prints = fingerprints(settings, built, RANKING)
    chosen = {**factors(settings, RANKING), "agent": "none"}
    with open_run(settings, folder, prints, chosen, budget) as run:
        folder = run.folder
        evaluation, counted = _evaluated(run, built, measures)
        write_evaluation(folder.path, evaluation, state=folder.state())
    cell = load_run(folder.path)
    _, judged = topics_to_rank(built.benchmark)
    if judged:
        Console().print(comparison_table(ReportData([cell]), shown))
    else:
        Console().print(
            f"No question of {built.benchmark.name} is judged, so there are no measures. "
            f"{folder.path}/{RANKINGS} has the rankings of {len(evaluation.rankings):,} questions.",
            soft_wrap=True,
        )
    if covered := [name for name in evaluation.per_question if name.startswith("AnswerCoverage@")]:
        values = ", ".join(f"{name} {cell.metrics[name]:.4f}" for name in covered)
        Console().print(values, soft_wrap=True)
    for line in fallbacks(counted):
        Console(stderr=True, soft_wrap=True).print(line)
    Console(stderr=True).print(f"{folder.path}/metrics.json", soft_wrap=True)
    if judged and not settings.multirun:
        print_next(f"soundingline compare {folder.path} ANOTHER_RUN")
    return cell


def _evaluated(
    run: RunContext, built: BoundPipeline, measures: list[str]
) -> tuple[Evaluation, Mapping[str, Mapping[str, float]]]:
    """The rankings of a run and their measures, and what the stages counted. Queries that were
    rewritten or enriched are written to the run folder, and the costs to its manifest."""
    benchmark, folder = built.benchmark, run.folder
    # A finished ranking that is made again is the same.
    timed = "periods" not in folder.manifest()
    with run.running(built.stages, built.parts, timed=timed) as counted:
        began = time.monotonic()
        with search_notes() as notes, asking_bar(built.stages, run.ledger):
            evaluation = evaluate_pipeline(benchmark, built.pipeline, measures)
        seconds = time.monotonic() - began
    topics, _ = topics_to_rank(benchmark)
    index = built.collection.build_seconds()
    folder.note_costs(
        {
            **({"index_seconds": index} if index else {}),
            "once": corpus_costs(built.parts),
            "query": query_costs(built.stages, counted, seconds, len(topics)),
        }
    )
    answers = benchmark.answers
    accepted = {topic.qid: answers.get(topic.qid, ()) for topic in topics}
    texts = partial(texts_in, built.collection.store)
    values = {
        **evaluation.per_question,
        **keep_phrases(folder.path, notes, answers),
        **keep_rewrites(folder.path, notes, benchmark.topics, answers),
        **answer_coverage(evaluation.rankings, accepted, texts),
    }
    return evaluation.with_values(values), counted


@contextmanager
def asking_bar(stages: Stages, ledger: Ledger) -> Iterator[None]:
    """Shows what the language models of the stages have answered so far; nothing without one."""
    if not stages.models:
        yield
        return
    tally = Progress(ledger, {})

    def note() -> str:
        return " · ".join(filter(None, (f"{ledger.total.calls} requests", tally.line())))

    with progress_bar(transient=True) as progress:
        progress.add_task("Ranking", total=None, note=LiveNote(note))
        yield


def topics_to_rank(benchmark: Benchmark) -> tuple[list[Topic], dict[str, Mapping[str, int]]]:
    """The judged questions and their judgements; all questions where none is judged."""
    grades = with_targets(benchmark.qrels.get("evidence", {}), benchmark.targets)
    judged = [topic for topic in benchmark.topics if grades.get(topic.qid)]
    return judged or list(benchmark.topics), {topic.qid: grades[topic.qid] for topic in judged}


def evaluate_pipeline(
    benchmark: Benchmark, pipeline: pt.Transformer, measures: list[str]
) -> Evaluation:
    """Rankings of documents (a passage counts as its document, once, at its best rank) and their
    measures. A question's own document is left out where the benchmark says so (`exclude_own`).
    See `topics_to_rank` for the questions."""
    ranked_topics, judged = topics_to_rank(benchmark)
    topics = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in ranked_topics])
    ranked = MaxP().transform(pipeline.transform(topics)).sort_values("rank", kind="stable")
    if benchmark.exclude_own:
        ranked = ranked[ranked["docno"] != ranked["qid"]]
    by_question = {str(qid): rows for qid, rows in ranked.groupby("qid", sort=False)}
    rankings = {qid: rows["docno"].tolist() for qid, rows in by_question.items()}
    scores = {qid: rows["score"].tolist() for qid, rows in by_question.items()}
    outline = evaluate_ranking(rankings, judged, [], topics=benchmark.topics)
    checked = (benchmark.targets, benchmark.checklists, benchmark.satisfaction)
    per_question = {
        **measure_rankings(outline.rankings, judged, with_judged(measures, judged)),
        **checklist_measures(outline.rankings, outline.rankings, *checked),
    }
    qids = [topic.qid for topic in benchmark.topics]
    counts = {**outline.counts, **list_counts(benchmark.targets, qids)}
    return replace(outline, counts=counts, scores=scores).with_values(per_question)
