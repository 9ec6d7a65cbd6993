"""Query likelihood against a float64 computation, and RM3 against a computation from the texts.
`test_bm25` has published figures of both, and `test_anserini` compares them with Anserini."""

import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import build as build_corpus
from support.engines import corpora, cut_length, queries
from support.needs import cases

from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.lexical import forward
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError


def brute_force(corpus, query, mu):
    """Score of each document with a query term, and the size of what was summed for it."""
    tokens = sum(sum(document.values()) for document in corpus)
    found = {}
    for number, document in enumerate(corpus):
        size = sum(document.values())
        length = cut_length(size)
        held = [term for term in query if query[term] > 0 and term in document]
        score = magnitude = 0.0
        for term in held:
            collection = sum(other.get(term, 0) for other in corpus)
            rate = mu * (collection + 1) / (tokens + 1)
            gain, loss = math.log(1 + document[term] / rate), math.log(mu / (length + mu))
            score += query[term] * max(gain + loss, 0.0)
            magnitude += query[term] * (gain - loss)
        if held:
            found[number] = score, magnitude
    return found


mus = st.one_of(st.sampled_from([0.5, 100.0, 1000.0, 2500.0]), st.floats(0.01, 1e5))


@settings(max_examples=cases(60), deadline=None)
@given(corpora, st.lists(st.tuples(queries, mus, st.integers(1, 40)), max_size=6))
def test_scores_of_query_likelihood_equal_brute_force(corpus, searches):
    with tempfile.TemporaryDirectory() as folder:
        index = build_corpus(corpus, folder)
        for query, mu, depth in searches:
            expected = brute_force(corpus, query, mu)
            documents, scores = index.search_likelihood(query, mu, depth)
            found = dict(zip(documents.tolist(), scores.tolist(), strict=True))
            assert len(found) == len(documents) == min(depth, len(expected))
            assert list(found) == sorted(found, key=lambda number: (-found[number], number))
            for number, score in found.items():
                wanted, magnitude = expected[number]
                assert score == pytest.approx(wanted, abs=1e-6 * magnitude + 1e-30)
            lowest = min(found.values(), default=0.0)
            for number in expected.keys() - found.keys():
                wanted, magnitude = expected[number]
                assert wanted <= lowest + 2e-6 * magnitude + 1e-30


def test_a_part_below_zero_is_cut_and_the_document_is_still_a_hit(tmp_path):
    """t fills the collection, so that the long document holds it less often than chance."""
    corpus = [{"t": 1, "u": 600}, {"t": 500}, {"t": 1}, {"u": 3}, {"t": 1, "u": 700}]
    index = build_corpus(corpus, tmp_path)
    documents, scores = index.search_likelihood(["t"], mu=10)
    assert documents.tolist()[2:] == [0, 4]
    assert scores[:2].min() > 0
    assert scores[2:].tolist() == [0.0, 0.0]
    both, sums = index.search_likelihood(["t", "u"], mu=10)
    alone, parts = index.search_likelihood(["u"], mu=10)
    assert sums[both == 4] == parts[alone == 4]  # t takes nothing from what u gives


def test_bm25_and_likelihood_on_one_index_do_not_disturb_each_other(tmp_path):
    index = build_corpus([{"a": 2, "b": 1}, {"b": 3, "c": 900}, {"a": 1, "c": 1}], tmp_path)
    before = [part.tolist() for part in index.search(["a", "b", "c"])]
    likelihood = [part.tolist() for part in index.search_likelihood(["a", "b", "c"])]
    assert [part.tolist() for part in index.search(["a", "b", "c"])] == before
    assert [part.tolist() for part in index.search_likelihood(["a", "b", "c"])] == likelihood


def build(texts, folder, analyzer="whitespace"):
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    return LexicalIndex.build(units, Path(folder) / "index", analyzer=analyzer)


def ranking(scores, query="q", qid="1"):
    rows = [(qid, query, docno, score) for docno, score in scores.items()]
    frame = pd.DataFrame(rows, columns=["qid", "query", "docno", "score"])
    return frame.assign(rank=range(len(frame)))


def expected_query(texts, query, scores, fb_terms, fb_docs, weight):
    """RM3 from texts and scores, in single precision, on which it depends what is equal."""
    bags = [Counter(text.split()) for text in texts]
    filled = sum(1 for bag in bags if bag)
    single = np.float32

    def chosen(term):
        holders = sum(term in bag for bag in bags)
        plain = all("a" <= letter <= "z" or "0" <= letter <= "9" for letter in term)
        return plain and 2 <= len(term) <= 20 and 10 * holders <= filled

    def heaviest(weights):
        return sorted(weights, key=lambda term: (-weights[term], term))[:fb_terms]

    model = {}
    for docno in list(scores)[:fb_docs]:
        bag = {term: tf for term, tf in bags[int(docno[1:])].items() if chosen(term)}
        total = sum(bag[term] for term in heaviest(bag))
        for term in heaviest(bag):
            part = single(bag[term]) / single(total) * single(scores[docno])
            model[term] = model.get(term, single(0)) + part
    words = query.split()
    mixed = {word: weight * words.count(word) / len(words) for word in words}
    whole = sum(float(model[term]) for term in heaviest(model))
    for term in heaviest(model):
        mixed[term] = mixed.get(term, 0.0) + (1 - weight) * float(model[term]) / whole
    return mixed


# Half are no feedback terms: one letter, not plain, too long.
words = st.sampled_from(["aa", "bb", "cc", "d4", "42", "a", "né", "up_to", "x" * 20, "x" * 21])
feedback_texts = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=6)


@settings(max_examples=cases(80), deadline=None)
@given(
    feedback_texts,
    st.lists(words, min_size=1, max_size=4).map(" ".join),
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.data(),
)
def test_the_new_query_equals_that_computed_from_the_texts(
    texts, query, fb_terms, fb_docs, weight, data
):
    texts = [*texts, *["filler"] * data.draw(st.integers(1, 60))]
    some = data.draw(st.permutations(range(len(texts) - 1)))[:8]
    scores = {f"d{number}": float(len(some) - place) for place, number in enumerate(some)}
    with tempfile.TemporaryDirectory() as folder:
        index = build(texts, folder)
        rm3 = Feedback(index, fb_terms=fb_terms, fb_docs=fb_docs, original_weight=weight)
        found = rm3(ranking(scores, query))["query_toks"].iloc[0]
    expected = expected_query(texts, query, scores, fb_terms, fb_docs, weight)
    assert found == {term: pytest.approx(part, abs=1e-6) for term, part in expected.items()}


def test_terms_too_short_long_strange_or_frequent_are_no_feedback(tmp_path):
    kept = ["ok", "7th", "x" * 20]
    dropped = ["o", "x" * 21, "no-dash", "naïve", "Case", "common"]
    texts = [" ".join([*kept, *dropped]), *["common"] * 2, *["pad"] * 17]
    index = build(texts, tmp_path)
    out = Feedback(index)(ranking({"d0": 2.0}, "o"))
    third = pytest.approx(0.5 / 3)
    assert out["query_toks"].tolist() == [{"o": 0.5, "ok": third, "7th": third, "x" * 20: third}]
    texts[2] = "pad"  # now 2 of 20 hold it, just a tenth
    index = build(texts, tmp_path / "more")
    assert "common" in Feedback(index)(ranking({"d0": 2.0}, "o"))["query_toks"].iloc[0]


def test_a_document_counts_by_its_score_and_within_the_first_few(tmp_path):
    index = build(["aa", "bb", "cc", *["pad"] * 40], tmp_path)
    rm3 = Feedback(index, fb_docs=2, original_weight=0.0)
    out = rm3(ranking({"d1": 3.0, "d0": 1.0, "d2": 1.0}))
    assert out["query_toks"].tolist() == [{"q": 0.0, "bb": 0.75, "aa": 0.25}]
    shuffled = ranking({"d1": 3.0, "d0": 1.0, "d2": 1.0}).iloc[[2, 0, 1]]
    assert rm3(shuffled)["query_toks"].tolist() == out["query_toks"].tolist()


def test_each_query_gets_feedback_from_its_own_documents(tmp_path):
    index = build(["aa", "bb", *["pad"] * 20], tmp_path)
    inp = pd.concat([ranking({"d0": 1.0}, "x", "one"), ranking({"d1": 1.0}, "y", "two")])
    out = Feedback(index)(inp)
    assert out["qid"].tolist() == ["one", "two"]
    assert out["query_toks"].tolist() == [{"x": 0.5, "aa": 0.5}, {"y": 0.5, "bb": 0.5}]


def test_the_query_stays_and_its_copies_move_on(tmp_path):
    index = build(["aa", *["pad"] * 20], tmp_path)
    inp = ranking({"d0": 1.0}, "x").assign(query_0="older", reasoning="why", text="of d0", qx=1)
    out = Feedback(index)(inp)
    assert set(out.columns) == {"qid", "query", "query_0", "query_1", "query_toks"} | {
        *("reasoning", "qx")
    }
    row = out.iloc[0]
    assert (row["query"], row["query_0"], row["query_1"]) == ("x", "x", "older")


def test_weights_that_came_are_the_original_query(tmp_path):
    index = build(["aa", *["pad"] * 20], tmp_path)
    inp = ranking({"d0": 1.0}).assign(query_toks=[{"u": 3.0, "v": 1.0}])
    wanted = {"u": 0.375, "v": 0.125, "aa": 0.5}
    assert Feedback(index)(inp)["query_toks"].tolist() == [wanted]
    assert Feedback(index)(inp.drop(columns="query"))["query_toks"].tolist() == [wanted]


def test_without_a_feedback_term_the_query_keeps_its_own_terms(tmp_path):
    index = build(["é", "aa"], tmp_path)
    for scores in ({"d0": 1.0}, {"d1": 0.0}):
        out = Feedback(index)(ranking(scores, "u u v"))["query_toks"].iloc[0]
        assert {term for term, part in out.items() if part > 0} == {"u", "v"}
        assert out["u"] == 2 * out["v"]


def test_a_query_without_documents_is_not_in_the_result(tmp_path):
    index = build(["aa aa", *["pad"] * 20], tmp_path)
    pipeline = index.bm25() >> Feedback(index) >> index.bm25()
    inp = pd.DataFrame({"qid": ["1", "2"], "query": ["nothing", "aa"]})
    assert pipeline(inp)["qid"].tolist() == ["2"]
    none = pipeline(inp.head(1))
    assert len(none) == 0
    assert {"qid", "query", "docno", "score", "rank"} <= set(none.columns)


def test_passages_are_units_and_aggregated_documents_are_refused(tmp_path):
    units = [Unit(f"d%p{n}", "", text) for n, text in enumerate(["aa bb", "aa", *["pad"] * 30])]
    index = LexicalIndex.build(units, tmp_path / "i", analyzer="whitespace")
    inp = pd.DataFrame({"qid": ["1"], "query": ["bb"]})
    assert index.bm25().rm3()(inp)["docno"].tolist() == ["d%p0", "d%p1"]
    with pytest.raises(InputError, match=r"docno 'd' came to RM3.*before any aggregation"):
        (index.bm25() >> MaxP() >> Feedback(index))(inp)


@pytest.mark.parametrize("score", [-1.0, float("nan"), float("inf")])
def test_scores_that_are_no_weights_are_refused(score, tmp_path):
    index = build(["aa"], tmp_path)
    with pytest.raises(InputError, match=f"score {score} came to RM3"):
        Feedback(index)(ranking({"d0": score}))


def test_a_retriever_with_feedback_is_a_pipeline_that_can_be_inspected(tmp_path):
    index = build([f"aa w{n} w{n + 1}" for n in range(3)] + ["pad"] * 40, tmp_path)
    inp = pd.DataFrame({"qid": ["1"], "query": ["aa w1"]})
    for retriever in (index.bm25(k1=2, depth=30), index.ql(mu=50, depth=30)):
        feedback = Feedback(index, fb_terms=3, fb_docs=2, original_weight=0.4)
        short = retriever.rm3(fb_terms=3, fb_docs=2, original_weight=0.4)
        assert short(inp).equals((retriever >> feedback >> retriever)(inp)) and len(short(inp)) == 3
    again = Feedback(LexicalIndex.open(index.path), fb_docs=3)
    assert again == Feedback(index, fb_docs=3) != Feedback(index)
    assert hash(again) == hash(Feedback(index, fb_docs=3))
    assert repr(again) == f"Feedback({index!r}, fb_terms=10, fb_docs=3, original_weight=0.5)"
    columns = ["qid", "query", "docno", "score", "rank"]
    outputs = pt.inspect.transformer_outputs(Feedback(index), columns)
    assert {"qid", "query", "query_0", "query_toks"} == set(outputs)
    with pytest.raises(pt.validate.InputValidationError):
        Feedback(index)(inp)


@pytest.fixture(scope="module")
def bags():
    """400 documents: lists shorter and longer than those that are searched, large frequencies."""
    chance = np.random.default_rng(3)
    drawn = [chance.zipf(1.3, chance.integers(0, 60)) % 300 for _ in range(400)]
    return [
        Counter({f"t{w}": tf * (300 if w == 7 else 1) for w, tf in Counter(row.tolist()).items()})
        for row in drawn
    ]


@pytest.fixture
def files_pay(monkeypatch):
    """Terms by document are written for any index, in pieces of a few documents."""
    monkeypatch.setattr(forward, "_FILES_PAY", 0)
    monkeypatch.setattr(forward, "_PIECE", 100)


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.1, 0.05])
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_vectors_are_the_documents_terms(bags, count, share, files, tmp_path, request):
    if files:
        request.getfixturevalue("files_pay")
    index = build([" ".join(bag.elements()) for bag in bags], tmp_path)
    numbers = np.random.default_rng(count).integers(0, 400, count)
    frequency = Counter(term for bag in bags for term in bag)
    filled = sum(1 for bag in bags if bag)
    found = index.vectors(numbers, share)
    assert len(found) == count
    for number, (terms, frequencies) in zip(numbers.tolist(), found, strict=True):
        names = [index.vocabulary[term] for term in terms.tolist()]
        assert names == sorted(names)
        expected = {t: tf for t, tf in bags[number].items() if frequency[t] <= share * filled}
        assert dict(zip(names, frequencies.tolist(), strict=True)) == expected


def rare_terms(index):
    """Terms and frequencies of all documents, as feedback asks for them."""
    rows = index.vectors(np.arange(len(index)), 0.1)
    return [list(zip(t.tolist(), f.tolist(), strict=True)) for t, f in rows]


@pytest.mark.usefixtures("files_pay")
@pytest.mark.parametrize("damage", ["other index", "cut", "no manifest"])
def test_terms_by_document_of_another_index_or_damaged_are_written_again(bags, damage, tmp_path):
    index = build([" ".join(bag.elements()) for bag in bags], tmp_path)
    expected = rare_terms(index)
    files = index.path / "forward"
    if damage == "other index":
        text = (index.path / "manifest.json").read_text()
        (index.path / "manifest.json").write_text(text + " ")
        (files / "terms.bin").write_bytes(bytes((files / "terms.bin").stat().st_size))
    elif damage == "cut":
        (files / "terms.bin").write_bytes(b"1234")
    else:
        (files / "manifest.json").unlink()
    assert rare_terms(LexicalIndex.open(index.path)) == expected
    assert any(expected)


@pytest.mark.usefixtures("files_pay")
def test_feedback_goes_on_where_its_files_cannot_be_written(bags, tmp_path, monkeypatch):
    index = build([" ".join(bag.elements()) for bag in bags], tmp_path)
    expected = rare_terms(index)
    shutil.rmtree(index.path / "forward")

    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(forward, "atomic_folder", refused)
    assert rare_terms(LexicalIndex.open(index.path)) == expected
    assert not (index.path / "forward").exists()
