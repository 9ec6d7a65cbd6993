"""Our stages in the tools of PyTerrier: grid search, experiments, operators, inspection, caches of
other projects. What needs a Terrier index is in `tests/integration/test_terrier.py`."""

import itertools
import random

import pandas as pd
import pyterrier as pt
import pytest
from support.assertions import refused

from soundingline.pipelines import LexicalIndex, MaxP, MonoT5, Q2Q, Reranker, RerankHead
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.retrieve import BM25, RM3

QUERIES = pd.DataFrame(
    {"qid": ["a", "b", "c"], "query": ["w1 w2 w40", "w0 w0 w30 unknown", "w3 w5"]}
)


def documents():
    chance = random.Random(5)
    words = [f"w{number}" for number in range(60)]
    weights = [1 / (1 + number) for number in range(60)]
    return [
        {"docno": f"d{n}", "text": " ".join(chance.choices(words, weights, k=5 + n % 50))}
        for n in range(200)
    ]


TEXTS = {row["docno"]: row["text"] for row in documents()}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyterrier") / "index"
    return LexicalIndex.build(documents(), path, analyzer="whitespace")


@pytest.fixture(scope="module")
def qrels():
    chance = random.Random(7)
    rows = [(qid, f"d{n}", 1) for qid in QUERIES["qid"] for n in chance.sample(range(200), 20)]
    return pd.DataFrame(rows, columns=["qid", "docno", "label"])


class Lengths(Reranker):
    """Scores a text by its length."""

    def score(self, pairs):
        return [float(len(pair.text)) for pair in pairs]


# Parameters.


def test_a_grid_search_over_two_equal_stages_tunes_both(index, qrels):
    values = [0.0, 0.4, 1.0]
    found = {}
    for one, other in itertools.product(values, values):
        pipeline = index.bm25(b=one, k1=3) + index.bm25(b=other, k1=3)
        found[one, other] = pt.Evaluate(pipeline(QUERIES), qrels, ["map"])["map"]
    first, second = index.bm25(k1=3), index.bm25(k1=3)
    grid = {first: {"b": values}, second: {"b": values}}
    scan = pt.GridScan(first + second, grid, QUERIES, qrels, ["map"])
    assert len(scan) == 9 and len(set(found.values())) > 4
    assert scan["map"].tolist() == pytest.approx(list(found.values()))
    best = pt.GridSearch(first + second, grid, QUERIES, qrels, "map")
    assert pt.Evaluate(best(QUERIES), qrels, ["map"])["map"] == pytest.approx(max(found.values()))
    assert found[first.b, second.b] == max(found.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda index: index.bm25(),
        lambda index: Feedback(index),
        lambda index: MaxP(),
        lambda index: ReciprocalRankFusion(index.bm25(), index.ql()),
        lambda index: Lengths(texts=index.texts),
    ],
)
def test_a_stage_equals_itself_alone_whatever_its_settings(make, index):
    one, other = make(index), make(index)
    assert one != other and repr(one) == repr(other)
    places = {one: 1, other: 2}
    one.set_parameter("depth" if hasattr(one, "depth") else "fb_docs", 7)
    assert places[one] == 1 and places[other] == 2


@pytest.mark.parametrize(
    ("make", "name", "value", "message"),
    [
        (BM25, "b", 9, r"b=9\. valid: .*at most 1"),
        (BM25, "k1", float("nan"), "k1=nan"),
        (BM25, "depth", -1, "depth=-1"),
        (BM25, "K1", 2, "BM25 has no argument 'K1'.* did you mean k1"),
        (BM25, "rank", 2, "no argument 'rank'"),
        (RM3, "fb_docs", 0, "fb_docs=0"),
        (MaxP, "depth", 0, "depth of MaxP=0"),
        (lambda: Interpolation(BM25(), BM25()), "weight", 2, "weight=2"),
        (lambda: Lengths(depth=3), "long_documents", "max_passage", "has no windows"),
        (MonoT5, "batch_tokens", 0, "batch_tokens=0"),
        (Q2Q, "apply_to", "nothing", "apply_to is 'nothing'"),
        (lambda: Dense("some/model"), "pooling", "sum", "pooling='sum'"),
    ],
)
def test_a_parameter_is_checked_as_in_the_constructor(make, name, value, message):
    stage = make()
    before = repr(stage)
    refused(message, lambda: stage.set_parameter(name, value))
    assert repr(stage) == before


def test_what_follows_from_a_parameter_changes_with_it(index):
    stage = Lengths(texts=index.texts)
    stage.score_pairs([Pair("a", "b")])
    stage.set_parameter("depth", 3)
    assert stage.counts["batches"] == 1  # the loaded model and its counts stay
    assert stage.schematic["label"] == "Lengths %3"
    ranking = (index.bm25() >> stage)(QUERIES)
    again = (index.bm25() >> Lengths(texts=index.texts, depth=3))(QUERIES)
    pd.testing.assert_frame_equal(ranking, again)
    model = MonoT5("some/model", device="cpu")
    model.set_parameter("batch_tokens", 77)
    assert model.placement.batch_tokens == 77
    head = RerankHead(index.ql(), depth=2)
    head.set_parameter("depth", None)
    assert head.depth is None


def test_a_stage_without_named_arguments_cannot_be_set():
    class Own(Reranker):
        def __init__(self, **settings):
            super().__init__(**settings)

        def score(self, pairs):
            return [0.0] * len(pairs)

    stage = Own(depth=3)
    refused("Own has no argument 'depth' that can be set", lambda: stage.set_parameter("depth", 5))
    assert stage.depth == 3


# Names.


def test_systems_without_names_are_saved_in_files(index, qrels, tmp_path):
    systems = [index.bm25(), index.ql(mu=5), index.bm25().rm3()]
    table = pt.Experiment(systems, QUERIES, qrels, ["map"], save_dir=str(tmp_path))
    assert len(set(table["name"])) == 3
    assert {f"{name}.res.gz" for name in table["name"]} <= {p.name for p in tmp_path.iterdir()}
    assert str(systems[1]) == "QueryLikelihood(index=LexicalIndex('index'), mu=5)"
