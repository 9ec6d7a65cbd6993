"""Our stages with those of a real Terrier, which runs in a Java machine of this process: Terrier's
own stage says what is right. Needs Java 11 or later, and the jars, which PyTerrier downloads from
Maven Central."""

import json
import random
import subprocess
import sys

import pandas as pd
import pyterrier as pt
import pytest
from support.assertions import refused
from support.needs import needs, needs_real
from support.pairs import Lengths, by_length

from soundingline.pipelines import LexicalIndex, LinkExpansion, MaxP, RerankTop
from soundingline.pipelines.fusion import ReciprocalRankFusion
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.data import Link

pytestmark = [pytest.mark.slow, needs_real("terrier")]

WORDS = [f"tide{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(60)]
QUERIES = pd.DataFrame(
    {
        "qid": ["a", "b", "c"],
        "query": [" ".join(WORDS[n] for n in at) for at in ([1, 2, 40], [0, 30], [3, 5])],
    }
)


def documents():
    """Docnos are numbers from 0, as in MS MARCO, in another order than that of the index."""
    chance = random.Random(5)
    weights = [1 / (1 + number) for number in range(60)]
    numbers = chance.sample(range(300), 300)
    return [
        {"docno": str(n), "text": " ".join(chance.choices(WORDS, weights, k=5 + place % 50))}
        for place, n in enumerate(numbers)
    ]


TEXTS = {row["docno"]: row["text"] for row in documents()}


def passages():
    for row in documents():
        words = row["text"].split()
        for number, start in enumerate(range(0, len(words), 20)):
            yield {
                "docno": f"{row['docno']}%p{number}",
                "text": " ".join(words[start : start + 20]),
            }


def lengths(ranking):
    return {key: float(len(TEXTS[key[1]])) for key in scored(ranking)}


def scored(ranking):
    """The score of each document of each query."""
    keys = zip(ranking["qid"], ranking["docno"], strict=True)
    scores = dict(zip(keys, ranking["score"], strict=True))
    assert len(scores) == len(ranking) > 0
    return scores


def ranked(ranking):
    """The documents of each query, best first."""
    return {qid: rows.sort_values("rank")["docno"].tolist() for qid, rows in ranking.groupby("qid")}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "index"
    return LexicalIndex.build(documents(), path, analyzer="whitespace")


def terrier_index(folder, rows):
    settings = {"stemmer": "none", "stopwords": "none", "overwrite": True}
    meta = {"docno": 20, "text": 4096}
    return pt.terrier.IterDictIndexer(str(folder), meta=meta, **settings).index(rows)


@pytest.fixture(scope="module")
def terrier(tmp_path_factory):
    """A Terrier index of the same documents and tokens."""
    pt.java.init()
    return terrier_index(tmp_path_factory.mktemp("terrier"), documents())


@pytest.fixture(scope="module")
def bm25(terrier):
    return pt.terrier.Retriever(terrier, wmodel="BM25")


@pytest.fixture(scope="module")
def dph(terrier):
    return pt.terrier.Retriever(terrier, wmodel="DPH")


# What a stage of Terrier is given.


@pytest.mark.parametrize("depth", [None, 7])
def test_the_top_is_scored_as_terriers_own_stage_scores_it(depth, index, terrier, bm25, dph):
    for first in (bm25, bm25 >> pt.text.get_text(terrier), index.bm25()):
        cut = first if depth is None else first % depth
        expected, out = (cut >> dph)(QUERIES), (first >> RerankTop(dph, depth=depth))(QUERIES)
        top = out if depth is None else out[out["rank"] < depth]
        assert scored(top) == pytest.approx(scored(expected))
        for qid, docnos in ranked(top).items():
            scores = {d: s for (q, d), s in scored(expected).items() if q == qid}
            assert [scores[docno] for docno in docnos] == sorted(scores.values(), reverse=True)
        assert len(out) == len(first(QUERIES))


@needs(["pyterrier_caching"], "dev")
def test_a_cache_of_terriers_scores_of_the_top_has_those_of_each_document(
    index, bm25, dph, tmp_path
):
    from pyterrier_caching import ScorerCache

    top = RerankTop(ScorerCache(tmp_path / "cache", dph), depth=9)
    for first in (index.bm25(), bm25, index.ql()):
        expected = scored((first % 9 >> dph)(QUERIES))
        out = (first >> top)(QUERIES)
        assert scored(out[out["rank"] < 9]) == pytest.approx(expected)


def test_terrier_scores_the_documents_of_max_p(dph, tmp_path):
    of_passages = terrier_index(tmp_path, passages())
    best = pt.terrier.Retriever(of_passages, wmodel="BM25")(QUERIES)
    documents_ = MaxP()(best)
    out = dph(documents_)
    assert scored(out) == scored(dph(documents_[["qid", "query", "docno"]]))
    theirs = (pt.text.max_passage() >> dph)(best)
    assert scored(out) == scored(theirs)


def test_terrier_scores_the_documents_of_link_expansion(bm25, dph):
    links = LinkGraph.build([Link(str(n), str((n + 77) % 300)) for n in range(300)])
    expanded = (bm25 % 5 >> LinkExpansion(links))(QUERIES)
    assert len(expanded) > 15
    out = dph(expanded)
    assert scored(out) == scored(dph(expanded[["qid", "query", "docno"]]))


def test_a_rewriting_after_feedback_reaches_both(index, bm25):
    rewrite = pt.apply.query(lambda row: f"{WORDS[7]} {WORDS[9]}")
    ours, theirs = index.bm25(depth=300), bm25
    expanded = index.bm25().rm3(fb_docs=2)
    candidates = expanded(QUERIES)
    for stage in (ours, theirs):
        alone = stage((rewrite)(candidates[["qid", "query", "docno"]]))
        assert scored((expanded >> rewrite >> stage)(QUERIES)) == scored(alone)
        restored = (rewrite >> expanded >> pt.rewrite.reset() >> stage)(QUERIES)
        candidates_ = restored[["qid", "docno"]].merge(QUERIES, on="qid")
        assert scored(restored) == scored(stage(candidates_))


def test_docids_without_docnos_are_refused_by_us_and_rescored_by_terrier(index, bm25, dph):
    ranking = bm25(QUERIES).drop(columns="docno")
    assert len(dph(ranking)) == len(ranking)
    refused(r"has docid and no docno.*pt\.apply\.docid\(drop=True\)", lambda: index.bm25()(ranking))
    dropped = (pt.apply.docid(drop=True) >> index.bm25(depth=2))(ranking.drop_duplicates("qid"))
    assert ranked(dropped) == ranked(index.bm25(depth=2)(QUERIES))


def test_numbers_as_qids_are_the_same_queries_for_both(index, bm25):
    numbers = QUERIES.assign(qid=[3, 1, 2])
    text = QUERIES.assign(qid=["3", "1", "2"])
    ours = index.bm25(depth=20)
    union = ours | bm25
    for pipeline in (ours >> bm25, ours + bm25, bm25 >> ours, union, ours.rm3() >> bm25):
        out, expected = pipeline(numbers), pipeline(text)
        assert len(out) == len(expected) >= 60
        assert {*map(type, out["qid"])} == {str}
        if pipeline is union:
            assert "score" not in out
        else:
            assert scored(out) == pytest.approx(scored(expected))


def test_rows_without_a_query_are_scored_as_terrier_scores_them(index, terrier, bm25, dph):
    candidates = bm25 % 1 + index.ql() % 15
    frame = candidates(QUERIES).drop(columns="docid")
    assert frame.drop_duplicates("qid")["query"].isna().any()
    assert len(dph(frame)) == len(frame)
    filled = frame.drop(columns="query").merge(QUERIES, on="qid")
    for stage in (
        index.bm25(),
        index.bm25().rm3(),
        RerankTop(dph, depth=3),
        by_length(index, depth=3),
        index.ql(),
    ):
        assert scored(stage(frame)) == pytest.approx(scored(stage(filled)))


def test_sets_of_documents_are_reranked_as_terrier_reranks_them(index, terrier, bm25, dph):
    ours = index.bm25(depth=15)
    union, both = ours | bm25 % 20, ours & bm25
    for candidates in (union, both):
        drop = candidates >> pt.apply.docid(drop=True)
        theirs = (drop >> dph)(QUERIES)
        texts = (drop >> pt.text.get_text(index) >> Lengths())(QUERIES)
        assert scored(texts) == lengths(theirs)
        assert scored((drop >> RerankTop(dph))(QUERIES)) == pytest.approx(scored(theirs))


def test_texts_of_a_terrier_index_are_read_from_its_column(index, terrier, bm25):
    loaded = bm25 >> pt.text.get_text(terrier) >> Lengths()
    assert scored(loaded(QUERIES)) == lengths(bm25(QUERIES))
    message = r"no text for Lengths\(\) to read.*texts=index\.texts"
    for first in (bm25, bm25 + index.bm25(), ReciprocalRankFusion(bm25, index.bm25())):
        refused(message, lambda first=first: (first >> Lengths())(QUERIES))
        out = (first >> by_length(index))(QUERIES)
        assert scored(out) == lengths(out)
    rows = QUERIES.to_dict("records")
    refused(message, lambda: list((bm25 >> Lengths())(rows)))
    out = pd.DataFrame((bm25 >> by_length(index))(rows))
    assert scored(out) == lengths(bm25(QUERIES))


def test_a_text_of_the_topics_is_replaced_as_by_terriers_get_text(index, terrier, bm25):
    topics = QUERIES.assign(text="a topic")
    ours = (index.bm25() >> pt.text.get_text(index) >> Lengths())(topics)
    assert scored(ours) == lengths(ours)
    assert "text" not in index.bm25()(topics)
    assert scored((index.bm25() >> by_length(index))(topics)) == lengths(ours)


def test_stashed_results_survive_feedback_as_they_survive_terriers(index, terrier, bm25):
    stash, reset = pt.rewrite.stash_results(clear=False), pt.rewrite.reset_results()
    first = index.bm25(depth=5)
    theirs = (first >> stash >> pt.rewrite.RM3(terrier) >> reset)(QUERIES)
    ours = (first >> stash >> Feedback(index) >> reset)(QUERIES.assign(qcontext="x"))
    assert scored(ours) == scored(theirs) == scored(first(QUERIES))
    assert set(ours["qcontext"]) == {"x"}


def test_the_first_input_is_that_of_terriers_retriever(index, bm25):
    ours, theirs = map(pt.inspect.transformer_inputs, (index.bm25(), bm25))
    assert ours[0] == theirs[0] == ["qid", "query"]


def test_a_grid_search_over_one_of_ours_and_terriers_finds_the_best_of_both(index, terrier):
    chance = random.Random(7)
    rows = [(qid, str(n), 1) for qid in QUERIES["qid"] for n in chance.sample(range(300), 30)]
    qrels = pd.DataFrame(rows, columns=["qid", "docno", "label"])
    ours, values = index.bm25(k1=3), [0.0, 0.5, 1.0]
    theirs = pt.terrier.Retriever(terrier, wmodel="BM25", controls={"bm25.b": 0.75})
    found = {}
    for b in values:
        for other in values:
            controls = {"bm25.b": other}
            fresh = pt.terrier.Retriever(terrier, wmodel="BM25", controls=controls)
            both = (index.bm25(k1=3, b=b) + fresh)(QUERIES)
            found[b, other] = pt.Evaluate(both, qrels, ["map"])["map"]
    grid = {ours: {"b": values}, theirs: {"bm25.b": values}}
    pt.GridSearch(ours + theirs, grid, QUERIES, qrels, "map")
    assert found[ours.b, theirs.get_parameter("bm25.b")] == max(found.values())
    assert len(set(found.values())) > 4


# Traps between the two.


def test_terriers_query_language_is_refused_by_us_and_read_by_terrier(index, terrier, bm25):
    for rewriter in (
        pt.rewrite.RM3(terrier),
        pt.rewrite.Bo1QueryExpansion(terrier),
        pt.rewrite.KLQueryExpansion(terrier),
    ):
        expanded = bm25 >> rewriter
        assert len((expanded >> bm25)(QUERIES)) > 20
        refused("Terrier's query language", lambda e=expanded: (e >> index.bm25())(QUERIES))
        restored = (expanded >> pt.rewrite.reset() >> index.bm25())(QUERIES)
        assert ranked(restored) == ranked(index.bm25()(QUERIES))
    refused("Terrier's query language", lambda: (pt.rewrite.SDM() >> index.bm25())(QUERIES))


def test_bo1_expands_our_ranking_only_with_docids(index, terrier, bm25):
    bo1 = pt.rewrite.Bo1QueryExpansion(terrier)
    words = QUERIES["query"].str.split().map(len).sum()

    def terms(pipeline):
        return pipeline(QUERIES)["query"].str.count(r"\^").sum()

    assert terms(index.bm25() >> bo1) == words  # no more than the query, as docs/pipelines.md says
    assert terms(index.bm25() % 10 >> bm25 >> bo1) > 2 * words


def test_docids_are_dropped_after_a_sum_as_the_documentation_says(index, bm25, dph):
    for candidates in (bm25 % 5 + index.ql() % 20, index.ql() % 20 | bm25 % 5):
        frame = candidates(QUERIES)
        assert frame["docid"].isna().any()
        with pytest.raises(Exception, match=r"jint|int|float"):
            dph(frame)
        out = (candidates >> pt.apply.docid(drop=True) >> dph)(QUERIES)
        assert len(out) == len(frame)


def test_a_terrier_stage_reranks_the_top_on_the_command_line(terrier, dph, index, tmp_path):
    data, options = tmp_path / "data", tmp_path / "options" / "reranker"
    (data / "qrels").mkdir(parents=True)
    options.mkdir(parents=True)
    corpus = [{"_id": row["docno"], "title": "", "text": row["text"]} for row in documents()]
    queries = [{"_id": row.qid, "text": row.query} for row in QUERIES.itertuples()]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"{qid}\t{n}\t1\n" for qid in QUERIES["qid"] for n in range(9))
    (data / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    (options / "dph.yaml").write_text(
        "_target_: pyterrier.terrier.Retriever\ndepth: 7\nwmodel: DPH\n"
        f"index_location: {terrier.toString()}\n"
    )
    command = [sys.executable, "-m", "soundingline.experiments", "rank", "name=heads"]
    command += ["--config-dir", str(tmp_path / "options"), "benchmark=beir"]
    command += [f"benchmark.path={data}", "unit=document", "engine.analyzer=whitespace"]
    command += ["retriever=bm25_default", "reranker=dph"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.rglob("run.trec")
    rows = [line.split() for line in run.read_text().splitlines()]
    expected = ranked((index.bm25() % 7 >> dph)(QUERIES))
    for qid, docnos in expected.items():
        assert [row[2] for row in rows if row[0] == qid][:7] == docnos
