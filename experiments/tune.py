"""Tuning BM25: the ranks of judged documents at all points of a grid, the choice, and its report.

The limit of an enrichment's filters changes the phrases, so that each tau has an index of its own,
which is ranked in a pass of its own over the questions. Within a pass, every weight of a question
is a separate query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyterrier as pt
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

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
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.enrich.phrases import QueryContext
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, print_next, progress_bar
from soundingline.toolkit.corpus.segmentation import Segmenter
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError, is_number
from soundingline.toolkit.evaluation import tuning, write_evaluation
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

_SECONDS = 10.0  # between two files, which an interrupt may lose


def judged_ranks(
    index: LexicalIndex,
    points: Sequence[tuple[float, float]],
    questions: Sequence[JudgedQuery],
    folder: Path,
    *,
    depth: int,
    threads: int | None = None,
) -> RankTable:
    """Rank every question at every point (k1, b).

    Args:
        index: the index.
        points: the points.
        questions: the questions with their judged documents.
        folder: holds parts of the table (`<n>.npz`), which are written atomically every few
            seconds. Questions that a part contains are not ranked again.
        depth: the number of documents of a ranking.
        threads: None for one for each core.
    """
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    parts = [RankTable.load(path) for path in sorted(folder.glob("*.npz"))]
    done = {qid for part in parts for qid in part.ranks}
    pending = [question for question in questions if question.qid not in done]
    if pending:
        grid = GridBM25(index, points, depth=depth)
        parts += _computed(grid, pending, folder, len(parts), threads)
    return RankTable.joined(parts)


def _computed(
    grid: GridBM25,
    pending: Sequence[JudgedQuery],
    folder: Path,
    number: int,
    threads: int | None,
) -> list[RankTable]:
    docids = {question.qid: question.docids for question in pending}
    parts: list[RankTable] = []
    ranks_of: dict[str, NDArray[np.int32]] = {}

    def keep() -> None:
        if ranks_of:
            part = RankTable(grid.cells, {qid: docids[qid] for qid in ranks_of}, dict(ranks_of))
            part.save(folder / f"{number + len(parts):05d}.npz")
            parts.append(part)
            ranks_of.clear()

    with progress_bar() as progress:
        task = progress.add_task(f"Ranking {len(grid.cells):,} points", total=len(pending), note="")
        last = time.monotonic()
        try:
            for qid, ranks in grid.ranks(pending, threads):
                ranks_of[qid] = ranks
                progress.advance(task)
                if time.monotonic() - last > _SECONDS:
                    keep()
                    last = time.monotonic()
        finally:
            keep()
    return parts


@dataclass(frozen=True)
class EnrichmentGrid:
    """An enrichment whose weight and tau are tuned, and the collection without its phrases."""

    stage: Enrichment
    collection: Collection

    @property
    def weight(self) -> float:
        return self.stage.weight

    @property
    def tau(self) -> float:
        """The limit of its filters; of the query's filter if they differ; 1 without a filter."""
        filters = (self.stage.query_filter, self.stage.corpus_filter)
        return next((filter_.tau for filter_ in filters if filter_ is not None), 1.0)

    def at(self, weight: float, tau: float) -> tuple[Enrichment, Collection]:
        """The stage with this weight and tau, bound to a collection, and that collection."""
        stage = self.stage.with_weight(weight)
        if self.stage.has_filter:
            stage = stage.with_tau(tau)
        collection = stage.enriched(self.collection)
        return stage.bind(collection), collection

    def pipeline(self, point: GridPoint, depth: int, *, aggregate: bool) -> pt.Transformer:
        """The ordinary pipeline at a point (k1, b, weight, tau)."""
        k1, b, weight, tau = point
        stage, collection = self.at(weight, tau)
        retriever = collection.index.bm25(k1=k1, b=b, depth=depth)
        return compose(retriever, enrichment=stage, aggregate=aggregate)

    def ranks(
        self,
        points: Sequence[GridPoint],
        topics: Sequence[Topic],
        docids: Mapping[str, Sequence[str]],
        folder: Path,
        *,
        depth: int,
        threads: int | None = None,
    ) -> RankTable:
        """The ranks of the judged documents `docids[qid]` of every question at every point."""
        columns: dict[str, dict[GridPoint, NDArray[np.int32]]] = {topic.qid: {} for topic in topics}
        for tau in dict.fromkeys(point[3] for point in points):
            of_tau = [point for point in points if point[3] == tau]
            settings = list(dict.fromkeys((k1, b) for k1, b, _, _ in of_tau))
            weights = list(dict.fromkeys(weight for _, _, weight, _ in of_tau))
            stage, collection = self.at(self.weight, tau)
            queries = _queries(stage, topics, docids, weights)
            table = judged_ranks(
                collection.index,
                settings,
                queries,
                folder / f"tau-{tau!r}",
                depth=depth,
                threads=threads,
            )
            for qid, of_question in columns.items():
                for point in of_tau:
                    ranks = table.ranks[_key(qid, point[2])]
                    of_question[point] = ranks[:, settings.index((point[0], point[1]))]
        by_question = {
            qid: np.stack([of_question[point] for point in points], axis=1)
            for qid, of_question in columns.items()
        }
        return RankTable(points, {qid: docids[qid] for qid in by_question}, by_question)


def _queries(
    stage: Enrichment,
    topics: Sequence[Topic],
    docids: Mapping[str, Sequence[str]],
    weights: Sequence[float],
) -> list[JudgedQuery]:
    """A query for each question and weight."""
    queries = [QueryContext(topic.text, topic.qid) for topic in topics]
    return [
        JudgedQuery(_key(query.qid, weight), expansion.weighted(weight), docids[query.qid])
        for query, expansion in zip(queries, stage.expansions(queries), strict=True)
        for weight in weights
    ]


def chosen_overrides(point: GridPoint, stage: Enrichment) -> dict[str, float]:
    """The configuration keys that set an enrichment to the weight and tau of a point."""
    numbers = point_settings(point)
    overrides = {"enrichment.weight": numbers["weight"]}
    for side in ("query_filter", "corpus_filter"):
        if getattr(stage, side) is not None:
            overrides[f"enrichment.{side}.tau"] = numbers["tau"]
    return overrides


def _key(qid: str, weight: float) -> str:
    """The name of a question at a weight in rank tables."""
    return f"{weight!r} {qid}"


@dataclass(frozen=True)
class TuningInputs:
    """The inputs of a tuning. `selecting` is `reported` if one split is cross-validated; `stages`
    contains only the enrichment, if there is one."""

    grid: Grid
    references: list[GridPoint]
    segmenter: Segmenter
    prepared: IndexedCollection
    selecting: Benchmark
    reported: Benchmark
    enrichment: EnrichmentGrid | None
    stages: Stages

    @property
    def points(self) -> list[GridPoint]:
        """The points of the grid, then the other references."""
        return list(dict.fromkeys([*self.grid.points, *self.references]))


def wanted_measures(config: DictConfig) -> list[str]:
    """The objective, the configured measures, and recall at each cutoff, each once."""
    recalls = [f"R@{cutoff}" for cutoff in config.tuning.cutoffs]
    others = [measure for measure in config.measures if measure not in recalls]
    names = list(dict.fromkeys([config.tuning.objective, *others, *recalls]))
    parse_measures(names)
    return names


def tuning_inputs(config: DictConfig, grid: Grid) -> TuningInputs:
    """Open the benchmarks and the index, after all checks that need neither."""
    engine, segmenter = make(config.engine), make(config.unit)
    if "grid" not in engine.supports:
        raise InputError(
            f"the engine {engine.name} does not offer the statistics that tuning reads",
            valid="lexical",
            do="tune with engine=lexical; its settings hold for Lucene's BM25, so for anserini too",
        )
    stages = make_stages(config, ["enrichment"])
    stage = stages.transformers.get("enrichment")
    if stage is not None and not isinstance(stage, Enrichment):
        raise InputError(f"an enrichment of {type(stage).__name__} cannot be tuned")
    if stage is None and (grid.weight or grid.tau):
        raise InputError(
            "the grid has weights or taus, and there is no enrichment",
            do="choose one (enrichment=feedback), or another grid",
        )
    if stage is not None:
        stage.validate(engine)
    selecting, reported = splits(config)
    prepared = prepare(reported, segmenter, engine, Path(config.paths.indexes))
    enrichment = None
    if stage is not None:
        caches = caches_folder(config, writes_obfuscated(config, reported))
        enrichment = EnrichmentGrid(stage, stages.collection(prepared, segmenter, caches))
        grid = enriched_grid(grid, enrichment)
    own = (enrichment.weight, enrichment.tau) if enrichment else ()
    references = [reference(numbers, own) for numbers in config.tuning.references]
    return TuningInputs(
        grid, references, segmenter, prepared, selecting, reported, enrichment, stages
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
    return grid.enriched(enrichment.weight, enrichment.tau)


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
    tuning = config.tuning
    if tuning.select is None:
        benchmark = judged_benchmark(config.benchmark)
        return benchmark, benchmark
    if "split" not in config.benchmark:
        raise InputError(
            "this benchmark has no splits", do="tuning.select=null tunes it by cross-validation"
        )
    if tuning.select == tuning.report:
        raise InputError(
            f"tuning.select and tuning.report are both {tuning.select}",
            valid="two splits",
            do="tuning.select=null cross-validates one split",
        )
    selecting, reported = (
        judged_benchmark(with_split(config.benchmark, split), split)
        for split in (tuning.select, tuning.report)
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
    are computed again from the ranks that are kept."""
    config = settings.config
    return {
        "benchmark": built.reported.fingerprint,
        "selecting": built.selecting.fingerprint,
        "index": built.prepared.fingerprint,
        "grid": fingerprint(built.points, config.tuning.depth),
        **enrichment_prints(settings, built),
    }


def enrichment_prints(settings: Settings, built: TuningInputs) -> dict[str, str]:
    """Of the enrichment's settings, and of what decides its phrases; its own weight and tau count
    as points of the grid."""
    if built.enrichment is None:
        return {}
    stage, collection = built.enrichment.stage, built.enrichment.collection
    lasting_settings = identity_of(settings, ["enrichment"])
    sides = [side for side in (stage.query, stage.corpus) if side is not None]
    return {
        "enrichment": fingerprint(lasting_settings),
        "enrichment.content": fingerprint(*[side.content(collection) for side in sides]),
    }


class Judged(NamedTuple):
    """A question and its judged documents."""

    topic: Topic
    grades: Mapping[str, int]


def tune(settings: Settings) -> None:
    """Choose a point of the (k1, b) grid on one split and report it on another.

    With an enrichment, its weight and the limit of its filters are further axes of the grid. The
    ranks of the judged documents at all points come from one pass over the postings of each
    question. They are stored, so that the same command resumes an interrupted tuning. The chosen
    point is checked by an ordinary run. `-m unit=document,passage` is a sweep.
    """
    config = settings.config
    measures = wanted_measures(config)
    grid: Grid = make(config.grid)
    groups = named_groups(config)
    chosen = {
        **factors(settings, groups),
        "retriever": f"tuned_{grid.name}",
        "agent": "none",
    }
    identity = identity_of(settings, groups), plain_values(config.grid), plain_values(config.tuning)
    name = f"{cell_label(settings, groups)}-{chosen['retriever']}-{fingerprint(*identity)[:8]}"
    folder = run_folder(settings, name)
    built = tuning_inputs(config, grid)
    with (
        open_run(settings, folder, fingerprints_of(settings, built), chosen) as run,
        run.running(built.stages),
    ):
        folder = run.folder
        result = tuned(config, built, measures, folder)
        write_results(folder, result, config, built, run.manifest)
    splits_named = named_splits(config.tuning)
    Console(soft_wrap=True).print(conclusion(result, splits_named), highlight=False)
    console = Console(stderr=True)
    console.print(f"Report: {folder.path}/report.html", highlight=False, soft_wrap=True)
    if not settings.multirun:
        print_next(f"rank or run with retriever=bm25_from_tuning retriever.source={folder.path}")


def named_groups(config: DictConfig) -> tuple[str, ...]:
    """The option groups that name a tuning."""
    return (*TUNED, "enrichment", "llm") if active(config, "enrichment") else TUNED


def tuned(
    config: DictConfig, built: TuningInputs, measures: Sequence[str], folder: RunFolder
) -> TuningResult:
    """Rank, measure and choose."""
    options = config.tuning
    sides = {"selecting": built.selecting, "reported": built.reported}
    judged = {name: judged_questions(side) for name, side in sides.items()}
    started = time.perf_counter()
    table = ranks_of(config, built, {**judged["selecting"], **judged["reported"]}, folder)
    seconds = time.perf_counter() - started
    Console(stderr=True).print(
        f"{len(table.ranks):,} questions in {len(built.points):,} points: {seconds:.1f} s",
        highlight=False,
    )
    tables = {
        name: measure_table(table, {qid: row.grades for qid, row in rows.items()}, measures)
        for name, rows in judged.items()
    }
    if built.selecting is built.reported:
        tables["selecting"] = tables["reported"]
    tables["selecting"].save(folder.path / "selecting.npz")
    tables["reported"].save(folder.path / "reported.npz")
    return tuning.tune(
        built.grid,
        options.objective,
        tables["selecting"],
        tables["reported"],
        references=built.references,
        folds=options.folds if options.select is None else None,
        seed=options.seed,
        alpha=options.alpha,
    )


def ranks_of(
    config: DictConfig, built: TuningInputs, questions: Mapping[str, Judged], folder: RunFolder
) -> RankTable:
    """The ranks of every question at every point; those in `folder` are read."""
    where = folder.path / "ranks"
    how = {"depth": config.tuning.depth, "threads": config.tuning.threads}
    docids = {qid: list(row.grades) for qid, row in questions.items()}
    if built.enrichment is not None:
        topics = [row.topic for row in questions.values()]
        return built.enrichment.ranks(built.points, topics, docids, where, **how)
    index = built.prepared.index
    queries = [
        JudgedQuery(qid, index.analyzer.terms(row.topic.text), docids[qid])
        for qid, row in questions.items()
    ]
    pairs = [(k1, b) for k1, b in built.points]
    return judged_ranks(index, pairs, queries, where, **how)


def judged_questions(benchmark: Benchmark) -> dict[str, Judged]:
    """The questions with judgements."""
    grades = benchmark.qrels["evidence"]
    return {
        topic.qid: Judged(topic, grades[topic.qid])
        for topic in benchmark.topics
        if grades.get(topic.qid)
    }


def write_results(
    folder: RunFolder,
    result: TuningResult,
    config: DictConfig,
    built: TuningInputs,
    manifest: Mapping[str, object],
) -> None:
    """Write all files of a tuning except its ranks and tables."""
    options, point = config.tuning, result.chosen()
    pipeline = pipeline_of(built, point, options.depth)
    evaluation = evaluate_pipeline(built.reported, pipeline, list(result.reported.measures))
    check_same_values(result, evaluation.per_question)
    names = named_splits(options)
    comment = (
        f"Chosen by {result.objective} on {built.selecting.name}, {names[0]} "
        f"({len(result.selecting.qids)} questions), grid {result.grid.name}"
    )
    overrides = chosen_overrides(point, built.enrichment.stage) if built.enrichment else {}
    write_chosen(folder.path, point, options.depth, comment, overrides)
    write_json(folder.path / "tuning.json", result.summary())
    write_points(folder.path / "points.csv", result)
    write_evaluation(folder.path, evaluation, state=folder.state())
    title = f"Tuning BM25 on {built.reported.name} ({built.segmenter.name})"
    report = render_tuning(
        result, title=title, splits=names, cutoffs=list(options.cutoffs), manifest=manifest
    )
    write_report(folder.path, report)


def named_splits(options: DictConfig) -> tuple[str, str]:
    """How reports name the questions that choose and those that are reported."""
    return (options.select, options.report) if options.select else ("all questions",) * 2


def pipeline_of(built: TuningInputs, point: GridPoint, depth: int) -> pt.Transformer:
    """The ordinary pipeline at a point."""
    aggregate = built.segmenter.aggregate
    if built.enrichment is not None:
        return built.enrichment.pipeline(point, depth, aggregate=aggregate)
    k1, b = point
    return compose(built.prepared.index.bm25(k1=k1, b=b, depth=depth), aggregate=aggregate)


def check_same_values(result: TuningResult, values: Mapping[str, Mapping[str, float]]) -> None:
    """Compare the values of the chosen point with those of its ordinary run."""
    point = result.choices[result.objective].chosen
    for measure in result.reported.measures:
        ours = result.reported.by_question(measure, point)
        if ours != dict(values[measure]):
            differing = [qid for qid, value in ours.items() if values[measure].get(qid) != value]
            raise RuntimeError(
                f"grid and single run differ in {measure} on {len(differing)} questions, such as "
                f"{differing[:1]}"
            )


def write_points(path: Path, result: TuningResult) -> None:
    """Write the mean of every measure at every point as CSV."""
    import pandas as pd

    rows = pd.DataFrame(list(result.points), columns=list(result.grid.names))
    for table, side in ((result.selecting, "selecting"), (result.reported, "reported")):
        for index, measure in enumerate(table.measures):
            rows[f"{measure} {side}"] = table.values[index].mean(axis=0)
    write_text(path, rows.to_csv(index=False))


def write_chosen(
    folder: Path,
    cell: GridPoint,
    depth: int,
    comment: str,
    overrides: Mapping[str, float] | None = None,
) -> Path:
    """Write the option. Copied to `conf/retriever/<name>.yaml` it is one like any other.
    `overrides` of other groups, which were chosen with it, are said in a comment."""
    others = " ".join(f"{key}={value!r}" for key, value in (overrides or {}).items())
    text = (
        f"# {comment}\n"
        + (f"# with {others}\n" if others else "")
        + "_target_: soundingline.pipelines.retrieve.BM25\n"
        f"k1: {cell[0]!r}\nb: {cell[1]!r}\ndepth: {depth}\n"
    )
    write_text(folder / CHOSEN, text)
    return folder / CHOSEN
