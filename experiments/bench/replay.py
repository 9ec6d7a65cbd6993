"""`python -m soundingline.experiments.bench.replay`: seconds to replay recorded questions through
another BM25.

Each recorded question has 25 searches, as agents issue them, and reads 5 documents. The run is
recorded with k1=0.9, b=0.4 and replayed with k1=25, b=1, pages, overlaps and evaluation included.
`--questions` is the number that is measured; the time is told for 830. Corpus and index are those
of `soundingline.experiments.bench.lexical`, made if they are not there.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from soundingline.experiments.bench.corpus import corpus_file, units
from soundingline.experiments.bench.harness import DATA, Arguments, Section, Table, report, run
from soundingline.experiments.bench.tool import queries_of, store_of
from soundingline.experiments.replay import Replaying
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.data import DocumentStore, Topic
from soundingline.toolkit.evaluation import evaluate_run
from soundingline.toolkit.evaluation.replay import without_answer
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.trajectory import Trajectory

SEARCHES, READS, WHOLE = 25, 5, 830
HEAD = ("questions", "s, wall", "s, CPU", "ms CPU a search", f"s of {WHOLE} questions", "target")


def recorded(
    folder: RunFolder, index: LexicalIndex, store: DocumentStore, queries: Sequence[str], count: int
) -> list[Topic]:
    """Write a run of `count` questions."""
    backend, interface = PipelineBackend(index.bm25(k1=0.9, b=0.4, depth=1000)), RankedBrowsing()
    chance, topics = random.Random(3), [Topic(f"q{number:04}", "") for number in range(count)]
    with folder.writing({"fingerprints": {}}):
        for topic in topics:
            session = interface.open(backend, store)
            for query in chance.choices(queries, k=SEARCHES):
                words = query.split()
                chance.shuffle(words)
                session.call("search", {"reason": "", "query": " ".join(words)})
            for docid in session.exposures.tiers["previewed"][:READS]:
                session.call("read_document", {"reason": "", "docid": docid})
            exposures = session.exposures
            row = Trajectory(topic.qid, "", "completed", tiers=exposures.tiers)
            row = without_answer(row, session.calls)
            folder.write(row)
    return topics


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = Arguments(
        "replay", documents=(100_000, 1000), questions=(100, 2), threads=(2, 1), seed=(7, 0)
    )
    options = parser.read(arguments)
    corpus = corpus_file(DATA, options.documents, options.seed)
    folder = corpus.parent / "ours"
    if not folder.exists():
        LexicalIndex.build(units(corpus), folder)
    index, store = LexicalIndex.open(folder), store_of(corpus, options.documents)
    queries = queries_of(options.documents, options.seed)["search, 8 words"]
    with tempfile.TemporaryDirectory() as directory:
        run_folder = RunFolder(Path(directory) / "run")
        topics = recorded(run_folder, index, store, queries, options.questions)
        backend = PipelineBackend(index.bm25(k1=25, b=1, depth=1000))
        evidence = {topic.qid: frozenset(["fw0000001"]) for topic in topics}
        replaying = Replaying(backend, store, RankedBrowsing(), evidence)
        began, cpu = time.perf_counter(), time.process_time()
        replaying.replay(run_folder, options.threads)
        for side in (replaying.recorded, replaying.replayed):
            judged = {qid: dict.fromkeys(docids, 1) for qid, docids in evidence.items()}
            evaluate_run(side.rows, Benchmark("bench", topics, {"evidence": judged}))
        wall, used = time.perf_counter() - began, time.process_time() - cpu
    searches = options.questions * SEARCHES
    row = [
        f"{options.questions}",
        f"{wall:.1f}",
        f"{used:.1f}",
        f"{1000 * used / searches:.2f}",
        f"{wall / options.questions * WHOLE:.0f}",
        "120",
    ]
    intro = (
        f"{len(index):,} documents; {SEARCHES} searches of 8 words and {READS} reads a question, "
        f"{options.threads} threads."
    )
    section = Section("replay", "Replay", parser.command(options), [intro, Table(HEAD, [row])])
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
