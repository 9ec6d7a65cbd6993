"""Indexes of documents with phrases: scores by brute force, and what still reads the plain
texts."""

import json
import math
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.pipelines.enrich.enrichment import EnrichedEngine
from soundingline.pipelines.enrich.phrases import PhraseFile, PhraseSource
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

try:
    from sklearn.utils import murmurhash3_32 as murmur
except ImportError:  # extra `enrich`
    murmur = None

WORDS = ["brel", "harbour", "tide", "the", "lamp", "stone", "keeper"]
NGRAMS = ["brel tide", "lamp lamp", "tide lamp stone", "brel brel brel brel"]
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
phrases = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join), max_size=4
)


class GivenPhrases(PhraseSource):
    """The phrases of a dictionary, as they are."""

    def __init__(self, phrases):
        self.phrases = phrases

    @property
    def fingerprint(self):
        return str(self.phrases)

    def for_documents(self, units, collection):
        return ((unit.unit_id, self.phrases.get(unit.unit_id, ())) for unit in units)

    def for_queries(self, queries, collection):
        raise AssertionError


def enriched(base, units, source):
    engine = EnrichedEngine(
        LexicalEngine(base.analyzer.name), source, None, Collection("c", index=base)
    )
    path = base.path.with_name("enriched")
    engine.build(units, path, corpus_fingerprint="c")
    return engine.open(path, corpus_fingerprint="c")


def terms_of(text, longest):
    """Terms of a text of WORDS, n-grams joined by a space, written down apart from the analyzer."""
    single = [word for word in text.split() if word != "the"]
    grams = [
        " ".join(single[start : start + size])
        for size in range(2, longest + 1)
        for start in range(len(single) - size + 1)
    ]
    return single + grams


def slot(term):
    """An n-gram as the number of its slot, as SIRA's released code has it; a word as it is."""
    return f" {murmur(term.encode(), positive=True) % 2**23}" if " " in term else term


def brute_force(documents, query, k1, b):
    lengths = [
        sum(count for term, count in counts.items() if " " not in term) for counts in documents
    ]
    total = sum(length > 0 for length in lengths)
    average = sum(lengths) / max(1, total)
    scores = []
    for counts, length in zip(documents, lengths, strict=True):
        score = 0.0
        for term, weight in query.items():
            df = sum(others[term] > 0 for others in documents)
            idf = math.log(1 + (total - df + 0.5) / (df + 0.5))
            if counts[term]:
                norm = k1 * (1 - b + b * length / average)
                score += weight * idf * counts[term] / (counts[term] + norm)
        scores.append(score)
    return scores


@settings(max_examples=cases(60), deadline=None)
@given(
    documents=st.lists(texts, min_size=1, max_size=6),
    added=st.dictionaries(st.integers(0, 5), phrases, max_size=6),
    query=st.dictionaries(
        st.sampled_from([*(w for w in WORDS if w != "the"), *NGRAMS]), st.floats(0.1, 3), min_size=1
    ),
    k1=st.sampled_from([0.0, 0.9, 1.5, 25.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
    shape=st.sampled_from(["", ":2", ":4", ":3:hashed"] if murmur else ["", ":2", ":4"]),
)
def test_scores_of_enriched_documents_equal_brute_force(
    tmp_path_factory, documents, added, query, k1, b, shape
):
    """A document has the terms of its text and of each phrase; no n-gram spans two of them."""
    longest = int(shape[1]) if shape else 1
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(documents)]
    path = tmp_path_factory.mktemp("enriched") / "base"
    base = LexicalIndex.build(units, path, analyzer=f"english_unstemmed{shape}")
    source = GivenPhrases({f"d{number}": of for number, of in added.items()})
    index = enriched(base, units, source)
    assert index.base is base
    terms = [
        Counter(term for part in [text, *added.get(number, [])] for term in terms_of(part, longest))
        for number, text in enumerate(documents)
    ]
    weights = {slot(term) if "hashed" in shape else term: weight for term, weight in query.items()}
    numbers, scores = index.search(weights, k1=k1, b=b, depth=10)
    found = dict(zip(numbers.tolist(), scores.tolist(), strict=True))
    for number, score in enumerate(brute_force(terms, query, k1, b)):
        assert found.get(number, 0.0) == pytest.approx(score, rel=1e-5, abs=1e-6)


@pytest.fixture
def units():
    chance = np.random.default_rng(3)
    return [
        Unit(f"d{number}", "Tides", " ".join([*chance.choice(WORDS, 20), f"berth{number}"]))
        for number in range(40)
    ]


@pytest.fixture
def base(tmp_path, units):
    return LexicalIndex.build(units, tmp_path / "base", corpus_fingerprint="c")


def test_feedback_and_texts_are_those_of_the_plain_documents(base, units):
    source = GivenPhrases({unit.unit_id: ["quay lighthouse"] for unit in units[::3]})
    index = enriched(base, units, source)
    query = pd.DataFrame({"qid": ["q"], "query": ["quay"]})
    ranking = index.bm25().transform(query)
    assert set(ranking["docno"]) == {unit.unit_id for unit in units[::3]}
    [weights] = (index.bm25() >> Feedback(index)).transform(query)["query_toks"]
    assert "lighthous" not in weights and len(weights) > 1
    assert index.texts(["d3"]) == [units[3]] and index.texts_path == base.texts_path
    loaded = (index.bm25() >> index.text_loader()).transform(query)
    assert loaded["text"].tolist() == [units[int(docno[1:])].text for docno in loaded["docno"]]
    copied = pickle.loads(pickle.dumps(index))
    assert copied == index != base and copied.base == base
    with pytest.raises(InputError, match="an index with phrases offers no query likelihood"):
        index.ql()


class OutOfOrder(GivenPhrases):
    def for_documents(self, units, collection):
        return iter(reversed(list(super().for_documents(units, collection))))


def test_phrases_in_another_order_are_refused_and_leave_nothing(base, units):
    source = OutOfOrder({"d1": ["quay"], "d2": ["quay"]})
    with pytest.raises(InputError, match=r"phrases for the unit 'd1'.*in their order"):
        enriched(base, units, source)
    assert [path.name for path in base.path.parent.iterdir()] == ["base"]
    with pytest.raises(InputError, match="is no index of enriched documents"):
        EnrichedEngine(LexicalEngine(), source, None, Collection("c", index=base)).build(
            units, base.path, corpus_fingerprint="c"
        )


def test_kept_phrases_are_part_of_the_indexed_text_alone(base, units, tmp_path):
    row = {"id": "d5", "phrases": ["quay", "QUAY", "mole wall"]}
    (tmp_path / "phrases.jsonl").write_text(json.dumps(row) + "\n")
    index = enriched(base, units, PhraseFile(path=str(tmp_path / "phrases.jsonl")))
    more = index.lengths - base.lengths
    assert (int(more[5]), int(more.sum())) == (3, 3)
    assert index.postings("quai")[0].tolist() == [5]
