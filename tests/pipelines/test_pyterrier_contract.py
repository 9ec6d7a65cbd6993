"""Every stage in PyTerrier's operators, inspection, and caches and fusions of other projects: one
row a pipeline, one test a tool."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import pyterrier as pt
import pytest
from support import checkpoints
from support.llm_model import ScriptedPrompts, longest_first, points, reasoned
from support.needs import needs
from support.pairs import scored

from soundingline import pipelines
from soundingline.pipelines.compose import MaxP, WithoutDocuments
from soundingline.pipelines.fusion import Interpolation, OracleRetriever, ReciprocalRankFusion
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.retriever import LearnedRetriever
from soundingline.pipelines.learned.splade import ImpactEngine, Sparta, Splade
from soundingline.pipelines.learned.vectors import MultiVectorEngine, VectorEngine
from soundingline.pipelines.lexical.crossfit import CrossFittedBM25
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.links import LinkExpansion
from soundingline.pipelines.q2q import Q2Q
from soundingline.pipelines.rerank.colbert import ColBERTReranker
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.listwise import Listwise
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.pointwise import Pointwise
from soundingline.pipelines.rerank.rank1 import Rank1
from soundingline.pipelines.rerank.rankllama import RankLLaMA
from soundingline.pipelines.rerank.reranker import RerankTop
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.data import Link

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

WORDS = checkpoints.EMBEDDER_WORDS[:12]
QUERIES = pd.DataFrame(
    {"qid": ["a", "b"], "query": [" ".join(WORDS[:3]), f"{WORDS[5]} {WORDS[1]} {WORDS[7]}"]}
)
CPU = {"device": "cpu", "dtype": "float32"}


def documents():
    chance = random.Random(5)
    return [
        {"docno": f"d{n}", "text": " ".join(chance.choices(WORDS, k=3 + n % 11))} for n in range(40)
    ]


TEXTS = {row["docno"]: row["text"] for row in documents()}
QRELS = {"evidence": {qid: {"d1": 1, "d7": 1, "d20": 1} for qid in ("a", "b")}}


ENGINES = {
    Dense: VectorEngine,
    ColBERT: MultiVectorEngine,
    Splade: ImpactEngine,
    Sparta: ImpactEngine,
}


class Site(NamedTuple):
    """An index of the documents, a folder for others, and a checkpoint of a kind."""

    index: LexicalIndex
    folder: Any
    checkpoint: Callable[[Callable[..., Any]], str]

    def collection(self, **parts):
        return Collection("c", index=self.index, texts=self.index.texts, **parts)

    def learned(self, kind, save, **settings):
        """An encoder before the retriever of its index of the documents."""
        engine = ENGINES[kind](kind(self.checkpoint(save), **CPU, **settings))
        path = self.folder / kind.__name__
        if not path.exists():
            engine.build(self.index.texts(list(TEXTS)), path, corpus_fingerprint="c")
        return engine.encoder >> engine.open(path).retriever()

    def encoded(self, kind, save):
        """A learned retriever over the documents."""
        encoder, retriever = self.learned(kind, save)
        engine = ENGINES[kind](encoder)
        return LearnedRetriever(engine, index=retriever.index)

    def reranked(self, stage):
        """The stage on the best ten of BM25."""
        return self.index.bm25(depth=10) >> RerankTop(stage, texts=self.index.texts)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contract")
    made = {}

    def checkpoint(save):
        if save not in made:
            made[save] = str(save(folder / f"model{len(made)}"))
        return made[save]

    index = LexicalIndex.build(documents(), folder / "index", analyzer="whitespace")
    return Site(index, folder, checkpoint)


def splade(folder):
    return checkpoints.write_splade(folder, words=WORDS)


def sparta(folder):
    return checkpoints.write_splade(folder, kind="encoder", words=WORDS)


# Scorers, each of a query and a text alone: by what they are made.
SCORERS = {
    "monot5": lambda site: MonoT5(site.checkpoint(checkpoints.save_t5), **CPU),
    "cross_encoder": lambda site: CrossEncoder(site.checkpoint(bert), **CPU),
    "rankllama": lambda site: RankLLaMA(site.checkpoint(checkpoints.save_rankllama), **CPU),
    "colbert_reranker": lambda site: ColBERTReranker(
        site.checkpoint(checkpoints.save_multi_vector), **CPU
    ),
    "rank1": lambda site: Rank1(ScriptedPrompts(reasoned)),
    "pointwise": lambda site: Pointwise(ScriptedPrompts(points)),
}
# Stages that score the documents of a frame: these, and those that need no text.
SCORING = {
    **{name: lambda site, make=make: site_top(site, make) for name, make in SCORERS.items()},
    "bm25": lambda site: site.index.bm25(),
    "ql": lambda site: site.index.ql(),
    "rm3": lambda site: site.index.bm25().rm3(fb_docs=2, fb_terms=3),
}


def site_top(site, make):
    return RerankTop(make(site), texts=site.index.texts)


def bert(folder):
    network, tokenizer = checkpoints.small_bert(WORDS)
    return checkpoints.save_network(folder, network, tokenizer)


# Pipelines from queries to rankings: in them every stage of the product.
PIPELINES = {
    **{name: lambda site, make=make: site.reranked(make(site)) for name, make in SCORERS.items()},
    "bm25": lambda site: site.index.bm25(),
    "ql": lambda site: site.index.ql(),
    "rm3": lambda site: site.index.bm25().rm3(fb_docs=2, fb_terms=3),
    "crossfit": lambda site: CrossFittedBM25().bind(
        site.collection(qrels=QRELS, questions=dict(QUERIES.to_numpy()))
    ),
    "encoded": lambda site: site.encoded(Dense, checkpoints.save_sentence_model),
    "dense": lambda site: site.learned(Dense, checkpoints.save_sentence_model),
    "colbert": lambda site: site.learned(ColBERT, checkpoints.save_multi_vector),
    "splade": lambda site: site.learned(Splade, splade),
    "sparta": lambda site: site.learned(Sparta, sparta),
    "rrf": lambda site: ReciprocalRankFusion(site.index.bm25(), site.index.ql()),
    "interpolation": lambda site: Interpolation(site.index.bm25(), site.index.ql()),
    "oracle": lambda site: OracleRetriever(site.index.bm25()).bind(site.collection(qrels=QRELS)),
    "links": lambda site: site.index.bm25(depth=10) >> LinkExpansion(GRAPH),
    "q2q": lambda site: (
        Q2Q(ScriptedPrompts(lambda prompt: WORDS[2])) >> site.index.bm25() >> pt.rewrite.reset()
    ),
    "listwise": lambda site: site.reranked(Listwise(ScriptedPrompts(longest_first))),
    "top": lambda site: site.index.bm25() >> RerankTop(site.index.ql(), depth=3),
    "max-p": lambda site: site.index.bm25() >> MaxP(),
    "removal": lambda site: site.index.bm25() >> WithoutDocuments({"a": ["d1"]}),
}
GRAPH = LinkGraph.build([Link("d1", "d2"), Link("d3", "d30")])


@pytest.fixture(params=PIPELINES)
def name(request):
    return request.param


@pytest.fixture
def pipeline(name, site):
    return PIPELINES[name](site)


@pytest.fixture(params=SCORING)
def scoring(request, site):
    return SCORING[request.param](site)


def ranked(frame):
    """The documents of each query, best first."""
    rows = frame.sort_values(["qid", "rank"])
    return {qid: own["docno"].tolist() for qid, own in rows.groupby("qid")}


def test_every_public_stage_is_in_a_pipeline(site):
    def classes(stage):
        yield type(stage).__name__
        for part in pt.inspect.subtransformers(stage).values():
            for each in part if isinstance(part, list) else [part]:
                yield from classes(each)

    found = {each for make in PIPELINES.values() for each in classes(make(site))}
    public = {name: getattr(pipelines, name) for name in pipelines.__all__}
    stages = {
        name
        for name, kind in public.items()
        if issubclass(kind, pt.Transformer) and not issubclass(kind, pt.Indexer)
    }
    # A cross-fitted BM25 is a BM25 once it is bound.
    assert stages - found == {"CrossFittedBM25", "Reranker", "Scorer", "Stage"}


def test_then_and_identity_change_nothing(pipeline):
    expected = pipeline(QUERIES)
    identity = pt.Transformer.identity()
    assert len(expected) > 10
    pd.testing.assert_frame_equal((identity >> pipeline >> identity)(QUERIES), expected)


def test_a_cutoff_keeps_the_best_rows(pipeline):
    expected = pipeline(QUERIES)
    best = expected[expected["rank"] < 2]
    for cut in (pipeline % 2, (pipeline % 2).compile()):
        out = cut(QUERIES)
        assert ranked(out) == ranked(best) and scored(out) == pytest.approx(scored(best))


def test_compiled_pipelines_rank_alike(pipeline):
    pd.testing.assert_frame_equal(pipeline.compile()(QUERIES), pipeline(QUERIES))


def test_sums_and_products_are_those_of_the_scores(pipeline):
    expected = scored(pipeline(QUERIES))
    doubled = {key: 2 * score for key, score in expected.items()}
    for combined in (pipeline + pipeline, 2 * pipeline):
        out = combined(QUERIES)
        assert scored(out) == pytest.approx(doubled)
        assert set(out["qid"]) == {"a", "b"}


def test_unions_and_intersections_have_the_documents_of_both(pipeline, site):
    other = site.index.ql() % 5
    mine, theirs = set(scored(pipeline(QUERIES))), set(scored(other(QUERIES)))

    def found(frame):
        return set(zip(frame["qid"], frame["docno"], strict=True))

    assert found((pipeline | other)(QUERIES)) == mine | theirs
    assert found((pipeline & other)(QUERIES)) == mine & theirs


def test_a_concatenation_ends_with_what_the_first_lacks(pipeline, site):
    best = pipeline % 2
    first, second = ranked(best(QUERIES)), ranked(site.index.ql()(QUERIES))
    out = (best ^ site.index.ql())(QUERIES)
    for qid, docnos in ranked(out).items():
        assert docnos[:2] == first[qid] and set(docnos) == {*first[qid], *second[qid]}
    falling = out.sort_values(["qid", "rank"]).groupby("qid")["score"]
    assert falling.apply(lambda scores: scores.is_monotonic_decreasing).all()


def test_features_are_the_scores_of_each_stage(scoring, site):
    candidates = (site.index.bm25() % 6)(QUERIES)
    expected, ql = scored(scoring(candidates)), scored(site.index.ql()(candidates))
    rows = (scoring ** site.index.ql())(candidates)
    features = {
        key: tuple(values) for key, values in zip(scored_keys(rows), rows["features"], strict=True)
    }
    assert len(features) == len(candidates)
    for key, values in features.items():
        assert values == pytest.approx((expected[key], ql[key]))


def scored_keys(frame):
    return list(zip(frame["qid"], frame["docno"], strict=True))


def test_inspection_names_the_columns_that_come_out(pipeline):
    assert ["qid", "query"] in [each[:2] for each in pt.inspect.transformer_inputs(pipeline)]
    outputs = pt.inspect.transformer_outputs(pipeline, ["qid", "query"])
    assert set(outputs) == set(pipeline(QUERIES).columns)


def test_an_experiment_validates_a_pipeline(pipeline):
    qrels = pd.DataFrame({"qid": ["a", "b"], "docno": ["d1", "d1"], "label": [1, 1]})
    table = pt.Experiment([pipeline], QUERIES, qrels, ["map"], validate="error")
    assert table["map"].iloc[0] == pt.Evaluate(pipeline(QUERIES), qrels, ["map"])["map"]


def test_a_pipeline_that_lacks_its_columns_is_refused(site):
    for scorer in (SCORERS["rank1"](site), RerankTop(SCORERS["rank1"](site))):
        pipeline = site.index.bm25() >> scorer
        with pytest.raises(ValueError, match="failed validation"):
            pt.Experiment([pipeline], QUERIES, QUERIES, ["map"], validate="error")


def test_a_schematic_names_the_stages(pipeline, monkeypatch):
    # PyTerrier looks for the pages of its own stages on the network.
    monkeypatch.setattr(pt.documentation, "objects_inv", dict)
    drawn = pt.schematic.draw(pipeline)
    stages = list(pipeline) if isinstance(pipeline, pt.Compose) else [pipeline]
    assert all(type(stage).__name__ in drawn for stage in stages)


@needs(["pyterrier_caching"], "dev")
def test_a_cache_of_rankings_gives_the_same_at_the_second_run(pipeline, tmp_path):
    from pyterrier_caching import RetrieverCache

    cache = RetrieverCache(tmp_path / "cache", pipeline)
    first, second = cache(QUERIES), cache(QUERIES)
    assert ranked(first) == ranked(second) == ranked(pipeline(QUERIES))
    assert scored(first) == scored(second) == scored(pipeline(QUERIES))


@needs(["pyterrier_caching"], "dev")
@pytest.mark.parametrize("kind", SCORERS)
def test_a_cache_of_scores_gives_the_same_at_the_second_run(kind, site, tmp_path):
    from pyterrier_caching import ScorerCache

    scorer = SCORERS[kind](site)
    cache = ScorerCache(tmp_path / "cache", scorer)
    candidates = (site.index.bm25(depth=10) >> pt.text.get_text(site.index))(QUERIES)
    first, second = cache(candidates), cache(candidates)
    assert scored(first) == scored(second) == pytest.approx(scored(scorer(candidates)), abs=1e-5)
    counted = "pairs" if kind == "pointwise" else "pairs_scored"
    assert scorer.counts[counted] == 40  # once for the cache, once without it


@needs(["pyterrier_alpha"], "dev")
def test_a_fusion_of_pyterrier_alpha_sums_reciprocal_ranks(pipeline, site):
    import pyterrier_alpha as pta

    parts = [pipeline, site.index.ql(), site.index.bm25(k1=3)]
    rankings = [ranked(part(QUERIES)) for part in parts]
    out = pta.fusion.RRFusion(*parts)(QUERIES)
    assert set(out["qid"]) == set(QUERIES["qid"])
    for qid, rows in out.groupby("qid"):
        for docno, score in zip(rows["docno"], rows["score"], strict=True):
            ranks = [own[qid].index(docno) for own in rankings if docno in own[qid]]
            assert score == pytest.approx(sum(1 / (60 + rank) for rank in ranks), abs=2e-3)


def test_dicts_are_ranked_as_a_frame_is(pipeline):
    expected = pipeline(QUERIES)
    out = pipeline(QUERIES.to_dict("records"))
    assert isinstance(out, list) and all(isinstance(row, dict) for row in out)
    assert scored(pd.DataFrame(out)) == scored(expected)


def test_a_file_of_results_is_scored_as_the_ranking_is(scoring, site, tmp_path):
    ranking = (site.index.bm25() % 6)(QUERIES)
    pt.io.write_results(ranking, str(tmp_path / "run.res"))
    read = pt.io.read_results(str(tmp_path / "run.res"), topics=QUERIES)
    expected = scored(scoring(ranking))
    assert len(expected) == 12
    assert scored(scoring(read)) == pytest.approx(expected, abs=1e-5)
    rows = scoring(ranking.to_dict("records"))
    assert scored(pd.DataFrame(rows)) == pytest.approx(expected, abs=1e-5)
