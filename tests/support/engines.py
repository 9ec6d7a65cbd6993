"""Engines and collections for tests of retrieval: Anserini in one Java machine, a search cluster in
memory, encoders without a model, random and real collections."""

import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st
from ir_measures import AP, P
from support.needs import absent

from soundingline.pipelines.device import TokenizedTexts
from soundingline.pipelines.engines import anserini
from soundingline.pipelines.engines.anserini import (
    AnseriniEngine,
    AnseriniProcess,
    model_parameters,
)
from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.engines.opensearch import OpenSearchEngine
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.encoding import SPARSE
from soundingline.pipelines.learned.vectors import MultiVectorEngine, VectorEngine
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError


class SharedProcess:
    """An `AnseriniProcess` that shares its machine, which opens the index of each one in turn."""

    def __init__(self, machine, opened):
        self.machine, self.opened, self.jar = machine, opened, machine.jar
        self.closed = False

    def request(self, name, **arguments):
        assert not self.closed
        if vars(self.machine).get("used_by") is not self and self.opened is not None:
            self.machine.request("open", path=str(self.opened))
        self.machine.used_by = self
        return self.machine.request(name, **arguments)

    def close(self):
        self.closed = True


MACHINES: list[AnseriniProcess] = []
anserini._WORKER = Path(__file__).with_name("lucene_worker.py")


def lucene(index, queries, model):
    """The rankings of a `BM25` or a `QueryLikelihood` over an Anserini index by Lucene's own
    searcher, with the scores that `SimpleSearcher` would round."""
    rankings = index._process.request(
        "lucene", queries=queries, depth=model.depth, model=model_parameters(model)
    )
    return [RankedList(docnos, scores) for docnos, scores in rankings]


@dataclass(frozen=True)
class SharingEngine(AnseriniEngine):
    """Builds and searches in one machine, because each start takes a second."""

    processes: list[Any] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self):
        return SharingEngine, ()

    def process(self, opened=None):
        if not MACHINES:
            MACHINES.append(AnseriniProcess(heap="1g"))
        self.processes.append(SharedProcess(MACHINES[0], opened))
        return self.processes[-1]


def sharing_engine(**settings):
    engine = SharingEngine(**settings)
    try:
        engine.process()
    except InputError as error:
        absent(f"Anserini is optional and not installed: {error}")
    return engine


@contextmanager
def osmem():
    """The address of osmem-server, an in-memory server with OpenSearch's protocol."""
    pytest.importorskip("opensearchpy", reason="pip install -e '.[opensearch]'")
    reason = "osmem-server has wheels for Linux on x86_64 only"
    server = pytest.importorskip("osmem_server", reason=reason)
    with server.OsmemServer.start(japanese=False) as running:
        yield running.url


@contextmanager
def an_engine(name):
    """An engine with the analyzer `english`."""
    if name == "opensearch":
        with osmem() as url:
            yield OpenSearchEngine(url=url, shards=3, replicas=0, timeout_s=30)
    elif name == "pisa":
        pytest.importorskip("pyterrier_pisa", reason="PISA is optional: pip install -e '.[bench]'")
        yield PisaEngine()
    else:
        yield sharing_engine() if name == "anserini" else LexicalEngine()


class StubSparse:
    """An encoder of (term, weight) pairs; terms are 0 to 51."""

    model = fingerprint = "stub"

    def tokenize(self, texts):
        return texts

    def encode_tokens(self, texts):
        terms = [sorted({len(text) % 50, 50, 51}) for text in texts]
        return [np.array([(term, 1.0 + term / 7) for term in each], SPARSE) for each in terms]


def _drawn(text):
    shape = 1 + len(text) // 8, 8
    return np.random.default_rng(len(text)).normal(size=shape).astype(np.float32)


def vector_engine(kind):
    """The engine of a `Dense` or a `ColBERT` whose vectors are drawn."""
    base, engine = {"dense": (Dense, VectorEngine), "colbert": (ColBERT, MultiVectorEngine)}[kind]

    class Stub(base):
        def fingerprint_with(self, **of_index):
            return "stub"

        def tokenize(self, texts, role="document"):
            return TokenizedTexts({"texts": texts}, [1 + len(text) // 8 for text in texts])

        def encode_tokens(self, tokens, role="document"):
            return [
                rows[0] if kind == "dense" else rows.astype(np.float16)
                for rows in map(_drawn, tokens.features["texts"])
            ]

        def encode_queries(self, texts):
            return [rows[0] if kind == "dense" else rows for rows in map(_drawn, texts)]

    return engine(Stub("stub", device="cpu", dtype="float32"))


terms = st.sampled_from([f"t{n}" for n in range(12)])
frequency = st.one_of(st.integers(1, 4), st.integers(250, 700))
corpora = st.lists(st.dictionaries(terms, frequency, max_size=6), min_size=1, max_size=40)
weights = st.one_of(st.integers(0, 3), st.floats(0.015625, 50, width=32))
queries = st.dictionaries(st.one_of(terms, st.just("unknown")), weights, max_size=8)


def build(corpus, folder):
    """An index of documents that are dicts of terms to frequencies."""
    texts = [" ".join(t for t, tf in document.items() for _ in range(tf)) for document in corpus]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    return LexicalIndex.build(units, Path(folder) / "index", analyzer="whitespace")


def brute_force(corpus, query, k1, b):
    """Lucene's BM25 of documents that are dicts of terms to frequencies, in float64: document
    number -> score. N-grams (terms with a space) do not count in lengths."""
    sizes = [sum(tf for term, tf in each.items() if " " not in term) for each in corpus]
    filled = [size for size in sizes if size]
    average = sum(filled) / len(filled) if filled else 1.0
    scores = {}
    for term, weight in query.items():
        holders = [number for number, document in enumerate(corpus) if term in document]
        idf = math.log(1 + (len(filled) - len(holders) + 0.5) / (len(holders) + 0.5))
        for number in holders:
            size = cut_length(sizes[number])
            tf = corpus[number][term]
            part = weight * idf * tf / (tf + k1 * (1 - b + b * size / average))
            if weight > 0:
                scores[number] = scores.get(number, 0.0) + part
    return scores


def real(folder):
    """Units, a frame of questions, and judgements (question -> document -> grade) of a collection
    in BEIR's layout."""
    benchmark = BeirBenchmark(folder)
    units = [Unit(row.docid, row.title, row.text) for row in benchmark.documents()]
    rows = [(topic.qid, topic.text) for topic in benchmark.topics]
    judged = benchmark.qrels.get("gold") or benchmark.qrels["evidence"]
    return units, pd.DataFrame(rows, columns=["qid", "query"]), judged


def measured(ranking, judged):
    """AP and P@30, as Anserini publishes them."""
    run = ranking.rename(columns={"qid": "query_id", "docno": "doc_id"})
    values = ir_measures.calc_aggregate([AP, P @ 30], judged, run)
    return values[AP], values[P @ 30]


def cut_length(length):
    """The length in Lucene's one byte: all but the four leading bits of length - 24 are lost."""
    if length < 24:
        return length
    rest = length - 24
    shift = max(rest.bit_length() - 4, 0)
    return 24 + (rest >> shift << shift)
