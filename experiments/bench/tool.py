"""`python -m experiments.bench.tool`: milliseconds of a tool call on a large index.

A search call ranks 1000 documents and shows five excerpts; a read call shows 200 lines of one of
the documents that a search showed. Arguments are those of `experiments.bench.lexical`, whose corpus
and index it uses and makes if they are not there.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from experiments.bench.corpus import corpus_file, units
from experiments.bench.measure import medians
from experiments.bench.page import setup_text, table_text, write_section
from pipelines.backend import PipelineBackend
from pipelines.lexical import LexicalIndex
from toolkit.benchmarks import FictionalWorld
from toolkit.console import Console, tell
from toolkit.contracts import Document
from toolkit.corpus import SqliteStore
from toolkit.errors import InputError
from toolkit.progress import track
from toolkit.search import RankedBrowsing

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 60
HEAD = ("call", "ms, median", "target")


def store_of(corpus: Path, documents: int) -> SqliteStore:
    """The document store beside the corpus file; built if it is not there."""
    path = corpus.parent / "documents"
    if not path.exists():
        reading = track(_documents(corpus), "storing", documents)
        SqliteStore.build(path, reading, corpus_fingerprint="bench").close()
    return SqliteStore.open(path)


def _documents(corpus: Path) -> Iterator[Document]:
    return (Document(unit.unit_id, unit.title, unit.text) for unit in units(corpus))


def queries_of(documents: int, seed: int) -> dict[str, list[str]]:
    """Queries as agents issue them: eight words of a question, and the question whole."""
    world = FictionalWorld(documents=documents, questions=QUESTIONS, seed=seed)
    whole = [topic.text for topic in world.topics]
    chance = random.Random(seed)
    short = [" ".join(chance.sample(text.split(), min(8, len(text.split())))) for text in whole]
    return {"search, 8 words": short, "search, whole question": whole}


def tool_rows(
    index: LexicalIndex, store: SqliteStore, queries: dict[str, list[str]]
) -> list[list[str]]:
    """Median milliseconds of each kind of call; every search is a fresh one."""
    backend = PipelineBackend(index.bm25(k1=0.9, b=0.4, depth=1000))
    interface = RankedBrowsing()
    shown: dict[str, None] = {}

    def search(query: str) -> None:
        # A session of its own: a repeated query would be served from the session's cache.
        session = interface.session(backend, store)
        result = session.call("search", {"reason": "", "query": query})
        shown.update(dict.fromkeys(result.call.shown))

    reader = interface.session(backend, store)

    def read(docid: str) -> None:
        reader.call("read_document", {"reason": "", "docid": docid})

    rows = [
        [name, f"{medians({name: search}, asked)[name]:.2f}", "10"]
        for name, asked in queries.items()
    ]
    rows.append(["read_document", f"{medians({'read': read}, list(shown))['read']:.2f}", "2"])
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.tool")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args(arguments)
    if options.documents < 1000:
        raise InputError(f"documents={options.documents}", valid="1000 or more")
    corpus = corpus_file(ROOT / "bench-data", options.documents, options.seed)
    folder = corpus.parent / "ours"
    if not folder.exists():
        LexicalIndex.build(units(corpus), folder)
    index, store = LexicalIndex.open(folder), store_of(corpus, options.documents)
    rows = tool_rows(index, store, queries_of(options.documents, options.seed))
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if options.write:
        command = f"{parser.prog} --documents {options.documents} --seed {options.seed} --write"
        intro = (
            f"{len(index):,} documents; a search ranks 1000 and shows five excerpts, a read shows "
            "200 lines. One thread."
        )
        write_section("tool", "Search tool", [setup_text(command), intro, table_text(HEAD, rows)])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        tell(str(error))
        sys.exit(2)
