"""`python -m soundingline.experiments.bench.building`: an index from raw text, beside PISA and
Anserini.

Arguments: `--documents` (default 10000), `--rounds` (builds of each system, in turns; default 5),
`--seed`, `--write` (put the table into docs/benchmarks.md). The corpus is kept in bench-data/ for
the next run. Anserini is left out where it is not installed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from soundingline.experiments.bench import rivals
from soundingline.experiments.bench.corpus import corpus_file, units
from soundingline.experiments.bench.harness import (
    DATA,
    LIMITS,
    Arguments,
    Cost,
    Section,
    Table,
    in_own_process,
    report,
    run,
    size_mb,
    spread,
)
from soundingline.pipelines.engines.anserini import find_jar
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError

HEAD = ("system", "seconds", "tokens/s", "processor s", "peak MiB", "index MiB")
OURS = "ours, 1 process and its thread"
RATIO_HEAD = ("rival", "s beside ours", "processor s beside ours")
RATIOS = "Times what ours took, each round by itself: the median (least–most)."


def build_ours(corpus: Path, path: Path) -> None:
    """The index of the raw text, which it does not keep, as the others keep none."""
    LexicalIndex.build(units(corpus), path, memory_mb=1024, keep_texts=False)


def build_costs(
    folder: Path, corpus: Path, rounds: int
) -> tuple[dict[str, list[Cost]], dict[str, float]]:
    """The costs of each system's builds, in turns, and the MiB of its index."""
    builds: dict[str, tuple[Any, ...]] = {
        OURS: (build_ours, corpus, folder / "built"),
        "PISA, 2 threads": (rivals.build_pisa, corpus, folder / "pisa", 2),
    }
    try:
        collection = rivals.anserini_collection(corpus, 2)
        find_jar()
        builds["Anserini, 2 threads"] = (rivals.build_anserini, collection, folder / "lucene", 2)
    except InputError as error:
        notify(str(error))
    costs: dict[str, list[Cost]] = {name: [] for name in builds}
    for _ in range(rounds):
        for name, (build, *arguments) in builds.items():
            costs[name].append(in_own_process(build, *arguments))
            notify(f"{name}: {costs[name][-1]}")
    return costs, {name: size_mb(index) for name, (_, _, index, *_) in builds.items()}


def ratio_rows(costs: Mapping[str, Sequence[Cost]]) -> list[list[str]]:
    """How many times what ours took each rival took, seconds and processor seconds, by round,
    since what else a machine does hits all systems of a round."""
    rows = []
    for rival in costs:
        if rival == OURS:
            continue
        rounds = list(zip(costs[rival], costs[OURS], strict=True))
        seconds = spread([theirs.seconds / own.seconds for theirs, own in rounds])
        processor = spread([theirs.processor / own.processor for theirs, own in rounds])
        rows.append([rival, seconds, processor])
    return rows


def _build_row(name: str, costs: Sequence[Cost], tokens: int, size: float) -> list[str]:
    """Seconds (median, and the range), indexed tokens a second, processor seconds, peak memory,
    size."""
    seconds = [cost.seconds for cost in costs]
    middle = statistics.median(seconds)
    processor = statistics.median([cost.processor for cost in costs])
    peak = max(cost.peak_mb for cost in costs)
    numbers = f"{tokens / middle / 1e6:.2f} M", f"{processor:.1f}", f"{peak:,.0f}", f"{size:,.0f}"
    return [name, spread(seconds), *numbers]


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = Arguments("building", documents=(10_000, 1000), rounds=(5, 1), seed=(7, 0))
    options = parser.read(arguments)
    corpus = corpus_file(DATA, options.documents, options.seed)
    costs, sizes = build_costs(corpus.parent, corpus, options.rounds)
    counts = LexicalIndex.open(corpus.parent / "built").statistics
    rows = [_build_row(name, costs[name], counts.tokens, sizes[name]) for name in costs]
    intro = (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens, from one JSONL file (two for "
        f"Anserini's threads); medians of {options.rounds} builds of each in turns (least–most), "
        f"load {os.getloadavg()[0]:.1f}. Of the columns, processor seconds suffer least from what "
        "else a machine does."
    )
    section = Section(
        "building",
        "Building",
        parser.command(options),
        [intro, Table(HEAD, rows), RATIOS, Table(RATIO_HEAD, ratio_rows(costs))],
        packages=rivals.installed("numba", "pyterrier-pisa", "pyserini"),
        limits=f"{LIMITS}, or more than two cores",
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
