"""One cell of a sweep: what the composed configuration asks for, as live objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyterrier as pt
from omegaconf import DictConfig

from experiments.build import make
from experiments.collection import PreparedCollection, notes, prepare
from experiments.naming import AGENT, lasting
from experiments.settings import Settings
from experiments.stages import Stages, Transformers, composed, make_stages, with_librarians
from pipelines.stage import Stage
from toolkit.console import Console
from toolkit.contracts import Benchmark, Segmenter, is_sealed
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.runs import RunFolder
from toolkit.runs.manifest import SEALED
from toolkit.sealing import mark_sealed


class NotSearched(pt.Transformer):
    """The pipeline of a search tool that declares that it asks none."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        raise InputError(
            "the search tool asks the pipeline, and declares asks_pipeline = False",
            do="leave asks_pipeline out of its class",
        )


@dataclass(frozen=True)
class PreparedPipeline:
    """Benchmark, segmenter, opened index and the pipeline over it; whether what a run of it writes
    is sealed."""

    benchmark: Benchmark
    segmenter: Segmenter
    prepared: PreparedCollection
    pipeline: pt.Transformer
    stages: Stages
    parts: Transformers
    sealed: bool = False


def ranking(
    config: DictConfig, benchmark: Benchmark | None = None, *, searched: bool = True
) -> PreparedPipeline:
    """Build what ranks, over `benchmark` (None: the configuration's). Settings are checked before
    any index is built. Where nothing searches the pipeline, it has no stages, and no index is
    opened before it is asked for."""
    engine = make(config.engine)
    segmenter = make(config.unit)
    stages = with_librarians(make_stages(config), config)
    stages.check(engine)
    benchmark = benchmark or make(config.benchmark)
    indexes = Path(config.paths.indexes)
    prepared = prepare(benchmark, segmenter, engine, indexes, indexed=searched)
    for note in notes(benchmark, prepared):
        Console(stderr=True).print(note, soft_wrap=True)
    sealed = seals(config, benchmark)
    if not searched:
        return PreparedPipeline(
            benchmark, segmenter, prepared, NotSearched(), stages.without_pipeline(), {}, sealed
        )
    caches = caches_folder(config, sealed)
    parts = stages.bind(prepared, segmenter, caches, benchmark)
    pipeline = composed(parts, aggregate=segmenter.aggregate)
    return PreparedPipeline(benchmark, segmenter, prepared, pipeline, stages, parts, sealed)


def seals(config: DictConfig, benchmark: Benchmark) -> bool:
    """Whether what is written of the benchmark's texts is to be obfuscated."""
    return bool(config.sealed) and is_sealed(benchmark)


def form_of(config: DictConfig, benchmark: Benchmark) -> dict[str, str]:
    """For a run's fingerprints: the form of its texts, where the benchmark is sealed. A run holds
    all of its texts in one form: with the setting changed it is another run."""
    return {SEALED: "yes" if seals(config, benchmark) else "no"} if is_sealed(benchmark) else {}


def caches_folder(config: DictConfig, sealed: bool) -> Path | None:
    """Where stages keep results: those of sealed benchmarks have a folder of their own below
    `paths.caches`, which is marked so that what they write is sealed."""
    if config.paths.caches is None:
        return None
    folder = Path(config.paths.caches)
    if not sealed:
        return folder
    mark_sealed(folder / SEALED)
    return folder / SEALED


# Gives what ranks when it is asked for, so that what cannot work is told before.
Prepared = Callable[[], PreparedPipeline]


def fingerprints(
    settings: Settings, built: PreparedPipeline, groups: Sequence[str] = AGENT
) -> dict[str, str]:
    """What must be equal for a run to be resumed: benchmark, indexes, each group's settings, and
    the models of stages."""
    values = lasting(settings, [group for group in groups if group != "benchmark"])
    return {
        "benchmark": built.benchmark.fingerprint,
        **form_of(settings.config, built.benchmark),
        "index": built.prepared.fingerprint,
        **built.prepared.others,
        **{group: fingerprint(chosen) for group, chosen in values.items()},
        **{
            f"{group}.content": part.fingerprint
            for group, part in built.parts.items()
            if isinstance(part, Stage) and part.fingerprint
        },
    }


def run_folder(settings: Settings, name: str) -> RunFolder:
    """`runs/<name>`, or `runs/<name=>/<name>` in a sweep, where `name` is the cell's own."""
    root, given = Path(settings.config.paths.runs), settings.config.name
    if settings.multirun:
        return RunFolder.named(RunFolder.named(root, str(given)).path, name)
    return RunFolder.named(root, given or name)
