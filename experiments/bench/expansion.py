"""`python -m soundingline.experiments.bench.expansion <BEIR folder>`: what link expansion adds to
BM25.

The settings of `LinkExpansion` are chosen on one half of the judged questions (every other one, in
the order of queries.jsonl), by recall at 100, and reported on the other half, both ways; the values
of all questions together are compared with plain BM25's by a paired randomisation test.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from soundingline.pipelines import LexicalIndex, LinkExpansion
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.links import DIRECTIONS, LinkGraph
from soundingline.toolkit.console import Console
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import evaluate_ranking, paired_test

MEASURES = ("R@100", "R@1000", "AP", "nDCG@10")
CHOSEN_BY = "R@100"
GRID = {
    "head": (1, 5, 10, 20, 50),
    "direction": DIRECTIONS,
    "damping": (0.05, 0.1, 0.25, 0.5, 1.0),
}
Values = Mapping[str, Mapping[str, float]]


def measured(ranking: pd.DataFrame, benchmark: BeirBenchmark, qids: Sequence[str]) -> Values:
    """Measure -> qid -> value."""
    ranked = ranking.sort_values("rank", kind="stable").groupby("qid", sort=False)["docno"]
    judged = {qid: benchmark.qrels["evidence"][qid] for qid in qids}
    return evaluate_ranking(
        {qid: list(rows) for qid, rows in ranked}, judged, MEASURES
    ).per_question


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    benchmark = BeirBenchmark(parser.parse_args().folder)
    links = benchmark.links()
    if links is None:
        raise InputError(f"{benchmark.path} has no links.tsv", do="choose another folder")
    units = [Unit(d.docid, d.title, d.text) for d in benchmark.documents()]
    graph = LinkGraph.build(links, {unit.unit_id for unit in units})
    with tempfile.TemporaryDirectory() as folder:
        index = LexicalIndex.build(units, Path(folder) / "index")
        topics = pd.DataFrame(benchmark.topics, columns=["qid", "query"])
        base: pd.DataFrame = index.bm25().transform(topics)
    qids = [topic.qid for topic in benchmark.topics if topic.qid not in benchmark.unjudged]
    without = measured(base, benchmark, qids)
    settings: list[dict[str, Any]] = [
        dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())
    ]
    with_links = []
    for setting in settings:
        expanded = LinkExpansion(graph, **setting).transform(base)
        with_links.append(measured(expanded, benchmark, qids))
    console = Console()
    held_out: dict[str, dict[str, float]] = {measure: {} for measure in MEASURES}
    for chosen_on, reported_on in ((qids[::2], qids[1::2]), (qids[1::2], qids[::2])):
        best = max(
            range(len(settings)),
            key=lambda cell: np.mean([with_links[cell][CHOSEN_BY][qid] for qid in chosen_on]),
        )
        console.print(f"chosen on {len(chosen_on)} questions: {settings[best]}", markup=False)
        for measure in MEASURES:
            held_out[measure] |= {qid: with_links[best][measure][qid] for qid in reported_on}
            values = [
                np.mean([source[measure][qid] for qid in reported_on])
                for source in (without, with_links[best])
            ]
            console.print(f"  {measure} on the others: {values[0]:.4f} -> {values[1]:.4f}")
    for measure in MEASURES:
        row = paired_test(held_out[measure], without[measure])
        console.print(
            f"{measure}: {row.mean_b:.4f} -> {row.mean_a:.4f} ({row.difference:+.4f}, 95 % "
            f"{row.low:+.4f} to {row.high:+.4f}, p {row.p:.4f}, {row.wins} up, {row.losses} down)"
        )


if __name__ == "__main__":
    main()
