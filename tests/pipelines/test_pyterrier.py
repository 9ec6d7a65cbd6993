"""Our stages in the tools of PyTerrier: grid search, experiments, operators, inspection, caches of
other projects. What needs a Terrier index is in `tests/integration/test_terrier.py`."""

import itertools
import random
from collections import defaultdict

import pandas as pd
import pyterrier as pt
import pytest
from support.assertions import refused
from support.needs import needs
from support.pairs import Lengths, by_length, scored

from soundingline.pipelines import (
    Q2Q,
    ColBERTReranker,
    CrossEncoder,
    LexicalIndex,
    LinkExpansion,
    MaxP,
    MonoT5,
    RankLLaMA,
    RerankTop,
    Scorer,
)
from soundingline.pipelines.fusion import Interpolation, ReciprocalRankFusion
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.splade import Splade
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.retrieve import BM25, RM3
from soundingline.pipelines.rewrite import Rewriter, RewrittenQuery
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.data import Link

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
        by_length,
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
        (lambda: Interpolation(BM25(), BM25()), "weights", [2, 0], "weight 1=2"),
        (Lengths, "long_documents", "max_passage", "has no windows"),
        (lambda: RerankTop(Lengths()), "depth", 0, "depth=0"),
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
    stage = by_length(index)
    stage.scorer.score_pairs(["a"], ["b"])
    stage.set_parameter("depth", 3)
    assert stage.counts["batches"] == 1  # the scorer stays, with its loaded model and its counts
    ranking = (index.bm25() >> stage)(QUERIES)
    again = (index.bm25() >> by_length(index, depth=3))(QUERIES)
    pd.testing.assert_frame_equal(ranking, again)
    model = MonoT5("some/model", device="cpu")
    model.set_parameter("batch_tokens", 77)
    assert model.placement.batch_tokens == 77
    top = RerankTop(index.ql(), depth=2)
    top.set_parameter("depth", None)
    assert top.depth is None


def test_a_stage_without_named_arguments_cannot_be_set():
    class Own(Scorer):
        def __init__(self, **settings):
            super().__init__(**settings)

        def score(self, queries, texts):
            return [0.0] * len(texts)

    stage = Own(cache="here")
    message = "Own has no argument 'cache' that can be set"
    refused(message, lambda: stage.set_parameter("cache", "there"))
    assert stage.cache == "here"


# Names.


def test_systems_without_names_are_saved_in_files(index, qrels, tmp_path):
    systems = [index.bm25(), index.ql(mu=5), index.bm25().rm3()]
    table = pt.Experiment(systems, QUERIES, qrels, ["map"], save_dir=str(tmp_path))
    assert len(set(table["name"])) == 3
    assert {f"{name}.res.gz" for name in table["name"]} <= {p.name for p in tmp_path.iterdir()}
    assert str(systems[1]) == "QueryLikelihood(index=LexicalIndex('index'), mu=5)"


# The data model.


PYTERRIER_STAGES = {
    "bm25": lambda index: index.bm25(),
    "rm3": lambda index: index.bm25().rm3(fb_docs=2),
    "fusion": lambda index: ReciprocalRankFusion(index.bm25(), index.ql()),
    "scorer": lambda index: index.bm25() >> pt.text.get_text(index) >> Lengths(),
    "top": lambda index: index.bm25() >> by_length(index, depth=3),
    "another scorer": lambda index: index.bm25() >> RerankTop(index.ql(), depth=3),
    "feedback": lambda index: index.bm25() >> Feedback(index) >> index.bm25(),
    "max-p": lambda index: index.bm25() >> MaxP(),
    "links": lambda index: index.bm25() >> LinkExpansion(LinkGraph.build([Link("d1", "d2")])),
    "rewriter": lambda index: UpperCase() >> index.ql(),
}


class UpperCase(Rewriter):
    def rewrite(self, queries):
        return [RewrittenQuery(query.text.upper().lower()) for query in queries]


@pytest.mark.parametrize("name", PYTERRIER_STAGES)
def test_numbers_as_qids_become_text(name, index):
    stage = PYTERRIER_STAGES[name](index)
    numbers = QUERIES.assign(qid=[3, 1, 2])
    expected = stage(numbers.assign(qid=["3", "1", "2"]))
    out = stage(numbers)
    assert len(expected) > 20 and {*map(type, out["qid"])} == {str}
    pd.testing.assert_frame_equal(out, expected, check_dtype=False)
    assert len(out.merge(expected, on=["qid", "docno"])) == len(expected)
    assert numbers["qid"].tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    "name", ["bm25", "rm3", "scorer", "top", "another scorer", "feedback", "max-p", "links"]
)
def test_a_query_counts_that_is_missing_in_the_first_row_of_its_qid(name, index):
    stage = PYTERRIER_STAGES[name](index)
    candidates = (index.bm25(depth=20) >> pt.text.get_text(index))(QUERIES)
    candidates = candidates.sample(frac=1, random_state=2)
    last = ~candidates["qid"].duplicated(keep="last")
    sparse = candidates.assign(query=candidates["query"].where(last))
    first = sparse.drop_duplicates("qid")
    assert first["query"].isna().all() and sparse["query"].notna().sum() == 3
    pd.testing.assert_frame_equal(stage(sparse), stage(candidates))


def test_a_sum_of_two_retrievers_is_scored_by_a_third(index):
    candidates = index.bm25() % 1 + index.ql() % 15
    assert candidates(QUERIES).drop_duplicates("qid")["query"].isna().any()
    out = (candidates >> index.bm25(k1=2))(QUERIES)
    everything = scored(index.bm25(k1=2, depth=200)(QUERIES))
    assert len(out) > 30 and scored(out) == {key: everything[key] for key in scored(out)}


def test_rows_of_a_docid_without_a_docno_are_refused(index):
    ranking = index.bm25(depth=5)(QUERIES).assign(docid=range(15)).drop(columns="docno")
    message = r"has docid and no docno.*pt\.apply\.docid\(drop=True\)"
    fusion = Interpolation(pt.Transformer.from_df(ranking), index.bm25())
    for stage in (index.bm25(), index.bm25().rm3(), fusion):
        refused(message, lambda stage=stage: stage(ranking))
    # A Terrier retriever gives both.
    assert len(index.bm25()(ranking.assign(docno="d1"))) == 15


def test_another_document_has_not_the_number_of_the_first():
    ranking = pd.DataFrame(
        [("q", "d1%p1", 9.0, 4), ("q", "d2%p0", 8.0, 7)], columns=["qid", "docno", "score", "docid"]
    ).assign(query="words")
    assert "docid" not in MaxP()(ranking)
    expanded = LinkExpansion(LinkGraph.build([Link("d1", "d3")]))(ranking)
    assert "docid" not in expanded and "d3%p0" in expanded["docno"].tolist()


def test_feedback_does_not_replace_later_queries(index):
    expanded = index.bm25().rm3(fb_docs=2)
    plain = index.bm25(depth=200)
    other = QUERIES["query"].str.replace("w1", "w7")
    rewrite = pt.apply.query(lambda row: row["query"].replace("w1", "w7"))
    ranking = expanded(QUERIES)
    assert list(ranking.columns) == ["qid", "query", "docno", "score", "rank"]
    later = (expanded >> rewrite >> plain)(QUERIES)
    restored = (rewrite >> expanded >> pt.rewrite.reset() >> plain)(QUERIES)
    for ranking, query in ((later, other), (restored, QUERIES["query"])):
        everything = defaultdict(float, scored(plain(QUERIES.assign(query=query))))
        assert {key: everything[key] for key in scored(ranking)} == scored(ranking)
        assert any(scored(ranking).values())


def test_a_rewriter_drops_other_forms_of_the_old_query(index):
    weighted = QUERIES.assign(query_toks=[{"w9": 1.0}] * 3, query_vec=[[0.5]] * 3)
    pd.testing.assert_frame_equal(
        (UpperCase() >> index.bm25())(weighted), (UpperCase() >> index.bm25())(QUERIES)
    )


def test_columns_of_the_topics_survive_feedback(index):
    topics = QUERIES.assign(narrative=["x", "y", "z"], reasoning="why", qcontext="c")
    ranking = index.bm25().rm3()(topics)
    assert (ranking["narrative"] == ranking["qid"].map({"a": "x", "b": "y", "c": "z"})).all()
    assert set(ranking["reasoning"]) == {"why"} and set(ranking["qcontext"]) == {"c"}


def test_stashed_results_survive_feedback(index):
    first = index.bm25(depth=5)
    pipeline = (
        first >> pt.rewrite.stash_results(clear=False) >> Feedback(index)
        >> pt.rewrite.reset_results()
    )  # fmt: skip
    out = pipeline(QUERIES)
    assert scored(out) == scored(first(QUERIES)) and "query_toks" in out


def test_a_text_of_the_topics_is_not_that_of_a_document(index):
    topics = QUERIES.assign(text="a topic of many words")
    expected = (index.bm25() >> by_length(index))(QUERIES)
    for pipeline in (
        index.bm25() >> by_length(index),
        index.bm25().rm3(original_weight=1) >> by_length(index),
        ReciprocalRankFusion(index.bm25(), index.ql()) >> by_length(index),
    ):
        out = pipeline(topics)
        assert "text" not in out and scored(out).items() <= scored(pipeline(QUERIES)).items()
    assert scored((index.bm25() >> by_length(index))(topics)) == scored(expected)


def test_text_is_the_first_input_that_inspection_shows(index):
    for stage in (index.bm25(), index.bm25().rm3(), index.bm25() >> MaxP()):
        assert pt.inspect.transformer_inputs(stage)[0] == ["qid", "query"]
    assert pt.inspect.transformer_inputs(Feedback(index))[0][2] == "query"


@pytest.mark.parametrize(
    "query", ["applypipeline:off mill^1.0 tide^0.3", "#combine:0=0.1(mill)", "mill #combine(a b)"]
)
def test_a_query_in_terriers_language_is_refused(query, index):
    frame = pd.DataFrame({"qid": ["1"], "query": [query]})
    for stage in (index.bm25(), index.ql(), index.bm25().rm3()):
        refused("Terrier's query language.*reset", lambda stage=stage: stage(frame))
    for query in ("apply pipeline off", "c# combine", "a^2"):
        assert len(index.bm25().search(query)) == 0


# Re-rankers.


def test_a_set_of_documents_is_reranked_whole(index):
    first, second = index.bm25(depth=15), index.ql(depth=15)
    for pipeline in (first | second, first & second):
        candidates = pipeline(QUERIES)
        assert not {"score", "rank"} & set(candidates) and len(candidates) > 20
        for texts in (pt.text.get_text(index), pt.Transformer.identity()):
            stage = by_length(index, depth=3)
            out = (pipeline >> texts >> stage)(QUERIES)
            assert scored(out) == {
                (qid, docno): float(len(TEXTS[docno]))
                for qid, docno in zip(candidates["qid"], candidates["docno"], strict=True)
            }
            for _, rows in out.groupby("qid"):
                assert rows["score"].is_monotonic_decreasing
                assert rows["rank"].tolist() == list(range(len(rows)))
    assert len(((first | second) >> RerankTop(index.ql()))(QUERIES)) > 40
    outputs = pt.inspect.transformer_outputs(by_length(index), ["qid", "query", "docno"])
    assert {"score", "rank"} <= set(outputs)


def test_a_scorer_is_given_the_docnos_and_columns_of_the_ranking(index):
    seen = []

    def remembered(rows):
        seen.append(rows)
        return rows[["qid", "docno"]].assign(score=rows["docno"].str[1:].astype(float))[::-1]

    stage = RerankTop(pt.apply.generic(remembered), depth=4, texts=index.texts)
    ranking = index.bm25()(QUERIES).assign(docid=7)
    out = stage(ranking)
    (given,) = seen
    best = ranking[ranking["rank"] < 4]
    assert given["docno"].tolist() == best["docno"].tolist() and set(given["docid"]) == {7}
    assert given["score"].tolist() == best["score"].tolist()
    assert given["text"].tolist() == [TEXTS[docno] for docno in given["docno"]]
    top = out[out["rank"] < 4]
    assert scored(top) == {key: float(key[1][1:]) for key in scored(best)}


def test_a_scorer_may_need_no_texts_and_the_error_says_so_if_it_does(index):
    ranking = index.bm25()(QUERIES)
    assert len(RerankTop(index.ql(), depth=3)(ranking)) == len(ranking)
    by_text = pt.apply.doc_score(lambda row: len(row["text"]))
    for scorer, name in ((by_text, r"\w+"), (Lengths(), "Lengths")):
        message = (
            rf"no text for RerankTop\(.*write RerankTop\({name}\(\.\.\.\), texts=index\.texts\)"
        )
        refused(message, lambda scorer=scorer: RerankTop(scorer)(ranking))
    refused(r"no text for Lengths\(\).*write RerankTop\(Lengths", lambda: Lengths()(ranking))


@needs(["pyterrier_caching"], "dev")
def test_a_cache_of_scores_holds_scores_of_the_model_alone(index, tmp_path):
    from pyterrier_caching import ScorerCache

    cache = ScorerCache(tmp_path / "cache", Lengths())
    top = RerankTop(cache, depth=4, texts=index.texts)
    own = RerankTop(Lengths(), depth=4, texts=index.texts)
    for first in (index.bm25(), index.ql(), index.bm25(k1=0)):  # another top each time
        for _ in range(2):
            pd.testing.assert_frame_equal((first >> top)(QUERIES), (first >> own)(QUERIES))
    ranking = (index.bm25() >> pt.text.get_text(index) >> cache)(QUERIES)
    assert scored(ranking) == {key: float(len(TEXTS[key[1]])) for key in scored(ranking)}
    rows = cache.db.execute("select key, value from cache").fetchall()
    assert len(rows) > 200 and all(value == len(TEXTS[docno]) for docno, value in rows)


def test_a_cutoff_after_texts_is_made_before_them(index):
    pipeline = (index.bm25() >> pt.text.get_text(index)) % 3
    compiled = pipeline.compile()
    assert compiled[0].depth == 3 and "TextLoader" in str(compiled[-1])
    pd.testing.assert_frame_equal(compiled(QUERIES), pipeline(QUERIES))


# Optional packages.


SCORERS = [(kind, "rerank") for kind in (MonoT5, CrossEncoder, RankLLaMA)]
SCORERS += [(ColBERTReranker, "learned")]
ABSENT = r"the package \w+ is not installed\. .*\[{}\]'"


@pytest.fixture
def without_packages(monkeypatch):
    monkeypatch.setattr("soundingline.toolkit.optional.find_spec", lambda name: None)


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize(
    ("make", "extra"), [*SCORERS, (lambda: Dense("some/model"), "learned"), (Splade, "learned")]
)
def test_without_the_packages_of_models_the_extra_of_the_stage_is_named(make, extra):
    refused(ABSENT.format(extra), lambda: make().validate(LexicalEngine()))


@pytest.mark.usefixtures("without_packages")
@pytest.mark.parametrize(("make", "extra"), SCORERS)
def test_without_the_packages_of_a_scorer_its_extra_is_named_where_it_scores(make, extra, index):
    stage = RerankTop(make(), texts=index.texts)
    refused(ABSENT.format(extra), lambda: (index.bm25() >> stage)(QUERIES))
