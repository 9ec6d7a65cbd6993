"""Random collections, and the length that Lucene stores, for tests of ranking formulas."""

from pathlib import Path

import ir_measures
import pandas as pd
from hypothesis import strategies as st
from ir_measures import AP, P

from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit

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
