"""`python -m experiments.rank`: a pipeline without an agent, on a benchmark's own questions.

Measures come from `pt.Experiment`; the cell is written like any other, so that
`experiments.compare` takes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pandas as pd
import pyterrier as pt

from experiments.build import make
from experiments.collection import texts_in
from experiments.costs import corpus_costs, query_costs
from experiments.entry import main
from experiments.models import servers_of_run
from experiments.naming import RANKING, cell_name, factors, fingerprints, run_folder
from experiments.pipeline import PipelineOpener, Stages, ranking, stage_counts
from experiments.query_phrases import guessing_rewrites, keep_phrases, keep_rewrites
from experiments.recorded import recorded_option
from experiments.run_progress import RunProgress, fallbacks
from experiments.settings import Settings, plain_values
from experiments.sweep import seal_cells
from pipelines.aggregation import MaxP
from pipelines.search_notes import collecting
from toolkit.console import Console
from toolkit.contracts import Benchmark, document_sets
from toolkit.errors import InputError
from toolkit.evaluation import (
    Cell,
    Evaluation,
    RunRow,
    evaluate_ranking,
    load_cell,
    write_evaluation,
)
from toolkit.evaluation.answer_coverage import answer_coverage
from toolkit.evaluation.evaluations import denominators, means
from toolkit.evaluation.retrieval import parse_measures
from toolkit.evaluation.sets import (
    HEADLINE as SHOWN,
)
from toolkit.evaluation.sets import (
    checklist_measures,
    set_counts,
    with_set_measures,
    with_targets,
)
from toolkit.llm.ledger import Ledger
from toolkit.llm.ledger_file import ledger_on_record
from toolkit.progress import LiveNote, bar
from toolkit.report import comparison_table
from toolkit.runs import make_manifest


def rank(settings: Settings, prepared: PipelineOpener | None = None) -> Cell:
    """Rank every question, measure, print the numbers and where they stand. `prepared` gives the
    pipeline where it has been opened already."""
    config = settings.config
    parse_measures(list(config.measures))
    chosen = {**factors(settings, RANKING), "agent": "none"}
    folder = run_folder(settings, cell_name(settings, RANKING))
    built = prepared() if prepared else ranking(config)
    measures = with_set_measures(list(config.measures), document_sets(built.benchmark))
    shown = [*config.measures, *(SHOWN if len(measures) > len(config.measures) else ())]
    if built.sealed:
        seal_cells(settings)
    prints = fingerprints(settings, built, RANKING)
    cap = make(config.budget).run_dollars
    manifest = make_manifest(plain_values(config), prints, chosen, recorded_option(settings))
    before = stage_counts(built.parts)
    with folder.writing(manifest):
        try:
            with (
                ledger_on_record(folder.ledger_path, cap=cap) as ledger,
                servers_of_run(settings.multirun) as servers,
                built.stages.asking(ledger, folder.path, servers),
            ):
                began = time.monotonic()
                with collecting() as notes, asking_bar(built.stages, ledger):
                    evaluation = evaluate_pipeline(built.benchmark, built.pipeline, measures)
                seconds = time.monotonic() - began
        finally:
            counted = stage_counts(built.parts, before)
            folder.add_counts(counted)
        ranked = len(evaluation.per_question[measures[0]])
        once = corpus_costs(built.parts)
        a_query = query_costs(built.stages, counted, seconds, ranked)
        folder.note_costs({"once": once, "query": a_query})
        answers = built.benchmark.answers
        keep_rewrites(folder.path, notes, built.benchmark.topics)
        guessed = {
            **keep_phrases(folder.path, notes, answers),
            **guessing_rewrites(notes, built.benchmark.topics, answers),
        }
        covered = answer_coverage(
            evaluation.rankings,
            built.benchmark.answers,
            evaluation.per_question[measures[0]],
            partial(texts_in, built.prepared.store),
        )
        evaluation = with_measures(evaluation, {**guessed, **covered})
        write_evaluation(folder.path, evaluation, state=folder.state())
    cell = load_cell(folder.path)
    Console().print(comparison_table([cell], measures=shown))
    if covered:
        values = ", ".join(f"{name} {cell.metrics[name]:.4f}" for name in covered)
        Console().print(values, highlight=False, soft_wrap=True)
    for line in fallbacks(counted):
        Console(stderr=True, soft_wrap=True).print(line, highlight=False)
    Console(stderr=True).print(f"{folder.path}/metrics.json", highlight=False, soft_wrap=True)
    return cell


@contextmanager
def asking_bar(stages: Stages, ledger: Ledger) -> Iterator[None]:
    """Shows what the language models of the stages have answered so far; nothing without one."""
    if not stages.models:
        yield
        return
    tally = RunProgress(ledger, {}, lambda line: None)

    def note() -> str:
        return " · ".join(filter(None, (f"{ledger.total.calls} requests", tally.line())))

    with bar(transient=True) as progress:
        progress.add_task("Ranking", total=None, note=LiveNote(note))
        yield


def evaluate_pipeline(
    benchmark: Benchmark, pipeline: pt.Transformer, measures: list[str]
) -> Evaluation:
    """Rankings of documents (a passage counts as its document, once, at its best rank) and their
    measures. Questions without judgements are counted, not ranked."""
    sets = document_sets(benchmark)
    judged = with_targets(benchmark.judgements.get("evidence", {}), sets)
    judged_topics = [topic for topic in benchmark.topics if judged.get(topic.qid)]
    if not judged_topics:
        raise InputError(
            f"no question of {benchmark.name} is judged",
            valid="a benchmark and split with judgements",
            do="choose another benchmark.split",
        )
    topics = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in judged_topics])
    ranked = MaxP().transform(pipeline.transform(topics))
    rows = zip(ranked["qid"], ranked["docno"], ranked["rank"], strict=True)
    outline = evaluate_ranking([RunRow(*row) for row in rows], judged, [], topics=benchmark.topics)
    per_question = {
        **measured(ranked, topics, judged, measures),
        **checklist_measures(outline.rankings, sets, outline.rankings),
    }
    qids = [topic.qid for topic in benchmark.topics]
    return replace(
        outline,
        counts={**outline.counts, **set_counts(sets, qids)},
        per_question=per_question,
        metrics=means(per_question),
        denominators=denominators(per_question),
    )


def with_measures(evaluation: Evaluation, more: Mapping[str, Mapping[str, float]]) -> Evaluation:
    """An evaluation with further measures by question."""
    if not more:
        return evaluation
    return replace(
        evaluation,
        per_question={**evaluation.per_question, **more},
        metrics={**evaluation.metrics, **means(more)},
        denominators={**evaluation.denominators, **denominators(more)},
    )


def measured(
    ranked: pd.DataFrame,
    topics: pd.DataFrame,
    judgements: Mapping[str, Mapping[str, int]],
    measures: list[str],
) -> dict[str, dict[str, float]]:
    """Measure -> qid -> value, by `pt.Experiment`."""
    qrels = pd.DataFrame(
        [
            {"qid": qid, "docno": docno, "label": grade}
            for qid in topics["qid"]
            for docno, grade in judgements[qid].items()
        ]
    )
    # trec_eval breaks ties of the score by docno; negated ranks keep the order that was shown.
    shown = ranked.assign(score=-ranked["rank"].astype(float))
    parsed = parse_measures(measures)
    table = pt.Experiment([shown], topics, qrels, parsed, names=["pipeline"], perquery=True)
    names = {str(measure): name for measure, name in zip(parsed, measures, strict=True)}
    values: dict[str, dict[str, float]] = {
        name: dict.fromkeys(topics["qid"], 0.0) for name in measures
    }
    rows = zip(table["measure"].map(str), table["qid"], table["value"].map(float), strict=True)
    for measure, qid, value in rows:
        values[names[measure]][qid] = value
    return values


if __name__ == "__main__":
    main(rank)
