"""`python -m experiments.bench.scale`: memory and time at very many documents.

Documents of three words, because what is measured grows with their number and not with their
length: docids that are checked, unit ids, and the sums of concurrent searches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.bench.measure import in_own_process
from experiments.bench.page import setup_text, table_text, write_section
from pipelines.lexical import LexicalIndex
from toolkit.benchmarks import BeirBenchmark
from toolkit.console import Console, tell
from toolkit.contracts import Unit
from toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
HEAD = ("step", "s", "peak MiB")
THREADS = 32
BUILD_MB = 64
PACKAGES = ("numba", "numpy")
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
    LexicalIndex.build(Drawn(documents), index, processes=1, memory_mb=BUILD_MB, keep_texts=False)


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
        measured = in_own_process(function, *arguments)
        rows.append([name, f"{measured.seconds:.1f}", f"{measured.peak_mb:,.0f}"])
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.scale")
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md too")
    options = parser.parse_args(arguments)
    if options.documents < 1000:
        raise InputError(f"documents={options.documents}", valid="1000 or more")
    rows = rows_of(ROOT / "bench-data" / f"scale-{options.documents}", options.documents)
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if options.write:
        command = f"{parser.prog} --documents {options.documents} --write"
        intro = (
            f"{options.documents:,} documents of three words. Peaks are those of a whole process "
            "(Python and its libraries take some 60 MiB), with what of mapped files is in memory. "
            "All documents tie in the searches for frequent terms; depth 1000."
        )
        write_section(
            "scale", "Scale", [setup_text(command, PACKAGES), intro, table_text(HEAD, rows)]
        )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        tell(str(error))
        sys.exit(2)
