"""Enriched indexes against brute force in float64, whatever counts where."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.lexical import LexicalIndex
from pipelines.lexical.enriched import COUNTED, EnrichedIndex
from pipelines.lexical.grid import GridBM25, JudgedQuery
from pipelines.lexical.overlay import Overlay
from toolkit.errors import InputError

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


def terms_of(text: str, longest: int) -> list[str]:
    """Terms of a text of WORDS, n-grams joined by a space, written down apart from the analyzer."""
    stems = {"harbour": "harbour", "keeper": "keeper"}
    single = [stems.get(word, word) for word in text.split() if word != "the"]
    grams = [
        " ".join(single[start : start + size])
        for size in range(2, longest + 1)
        for start in range(len(single) - size + 1)
    ]
    return single + grams


def slot(term: str) -> str:
    """An n-gram as the number of its slot, as SIRA's released code has it; a word as it is."""
    return f" {murmur(term.encode(), positive=True) % 2**23}" if " " in term else term


def brute_force(
    documents: Sequence[str],
    added: dict[int, list[str]],
    query: dict[str, float],
    k1: float,
    b: float,
    counted: Sequence[str],
    longest: int,
) -> list[float]:
    own = [Counter(terms_of(text, longest)) for text in documents]
    more = [
        Counter(term for phrase in added.get(number, []) for term in terms_of(phrase, longest))
        for number in range(len(documents))
    ]

    def tokens(counts: Counter[str]) -> int:
        return sum(count for term, count in counts.items() if " " not in term)

    base = [tokens(counts) for counts in own]
    extra = [tokens(counts) for counts in more]
    joined = [first + second for first, second in zip(base, extra, strict=True)]
    averaged = joined if "average" in counted else base
    average = sum(averaged) / max(1, sum(length > 0 for length in averaged))
    lengths = joined if "length" in counted else base
    in_df = [first + second for first, second in zip(own, more, strict=True)]
    holders = in_df if "df" in counted else own
    total = sum(length > 0 for length in (joined if "df" in counted else base))
    scores = []
    for first, second, length in zip(own, more, lengths, strict=True):
        score = 0.0
        for term, weight in query.items():
            frequency = first[term] + second[term]
            df = sum(counts[term] > 0 for counts in holders)
            idf = math.log(1 + (total - df + 0.5) / (df + 0.5))
            if frequency:
                norm = k1 * (1 - b + b * length / average) if average else 0.0
                score += weight * idf * frequency / (frequency + norm)
        scores.append(score)
    return scores


@settings(max_examples=cases(60), deadline=None)
@given(
    documents=st.lists(texts, min_size=1, max_size=6).filter(
        lambda all_: any(t.strip() for t in all_)
    ),
    added=st.dictionaries(st.integers(0, 5), phrases, max_size=6),
    query=st.dictionaries(
        st.sampled_from([*(w for w in WORDS if w != "the"), *NGRAMS]),
        st.floats(0.1, 3),
        min_size=1,
    ),
    k1=st.sampled_from([0.0, 0.9, 1.5, 25.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
    counted=st.lists(st.sampled_from(COUNTED), unique=True),
    shape=st.sampled_from(["", ":2", ":4", ":3:hashed"] if murmur else ["", ":2", ":4"]),
)
def test_scores_of_an_enriched_index_equal_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    added: dict[int, list[str]],
    query: dict[str, float],
    k1: float,
    b: float,
    counted: list[str],
    shape: str,
) -> None:
    folder = tmp_path_factory.mktemp("overlay")
    longest = int(shape[1]) if shape else 1
    units = [{"docno": f"d{number}", "text": text} for number, text in enumerate(documents)]
    analyzer = f"english_unstemmed{shape}"
    base = LexicalIndex.build(units, folder / "base", analyzer=analyzer, processes=1)
    overlay = Overlay.build(base, ((f"d{n}", ps) for n, ps in added.items()), folder / "overlay")
    index = EnrichedIndex(base, overlay, counted)
    weights = {slot(term) if "hashed" in shape else term: weight for term, weight in query.items()}
    known = {number: ps for number, ps in added.items() if number < len(documents)}
    expected = brute_force(documents, known, query, k1, b, counted, longest)
    if not any(base.lengths) and "average" not in counted:
        return  # the average of no token: nothing to divide by
    numbers, scores = index.search(weights, k1=k1, b=b, depth=10, lengths="exact")
    found = dict(zip(numbers.tolist(), scores.tolist(), strict=True))
    for number, score in enumerate(expected):
        assert found.get(number, 0.0) == pytest.approx(score, rel=1e-5, abs=1e-6)
    assert overlay.manifest["counts"]["unknown"] == len(added) - len(known)


@settings(max_examples=cases(40), deadline=None)
@given(
    documents=st.lists(texts, min_size=1, max_size=40),
    added=st.dictionaries(st.integers(0, 39), phrases, max_size=20),
    weights=st.dictionaries(
        st.sampled_from([*WORDS, "unknown"]), st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=5
    ),
    often=st.sampled_from([1, 100, 254, 300]),
    counted=st.lists(st.sampled_from(COUNTED), unique=True),
    lengths=st.sampled_from(["lucene", "exact"]),
)
def test_an_enriched_index_and_its_merged_postings_score_as_an_index_of_the_joined_texts(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    added: dict[int, list[str]],
    weights: dict[str, float],
    often: int,
    counted: list[str],
    lengths: str,
) -> None:
    folder = tmp_path_factory.mktemp("joined")
    documents = [*documents, "brel " * often + "tide", "tide"]
    added = {number: ps for number, ps in added.items() if number < len(documents)}
    added[len(documents) - 2] = ["brel brel", "tide"]

    def build(name: str, texts_: list[str]) -> LexicalIndex:
        units = [{"docno": f"d{number}", "text": text} for number, text in enumerate(texts_)]
        return LexicalIndex.build(units, folder / name, analyzer="whitespace", processes=1)

    base = build("base", documents)
    overlay = Overlay.build(base, ((f"d{n}", ps) for n, ps in added.items()), folder / "overlay")
    everything = EnrichedIndex(base, overlay)
    joined = build(
        "joined", [" ".join([text, *added.get(n, [])]) for n, text in enumerate(documents)]
    )
    cells = [(0.0, 0.4), (0.9, 0.0), (1.5, 0.75), (25.0, 1.0)]
    for cell in cells:
        for mine, theirs in zip(
            everything.search(weights, *cell, 50, lengths),
            joined.search(weights, *cell, 50, lengths),
            strict=True,
        ):
            assert mine.tolist() == theirs.tolist()  # bit by bit
    index = EnrichedIndex(base, overlay, counted)
    names = [f"d{number}" for number in range(len(documents))]
    grid = GridBM25(index.merged([weights]), cells, depth=50, lengths=lengths)
    question = JudgedQuery("q", weights, names)
    [(_, ranks)] = grid.ranks([question])
    scores = grid.scores(question)
    for place, cell in enumerate(cells):
        numbers, found = index.search(weights, *cell, 50, lengths)
        expected = {int(number): rank for rank, number in enumerate(numbers, start=1)}
        assert ranks[:, place].tolist() == [expected.get(n, 0) for n in range(len(documents))]
        values = dict(zip(numbers.tolist(), found.tolist(), strict=True))
        assert scores[:, place].tolist() == [values.get(n, 0.0) for n in range(len(documents))]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[LexicalIndex]:
    rng = np.random.default_rng(3)
    units = [
        {"docno": f"d{number}", "text": " ".join(rng.choice(WORDS, 300 if number == 7 else 20))}
        for number in range(400)
    ]
    units[7]["text"] = "brel " * 300 + "tide"
    yield LexicalIndex.build(units, tmp_path / "base", processes=1)


def test_frequencies_above_one_byte_saturate_with_the_phrases(
    base: LexicalIndex, tmp_path: Path
) -> None:
    overlay = Overlay.build(base, [("d7", ["brel"] * 2)], tmp_path / "overlay")
    first, last = overlay.arrays.offsets[:2].tolist()
    assert overlay.arrays.base_frequencies[first:last].tolist() == [300]
    index = EnrichedIndex(base, overlay, counted=())
    before = dict(zip(*map(np.ndarray.tolist, base.search(["brel"], depth=400)), strict=True))
    after = dict(zip(*map(np.ndarray.tolist, index.search(["brel"], depth=400)), strict=True))
    assert after[7] > before[7]
    assert {n: s for n, s in after.items() if n != 7} == {n: s for n, s in before.items() if n != 7}


def test_a_weighted_call_equals_the_sum_of_two_searches(base: LexicalIndex, tmp_path: Path) -> None:
    overlay = Overlay.build(
        base, [(f"d{n}", ["tide keeper", "lighthouse"]) for n in range(0, 400, 3)], tmp_path / "o"
    )
    index = EnrichedIndex(base, overlay)
    query, expansion, weight = ["brel", "tide"], ["lighthous", "keeper", "tide"], 0.5
    joined = Counter(dict.fromkeys(query, 1.0))
    for term in expansion:
        joined[term] += weight
    one = dict(zip(*map(np.ndarray.tolist, index.search(joined, depth=400)), strict=True))
    parts = [
        dict(zip(*map(np.ndarray.tolist, index.search(part, depth=400)), strict=True))
        for part in (query, expansion)
    ]
    for number in set(parts[0]) | set(parts[1]):
        both = parts[0].get(number, 0) + weight * parts[1].get(number, 0)
        assert one[number] == pytest.approx(both, rel=1e-5)


def test_several_overlays_stand_beside_one_base_and_leave_it_as_it_is(
    base: LexicalIndex, tmp_path: Path
) -> None:
    files = {path: path.read_bytes() for path in base.path.iterdir()}
    first = EnrichedIndex(base, Overlay.build(base, [("d1", ["quay"])], tmp_path / "first"))
    second = EnrichedIndex(base, Overlay.build(base, [("d2", ["quay"])], tmp_path / "second"))
    assert [int(i.search(["quai"], depth=5)[0][0]) for i in (first, second)] == [1, 2]
    assert first != second and hash(first) == hash(EnrichedIndex(base, first.overlay))
    assert pickle.loads(pickle.dumps(first)) == first
    assert {path: path.read_bytes() for path in base.path.iterdir()} == files


def test_an_overlay_of_another_base_is_refused_in_one_line(
    base: LexicalIndex, tmp_path: Path
) -> None:
    Overlay.build(base, [("d1", ["quay"])], tmp_path / "overlay")
    other = LexicalIndex.build([{"docno": "d1", "text": "quay"}], tmp_path / "other", processes=1)
    with pytest.raises(InputError, match="enriches another index"):
        Overlay.open(tmp_path / "overlay", other)
    with pytest.raises(InputError, match="there is no overlay"):
        Overlay.open(tmp_path / "nothing", base)
    with pytest.raises(InputError, match="is not an overlay; it would be replaced"):
        Overlay.build(base, [], base.path)
    (tmp_path / "overlay" / "documents.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"is damaged: documents\.bin"):
        Overlay.open(tmp_path / "overlay", base)
    manifest = json.loads((tmp_path / "overlay" / "manifest.json").read_text())
    (tmp_path / "overlay" / "manifest.json").write_text(json.dumps({**manifest, "version": 9}))
    with pytest.raises(InputError, match="soundingline-overlay, version 9"):
        Overlay.open(tmp_path / "overlay", base)


def test_an_empty_overlay_changes_no_score(base: LexicalIndex, tmp_path: Path) -> None:
    index = EnrichedIndex(base, Overlay.build(base, [], tmp_path / "empty"))
    for own, other in zip(
        base.search(["brel", "tide"]), index.search(["brel", "tide"]), strict=True
    ):
        np.testing.assert_array_equal(own, other)


def test_what_counts_is_checked(base: LexicalIndex, tmp_path: Path) -> None:
    overlay = Overlay.build(base, [], tmp_path / "empty")
    with pytest.raises(InputError, match=r"counted has idf\. valid: length, average, df"):
        EnrichedIndex(base, overlay, ["df", "idf"])


def test_a_stem_that_phrases_repeat_counts_each_time_and_no_pair_spans_two_phrases(
    tmp_path: Path,
) -> None:
    """As in SIRA's released code, where every stem of a phrase adds one to the frequency."""
    units = [{"docno": "d1", "text": "tide"}, {"docno": "d2", "text": "stone"}]
    base = LexicalIndex.build(units, tmp_path / "base", analyzer="english:2", processes=1)
    phrases_of = [("d1", ["harbours tides", "tide lamp"])]
    overlay = Overlay.build(base, phrases_of, tmp_path / "overlay")
    terms = dict(zip(overlay.vocabulary, overlay.arrays.frequencies.tolist(), strict=True))
    assert terms == {"harbour": 1, "harbour tide": 1, "lamp": 1, "tide": 2, "tide lamp": 1}
    assert overlay.lengths.tolist() == [4, 0]
