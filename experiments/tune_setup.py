"""What a tuning works on: measures, grid, splits and index, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.build import make
from experiments.collection import PreparedCollection, prepare
from experiments.naming import lasting
from experiments.pipeline import Stages, caches_folder, make_stages, seals
from experiments.settings import Settings
from experiments.tune_enriched import TunedEnrichment
from pipelines.enrich.stage import Enrichment
from toolkit.checks import is_number
from toolkit.contracts import Benchmark, Segmenter
from toolkit.errors import InputError
from toolkit.evaluation.retrieval import parse_measures
from toolkit.evaluation.tuning import Grid
from toolkit.evaluation.tuning.ranks import GridPoint
from toolkit.files import fingerprint


@dataclass(frozen=True)
class Setup:
    """What a tuning works on. `selecting` is `reported` where one split is cross-validated;
    `stages` holds the enrichment alone, if there is one."""

    grid: Grid
    references: list[GridPoint]
    segmenter: Segmenter
    prepared: PreparedCollection
    selecting: Benchmark
    reported: Benchmark
    enrichment: TunedEnrichment | None
    stages: Stages

    @property
    def cells(self) -> list[GridPoint]:
        """The grid's cells, then the references that are not among them."""
        return list(dict.fromkeys([*self.grid.cells, *self.references]))


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
    if "grid" not in engine.offers:
        raise InputError(
            f"the engine {engine.name} does not offer the statistics that tuning reads",
            valid="lexical",
            do="tune with engine=lexical; its cells hold for Lucene's BM25, so for anserini too",
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
        stage.check(engine)
    selecting, reported = splits(config)
    prepared = prepare(reported, segmenter, engine, Path(config.paths.indexes))
    enrichment = None
    if stage is not None:
        caches = caches_folder(config, seals(config, reported))
        enrichment = TunedEnrichment(stage, stages.collection(prepared, segmenter, caches))
        grid = enriched_grid(grid, enrichment)
    own = (enrichment.weight, enrichment.tau) if enrichment else ()
    references = [reference(numbers, own) for numbers in config.tuning.references]
    return Setup(grid, references, segmenter, prepared, selecting, reported, enrichment, stages)


def enriched_grid(grid: Grid, enrichment: TunedEnrichment) -> Grid:
    """The grid with the enrichment's own weight and tau where it has none. `InputError` for values
    that change nothing."""
    stage = enrichment.stage
    if len(grid.weight) > 1 and stage.query is None:
        raise InputError(
            "the grid has weights, and the enrichment has no query side, which they weigh",
            do="set grid.weight=null",
        )
    if len(grid.tau) > 1 and not (stage.query_filter or stage.corpus_filter):
        raise InputError(
            "the grid has taus, and the enrichment has no filter", do="set grid.tau=null"
        )
    return grid.enriched(enrichment.weight, enrichment.tau)


def reference(numbers: Any, own: GridPoint = ()) -> GridPoint:
    """A setting that is measured beside the grid: [k1, b], in a tuning of an enrichment with its
    `own` (weight, tau), or all four."""
    values = OmegaConf.to_container(numbers) if OmegaConf.is_list(numbers) else None
    if isinstance(values, list) and all(is_number(value) for value in values):
        cell = tuple(map(float, values))
        if len(cell) == 2:
            return (*cell, *own)
        if len(cell) == 4 and own:
            return cell
    raise InputError(
        f"tuning.references holds {numbers}",
        valid="pairs [k1, b] of numbers" + (", or [k1, b, weight, tau]" if own else ""),
    )


def splits(config: DictConfig) -> tuple[Benchmark, Benchmark]:
    """The benchmark that chooses and the one that is reported, both with judged questions."""
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
    if not any(benchmark.judgements.get("evidence", {}).values()):
        named = f"split {split!r} of {benchmark.name}" if split else benchmark.name
        raise InputError(f"{named} has no judged question", valid="a split with judgements")
    return benchmark


def prints(settings: Settings, built: Setup) -> dict[str, str]:
    """What must be equal for a tuning to be resumed. The objective and the tests need not be: they
    are computed again from the ranks that are kept."""
    config = settings.config
    return {
        "benchmark": built.reported.fingerprint,
        "selecting": built.selecting.fingerprint,
        "index": built.prepared.fingerprint,
        "grid": fingerprint(built.cells, config.tuning.depth),
        **enrichment_prints(settings, built),
    }


def enrichment_prints(settings: Settings, built: Setup) -> dict[str, str]:
    """Of the enrichment's settings, and of what decides its phrases; its own weight and tau count
    as cells of the grid."""
    if built.enrichment is None:
        return {}
    stage, collection = built.enrichment.stage, built.enrichment.collection
    lasting_settings = lasting(settings, ["enrichment"])
    sides = [side for side in (stage.query, stage.corpus) if side is not None]
    return {
        "enrichment": fingerprint(lasting_settings),
        "enrichment.content": fingerprint(*[side.content(collection) for side in sides]),
    }
