"""`python -m soundingline.experiments.bench.enrich`: indexes of documents with phrases, weighted
calls, and asking a model.

- An index of generated documents with ten phrases of two words each.
- A weighted call on this index against a plain query of as many terms on the index without phrases.
- Our own processor time a document of asking for phrases: prompt, client, ledger, cache, reading
  back; the server answers at once in a process of its own. What the process holds meanwhile.

Arguments: `--documents` (default 100000), `--queries` (200), `--terms` (16), `--flight` (64),
`--seed`. Corpus and indexes are kept in bench-data/ for the next run.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soundingline.experiments.bench.agent import server
from soundingline.experiments.bench.corpus import corpus_file, units
from soundingline.experiments.bench.harness import (
    DATA,
    Arguments,
    Section,
    Table,
    in_own_process,
    report,
    run,
    spread,
    take_turns,
)
from soundingline.pipelines.enrich.enrichment import EnrichedEngine, phrases_manifest
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases
from soundingline.pipelines.enrich.phrases import PhraseSource, QueryContext
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import open_ledger
from soundingline.toolkit.llm.openai_chat import OpenAIChat

PHRASES = 10
ANSWER = json.dumps({"keywords": [f"harbour light {number}" for number in range(PHRASES)]})
K1, B, DEPTH, WEIGHT = 1.5, 0.75, 1000, 0.5
ROUNDS = 5
_PARTS = 10


class DrawnPhrases(PhraseSource):
    """Ten pairs of frequent words of the index for each document."""

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    @property
    def fingerprint(self) -> str:
        return str(self.seed)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        index, chance = collection.index, np.random.default_rng(self.seed)
        words = [index.vocabulary[int(n)] for n in np.argsort(-index.document_frequencies)[:20_000]]
        for unit in units:
            pairs = chance.integers(0, len(words), (PHRASES, 2))
            yield unit.unit_id, [f"{words[first]} {words[second]}" for first, second in pairs]

    def for_queries(
        self, queries: Sequence[QueryContext], collection: Collection
    ) -> list[Sequence[str]]:
        return [()] * len(queries)


class _Units:
    """The units of a corpus file, which can be read more than once."""

    def __init__(self, corpus: Path) -> None:
        self._corpus = corpus

    def __iter__(self) -> Iterator[Unit]:
        return iter(units(self._corpus))


def engine(index_path: Path, seed: int) -> EnrichedEngine:
    """The engine that adds drawn phrases to the documents of an index."""
    collection = Collection("bench", index=LexicalIndex.open(index_path))
    return EnrichedEngine(LexicalEngine(), DrawnPhrases(seed=seed), None, collection)


def build_enriched(corpus: Path, index_path: Path, path: Path, seed: int) -> None:
    """The index of the documents with drawn phrases of words of the plain index."""
    engine(index_path, seed).build(_Units(corpus), path, corpus_fingerprint="")


def weighted_calls(
    base: LexicalIndex, enriched: LexicalIndex, options: Namespace
) -> dict[str, NDArray[np.float64]]:
    """Milliseconds by round and query: half of its terms the query's, half the expansion's, which
    is one plain query of as many terms for the index alone."""
    chance = np.random.default_rng(options.seed)
    frequent = np.argsort(-base.document_frequencies)[:20_000]
    drawn = chance.choice(frequent, (options.queries, options.terms))
    queries = [[base.vocabulary[int(number)] for number in row] for row in drawn]
    half = options.terms // 2
    weighted = {
        id(terms): {**dict.fromkeys(terms[half:], WEIGHT), **dict.fromkeys(terms[:half], 1.0)}
        for terms in queries
    }
    systems = {
        "plain query": lambda terms: base.search(weighted[id(terms)], K1, B, DEPTH),
        "weighted call": lambda terms: enriched.search(weighted[id(terms)], K1, B, DEPTH),
    }
    turns = take_turns(systems, [[query] for query in queries] * ROUNDS, queries)
    return {
        name: 1000 * np.reshape(turn.seconds, (ROUNDS, len(queries)))
        for name, turn in turns.items()
    }


def ask(corpus: Path, documents: int, flight: int) -> list[list[str]]:
    """Ask for every document's phrases and read them back, in ten parts: a row each."""
    source = ModelPhrases()
    size = max(1, documents // _PARTS)
    rows = []
    with tempfile.TemporaryDirectory() as folder, server(0, ANSWER) as address:
        model = OpenAIChat(model="none", base_url=address, concurrency=flight)
        blocking = BlockingModel("none", role="enrichment")
        collection = Collection("bench", caches=Path(folder) / "caches", model=blocking)
        with (
            open_ledger(Path(folder) / "ledger.jsonl") as ledger,
            blocking.started(model, ledger),
        ):
            stream = islice(units(corpus), documents)
            while part := list(islice(stream, size)):
                began = time.process_time()
                phrases = ask_part(source, part, collection)
                milliseconds = 1000 * (time.process_time() - began) / len(part)
                if phrases != PHRASES * len(part):
                    raise RuntimeError("some documents have not the server's phrases")
                rows.append([f"{len(part):,}", f"{milliseconds:.2f}", f"{resident_mb():.0f}"])
    return rows


def ask_part(source: ModelPhrases, part: Sequence[Unit], collection: Collection) -> int:
    """What `soundingline enrich` does for documents: look, ask, read back. How many phrases."""
    missing = source.missing(part, collection)
    for _ in source.ask_documents(missing, collection):
        pass
    return sum(len(phrases) for _, phrases in source.for_documents(part, collection))


def resident_mb() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(arguments: Sequence[str]) -> None:
    """Measure and print the tables."""
    parser = Arguments(
        "enrich",
        documents=(100_000, 10),
        queries=(200, 1),
        terms=(16, 2),
        flight=(64, 1),
        seed=(1, 0),
    )
    options = parser.read(arguments)
    corpus = corpus_file(DATA, options.documents, options.seed)
    index_path, path = corpus.parent / "enrich-base", corpus.parent / "enriched"
    if not index_path.exists():
        in_own_process(partial(build_base, corpus, index_path))
    built = in_own_process(build_enriched, corpus, index_path, path, options.seed)
    enriched = engine(index_path, options.seed).open(path, corpus_fingerprint="")
    base = enriched.base
    counts = phrases_manifest(path / "phrases")["counts"]
    head = ["documents", "phrases", "postings", "MB", "s", "processor s", "peak MiB"]
    numbers = [f"{counts[name]:,}" for name in ("enriched", "phrases")]
    numbers += [f"{enriched.statistics.postings:,}", f"{size_of(path) / 1e6:.1f}"]
    costs = f"{built.seconds:.1f}", f"{built.processor:.1f}", f"{built.peak_mb:.0f}"
    indexed = Table(head, [[*numbers, *costs]])
    times = weighted_calls(base, enriched, options)
    medians = {name: np.median(values, axis=1) for name, values in times.items()}
    plain = medians["plain query"]
    calls = Table(
        ["call", "ms", "times a plain query"],
        [
            [name, spread(values.tolist(), 3), spread((values / plain).tolist(), 2)]
            for name, values in medians.items()
        ],
    )
    asking = Table(
        ["documents", "processor ms a document", "MiB held"],
        ask(corpus, options.documents, options.flight),
    )
    parts: list[str | Table] = [
        f"An index of documents with {PHRASES} phrases each (the plain one has "
        f"{size_of(index_path) / 1e6:.1f} MB):",
        indexed,
        f"{options.queries} queries of {options.terms} terms, half of them of the expansion; "
        f"medians of {ROUNDS} rounds, in which both take turns (least–most):",
        calls,
        "Our own time of asking, reading back included, against a server that answers at once:",
        asking,
    ]
    section = Section(
        "enrich", "Enrichment", parser.command(options), parts, packages=("numba", "openai")
    )
    report(section, write=options.write)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def build_base(corpus: Path, path: Path) -> None:
    """The index of the documents without phrases."""
    LexicalIndex.build(units(corpus), path, keep_texts=False)


if __name__ == "__main__":
    run(main)
