"""`python -m soundingline.experiments.bench.scale`: memory and time at very many documents.

Documents of three words, because what is measured grows with their number and not with their
length: docids that are checked, unit ids, and the sums of concurrent searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from soundingline.experiments.bench.harness import (
    DATA,
    Arguments,
    Section,
    Table,
    in_own_process,
    report,
    run,
)
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit

HEAD = ("step", "s", "peak MiB")
THREADS = 32
BUILD_MB = 64
_DOCID = "msmarco_doc_{:010d}"
_TEXT = "tide harbour {}"


class Drawn:
    """Units of three words: two that all documents have, and one that one of a thousand has."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Unit]:
        for number in range(self._number):
            yield Unit(_DOCID.format(number), "", _TEXT.format(number % 1000))


def write_corpus(folder: Path, documents: int) -> None:
    """A BEIR folder with one question."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w") as stream:
        for unit in Drawn(documents):
            stream.write(f'{{"_id": "{unit.unit_id}", "text": "{unit.text}"}}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "tide"}\n')
    (folder / "qrels" / "test.tsv").write_text(f"q1\t{_DOCID.format(0)}\t1\n")


def read(folder: Path) -> None:
    """Every document, as the document store takes them."""
    for _ in BeirBenchmark(folder).documents():
        pass


def build(index: Path, documents: int) -> None:
    LexicalIndex.build(Drawn(documents), index, memory_mb=BUILD_MB, keep_texts=False)


def search(index: Path, threads: int, queries: int) -> None:
    """Queries whose first term all documents hold with one score, so that all of them tie."""
    opened = LexicalIndex.open(index)
    terms = [["tide"], ["tide", "harbour"], ["tide", "7"]]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: opened.search(terms[number % 3]), range(queries)))


def look_up(index: Path, documents: int) -> None:
    """Numbers of unit ids, which feedback asks for."""
    LexicalIndex.open(index).docnos.numbers([_DOCID.format(documents // 2)])


def rows_of(folder: Path, documents: int) -> list[list[str]]:
    """Each step in a process of its own."""
    write_corpus(folder / "corpus", documents)
    index = folder / "index"
    steps: dict[str, tuple[Callable[..., None], list[Any]]] = {
        "reading a BEIR corpus": (read, [folder / "corpus"]),
        f"building, one process, memory_mb={BUILD_MB}": (build, [index, documents]),
        f"{4 * THREADS} searches, one thread": (search, [index, 1, 4 * THREADS]),
        f"{4 * THREADS} searches, {THREADS} threads": (search, [index, THREADS, 4 * THREADS]),
        "looking up a unit id": (look_up, [index, documents]),
    }
    rows = []
    for name, (function, arguments) in steps.items():
        cost = in_own_process(function, *arguments)
        rows.append([name, f"{cost.seconds:.1f}", f"{cost.peak_mb:,.0f}"])
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = Arguments("scale", documents=(10_000_000, 1000))
    options = parser.read(arguments)
    rows = rows_of(DATA / f"scale-{options.documents}", options.documents)
    intro = (
        f"{options.documents:,} documents of three words. Peaks are those of a whole process "
        "(Python and its libraries take some 60 MiB), with what of mapped files is in memory. "
        "All documents tie in the searches for frequent terms; depth 1000."
    )
    section = Section(
        "scale",
        "Scale",
        parser.command(options),
        [intro, Table(HEAD, rows)],
        packages=("numba", "numpy"),
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
