"""A trained encoder on real texts: all-MiniLM-L6-v2 against sentence-transformers and numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from effort import cases

from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.fusion import ReciprocalRankFusion
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus.segmentation import Passages, WholeDocument
from soundingline.toolkit.data import Unit

torch = pytest.importorskip("torch")

DEPTH = cases(100, 40)
UNITS, QUESTIONS = cases(12_000, 50), cases(1000, 5)
# Short units, and a few that are cut, so that two encodings of a sample take seconds on one core.
SHORT, CUT = cases(100_000, 150), 2
# Of model.safetensors at huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# What rounding by the shape of a batch can move a score.
ROUNDING = 2e-6


@dataclass
class Sample:
    """Some units and questions of a collection, as sentence-transformers encodes them."""

    units: Sequence[Unit]
    questions: pd.DataFrame
    scores: np.ndarray

    def rows(self, docnos):
        """The numbers of units."""
        numbers = {unit.unit_id: number for number, unit in enumerate(self.units)}
        return [numbers[docno] for docno in docnos]


@pytest.fixture(scope="module")
def published(minilm):
    """The model as sentence-transformers opens it."""
    # Here, because the import takes seconds in each worker of the suite.
    sentence_transformers = pytest.importorskip("sentence_transformers")
    torch.set_num_threads(1)
    return sentence_transformers.SentenceTransformer(minilm, device="cpu")


def sample(published, folder, segmenter, documents_read):
    benchmark = BeirBenchmark(folder)
    documents = islice(benchmark.documents(), documents_read)
    units = [unit for document in documents for unit in segmenter.units(document)]
    longest = sorted(units, key=lambda unit: -len(unit.contents))[:CUT]
    short = [unit for unit in units if len(unit.contents) <= SHORT and unit not in longest]
    units = [*longest, *short[: UNITS - CUT]]
    topics = benchmark.topics[:: max(1, len(benchmark.topics) // QUESTIONS)][:QUESTIONS]
    questions = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in topics])
    # In small batches, because the texts of one are filled up to its longest.
    texts = [unit.contents for unit in units]
    vectors = published.encode(texts, batch_size=4, normalize_embeddings=True)
    queries = published.encode(questions["query"].tolist(), normalize_embeddings=True)
    return Sample(units, questions, queries @ vectors.T)


@pytest.fixture(scope="module")
def cacm(published, data_root):
    return sample(published, data_root / "cacm", WholeDocument(), 100_000)


@pytest.fixture(scope="module")
def wikimix(published, data_root):
    return sample(published, data_root / "wikimix", Passages(max_tokens=40), cases(100_000, 300))


@pytest.fixture(scope="module")
def retriever(minilm):
    return Dense(minilm, dtype="float32", device="cpu", depth=UNITS)


def opened(retriever, units, folder):
    def open_index(engine):
        path = folder / "dense"
        if not path.exists():
            engine.build(units, path, corpus_fingerprint="c")
        return engine.open(path, corpus_fingerprint="c")

    lexical = LexicalIndex.build(units, folder / "lexical")
    return Collection("c", index=lexical, open_index=open_index)


@pytest.fixture(scope="module")
def cacm_bound(retriever, cacm, tmp_path_factory):
    return opened(retriever, cacm.units, tmp_path_factory.mktemp("cacm"))


@pytest.fixture(scope="module")
def wikimix_bound(retriever, wikimix, tmp_path_factory):
    return opened(retriever, wikimix.units, tmp_path_factory.mktemp("wikimix"))


def test_the_package_holds_the_weights_that_the_hub_publishes(minilm):
    weights = Path(minilm, "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == PUBLISHED


@pytest.mark.parametrize("name", ["cacm", "wikimix"])
def test_rankings_are_those_of_sentence_transformers_and_brute_force(name, retriever, request):
    theirs = request.getfixturevalue(name)
    ours = retriever.bind(request.getfixturevalue(f"{name}_bound"))(theirs.questions)
    for qid, exact in zip(theirs.questions["qid"], theirs.scores, strict=True):
        hits = ours[ours["qid"] == qid].head(DEPTH)
        rows = theirs.rows(hits["docno"].tolist())
        np.testing.assert_allclose(hits["score"], exact[rows], atol=1e-5)
        best = np.sort(exact)[::-1][:DEPTH]
        # Rank by rank the score of the unit that stands there: the same unit, but for equal scores.
        np.testing.assert_allclose(exact[rows], best, atol=ROUNDING)
        assert len(set(rows)) == DEPTH


def test_rankings_are_fused_with_bm25s(retriever, cacm, cacm_bound):
    bm25 = cacm_bound.index.bm25(depth=UNITS)
    fused = ReciprocalRankFusion(bm25, retriever, depth=UNITS).bind(cacm_bound)(cacm.questions)
    lexical, neural = bm25(cacm.questions), retriever.bind(cacm_bound)(cacm.questions)
    for qid, hits in fused.groupby("qid"):
        expected = {}
        for ranking in (lexical, neural):
            rows = ranking[ranking["qid"] == qid]
            for docno, rank in zip(rows["docno"], rows["rank"], strict=True):
                expected[docno] = expected.get(docno, 0.0) + 1 / (61 + rank)
        scores = dict(zip(hits["docno"], hits["score"], strict=True))
        assert scores == pytest.approx(expected)
        assert hits["score"].is_monotonic_decreasing


def test_a_document_counts_by_its_best_passage(retriever, wikimix, wikimix_bound):
    documents = (retriever.bind(wikimix_bound) >> MaxP())(wikimix.questions)
    parents = np.array([unit.unit_id.partition("%")[0] for unit in wikimix.units])
    assert len(set(parents)) < len(parents)
    for qid, exact in zip(wikimix.questions["qid"], wikimix.scores, strict=True):
        hits = documents[documents["qid"] == qid]
        best = {parent: exact[parents == parent].max() for parent in set(parents)}
        scores = dict(zip(hits["docno"], hits["score"], strict=True))
        assert scores == pytest.approx(best, abs=1e-5)


def test_texts_are_read_as_far_as_the_model_was_made_for_unless_a_length_is_given(
    minilm, published
):
    text = "word " * 600
    made_for = Dense(minilm, dtype="float32", device="cpu")
    assert made_for.read([text])[1] == [256]
    expected = published.encode([text], normalize_embeddings=True)
    np.testing.assert_allclose(made_for.encode([text]), expected, atol=1e-5)
    np.testing.assert_allclose(made_for.encode_queries([text]), expected, atol=1e-5)
    longer = Dense(minilm, dtype="float32", device="cpu", max_length=400)
    assert longer.read([text])[1] == [400]
    assert longer.fingerprint != made_for.fingerprint


def test_bfloat16_keeps_the_vectors_but_for_a_ten_thousandth(minilm, published):
    texts = ["The tide at Brel rises nine metres.", "an old mill", "information retrieval " * 20]
    exact = published.encode(texts, normalize_embeddings=True)
    vectors = Dense(minilm, dtype="bfloat16", device="cpu").encode(texts)
    assert (np.stack(vectors) * exact).sum(axis=1).min() > 0.9999
