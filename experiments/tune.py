"""`python -m experiments.tune`: the whole (k1, b) grid, chosen on one split, reported on another.
With an enrichment, its weight and the limit of its filters are axes of the grid too.

Ranks of the judged documents in all cells come from one pass over each question's postings and are
kept, so that the same command goes on where it was stopped. `-m unit=document,passage` is a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyterrier as pt
from omegaconf import DictConfig

from experiments.build import make
from experiments.chosen import TUNED, write_chosen
from experiments.entry import main
from experiments.models import servers_of_run
from experiments.naming import cell_label, factors, run_folder
from experiments.pipeline import active
from experiments.rank import evaluate_pipeline
from experiments.recorded import recorded_option
from experiments.settings import Settings, plain_values
from experiments.tune_enriched import chosen_overrides
from experiments.tune_ranks import judged_ranks
from experiments.tune_setup import Setup, prints, setup, wanted_measures
from pipelines.composition import compose
from pipelines.lexical.grid import JudgedQuery
from toolkit.console import Console
from toolkit.contracts import Benchmark, Topic
from toolkit.evaluation import write_evaluation
from toolkit.evaluation.tuning import Grid, MeasureTable, RankTable, Study, measure_table, study
from toolkit.evaluation.tuning.ranks import GridPoint
from toolkit.files import write_atomic, write_json
from toolkit.llm.ledger_file import ledger_on_record
from toolkit.report import write_report
from toolkit.report.tuning import render_tuning
from toolkit.runs import RunFolder, make_manifest


class Judged(NamedTuple):
    """A question and its judged documents."""

    topic: Topic
    grades: Mapping[str, int]


def tune(settings: Settings) -> None:
    """Tune, report, verify the chosen cell by an ordinary run, and say where it all stands."""
    config = settings.config
    measures = wanted_measures(config)
    grid: Grid = make(config.grid)
    groups = named_groups(config)
    chosen = {
        **factors(settings, groups),
        "retriever": f"tuned_{grid.name}",
        "agent": "none",
    }
    folder = run_folder(settings, f"{cell_label(settings, groups)}-{chosen['retriever']}")
    built = setup(config, grid)
    described = recorded_option(settings)
    manifest = make_manifest(plain_values(config), prints(settings, built), chosen, described)
    cap = make(config.budget).run_dollars
    with (
        folder.writing(manifest),
        ledger_on_record(folder.ledger_path, cap=cap) as ledger,
        servers_of_run(settings.multirun) as servers,
        built.stages.asking(ledger, folder.path, servers),
    ):
        result = tuned(config, built, measures, folder)
        write_results(folder, result, config, built, manifest)
    console = Console(stderr=True)
    console.print(f"{folder.path}/report.html", highlight=False, soft_wrap=True)


def named_groups(config: DictConfig) -> tuple[str, ...]:
    """The groups that a tuning is named after."""
    return (*TUNED, "enrichment", "llm") if active(config, "enrichment") else TUNED


def tuned(config: DictConfig, built: Setup, measures: Sequence[str], folder: RunFolder) -> Study:
    """Ranks, then measures, then choices."""
    options = config.tuning
    sides = {"selecting": built.selecting, "reported": built.reported}
    judged = {name: judged_questions(side) for name, side in sides.items()}
    started = time.perf_counter()
    table = ranks_of(config, built, {**judged["selecting"], **judged["reported"]}, folder)
    seconds = time.perf_counter() - started
    Console(stderr=True).print(
        f"{len(table.ranks):,} questions in {len(built.cells):,} cells: {seconds:.1f} s",
        highlight=False,
    )
    tables = {name: measured(table, judged[name], measures) for name in sides}
    if built.selecting is built.reported:
        tables["selecting"] = tables["reported"]
    tables["selecting"].save(folder.path / "selecting.npz")
    tables["reported"].save(folder.path / "reported.npz")
    return study(
        built.grid,
        options.objective,
        tables["selecting"],
        tables["reported"],
        references=built.references,
        method=options.method if options.select is None else "held_out",
        folds=options.folds,
        seed=options.seed,
        test=options.test,
        alpha=options.alpha,
    )


def ranks_of(
    config: DictConfig, built: Setup, questions: Mapping[str, Judged], folder: RunFolder
) -> RankTable:
    """The ranks of every question in every cell, from `folder` where they are there."""
    where = folder.path / "ranks"
    how = {"depth": config.tuning.depth, "threads": config.tuning.threads}
    docids = {qid: list(row.grades) for qid, row in questions.items()}
    if built.enrichment is not None:
        topics = [row.topic for row in questions.values()]
        return built.enrichment.ranks(built.cells, topics, docids, where, **how)
    index = built.prepared.index
    queries = [
        JudgedQuery(qid, index.analyzer.terms(row.topic.text), docids[qid])
        for qid, row in questions.items()
    ]
    pairs = [(k1, b) for k1, b in built.cells]
    return judged_ranks(index, pairs, queries, where, **how)


def judged_questions(benchmark: Benchmark) -> dict[str, Judged]:
    """The judged questions."""
    grades = benchmark.judgements["evidence"]
    return {
        topic.qid: Judged(topic, grades[topic.qid])
        for topic in benchmark.topics
        if grades.get(topic.qid)
    }


def measured(
    table: RankTable, judged: Mapping[str, Judged], measures: Sequence[str]
) -> MeasureTable:
    part = RankTable(
        table.cells,
        {qid: table.docids[qid] for qid in judged},
        {qid: table.ranks[qid] for qid in judged},
    )
    return measure_table(part, {qid: row.grades for qid, row in judged.items()}, measures)


def write_results(
    folder: RunFolder,
    result: Study,
    config: DictConfig,
    built: Setup,
    manifest: Mapping[str, object],
) -> None:
    """Everything that a tuning leaves but its ranks and tables."""
    options, cell = config.tuning, result.chosen()
    pipeline = pipeline_of(built, cell, options.depth)
    evaluation = evaluate_pipeline(built.reported, pipeline, list(result.reported.measures))
    check_same_values(result, evaluation.per_question)
    names = (options.select, options.report) if options.select else ("all questions",) * 2
    comment = (
        f"Chosen by {result.objective} on {built.selecting.name}, {names[0]} "
        f"({len(result.selecting.qids)} questions), grid {result.grid.name}"
    )
    overrides = chosen_overrides(cell, built.enrichment.stage) if built.enrichment else {}
    write_chosen(folder.path, cell, options.depth, comment, overrides)
    write_json(folder.path / "tuning.json", result.summary())
    write_cells(folder.path / "cells.csv", result)
    write_evaluation(folder.path, evaluation, state=folder.state())
    title = f"Tuning BM25 on {built.reported.name} ({built.segmenter.name})"
    report = render_tuning(
        result, title=title, splits=names, cutoffs=list(options.cutoffs), manifest=manifest
    )
    write_report(folder.path, report)


def pipeline_of(built: Setup, cell: GridPoint, depth: int) -> pt.Transformer:
    """An ordinary pipeline of one cell."""
    aggregate = built.segmenter.aggregate
    if built.enrichment is not None:
        return built.enrichment.pipeline(cell, depth, aggregate=aggregate)
    k1, b = cell
    return compose(built.prepared.index.bm25(k1=k1, b=b, depth=depth), aggregate=aggregate)


def check_same_values(result: Study, values: Mapping[str, Mapping[str, float]]) -> None:
    """Hold the chosen cell of the grid against an ordinary run of it, value by value."""
    cell = result.choices[result.objective].chosen
    for measure in result.reported.measures:
        column = result.reported.of(measure)[:, cell].tolist()
        ours = dict(zip(result.reported.qids, column, strict=True))
        if ours != dict(values[measure]):
            differing = [qid for qid, value in ours.items() if values[measure].get(qid) != value]
            raise RuntimeError(
                f"grid and single run differ in {measure} on {len(differing)} questions, such as "
                f"{differing[:1]}"
            )


def write_cells(path: Path, result: Study) -> None:
    """Means of all measures in all cells, for people and spreadsheets."""
    import pandas as pd

    rows = pd.DataFrame(list(result.cells), columns=list(result.grid.names))
    for table, side in ((result.selecting, "selecting"), (result.reported, "reported")):
        for index, measure in enumerate(table.measures):
            rows[f"{measure} {side}"] = table.values[index].mean(axis=0)
    write_atomic(path, rows.to_csv(index=False))


if __name__ == "__main__":
    main(tune)
