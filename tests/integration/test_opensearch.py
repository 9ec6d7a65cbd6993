"""`engine=opensearch` on real clusters of three nodes, against our own index:
`make test-real PART=opensearch`.

All tests of a version share one cluster, so that its indexes have to be told apart by their names.
"""

import json
import threading

import numpy as np
import pandas as pd
import pytest
from support.needs import cases, needs_real
from support.opensearch_cluster import NODES, VERSIONS, running_cluster

from soundingline.experiments import Experiment
from soundingline.pipelines.engines import opensearch
from soundingline.pipelines.engines.opensearch import OpenSearchEngine
from soundingline.pipelines.engines.opensearch_client import Cluster
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit

pytestmark = [pytest.mark.slow, needs_real("opensearch")]

TOLERANCE = 1e-5  # of a score, which are of one to two digits
SETTINGS = [(0.9, 0.4), (25.0, 1.0), (1.2, 0.75)]
WORLD = (
    "benchmark=fictional",
    "benchmark.documents=400",
    "benchmark.questions=30",
    "benchmark.median_words=400",
    "benchmark.p90_words=2000",
)
UNITS = ("document", "passage", "maxp", "document_head")
PIPELINES = {
    **{unit: (f"unit={unit}", "retriever=bm25_tuned") for unit in UNITS},
    "RM3 on documents": ("unit=document", "retriever=bm25_rm3"),
    "RM3 on passages": ("unit=passage", "retriever=bm25_rm3"),
    "Max-P of RM3": ("unit=maxp", "retriever=bm25_rm3"),
    "enriched documents": ("unit=document", "retriever=bm25_default", "enrichment=file"),
    "enriched passages": ("unit=passage", "retriever=bm25_default", "enrichment=file"),
}


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request, tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster"), request.param) as running:
        yield running


@pytest.fixture
def engine(cluster):
    """The options of a command that searches the cluster."""
    urls = ",".join(cluster.urls)
    return ("engine=opensearch", f"engine.url=[{urls}]", "engine.shards=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ours")


def composed(*options):
    return Experiment.compose(*WORLD, *options)


def phrases(folder, built):
    """The options of phrases for every third unit and every second question."""
    units = [unit.unit_id for unit in built.collection.store.units()][::3]
    topics = [topic.qid for topic in built.benchmark.topics][::2]
    for side, ids in (("corpus", units), ("query", topics)):
        rows = [{"id": name, "phrases": ["lake town", f"bridge {n}"]} for n, name in enumerate(ids)]
        path = folder / f"{side}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        yield f"enrichment.{side}.path={path}"


def assert_equal_up_to_ties(theirs, ours):
    """Both rank the same units with the same scores; at each rank, units may differ if their scores
    do not."""
    assert len(theirs) == len(ours) > 0
    theirs, ours = (frame.sort_values(["qid", "rank"]) for frame in (theirs, ours))
    assert list(theirs["qid"]) == list(ours["qid"])
    np.testing.assert_allclose(theirs["score"], ours["score"], rtol=0, atol=TOLERANCE)
    keys, scores = list(zip(ours["qid"], ours["docno"], strict=True)), list(ours["score"])
    expected = dict(zip(keys, scores, strict=True))
    last = dict(zip(ours["qid"], scores, strict=True))  # for a unit that our ranking ends before
    for qid, docno, score in zip(theirs["qid"], theirs["docno"], theirs["score"], strict=True):
        assert abs(expected.get((qid, docno), last[qid]) - score) <= TOLERANCE, (qid, docno)


@pytest.mark.parametrize("name", PIPELINES)
def test_all_units_in_one_cluster_are_ranked_as_by_our_engine(engine, folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    options = PIPELINES[name]
    if "enrichment=file" in options:
        options = (*options, *phrases(folder, composed(options[0]).built))
    ours, theirs = composed(*options), composed(*options, *engine)
    topics = [(topic.qid, topic.text) for topic in ours.built.benchmark.topics]
    frame = pd.DataFrame(topics, columns=["qid", "query"])
    rankings = [each.pipeline().transform(frame) for each in (theirs, ours)]
    assert_equal_up_to_ties(*rankings)


def generated(documents=3000):
    """Words by Zipf's law, lengths from 1 to 300, every tenth document three times; queries."""
    random = np.random.default_rng(0)

    def text(length):
        return " ".join(f"w{number}" for number in random.zipf(1.3, length) % 5000)

    texts = [text(random.integers(1, 300)) for _ in range(documents)]
    texts = [texts[n - n % 10] if n % 10 in (3, 7) else text for n, text in enumerate(texts)]
    units = [Unit(f"d{len(texts) - n}", "", text) for n, text in enumerate(texts)]
    return units, [text(random.integers(2, 12)) for _ in range(20)]


def frame_of(rankings):
    rows = [
        (qid, docno, float(score), rank)
        for qid, (docnos, scores) in enumerate(rankings)
        for rank, (docno, score) in enumerate(zip(docnos, scores, strict=True))
    ]
    return pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_shards_share_their_statistics(cluster, tmp_path, shards):
    units, queries = generated()
    ours = LexicalIndex.build(units, tmp_path / "ours")
    engine = OpenSearchEngine(cluster.urls, shards=shards, replicas=0)
    engine.build(units, tmp_path / "theirs", corpus_fingerprint="generated")
    index = engine.open(tmp_path / "theirs")
    terms = [f"w{number}" for number in range(50)]
    assert list(map(index.document_frequency, terms)) == [*map(ours.document_frequency, terms)]
    some = np.arange(0, len(units), 7)
    assert list(index.docnos.take(some)) == [units[n].unit_id for n in some]
    for k1, b in SETTINGS:
        pair = [(one, one.bm25(k1, b)) for one in (index, ours)]
        rankings = [one.rank(queries, model, 1000) for one, model in pair]
        assert_equal_up_to_ties(*map(frame_of, rankings))
        for theirs, expected in zip(*rankings, strict=True):  # equal documents: exactly our order
            places = [{d: n for n, d in enumerate(one.docnos)} for one in (theirs, expected)]
            same = [[units[m].unit_id for m in (n, n + 3, n + 7)] for n in range(0, len(units), 10)]
            both = [each for each in same if all(d in place for d in each for place in places)]
            assert both
            for place in places:
                assert [sorted(each, key=place.get) for each in both] == both
        scores = [one.score(queries, [some] * len(queries), model) for one, model in pair]
        np.testing.assert_allclose(*scores, rtol=0, atol=TOLERANCE)


def test_a_deleted_index_is_loaded_again(cluster, engine, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    options = (*PIPELINES["document_head"], *engine)
    before = composed(*options).built.collection.index
    cluster.ask("DELETE", f"/{before.manifest['index']}")
    assert len(composed(*options).built.collection.index) == len(before)
    assert "it is loaded again" in capsys.readouterr().err


class Loss:
    """Ends a node of the cluster (SIGKILL) just after one of the searches is sent."""

    def __init__(self, cluster, node, search):
        self.cluster, self.node, self.left = cluster, node, search
        self.timer = threading.Timer(0.005, cluster.kill, [node])

    def patched(self, ask):
        def counted(client, method, path, *arguments, **settings):
            self.left -= path == "/_msearch"
            if self.left == 0 and path == "/_msearch":
                self.timer.start()
            return ask(client, method, path, *arguments, **settings)

        return counted


@pytest.mark.timeout(3600)
def test_a_ranking_goes_on_when_a_node_is_lost(cluster, engine, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(opensearch, "_QUERIES_AT_ONCE", 1)
    options = (*PIPELINES["passage"], *engine, "name=ranked")
    composed(*options, f"paths.runs={tmp_path}").rank()
    expected = (tmp_path / "ranked" / "run.trec").read_bytes()
    for trial in range(cases(10, NODES)):
        cluster.wait(status="green")
        node, runs = trial % NODES, tmp_path / f"runs-{trial}"
        ranking = composed(*options, f"paths.runs={runs}")
        assert len(ranking.built.collection.index) > 1000  # opened before the node is lost
        loss = Loss(cluster, node, 5 + 2 * trial)
        with monkeypatch.context() as context:
            context.setattr(Cluster, "ask", loss.patched(Cluster.ask))
            ranking.rank()
        loss.timer.join()
        assert node not in cluster.processes
        assert (runs / "ranked" / "run.trec").read_bytes() == expected
        cluster.start(node)
        cluster.wait()


def units_with_a_loss(units, place, cluster, node):
    """The units; before one of them, the node is lost, and it starts again 12 s later."""
    timer = threading.Timer(12, cluster.start, [node])
    for number, unit in enumerate(units):
        if number == place:
            cluster.kill(node)
            timer.start()
        yield unit
    timer.join()


@pytest.mark.timeout(3600)
def test_a_loading_goes_on_when_a_node_is_lost_and_comes_back(cluster, tmp_path, capsys):
    units, queries = generated(6000)
    ours = LexicalIndex.build(units, tmp_path / "ours")
    expected = frame_of(ours.rank(queries, ours.bm25(), 1000))
    trials = cases(5, 2)
    for trial in range(trials):
        cluster.wait(status="green")
        engine = OpenSearchEngine(cluster.urls, shards=3)
        given = units_with_a_loss(units, 500 + 5000 * trial // trials, cluster, trial % NODES)
        engine.build(given, tmp_path / f"{trial}", corpus_fingerprint=f"lost-{trial}")
        assert "The request is sent again for at least" in capsys.readouterr().err
        index = engine.open(tmp_path / f"{trial}")
        found = frame_of(index.rank(queries, index.bm25(), 1000))
        assert_equal_up_to_ties(found, expected)
        cluster.wait()
