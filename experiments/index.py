"""`python -m experiments.index`: build the document store and the index of a benchmark and unit."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from experiments.build import make
from experiments.entry import main
from experiments.prepare import notes, prepare


def index(config: DictConfig) -> None:
    """Build what is missing; print where the index stands and what it holds."""
    engine, segmenter, benchmark = make(config.engine), make(config.unit), make(config.benchmark)
    prepared = prepare(benchmark, segmenter, engine, Path(config.paths.indexes))
    console = Console()
    console.print(
        f"{prepared.path}: {len(prepared.index):,} units of {len(prepared.store):,} documents",
        highlight=False,
        soft_wrap=True,
    )
    for note in notes(benchmark, prepared):
        console.print(note, soft_wrap=True)


if __name__ == "__main__":
    main(index)
