import asyncio
import multiprocessing
import pickle
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_t5 import WORDS, save_t5
from toy_search import store_of

from soundingline.pipelines import BM25, LexicalIndex
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.rerank.reranker import Pair, Reranker
from soundingline.toolkit.data import Document, SearchRequest, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing


class Lengths(Reranker):
    """Scores a pair by the length of its text and of its query, and keeps the calls.

    `told` are scores to give to texts instead."""

    counted = ("truncated",)

    def __init__(
        self, named: str = "lengths", told: Mapping[str, float] | None = None, **settings: Any
    ) -> None:
        self.named, self.told = named, told or {}
        self.calls = []
        super().__init__(**settings)

    @property
    def fingerprint(self):
        return self.named

    def score(self, pairs):
        self.calls.append(list(pairs))
        self.count.add(truncated=len(pairs))
        return [self.told.get(p.text, len(p.text) + len(p.query) / 1000) for p in pairs]


class Windows(Lengths):
    """The same, with windows of three characters."""

    def windows(self, pair):
        return [pair.text[start : start + 3] for start in range(0, len(pair.text), 3)]


def ranking(*rows, **columns):
    """Rows (qid, docno, text), best first; the query of a qid is its name."""
    frame = pd.DataFrame(rows, columns=["qid", "docno", "text"], dtype=object)
    ranks = frame.groupby("qid").cumcount()
    return frame.assign(query=frame["qid"], score=100.0 - ranks, rank=ranks, **columns)


THREE = ranking(("q", "d1", "a"), ("q", "d2", "ccc"), ("q", "d3", "bb"))
WITHOUT_TEXT = THREE.drop(columns="text")


class Store:
    """Texts by docno, and what was asked for."""

    def __init__(self, **texts: str) -> None:
        self.texts, self.asked = texts, []  # type: ignore[var-annotated]

    def __call__(self, docnos):
        self.asked.append(list(docnos))
        return [Unit(docno, "", self.texts[docno]) for docno in docnos]


STORE = {"d1": "a", "d2": "ccc", "d3": "bb"}


def test_the_head_is_in_the_scorers_order_and_the_tail_in_the_retrievers():
    got = Lengths(depth=2)(THREE)
    assert got["docno"].tolist() == ["d2", "d1", "d3"]
    assert got["score"].tolist() == [3.001, 1.001, 0.0009999999999998899]
    assert got["rank"].tolist() == [0, 1, 2]
    assert set(got.columns) == set(THREE.columns)


def test_texts_come_from_the_store_for_the_head_alone_and_each_once():
    store = Store(**STORE)
    frame = pd.concat([WITHOUT_TEXT, WITHOUT_TEXT.assign(qid="r", query="r")])
    got = Lengths(texts=store, depth=2)(frame)
    assert store.asked == [["d1", "d2"]]
    assert got["docno"].tolist() == ["d2", "d1", "d3"] * 2
    assert "text" not in got.columns


def test_the_title_stands_in_front_of_the_text_as_it_was_indexed():
    scorer = Lengths(texts=lambda docnos: [Unit(each, "Mills", "a") for each in docnos])
    scorer(WITHOUT_TEXT.iloc[:1])
    assert scorer.calls == [[Pair("q", "Mills\na")]]


def test_a_text_column_is_taken_before_the_store():
    store = Store()
    scorer = Lengths(texts=store)
    scorer(THREE)
    assert store.asked == []
    assert scorer.calls == [[Pair("q", "a"), Pair("q", "ccc"), Pair("q", "bb")]]


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, ""])
def test_missing_text_counts_as_empty_text_and_is_counted(missing):
    stage = Lengths()
    frame = THREE.assign(text=pd.Series(["a", missing, "bb"], dtype=object))
    assert stage(frame)["docno"].tolist() == ["d3", "d1", "d2"]
    assert Pair("q", "") in stage.calls[0]
    assert stage.counts["missing_text"] == 1


def test_a_ranking_without_any_text_is_told_what_to_do():
    with pytest.raises(InputError, match=r"no text .* texts=store.texts, or put pt.text.get_text"):
        Lengths()(WITHOUT_TEXT)


def test_a_document_that_the_store_lacks_is_told():
    store = Store(d1="a", d2="b")
    with pytest.raises(InputError, match=r"names 'd3', which the document store lacks.*same corp"):
        Lengths(texts=store)(WITHOUT_TEXT)


@pytest.mark.parametrize("query", [None, float("nan")])
def test_a_query_that_is_no_text_is_told(query):
    with pytest.raises(InputError, match=r"the query 'q' is (None|nan)\. give each query as text"):
        Lengths()(THREE.assign(query=pd.Series([query] * 3, dtype=object)))


def test_scores_that_are_no_numbers_are_counted_and_put_at_the_heads_end():
    stage = Lengths(told={"ccc": float("nan")}, depth=2)
    got = stage(THREE)
    assert got["docno"].tolist() == ["d1", "d2", "d3"]
    assert stage.counts["unscored"] == 1


def test_an_empty_frame_gives_an_empty_frame_of_the_same_columns_and_asks_nobody():
    scorer = Lengths(texts=Store())
    for frame in (THREE.iloc[:0], WITHOUT_TEXT.iloc[:0].drop(columns="rank")):
        got = scorer(frame)
        assert len(got) == 0
        assert set(got.columns) == {*frame.columns, "rank"}
        assert (got["score"].dtype, got["rank"].dtype) == ("float64", "int64")
    assert scorer.calls == []


def test_all_queries_of_a_frame_are_scored_in_one_call_and_equal_pairs_once():
    scorer = Lengths()
    frame = ranking(("q", "d1", "same"), ("r", "d1", "same"), ("q", "d2", "same"))
    got = scorer(frame)
    assert scorer.calls == [[Pair("q", "same"), Pair("r", "same")]]
    assert got[["qid", "docno"]].to_numpy().tolist() == [["q", "d1"], ["q", "d2"], ["r", "d1"]]


def test_lists_of_different_lengths_and_a_depth_beyond_them():
    rows = [("q", f"d{n}", "x" * n) for n in range(1, 5)] + [("r", "d1", "x")]
    got = Lengths(depth=50)(ranking(*rows))
    assert got["docno"].tolist() == ["d4", "d3", "d2", "d1", "d1"]
    assert got["rank"].tolist() == [0, 1, 2, 3, 0]


def test_a_docno_that_comes_twice_keeps_both_of_its_rows():
    got = Lengths()(ranking(("q", "d", "a"), ("q", "d", "bb")))
    assert got[["docno", "text"]].to_numpy().tolist() == [["d", "bb"], ["d", "a"]]


def test_extra_columns_stay_and_the_input_is_left_as_it_was():
    frame = THREE.assign(url=["u1", "u2", "u3"], query_0="raw", reasoning="because")
    before = frame.copy()
    got = Lengths()(frame)
    assert got["url"].tolist() == ["u2", "u3", "u1"]
    assert got["query_0"].tolist() == ["raw"] * 3
    pd.testing.assert_frame_equal(frame, before)


# Long documents


def test_a_long_document_scores_as_its_best_window_and_all_windows_go_in_one_call():
    told = {"def": 0.0, "abc": 1.0, "ghi": 9.0, "xyz": 5.0, "zzz": float("nan")}
    stage = Windows(told=told, long_documents="max_passage")
    frame = ranking(("q", "short", "xyz"), ("q", "long", "abcghixyz"), ("q", "odd", "zzzabc"))
    got = stage(frame)
    assert got[["docno", "score"]].to_numpy().tolist() == [
        ["long", 9.0],
        ["short", 5.0],
        ["odd", 1.0],
    ]
    assert [len(call) for call in stage.calls] == [6]
    assert stage.counts["windows"] == 6
    assert stage.counts["pairs_scored"] == 3


def test_a_document_without_a_window_is_scored_as_it_is():
    stage = Windows(long_documents="max_passage")
    assert stage(ranking(("q", "d", "")))["score"].tolist() == [0.001]


def test_a_model_without_windows_is_refused_by_max_passage():
    with pytest.raises(InputError, match=r"Lengths has no windows.*valid: truncate"):
        Lengths(long_documents="max_passage")


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"depth": 2.0}, {"long_documents": "cut"}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        Lengths(**wrong)


# Caching


def test_a_score_from_the_cache_is_the_computed_one_and_asks_nobody(tmp_path):
    first = Lengths(told={"a": 0.1 + 0.2, "ccc": -1 / 3, "bb": 5e-324}, cache=tmp_path)
    again = Lengths(cache=tmp_path)
    pd.testing.assert_frame_equal(first(THREE), again(THREE), check_exact=True)
    assert again.calls == []
    assert (first.counts["cache_hits"], first.counts["cache_misses"]) == (0, 3)
    assert (again.counts["cache_hits"], again.counts["cache_misses"]) == (3, 0)
    assert again.counts["pairs_scored"] == 0


def test_what_is_not_known_alone_is_scored(tmp_path):
    Lengths(cache=tmp_path, depth=2)(THREE)
    deeper = Lengths(cache=tmp_path, depth=3)
    deeper(THREE)
    assert deeper.calls == [[Pair("q", "bb")]]


@pytest.mark.parametrize(
    "changed",
    [
        {"fingerprint": "another model"},
        {"long_documents": "max_passage"},
        {"query": "another query"},
        {"docno": "another document"},
        {"text": "another text"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_changed_model_setting_query_document_or_text_never_gives_an_old_score(tmp_path, changed):
    row = ranking(("q", "d", "text of d"))
    Windows(cache=tmp_path)(row)
    named = changed.pop("fingerprint", "lengths")
    long_documents = changed.pop("long_documents", "truncate")
    stage = Windows(named, cache=tmp_path, long_documents=long_documents)
    fresh = Windows(long_documents=long_documents)
    row = row.assign(**changed)
    assert stage(row)["score"].tolist() == fresh(row)["score"].tolist()
    assert stage.counts["cache_hits"] == 0
    assert len(stage.calls) == 1


def test_a_score_that_is_no_number_is_not_kept(tmp_path):
    Lengths(told={"ccc": float("nan")}, cache=tmp_path)(THREE)
    again = Lengths(told={"ccc": 7.0}, cache=tmp_path)
    assert again(THREE)["score"].tolist()[0] == 7.0
    assert again.calls == [[Pair("q", "ccc")]]


def test_without_a_cache_there_are_no_hits_to_count():
    stage = Lengths()
    stage(THREE)
    assert "cache_hits" not in stage.counts
    assert stage.counts["truncated"] == stage.counts["pairs_scored"] == 3


TEXT = st.text(st.characters(exclude_categories=[]), max_size=3)


@settings(max_examples=cases(30))  # each makes a file
@given(st.lists(st.tuples(st.sampled_from("qr"), st.sampled_from("abc"), TEXT), max_size=12))
def test_a_cache_never_changes_a_ranking(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("cache")
    frame = ranking(*rows).astype({"qid": str, "query": str, "docno": str})
    expected = Lengths(depth=3)(frame)
    for _ in range(2):
        got = Lengths(depth=3, cache=folder)(frame)
        pd.testing.assert_frame_equal(got, expected, check_exact=True)


def test_long_frames_are_kept_piece_by_piece(tmp_path):
    class Killed(Lengths):
        def score(self, pairs):
            if self.calls:
                raise KeyboardInterrupt
            return super().score(pairs)

    frame = ranking(*(("q", f"d{n}", "x" * (n % 50)) for n in range(5000)))
    with pytest.raises(KeyboardInterrupt):
        Killed(depth=5000, cache=tmp_path)(frame)
    again = Lengths(depth=5000, cache=tmp_path)
    assert len(again(frame)) == 5000
    assert again.counts["cache_hits"] == 4096


def _in_another_process(folder, done):
    stage = Lengths(cache=folder)
    got = stage(THREE)
    done.put((got["score"].tolist(), stage.counts["cache_hits"]))


def test_processes_share_a_cache_however_they_began(tmp_path):
    expected = Lengths(cache=tmp_path)(THREE)["score"].tolist()
    for start in ("fork", "spawn"):
        context = multiprocessing.get_context(start)
        done = context.Queue()
        worker = context.Process(target=_in_another_process, args=(tmp_path, done))
        worker.start()
        assert done.get(timeout=60) == (expected, 3)
        worker.join(60)


# As a PyTerrier stage


def test_settings_make_it_equal_and_the_cache_does_not(tmp_path):
    stage = Windows(depth=5)
    assert stage == Windows(depth=5, cache=tmp_path)
    assert hash(stage) == hash(Windows(depth=5, cache=tmp_path))
    store = Store()
    for other in (
        Windows(depth=6),
        Windows("other", depth=5),
        Windows(depth=5, long_documents="max_passage"),
        Windows(depth=5, texts=store),
    ):
        assert stage != other
    assert Windows(texts=store) == Windows(texts=store)


def test_pyterrier_sees_what_it_needs_and_gives(monkeypatch):
    # Else PyTerrier asks the network where a class is documented.
    monkeypatch.setattr(pt.documentation, "_cached_objects_inv", {})
    without, with_store = Lengths(), Lengths(texts=Store())
    needed = ["qid", "docno", "query", "score"]
    assert pt.inspect.transformer_inputs(with_store) == [needed]
    assert pt.inspect.transformer_inputs(without) == [[*needed, "text"]]
    assert set(pt.inspect.transformer_outputs(with_store, needed)) == {*needed, "rank"}
    drawn = pt.schematic.transformer_schematic(with_store)
    assert drawn["label"] == "Lengths %50"


def test_queries_without_results_are_refused_as_pyterrier_does():
    with pytest.raises(pt.validate.InputValidationError):
        Lengths()(pd.DataFrame({"qid": ["1"], "query": ["x"]}))


QUERIES = pd.DataFrame({"qid": ["q", "r"], "query": ["q", "r"]})


def test_it_composes_and_is_cut_after_the_tail_was_put_below():
    retriever = pt.Transformer.from_df(THREE, uniform=False)
    got = (retriever >> Lengths(depth=2) % 2)(QUERIES)
    assert got["docno"].tolist() == ["d2", "d1"]
    got = (retriever % 2 >> Lengths(depth=3))(QUERIES)
    assert got["docno"].tolist() == ["d2", "d1"]
    got = (retriever >> Lengths() >> MaxP())(QUERIES)
    assert got["docno"].tolist() == ["d2", "d3", "d1"]


def test_an_experiment_asks_equal_stages_once():
    retriever = pt.Transformer.from_df(THREE, uniform=False)
    one, every = Lengths(depth=1), Lengths()
    deep = retriever >> every
    result = pt.Experiment(
        [retriever, retriever >> one, deep, deep % 2],
        QUERIES.iloc[:1],
        pd.DataFrame({"qid": ["q"], "docno": ["d2"], "label": [1]}),
        ["recip_rank"],
        names=["retriever", "one", "all", "cut"],
        plan="tree",
        validate="error",
    )
    assert result["recip_rank"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert [len(call) for call in one.calls + every.calls] == [1, 3]


# Behind the search tool


SUBJECTS = ("harbour", "mill", "bridge", "lighthouse", "orchard", "quarry", "chapel", "ferry")


def corpus(size):
    """Every document speaks of the town, and of a subject as often as its number says."""
    documents = {}
    for n in range(size):
        subject = SUBJECTS[n % len(SUBJECTS)]
        words = f"town {subject} " * (1 + n % 5) + f"number{n} " * (1 + n % 3)
        documents[f"d{n}"] = Document(f"d{n}", f"The {subject}", words)
    return documents


def bm25(documents, path):
    units = (Unit(each.docid, each.title, each.text) for each in documents.values())
    return BM25(index=LexicalIndex.build(units, path), depth=1000)


def browse(tool, query):
    """All documents of a ranking, by search and page after page."""
    result = tool.call("search", {"reason": "", "query": query})
    shown = list(result.call.shown)
    total = len(result.call.ranking)
    while len(shown) < total:
        arguments = {"search_id": "s1", "offset": len(shown) + 1, "limit": 50}
        shown += tool.call("read_search_results", {"reason": "", **arguments}).call.shown
    return shown


def test_a_thousand_deep_ranking_pages_unchanged_below_the_head(tmp_path):
    documents = corpus(1200)
    store = store_of(documents)
    retriever = bm25(documents, tmp_path / "index")
    scorer = Lengths(texts=store.texts, depth=20)
    pipeline = retriever >> scorer
    before, after = (
        browse(RankedBrowsing().open(PipelineBackend(each), store), "town")
        for each in (retriever, pipeline)
    )
    assert len(before) == 1000
    assert before[20:] == after[20:]
    assert sorted(before[:20]) == sorted(after[:20])
    assert before[:20] != after[:20]
    lengths = [len(documents[docid].title + documents[docid].text) for docid in after[:20]]
    assert lengths == sorted(lengths, reverse=True)
    assert [len(call) for call in scorer.calls] == [20]


class Busy(Lengths):
    """A scorer that takes 50 ms for a batch, during which other threads run. Many searches arrive
    in this time on a slow or busy machine too."""

    def score(self, pairs):
        time.sleep(0.05)
        return super().score(pairs)


AGENTS = 32


async def agents(pipeline, searches):
    """The rankings of 32 questions, each of which searches again when it has its results, in the
    threads that a run gives to them."""
    backend = PipelineBackend(pipeline)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2 * AGENTS, "question"))

    async def ask(number):
        rankings = []
        for turn in range(searches):
            query = f"town {SUBJECTS[(number + turn) % len(SUBJECTS)]} number{number}"
            result = await asyncio.to_thread(backend.search, SearchRequest(query, depth=50))
            rankings.append([(hit.docid, hit.score) for hit in result.hits])
        return rankings

    asked = await asyncio.gather(*(ask(number) for number in range(AGENTS)))
    return [ranking for rankings in asked for ranking in rankings]


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    documents = corpus(400)
    yield store_of(documents), bm25(documents, tmp_path_factory.mktemp("town") / "index")


def one_by_one(pipeline, searches):
    backend = PipelineBackend(pipeline)
    rankings = []
    for number in range(AGENTS):
        for turn in range(searches):
            query = f"town {SUBJECTS[(number + turn) % len(SUBJECTS)]} number{number}"
            hits = backend.search(SearchRequest(query, depth=50)).hits
            rankings.append([(hit.docid, hit.score) for hit in hits])
    return rankings


def test_32_agents_fill_batches_and_get_the_scores_of_one_by_one(town):
    store, retriever = town
    alone = Lengths(texts=store.texts, depth=10)
    stage = Busy(texts=store.texts, depth=10)
    got = asyncio.run(agents(retriever >> stage, searches=6))
    assert got == one_by_one(retriever >> alone, searches=6)
    counts = stage.counts
    assert counts["gathered_requests"] == 6 * AGENTS == alone.counts["batches"]
    # The first request is scored alone. Requests that arrive while the scorer works share the next
    # batch: about half of the agents, and a quarter of them at least on a busy machine.
    assert counts["batches"] <= 6 * AGENTS / 4
    assert counts["largest_batch"] >= 10 * AGENTS / 4


def test_32_agents_get_the_scores_of_one_by_one_from_a_model(town, tmp_path):
    torch = pytest.importorskip("torch")
    from soundingline.pipelines.rerank.monot5 import MonoT5

    torch.set_num_threads(1)
    store, retriever = town
    model = str(save_t5(tmp_path, words=(*WORDS, *SUBJECTS)))
    stage = MonoT5(model, dtype="float32", texts=store.texts, depth=10)
    got = asyncio.run(agents(retriever >> stage, searches=2))
    gathered = stage.counts["batches"]
    expected = one_by_one(retriever >> stage, searches=2)
    assert gathered <= 2 * AGENTS / 2
    for mine, alone in zip(got, expected, strict=True):
        # Sums of another batch's shape differ in the last bit, and so may the order of equals.
        assert dict(mine) == pytest.approx(dict(alone), abs=1e-5)
        head = [score for _, score in mine[:10]]
        assert head == sorted(head, reverse=True)
        assert len(set(head)) > 1


def test_cached_pairs_wait_for_nobody(town, tmp_path):
    store, retriever = town
    scorer = Lengths(texts=store.texts, depth=10, cache=tmp_path)
    pipeline = retriever >> scorer
    expected = one_by_one(pipeline, searches=1)
    asked = len(scorer.calls)
    scorer._queue.busy = True  # as while another batch is in the model
    assert asyncio.run(asyncio.wait_for(agents(pipeline, searches=1), 30)) == expected
    assert len(scorer.calls) == asked


def test_without_shared_batches_threads_call_the_model_at_the_same_time():
    together = threading.Barrier(4)

    class Remote(Lengths):
        shares_batches = False

        def score(self, pairs):
            together.wait(30)
            return super().score(pairs)

    stage = Remote()
    with ThreadPoolExecutor(4) as pool:
        frames = [ranking((f"q{n}", "d", "text")) for n in range(4)]
        assert [len(got) for got in pool.map(stage.transform, frames)] == [1] * 4
    assert stage.counts["batches"] == 4
    assert "gathered_requests" not in stage.counts


def test_an_agents_missing_document_is_its_own_error(town):
    store, retriever = town
    stage = Busy(texts=store.texts, depth=10)
    broken = pt.apply.generic(
        lambda frame: frame.assign(docno="gone") if "chapel" in frame["query"].iloc[0] else frame
    )
    backend = PipelineBackend(retriever >> broken >> stage)

    def ask(subject):
        try:
            return str(len(backend.search(SearchRequest(f"town {subject}", depth=20)).hits))
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(len(SUBJECTS)) as pool:
        told = dict(zip(SUBJECTS, pool.map(ask, SUBJECTS), strict=True))
    assert "'gone', which the document store lacks" in told.pop("chapel")
    assert set(told.values()) == {"20"}


# A model without a fingerprint of its own


@dataclass(kw_only=True, eq=False, repr=False)
class Declared(Reranker):
    """A re-ranker as a user writes it."""

    weight: float = 1.0

    def score(self, pairs):
        return [self.weight * len(pair.text) for pair in pairs]


def test_arguments_and_source_name_the_scores_of_a_model(tmp_path):
    one, two = Declared(depth=2, cache=tmp_path), Declared(weight=2.0)
    assert one.fingerprint == Declared(depth=3).fingerprint != two.fingerprint
    assert one == Declared(depth=2) != Declared(depth=2, weight=2.0)
    assert repr(two).startswith("Declared(") and "weight=2.0" in repr(two)


def test_a_re_ranker_travels_to_another_process_without_its_model():
    stage = Declared(weight=2.0, depth=2)
    stage(THREE)
    copied = pickle.loads(pickle.dumps(stage))
    assert copied == stage and copied.counts["batches"] == 0
    pd.testing.assert_frame_equal(copied(THREE), stage(THREE))


def test_a_model_that_does_not_score_is_refused():
    with pytest.raises(TypeError, match=r"abstract.*score"):
        Reranker()  # type: ignore[abstract]
