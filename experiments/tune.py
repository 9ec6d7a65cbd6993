"""`python -m experiments.tune`: the whole (k1, b) grid, chosen on one split, reported on another.

Ranks of the judged documents in all cells come from one pass over each question's postings and are
kept, so that the same command goes on where it was stopped. A list of options, as in
`unit=document,passage`, is a sweep with or without `-m`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.build import make
from experiments.cell import Ranking, factors, plain, run_folder
from experiments.chosen import write_chosen
from experiments.entry import main
from experiments.prepare import Prepared, prepare
from experiments.rank import evaluate_pipeline
from experiments.tune_ranks import Judged, judged_ranks
from pipelines.composition import compose
from pipelines.engines import LexicalEngine
from toolkit.contracts import Benchmark, Segmenter
from toolkit.errors import InputError
from toolkit.evaluation import write_evaluation
from toolkit.evaluation.retrieval import parse_measures
from toolkit.evaluation.tuning import Grid, MeasureTable, RankTable, Study, measure_table, study
from toolkit.evaluation.tuning.ranks import Cell
from toolkit.files import fingerprint, write_json
from toolkit.report import write_report
from toolkit.report.tuning import render_tuning
from toolkit.runs import RunFolder, make_manifest


@dataclass(frozen=True)
class Setup:
    """What a tuning works on. `selecting` is `reported` where one split is cross-validated."""

    grid: Grid
    references: list[Cell]
    segmenter: Segmenter
    prepared: Prepared
    selecting: Benchmark
    reported: Benchmark

    @property
    def cells(self) -> list[Cell]:
        """The grid's cells, then the references that are not among them."""
        return list(dict.fromkeys([*self.grid.cells, *self.references]))


def tune(config: DictConfig) -> None:
    """Tune, report, verify the chosen cell by an ordinary run, and say where it all stands."""
    measures = wanted_measures(config)
    grid: Grid = make(config.grid)
    chosen = {**factors(), "retriever": f"tuned_{grid.name}", "agent": "none"}
    folder = run_folder(config, chosen)
    built = setup(config, grid)
    manifest = make_manifest(plain(config), prints(config, built), chosen)
    with folder.writing(manifest):
        found = tuned(config, built, measures, folder)
        write_results(folder, found, config, built, manifest)
    console = Console(stderr=True)
    console.print(f"{folder.path}/report.html", highlight=False, soft_wrap=True)


def wanted_measures(config: DictConfig) -> list[str]:
    """The objective, the measures asked for, and recall at each cutoff, each once."""
    recalls = [f"R@{cutoff}" for cutoff in config.tuning.cutoffs]
    others = [measure for measure in config.measures if measure not in recalls]
    names = list(dict.fromkeys([config.tuning.objective, *others, *recalls]))
    parse_measures(names)
    return names


def setup(config: DictConfig, grid: Grid) -> Setup:
    """Benchmarks and index; what can be refused is refused before anything is built."""
    engine, segmenter = make(config.engine), make(config.unit)
    if not isinstance(engine, LexicalEngine):
        raise InputError(
            f"the engine {engine.name} does not offer the statistics that tuning reads",
            valid="lexical",
            do="tune with engine=lexical; its cells hold for Lucene's BM25, so for anserini too",
        )
    selecting, reported = splits(config)
    references = [reference(pair) for pair in config.tuning.references]
    prepared = prepare(reported, segmenter, engine, Path(config.paths.indexes))
    return Setup(grid, references, segmenter, prepared, selecting, reported)


def reference(pair: Any) -> Cell:
    """A setting that is measured beside the grid."""
    numbers = OmegaConf.to_container(pair) if OmegaConf.is_list(pair) else None
    match numbers:
        case [int() | float() as k1, int() | float() as b]:
            return float(k1), float(b)
    raise InputError(f"tuning.references holds {pair}", valid="pairs [k1, b] of numbers")


def splits(config: DictConfig) -> tuple[Benchmark, Benchmark]:
    """The benchmark that chooses and the one that is reported, both with judged questions."""
    asked = config.tuning
    if asked.select is None:
        whole = judged_benchmark(config.benchmark)
        return whole, whole
    if "split" not in config.benchmark:
        raise InputError(
            "this benchmark has no splits", do="tuning.select=null tunes it by cross-validation"
        )
    if asked.select == asked.report:
        raise InputError(
            f"tuning.select and tuning.report are both {asked.select}",
            valid="two splits",
            do="tuning.select=null cross-validates one split",
        )
    selecting, reported = (
        judged_benchmark(with_split(config.benchmark, split), split)
        for split in (asked.select, asked.report)
    )
    return selecting, reported


def with_split(config: DictConfig, split: str) -> DictConfig:
    changed = config.copy()
    changed.split = split
    return changed


def judged_benchmark(config: DictConfig, split: str | None = None) -> Benchmark:
    try:
        benchmark: Benchmark = make(config)
    except InputError as error:
        if split is None:
            raise
        raise InputError(
            str(error), do="With one split only, tuning.select=null tunes by cross-validation"
        ) from error
    if not any(benchmark.judgements.get("evidence", {}).values()):
        named = f"split {split!r} of {benchmark.name}" if split else benchmark.name
        raise InputError(f"{named} has no judged question", valid="a split with judgements")
    return benchmark


def prints(config: DictConfig, built: Setup) -> dict[str, str]:
    """What must be equal for a tuning to be resumed. The objective and the tests need not be: they
    are computed again from the ranks that are kept."""
    return {
        "benchmark": built.reported.fingerprint,
        "selecting": built.selecting.fingerprint,
        "index": built.prepared.fingerprint,
        "grid": fingerprint(built.cells, config.tuning.depth),
    }


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
    ranking = Ranking(built.reported, built.segmenter, built.prepared, pipeline)
    evaluation = evaluate_pipeline(ranking, list(found.reported.measures))
    check_same_values(found, evaluation.per_question)
    names = (asked.select, asked.report) if asked.select else ("all questions",) * 2
    said = (
        f"Chosen by {found.objective} on {built.selecting.name}, {names[0]} "
        f"({len(found.selecting.qids)} questions), grid {found.grid.name}"
    )
    write_chosen(folder.path, found.chosen(), asked.depth, said)
    write_json(folder.path / "tuning.json", found.summary())
    write_cells(folder.path / "cells.csv", found)
    write_evaluation(folder.path, evaluation)
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
    rows.to_csv(path, index=False)


def as_sweep(arguments: Sequence[str]) -> list[str]:
    """`-m` added where an override lists several options, as in `unit=document,passage`."""
    lists = [item for item in arguments if re.match(r"[\w./@]+=[^\[{'\"(]*,", item)]
    multirun = {"-m", "--multirun"} & set(arguments)
    return ["-m", *arguments] if lists and not multirun else list(arguments)


if __name__ == "__main__":
    sys.argv[1:] = as_sweep(sys.argv[1:])
    main(tune)
