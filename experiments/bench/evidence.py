"""`python -m soundingline.experiments.bench.evidence`: seconds to locate the evidence for 5
requirements in 1,000 documents of the fictional world, in passages, without a model."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.evidence import LexicalLocator
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.console import Console
from soundingline.toolkit.corpus import Passages

DOCUMENTS, REQUIREMENTS, TARGET = 1000, 5, 2.0


def main() -> None:
    """Build the index, locate, and print the median and the slowest of the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    world, cut = FictionalWorld(documents=2 * DOCUMENTS, questions="sets"), Passages()
    units = (unit for document in world.documents() for unit in cut.units(document))
    texts = [text for checklist in world.checklists.values() for text in checklist]
    docids = [document.docid for document in world.documents(stop=DOCUMENTS)]
    with tempfile.TemporaryDirectory() as folder:
        locator = LexicalLocator(LexicalIndex.build(units, Path(folder) / "index"))
        seconds = []
        for turn in range(runs):
            requirements = texts[turn * REQUIREMENTS : (turn + 1) * REQUIREMENTS]
            began = time.perf_counter()
            locator.locate(docids, requirements)
            seconds.append(time.perf_counter() - began)
    Console().print(
        f"{DOCUMENTS:,} documents x {REQUIREMENTS} requirements, {len(locator.index):,} passages: "
        f"median {statistics.median(seconds):.3f} s, slowest {max(seconds):.3f} s "
        f"(target {TARGET} s)"
    )


if __name__ == "__main__":
    main()
