"""`python -m experiments.tune`: the whole (k1, b) grid, chosen on one split, reported on another.

Ranks of the judged documents in all cells come from one pass over each question's postings and are
kept, so that the same command goes on where it was stopped. `-m unit=document,passage` is a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from experiments.build import make
from experiments.chosen import TUNED, write_chosen
from experiments.entry import main
from experiments.naming import cell_label, factors
from experiments.prepared_pipeline import run_folder
from experiments.rank import evaluate_pipeline
from experiments.recorded import recorded_option
from experiments.settings import Settings, plain_values
from experiments.tune_ranks import Judged, judged_ranks
from experiments.tune_setup import Setup, prints, setup, wanted_measures
from pipelines.composition import compose
from toolkit.console import Console
from toolkit.contracts import Benchmark
from toolkit.evaluation import write_evaluation
from toolkit.evaluation.tuning import Grid, MeasureTable, RankTable, Study, measure_table, study
from toolkit.files import write_atomic, write_json
from toolkit.report import write_report
from toolkit.report.tuning import render_tuning
from toolkit.runs import RunFolder, make_manifest


def tune(settings: Settings) -> None:
    """Tune, report, verify the chosen cell by an ordinary run, and say where it all stands."""
    config = settings.config
    measures = wanted_measures(config)
    grid: Grid = make(config.grid)
    chosen = {
        **factors(settings, TUNED),
        "retriever": f"tuned_{grid.name}",
        "agent": "none",
    }
    folder = run_folder(settings, f"{cell_label(settings, TUNED)}-{chosen['retriever']}")
    built = setup(config, grid)
    described = recorded_option(settings)
    manifest = make_manifest(plain_values(config), prints(config, built), chosen, described)
    with folder.writing(manifest):
        found = tuned(config, built, measures, folder)
        write_results(folder, found, config, built, manifest)
    console = Console(stderr=True)
    console.print(f"{folder.path}/report.html", highlight=False, soft_wrap=True)


def tuned(config: DictConfig, built: Setup, measures: Sequence[str], folder: RunFolder) -> Study:
    """Ranks, then measures, then choices."""
    asked = config.tuning
    sides = {"selecting": built.selecting, "reported": built.reported}
    judged = {name: judged_questions(side) for name, side in sides.items()}
    started = time.perf_counter()
    table = judged_ranks(
        built.prepared.index,
        built.cells,
        {**judged["selecting"], **judged["reported"]},
        folder.path / "ranks",
        depth=asked.depth,
        threads=asked.threads,
    )
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
        asked.objective,
        tables["selecting"],
        tables["reported"],
        references=built.references,
        method=asked.method if asked.select is None else "held_out",
        folds=asked.folds,
        seed=asked.seed,
        test=asked.test,
        alpha=asked.alpha,
    )


def judged_questions(benchmark: Benchmark) -> dict[str, Judged]:
    """Text and grades of the judged questions."""
    grades = benchmark.judgements["evidence"]
    return {
        topic.qid: Judged(topic.text, grades[topic.qid])
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
    found: Study,
    config: DictConfig,
    built: Setup,
    manifest: Mapping[str, object],
) -> None:
    asked = config.tuning
    k1, b = found.chosen()
    pipeline = compose(
        built.prepared.index.bm25(k1=k1, b=b, depth=asked.depth),
        aggregate=built.segmenter.aggregate,
    )
    evaluation = evaluate_pipeline(built.reported, pipeline, list(found.reported.measures))
    check_same_values(found, evaluation.per_question)
    names = (asked.select, asked.report) if asked.select else ("all questions",) * 2
    said = (
        f"Chosen by {found.objective} on {built.selecting.name}, {names[0]} "
        f"({len(found.selecting.qids)} questions), grid {found.grid.name}"
    )
    write_chosen(folder.path, found.chosen(), asked.depth, said)
    write_json(folder.path / "tuning.json", found.summary())
    write_cells(folder.path / "cells.csv", found)
    write_evaluation(folder.path, evaluation, state=folder.state())
    title = f"Tuning BM25 on {built.reported.name} ({built.segmenter.name})"
    report = render_tuning(
        found, title=title, splits=names, cutoffs=list(asked.cutoffs), manifest=manifest
    )
    write_report(folder.path, report)


def check_same_values(found: Study, values: Mapping[str, Mapping[str, float]]) -> None:
    """Hold the chosen cell of the grid against an ordinary run of it, value by value."""
    cell = found.choices[found.objective].chosen
    for measure in found.reported.measures:
        column = found.reported.of(measure)[:, cell].tolist()
        ours = dict(zip(found.reported.qids, column, strict=True))
        if ours != dict(values[measure]):
            differing = [qid for qid, value in ours.items() if values[measure].get(qid) != value]
            raise RuntimeError(
                f"grid and single run differ in {measure} on {len(differing)} questions, such as "
                f"{differing[:1]}"
            )


def write_cells(path: Path, found: Study) -> None:
    """Means of all measures in all cells, for people and spreadsheets."""
    import pandas as pd

    rows = pd.DataFrame(list(found.cells), columns=["k1", "b"])
    for table, side in ((found.selecting, "selecting"), (found.reported, "reported")):
        for place, measure in enumerate(table.measures):
            rows[f"{measure} {side}"] = table.values[place].mean(axis=0)
    write_atomic(path, rows.to_csv(index=False))


if __name__ == "__main__":
    main(tune)
