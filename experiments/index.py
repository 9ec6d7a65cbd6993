"""`soundingline index`: build the document store and the indexes of a benchmark and unit:
the engine's, and that of a learned retriever."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from soundingline.experiments.build import make
from soundingline.experiments.cli import main
from soundingline.experiments.collection import notes, prepare
from soundingline.experiments.config import Settings
from soundingline.experiments.pipeline import Stages
from soundingline.toolkit.console import Console


def index(settings: Settings) -> None:
    """Build what is missing; print where the indexes stand and what they hold."""
    config = settings.config
    engine, segmenter, benchmark = make(config.engine), make(config.unit), make(config.benchmark)
    stages = Stages({"retriever": make(config.retriever)})
    stages.validate(engine)
    prepared = prepare(benchmark, segmenter, engine, Path(config.paths.indexes))
    stages.bind(prepared, segmenter, None)
    console = Console()
    console.print(
        f"{prepared.path}: {len(prepared.index):,} units of {len(prepared.store):,} documents",
        highlight=False,
        soft_wrap=True,
    )
    for name in prepared.others:
        console.print(prepared.folder / name, highlight=False, soft_wrap=True)
    for note in notes(benchmark, prepared):
        console.print(note, soft_wrap=True)


start = partial(main, index)
