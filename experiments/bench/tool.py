"""`python -m soundingline.experiments.bench.tool`: milliseconds of a tool call on a large index.

A search call ranks 1000 documents and shows five excerpts; a read call shows 200 lines of one of
the documents that a search showed. Arguments are those of `soundingline.experiments.bench.lexical`,
whose corpus and index it uses and makes if they are not there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from soundingline.experiments.bench.corpus import corpus_file, units
from soundingline.experiments.bench.harness import (
    DATA,
    Arguments,
    Section,
    Table,
    latencies,
    report,
    run,
)
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.console import track
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document
from soundingline.toolkit.search import RankedBrowsing

QUESTIONS = 60
HEAD = ("call", "ms, median of 5 rounds (lowest–highest round)", "target")


def store_of(corpus: Path, documents: int) -> SqliteStore:
    """The document store beside the corpus file; built if it is not there."""
    path = corpus.parent / "documents"
    if not path.exists():
        reading = track(_documents(corpus), "storing", documents)
        SqliteStore.build(path, reading, corpus_fingerprint="bench").close()
    return SqliteStore(path)


def _documents(corpus: Path) -> Iterator[Document]:
    return (Document(unit.unit_id, unit.title, unit.text) for unit in units(corpus))


def queries_of(documents: int, seed: int) -> dict[str, list[str]]:
    """Queries as agents issue them: eight words of a question, and the question whole."""
    world = FictionalWorld(documents=documents, questions=QUESTIONS, seed=seed)
    questions = [topic.text for topic in world.topics]
    chance = random.Random(seed)
    words = [text.split() for text in questions]
    short = [" ".join(chance.sample(of, min(8, len(of)))) for of in words]
    return {"search, 8 words": short, "search, whole question": questions}


def tool_rows(
    index: LexicalIndex, store: SqliteStore, queries: dict[str, list[str]]
) -> list[list[str]]:
    """Median milliseconds of each kind of call; every search is a fresh one."""
    backend = PipelineBackend(index.bm25(k1=0.9, b=0.4, depth=1000))
    interface = RankedBrowsing()
    docids: dict[str, None] = {}

    def search(query: str) -> None:
        # A session of its own: a repeated query would be served from the session's cache.
        session = interface.open(backend, store)
        result = session.call("search", {"reason": "", "query": query})
        docids.update(dict.fromkeys(result.call.shown))

    reader = interface.open(backend, store)

    def read(docid: str) -> None:
        reader.call("read_document", {"reason": "", "docid": docid})

    rows = []
    for name, texts in queries.items():
        latency = latencies({name: search}, texts, 5)[name]
        rows.append([name, str(latency), "10"])
    latency = latencies({"read": read}, list(docids), 5)["read"]
    return [*rows, ["read_document", str(latency), "2"]]


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = Arguments("tool", documents=(100_000, 1000), seed=(7, 0))
    options = parser.read(arguments)
    corpus = corpus_file(DATA, options.documents, options.seed)
    folder = corpus.parent / "ours"
    if not folder.exists():
        LexicalIndex.build(units(corpus), folder)
    index, store = LexicalIndex.open(folder), store_of(corpus, options.documents)
    rows = tool_rows(index, store, queries_of(options.documents, options.seed))
    intro = (
        f"{len(index):,} documents; a search ranks 1000 and shows five excerpts, a read shows "
        f"200 lines. One thread; load {os.getloadavg()[0]:.1f}."
    )
    section = Section("tool", "Search tool", parser.command(options), [intro, Table(HEAD, rows)])
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
