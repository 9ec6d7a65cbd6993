"""What a tuning works on: measures, grid, splits and index, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.build import make
from experiments.collection import PreparedCollection, prepare
from toolkit.contracts import Benchmark, Segmenter
from toolkit.errors import InputError
from toolkit.evaluation.retrieval import parse_measures
from toolkit.evaluation.tuning import Grid
from toolkit.evaluation.tuning.ranks import GridPoint
from toolkit.files import fingerprint


@dataclass(frozen=True)
class Setup:
    """What a tuning works on. `selecting` is `reported` where one split is cross-validated."""

    grid: Grid
    references: list[GridPoint]
    segmenter: Segmenter
    prepared: PreparedCollection
    selecting: Benchmark
    reported: Benchmark

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
    selecting, reported = splits(config)
    references = [reference(pair) for pair in config.tuning.references]
    prepared = prepare(reported, segmenter, engine, Path(config.paths.indexes))
    return Setup(grid, references, segmenter, prepared, selecting, reported)


def reference(pair: Any) -> GridPoint:
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
