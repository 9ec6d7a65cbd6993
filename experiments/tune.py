"""Tuning BM25: the ranks of judged documents at all points of a grid, the choice, and its report.

The limit of an enrichment's filters changes the phrases, so that each tau has an index of its own,
which is ranked in a pass of its own over the questions. Within a pass, every weight of a question
is a separate query.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from omegaconf import DictConfig, OmegaConf

from soundingline.agents.base import Budget
from soundingline.experiments.build import make
from soundingline.experiments.collection import IndexedCollection, prepare
from soundingline.experiments.config import CHOSEN, TUNED, Settings, plain_values
from soundingline.experiments.naming import cell_label, factors, identity_of, run_folder
from soundingline.experiments.pipeline import (
    Stages,
    active,
    caches_folder,
    make_stages,
    writes_obfuscated,
)
from soundingline.experiments.rank import evaluate_pipeline
from soundingline.experiments.run_context import open_run
from soundingline.pipelines.compose import compose
from soundingline.pipelines.engines.engine import check_support
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.lexical.crossfit import judged_ranks
from soundingline.pipelines.lexical.grid import JudgedQuery
from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, print_next
from soundingline.toolkit.corpus.segmentation import Segmenter
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError, is_number
from soundingline.toolkit.evaluation import EvaluatedRun, load_run, tuning, write_evaluation
from soundingline.toolkit.evaluation.grid import (
    Grid,
    GridPoint,
    RankTable,
    measure_table,
    point_settings,
)
from soundingline.toolkit.evaluation.retrieval import parse_measures
from soundingline.toolkit.evaluation.tuning import TuningResult
from soundingline.toolkit.files import fingerprint, write_json, write_text
from soundingline.toolkit.report import write_report
from soundingline.toolkit.report.tuning import conclusion, render_tuning
from soundingline.toolkit.runs import RunFolder

CUTOFFS = (5, 10, 50, 100, 1000)  # whose recalls are measured at every point
_ALL = "all questions"
_ONE_SPLIT = "tuning.select=null tunes on one split by cross-validation"


@dataclass(frozen=True)
class EnrichmentGrid:
    """An enrichment whose weight and tau are tuned, and the collection without its phrases."""

    stage: Enrichment
    collection: Collection

    @property
    def own(self) -> tuple[float, float]:
        """The weight of the enrichment, and the tau of its filters (of the query's filter if they
        differ; 1 without a filter)."""
        filters = (self.stage.query_filter, self.stage.corpus_filter)
        tau = next((filter_.tau for filter_ in filters if filter_ is not None), 1.0)
        return self.stage.weight, tau

    def at(self, weight: float, tau: float) -> tuple[Enrichment, Collection]:
        """The stage with this weight and tau, bound to a collection, and that collection."""
        stage = replace(self.stage, weight=weight)
        if self.stage.has_filter:
            stage = stage.with_tau(tau)
        collection = stage.enriched(self.collection)
        return stage.bind(collection), collection

    def ranks(
        self,
        points: Sequence[GridPoint],
        topics: Sequence[Topic],
        docids: Mapping[str, Sequence[str]],
        folder: Path,
        **settings: Any,
    ) -> RankTable:
        """The ranks of the judged documents `docids[qid]` of every question at every point;
        `settings` are those of `judged_ranks`."""
        queries = [QueryContext(topic.text, topic.qid) for topic in topics]
        tables = {}
        for tau in dict.fromkeys(point[3] for point in points):
            of_tau = [point for point in points if point[3] == tau]
            stage, collection = self.at(self.stage.weight, tau)
            judged = [
                JudgedQuery(
                    f"{weight!r} {query.qid}", expansion.weighted(weight), docids[query.qid]
                )
                for query, expansion in zip(queries, stage.expansions(queries), strict=True)
                for weight in dict.fromkeys(point[2] for point in of_tau)
            ]
            pairs = list(dict.fromkeys((k1, b) for k1, b, _, _ in of_tau))
            stored = folder / f"tau-{tau!r}"
            tables[tau] = judged_ranks(collection.index, pairs, judged, stored, **settings)
        ranks = {
            topic.qid: np.stack(
                [
                    tables[tau].ranks[f"{w!r} {topic.qid}"][:, tables[tau].points.index((k1, b))]
                    for k1, b, w, tau in points
                ],
                axis=1,
            )
            for topic in topics
        }
        return RankTable(points, {qid: docids[qid] for qid in ranks}, ranks)


@dataclass(frozen=True)
class TuningInputs:
    """The inputs of a tuning. `selecting` is `reported` if one split is cross-validated; `stages`
    contains only the enrichment, if there is one."""

    grid: Grid
    references: list[GridPoint]
    segmenter: Segmenter
    collection: IndexedCollection
    selecting: Benchmark
    reported: Benchmark
    enrichment: EnrichmentGrid | None
    stages: Stages

    @property
    def points(self) -> list[GridPoint]:
        """The points of the grid, then the other references."""
        return list(dict.fromkeys([*self.grid.points, *self.references]))

    def pipeline(self, point: GridPoint, depth: int) -> pt.Transformer:
        """The ordinary pipeline at a point."""
        k1, b, *of_enrichment = point
        index, stage = self.collection.index, None
        if self.enrichment is not None:
            stage, collection = self.enrichment.at(*of_enrichment)
            index = collection.index
        retriever = index.bm25(k1=k1, b=b, depth=depth)
        return compose(retriever, enrichment=stage, aggregate=self.segmenter.aggregate)


def tuning_inputs(config: DictConfig, grid: Grid, budget: Budget) -> TuningInputs:
    """Open the benchmarks and the index, after all checks that need neither."""
    engine, segmenter = make(config.engine), make(config.unit)
    check_support(frozenset({"grid"}), "tuning", engine.supports, f"engine={engine.name}")
    stages = make_stages(config, budget, ["enrichment"])
    stage = stages.transformers.get("enrichment")
    if stage is None:
        if grid.weight or grid.tau:
            raise InputError(
                "the grid has weights or taus, and there is no enrichment",
                do="choose one (enrichment=feedback), or another grid",
            )
    elif not isinstance(stage, Enrichment):
        raise InputError(f"an enrichment of {type(stage).__name__} cannot be tuned")
    else:
        stage.validate(engine)
    selecting, reported = splits(config)
    collection = prepare(reported, segmenter, engine, Path(config.paths.indexes))
    enrichment = None
    own: GridPoint = ()
    if stage is not None:
        caches = caches_folder(config, writes_obfuscated(config, reported))
        enrichment = EnrichmentGrid(stage, stages.collection(collection, segmenter, caches))
        grid, own = enriched_grid(grid, enrichment), enrichment.own
    references = [reference(numbers, own) for numbers in config.tuning.references]
    return TuningInputs(
        grid, references, segmenter, collection, selecting, reported, enrichment, stages
    )


def enriched_grid(grid: Grid, enrichment: EnrichmentGrid) -> Grid:
    """The grid with the enrichment's own weight and tau on missing axes. `InputError` for axes that
    change nothing."""
    stage = enrichment.stage
    if len(grid.weight) > 1 and stage.query is None:
        raise InputError(
            "the grid has weights, and the enrichment has no query side, which they weigh",
            do="set grid.weight=null",
        )
    if len(grid.tau) > 1 and not stage.has_filter:
        raise InputError(
            "the grid has taus, and the enrichment has no filter", do="set grid.tau=null"
        )
    if stage.exclusions != "none":
        raise InputError(
            "the grid ranks without the exclusions of a query",
            valid="an enrichment without exclusions",
            do="set enrichment.query.exclusions=none",
        )
    return grid.enriched(*enrichment.own)


def reference(numbers: Any, own: GridPoint = ()) -> GridPoint:
    """A setting that is measured in addition to the grid: [k1, b], with the enrichment's `own`
    (weight, tau) if there is one, or all four numbers."""
    values = OmegaConf.to_container(numbers) if OmegaConf.is_list(numbers) else None
    if isinstance(values, list) and all(is_number(value) for value in values):
        point = tuple(map(float, values))
        if len(point) == 2:
            return (*point, *own)
        if len(point) == 4 and own:
            return point
    raise InputError(
        f"tuning.references holds {numbers}",
        valid="pairs [k1, b] of numbers" + (", or [k1, b, weight, tau]" if own else ""),
    )


def splits(config: DictConfig) -> tuple[Benchmark, Benchmark]:
    """The benchmarks whose questions choose and are reported, both with judgements."""
    select, report = config.tuning.select, config.tuning.report
    if select is None:
        benchmark = judged_benchmark(config.benchmark)
        return benchmark, benchmark
    if "split" not in config.benchmark:
        raise InputError("this benchmark has no splits", do=_ONE_SPLIT)
    if select == report:
        raise InputError(
            f"tuning.select and tuning.report are both {select}",
            valid="two splits",
            do=_ONE_SPLIT,
        )
    benchmarks = []
    for split in (select, report):
        changed = config.benchmark.copy()
        changed.split = split
        benchmarks.append(judged_benchmark(changed, split))
    return benchmarks[0], benchmarks[1]


def judged_benchmark(config: DictConfig, split: str | None = None) -> Benchmark:
    """The benchmark of an option; `InputError` if it has no judgements that a tuning can use."""
    try:
        benchmark: Benchmark = make(config)
    except InputError as error:
        if split is None:
            raise
        raise InputError(str(error), do=_ONE_SPLIT) from error
    if benchmark.exclude_own:
        raise InputError(
            "a tuning measures rankings with the question's own document in them",
            do="set benchmark.exclude_own=false",
        )
    if not any(benchmark.qrels.get("evidence", {}).values()):
        named = f"split {split!r} of {benchmark.name}" if split else benchmark.name
        raise InputError(f"{named} has no judged question", valid="a split with judgements")
    return benchmark


def fingerprints_of(settings: Settings, built: TuningInputs) -> dict[str, str]:
    """What must be equal for a tuning to be resumed. The objective and the tests need not be: they
    are computed again from the ranks that are kept. Of an enrichment, its own weight and tau count
    as points of the grid."""
    prints = {
        "benchmark": built.reported.fingerprint,
        "selecting": built.selecting.fingerprint,
        "index": built.collection.fingerprint,
        "grid": fingerprint(built.points, settings.config.tuning.depth),
    }
    if built.enrichment is not None:
        stage, collection = built.enrichment.stage, built.enrichment.collection
        sides = [side.content(collection) for side in (stage.query, stage.corpus) if side]
        prints["enrichment"] = fingerprint(identity_of(settings, ["enrichment"]))
        prints["enrichment.content"] = fingerprint(*sides)
    return prints


def tune(settings: Settings) -> EvaluatedRun:
    """Choose a point of the (k1, b) grid on one split and report it on another.

    With an enrichment, its weight and the limit of its filters are further axes of the grid. The
    ranks of the judged documents at all points come from one pass over the postings of each
    question. They are stored, so that the same command resumes an interrupted tuning. The chosen
    point is checked by an ordinary run, which is returned. `-m unit=document,passage` is a sweep.
    """
    config = settings.config
    # The objective, the configured measures, and recall at each cutoff, each once.
    recalls = [f"R@{cutoff}" for cutoff in CUTOFFS]
    others = [measure for measure in config.measures if measure not in recalls]
    measures = list(dict.fromkeys([config.tuning.objective, *others, *recalls]))
    parse_measures(measures)
    grid: Grid = make(config.grid)
    budget: Budget = make(config.budget)
    groups = named_groups(config)
    chosen = {**factors(settings, groups), "retriever": f"tuned_{grid.name}", "agent": "none"}
    identity = identity_of(settings, groups), plain_values(config.grid), plain_values(config.tuning)
    name = f"{cell_label(settings, groups)}-{chosen['retriever']}-{fingerprint(*identity)[:8]}"
    folder = run_folder(settings, name)
    built = tuning_inputs(config, grid, budget)
    options = config.tuning
    splits_named = (options.select, options.report) if options.select else (_ALL, _ALL)
    with (
        open_run(settings, folder, fingerprints_of(settings, built), chosen, budget) as run,
        run.running(built.stages),
    ):
        folder = run.folder
        result = tuned(config, built, measures, folder)
        write_results(folder, result, config, built, splits_named, run.manifest)
    Console(soft_wrap=True).print(conclusion(result, splits_named))
    Console(stderr=True).print(f"Report: {folder.path}/report.html", soft_wrap=True)
    if not settings.multirun:
        print_next(f"rank or run with retriever=bm25_from_tuning retriever.source={folder.path}")
    return load_run(folder.path)


def named_groups(config: DictConfig) -> tuple[str, ...]:
    """The option groups that name a tuning."""
    return (*TUNED, "enrichment", "llm") if active(config, "enrichment") else TUNED


def tuned(
    config: DictConfig, built: TuningInputs, measures: Sequence[str], folder: RunFolder
) -> TuningResult:
    """Rank, measure and choose. Ranks that are in `folder` are read."""
    options = config.tuning
    sides = {"selecting": built.selecting, "reported": built.reported}
    judged = {
        name: {
            topic.qid: side.qrels["evidence"][topic.qid]
            for topic in side.topics
            if side.qrels["evidence"].get(topic.qid)
        }
        for name, side in sides.items()
    }
    grades = {**judged["selecting"], **judged["reported"]}
    docids = {qid: list(row) for qid, row in grades.items()}
    topics = {topic.qid: topic for side in sides.values() for topic in side.topics}
    stored, how = folder.path / "ranks", {"depth": options.depth, "threads": options.threads}
    started = time.perf_counter()
    if built.enrichment is not None:
        questions = [topics[qid] for qid in docids]
        ranks = built.enrichment.ranks(built.points, questions, docids, stored, **how)
    else:
        index = built.collection.index
        terms = index.analyzer.terms
        queries = [JudgedQuery(qid, terms(topics[qid].text), docids[qid]) for qid in docids]
        ranks = judged_ranks(index, [(k1, b) for k1, b in built.points], queries, stored, **how)
    Console(stderr=True).print(
        f"{len(ranks.ranks):,} questions in {len(built.points):,} points: "
        f"{time.perf_counter() - started:.1f} s",
    )
    tables = {}
    for name, rows in judged.items():
        tables[name] = measure_table(ranks, rows, measures)
        tables[name].save(folder.path / f"{name}.npz")
    if built.selecting is built.reported:
        tables["selecting"] = tables["reported"]
    return tuning.tune(
        built.grid,
        options.objective,
        tables["selecting"],
        tables["reported"],
        references=built.references,
        folds=options.folds if options.select is None else None,
        seed=options.seed,
    )


def _fold_lines(result: TuningResult) -> list[str]:
    """The parameters of the folds of a cross-validation, as lines of YAML. A retriever has k1 and b
    alone: folds that may have weights or taus of their own are left out."""
    folds = result.fold_parameters() if len(result.grid.planes) == 1 else []
    lines = (
        ["fold_parameters:  # of the questions of each fold, chosen on the others"] if folds else []
    )
    for fold in folds:
        questions = json.dumps(fold["questions"], ensure_ascii=False)
        lines += [f"- k1: {fold['k1']!r}", f"  b: {fold['b']!r}", f"  questions: {questions}"]
    return lines


def write_results(
    folder: RunFolder,
    result: TuningResult,
    config: DictConfig,
    built: TuningInputs,
    splits_named: tuple[str, str],
    manifest: Mapping[str, object],
) -> None:
    """Write all files of a tuning except its ranks and tables. A `RuntimeError` if an ordinary run
    at the chosen point has other values than the grid."""
    depth, measures = config.tuning.depth, result.reported.measures
    pipeline = built.pipeline(result.chosen(), depth)
    evaluation = evaluate_pipeline(built.reported, pipeline, list(measures))
    for measure in measures:
        ours = result.reported.by_question(measure, result.choices[result.objective].chosen)
        values = evaluation.per_question[measure]
        if differing := [qid for qid in {*ours, *values} if ours.get(qid) != values.get(qid)]:
            raise RuntimeError(
                f"grid and single run differ in {measure} on {len(differing)} questions, such as "
                f"{differing[:1]}"
            )
    # Copied to `conf/retriever/<name>.yaml`, it is an option like any other.
    write_text(folder.path / CHOSEN, _chosen_option(result, built, depth, splits_named[0]))
    write_json(folder.path / "tuning.json", result.summary())
    means = pd.DataFrame(list(result.points), columns=list(result.grid.names))
    for table, side in ((result.selecting, "selecting"), (result.reported, "reported")):
        for index, measure in enumerate(table.measures):
            means[f"{measure} {side}"] = table.values[index].mean(axis=0)
    write_text(folder.path / "points.csv", means.to_csv(index=False))
    write_evaluation(folder.path, evaluation, state=folder.state())
    report = render_tuning(
        result,
        title=f"Tuning BM25 on {built.reported.name} ({built.segmenter.name})",
        splits=splits_named,
        cutoffs=CUTOFFS,
        manifest=manifest,
    )
    write_report(folder.path, report)


def _chosen_option(result: TuningResult, built: TuningInputs, depth: int, split: str) -> str:
    """The option of a retriever with the parameters that were chosen on a split."""
    point = result.chosen()
    overrides = []
    if built.enrichment is not None:
        numbers, stage = point_settings(point), built.enrichment.stage
        overrides = [f"enrichment.weight={numbers['weight']!r}"]
        overrides += [
            f"enrichment.{side}.tau={numbers['tau']!r}"
            for side in ("query_filter", "corpus_filter")
            if getattr(stage, side) is not None
        ]
    lines = [
        f"# Chosen by {result.objective} on {built.selecting.name}, {split} "
        f"({len(result.selecting.qids)} questions), grid {result.grid.name}",
        *([f"# with {' '.join(overrides)}"] if overrides else []),
        "_target_: soundingline.pipelines.retrieve.BM25",
        *(f"{name}: {value!r}" for name, value in zip(("k1", "b"), point, strict=False)),
        f"depth: {depth}",
        *_fold_lines(result),
    ]
    return "\n".join(lines) + "\n"
