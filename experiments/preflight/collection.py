"""Whether the collection of a run is the benchmark's, and its index finds the documents in it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import pyterrier as pt

from soundingline.experiments.collection import IndexedCollection
from soundingline.experiments.pipeline import BoundPipeline
from soundingline.experiments.preflight.findings import Finding
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.fusion import OracleRetriever
from soundingline.pipelines.stage import Stage
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import SearchRequest, parent

DRAWN, SEED = 20, 50  # documents, and questions of the benchmark, that are searched for
SECONDS = 30.0  # for the searches
TOP = 10  # ranks in which a document usually is; fewer in a collection of fewer than 50 units
# A document that is not even among the first tenth of all units, or the first 1,000, is not found:
# BM25 with k1=25 and b=1 ranks short texts before a long one for its own first sentences.
DEPTH, TENTH = 1000, 10
FEWEST, USUAL = 0.5, 0.9  # shares of the documents: a fault below the first, a note below the other
SKIPPED = 0.1  # share of units, such as empty ones, that an engine may leave out of its index
_FEWEST_WORDS, _MOST_WORDS, _BEGINNING = 8, 30, 2000
_WORD = re.compile(r"\w+(?:['’.-]\w+)*")


class Opening(NamedTuple):
    """The first sentences of a document, with single spaces, and a query of their words, which has
    no operators."""

    docid: str
    text: str
    query: str


def check_collection(built: BoundPipeline, seconds: float = SECONDS) -> list[Finding]:
    """What is wrong with the collection of a pipeline: counts and fingerprints that are not those
    of the benchmark, judged documents that are missing, and an index that does not find documents
    by their own first sentences, ranks alike for all queries, or finds what the store does not
    have.

    The searches are those of the retriever alone, without the stages around it. They are left out
    if the agent does not search, and, with a note, if the retriever asks a language model or needs
    more than so many seconds.
    """
    benchmark, collection = built.benchmark, built.collection
    findings = [*_judged(benchmark, collection.store)]
    retriever = built.parts.get("retriever")
    if isinstance(retriever, OracleRetriever):
        retriever = retriever.base  # it ranks by the judgements of a question
    findings += _counts(benchmark, collection, indexed=retriever is not None)
    if retriever is None:
        return findings
    if asks_model(retriever):
        message = "the retriever asks a language model: whether it finds documents was not checked"
        return [*findings, Finding("collection", "note", message)]
    backend = PipelineBackend(retriever)
    return [*findings, *_searches(benchmark, collection, backend, seconds)]


def asks_model(stage: pt.Transformer) -> bool:
    """Whether a stage, or one among its arguments, asks a language model."""
    parts = stage.parts().values() if isinstance(stage, Stage) else ()
    return getattr(stage, "needs_llm", False) or any(map(asks_model, parts))


def openings(store: SqliteStore, count: int = DRAWN, seed: int = SEED) -> list[Opening]:
    """The first sentences of `count` documents that are drawn with `seed`; fewer if the corpus has
    fewer documents with words. A first sentence of fewer than 8 words is joined by the next ones;
    words after the 30th are left out."""
    found = []
    for document in store.sample(3 * count, seed):
        beginning = document.text[:_BEGINNING]
        words: list[str] = []
        for start, end in rule_spans(beginning):
            words += beginning[start:end].split()
            if len(words) >= _FEWEST_WORDS:
                break
        text = " ".join(words[:_MOST_WORDS])
        if query := " ".join(_WORD.findall(text)):
            found.append(Opening(document.docid, text, query))
    return found[:count]


def _judged(benchmark: Benchmark, store: SqliteStore) -> Iterator[Finding]:
    tiers = benchmark.qrels.values()
    judged = {docid for rows in tiers for grades in rows.values() for docid in grades}
    missing = {docid for _, docid in benchmark.unknown_judged(store)}
    if missing:
        message = (
            f"{len(missing):,} of {len(judged):,} judged documents of {benchmark.name} are not in "
            f"its corpus, such as {min(missing)}"
        )
        if missing == judged:
            do = "choose the corpus that the judgements are of, or judgements with its ids"
            yield Finding("collection", "fault", message, do)
        else:
            do = "they count as not found; check the corpus if the benchmark does not say so"
            yield Finding("collection", "note", message, do)


def _counts(
    benchmark: Benchmark, collection: IndexedCollection, *, indexed: bool
) -> Iterator[Finding]:
    store, expected = collection.store, benchmark.document_count
    if expected is not None and benchmark.corpus_share == 1 and len(store) != expected:
        message = (
            f"the corpus has {len(store):,} documents, and that of {benchmark.name} is published "
            f"with {expected:,}"
        )
        do = "get the files of the benchmark again: some are missing, or of another release"
        yield Finding("collection", "fault", message, do)
    if not indexed:
        return
    units, stored = len(collection.index), store.unit_count
    if units != stored:
        few = (1 - SKIPPED) * stored <= units < stored  # Lucene leaves out empty units
        message = f"the index {collection.path} has {units:,} units, and the store {stored:,}"
        do = "" if few else f"remove {collection.path} and run soundingline index"
        yield Finding("collection", "note" if few else "fault", message, do)


def _searches(
    benchmark: Benchmark, collection: IndexedCollection, backend: PipelineBackend, seconds: float
) -> Iterator[Finding]:
    """The first fault of the rankings for the questions and the openings, or a note."""
    store, drawn = collection.store, openings(collection.store)
    top = min(TOP, max(1, store.unit_count // 5))
    depth = min(DEPTH, max(top, store.unit_count // TENTH))
    questions = dict.fromkeys(topic.text for topic in benchmark.topics)
    queries = dict.fromkeys([*list(questions)[:DRAWN], *(each.query for each in drawn)])
    rankings: dict[str, list[str]] = {}
    end = time.monotonic() + seconds
    for query in queries:
        if time.monotonic() >= end:
            message = (
                f"{len(rankings)} of {len(queries)} searches took {seconds:.0f} seconds: whether "
                "they find documents was not checked"
            )
            yield Finding("collection", "note", message, "expect a slow run")
            return
        hits = backend.search(SearchRequest(query, depth=depth)).hits
        rankings[query] = [hit.unit_id for hit in hits]
    first = {query: tuple(units[:top]) for query, units in rankings.items()}
    texts = _texts(store, chain.from_iterable(first.values()))
    unknown = [unit for unit, text in texts.items() if text is None]
    usual = [each for each in drawn if _has_text(each, first[each.query], texts)]
    found = [each for each in drawn if each.docid in map(parent, rankings[each.query])]
    found = list(dict.fromkeys([*usual, *found]))
    do = f"remove {collection.folder} and run soundingline index"
    if not any(rankings.values()):
        message = f"the retriever finds nothing for any of {len(queries)} queries"
    elif unknown:
        message = (
            f"the store has no text for {len(unknown)} of {len(texts)} units that the index "
            f"finds, such as {unknown[0]}"
        )
    elif len(set(first.values())) == 1 and len({each.query for each in drawn}) > 1:
        message = f"the retriever ranks the same units for each of {len(queries)} different queries"
    elif len(found) < FEWEST * len(drawn):
        message = (
            f"only {len(found)} of {len(drawn)} documents are among the first {depth} units for "
            "their own first sentences: the index may be of another corpus"
        )
    else:
        if len(usual) < USUAL * len(drawn):
            message = (
                f"{len(usual)} of {len(drawn)} documents are among the first {top} units for their "
                f"own first sentences, and {len(found)} among the first {depth}"
            )
            do = "expect this of long documents under BM25 with a large k1 and b"
            yield Finding("collection", "note", message, do)
        return
    yield Finding("collection", "fault", message, do)


def _texts(store: SqliteStore, unit_ids: Iterable[str]) -> dict[str, str | None]:
    """The contents of units by id, with single spaces; None for those that are not in the store."""
    texts: dict[str, str | None] = dict.fromkeys(unit_ids)
    for unit_id in texts:
        with suppress(KeyError):
            (unit,) = store.texts([unit_id])
            texts[unit_id] = " ".join(unit.text.split())
    return texts


def _has_text(opening: Opening, unit_ids: Iterable[str], texts: Mapping[str, str | None]) -> bool:
    """Whether one of the units is of the document, or of another one with the same sentences."""
    return any(
        parent(unit_id) == opening.docid or opening.text in (texts[unit_id] or "")
        for unit_id in unit_ids
    )
