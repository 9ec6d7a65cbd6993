"""`engine=opensearch` on real clusters of three nodes, against our own index:
`make test-real PART=opensearch`.

All tests of a version share one cluster, so that its indexes have to be told apart by their names.
"""

import json
import threading
import time
from itertools import zip_longest

import numpy as np
import pandas as pd
import pytest
from support.needs import cases, needs_real
from support.opensearch_cluster import NODES, VERSIONS, running_cluster

from soundingline.experiments import Experiment
from soundingline.pipelines.engines import opensearch
from soundingline.pipelines.engines.opensearch import OpenSearchEngine
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit

pytestmark = [pytest.mark.slow, needs_real("opensearch")]

TOLERANCE = 1e-5  # of a score, which are of one to two digits
SETTINGS = [(0.9, 0.4), (25.0, 1.0), (1.2, 0.75)]
WORLD = ("benchmark.documents=400", "benchmark.median_words=400", "benchmark.p90_words=2000")
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


def phrases(folder, store):
    """The options of phrases for every third unit, of words of questions and of no document."""
    path = folder / "phrases.jsonl"
    ids = [unit.unit_id for unit in store.units()][::3]
    rows = [{"id": name, "phrases": [f"lake town {n}", "bridge"]} for n, name in enumerate(ids)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return (f"enrichment.corpus.path={path}", "enrichment.sides=corpus")


def assert_equal_up_to_ties(theirs, ours):
    """Both rank the same units with the same scores; at each rank, units may differ if their scores
    do not."""
    assert len(theirs) == len(ours) > 0
    theirs, ours = (frame.sort_values(["qid", "rank"]) for frame in (theirs, ours))
    assert list(theirs["qid"]) == list(ours["qid"])
    np.testing.assert_allclose(theirs["score"], ours["score"], rtol=0, atol=TOLERANCE)
    scores = ours.set_index(["qid", "docno"])["score"]
    for qid, docno, score in zip(theirs["qid"], theirs["docno"], theirs["score"], strict=True):
        last = scores[qid].min()  # of a unit that our ranking ends before
        assert abs(scores.get((qid, docno), last) - score) <= TOLERANCE, (qid, docno)


def test_all_units_in_one_cluster_are_ranked_as_by_our_engine(cluster, engine, folder):
    sizes = {}
    for name, options in PIPELINES.items():
        store = composed(options[0]).collection.prepared.store
        if "enrichment=file" in options:
            options = (*options, *phrases(folder, store))
        ours, theirs = composed(*options), composed(*options, *engine)
        topics = ours.collection.benchmark.topics
        frame = pd.DataFrame([(topic.qid, topic.text) for topic in topics], columns=["qid", "query"])
        rankings = [each.pipeline().transform(frame) for each in (theirs, ours)]
        assert_equal_up_to_ties(*rankings)
        sizes[name] = store.unit_count
    names = cluster.ask("GET", "/_cat/indices?format=json")
    print(names, sizes)
