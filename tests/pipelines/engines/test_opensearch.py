"""The engine `opensearch` against osmem-server, an in-memory server with OpenSearch's protocol.

A proxy in front of it injects faults, offers `_clone`, which osmem-server lacks, and counts
requests. osmem-server ignores similarity settings and computes a BM25 of its own, so scores are
compared in order and shape only; the probe, which must refuse that, is tested without a patch.
"""

import json
import pickle
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from support import engines
from support.assertions import refused
from support.commands import run_entry

from soundingline.experiments.collection import prepare
from soundingline.pipelines.engines import opensearch, opensearch_client
from soundingline.pipelines.engines.opensearch import OpenSearchEngine, OpenSearchIndex
from soundingline.pipelines.enrich.enrichment import EnrichedEngine
from soundingline.pipelines.enrich.phrases import PhraseFile
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus import DocumentHead, Passages, WholeDocument
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

pytestmark = pytest.mark.slow

WORLD = Path(__file__).resolve().parents[2] / "data" / "golden" / "world"
WORDS = ["alpha", "beta", "running", "gammas", "delta", "naïve", "3.14"]
QUERIES = ["alpha running", "beta beta the naïve", {"gamma": 2.0, "run": 0.25, "absent": 1.0}]
SETTINGS = [(0.9, 0.4), (25.0, 1.0)]


def corpus():
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, size=random.integers(1, 60))) for _ in range(120)]
    units = [Unit(f"ünit {n}", "Delta" if n % 2 else "", text) for n, text in enumerate(texts)]
    return [*units, Unit("none", "", "")]


class Proxy(ThreadingHTTPServer):
    """Passes requests on. `answers` are asked first: each gets (method, path, body), and may answer
    (status, headers, value), or None. `changes` may change a value on its way back."""

    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = urlsplit(target).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers, self.changes, self.requests, self.headers = [], [], [], []

    def handle_error(self, request, client_address):
        """A client that gave up."""

    def forward(self, method, path, body="", kind="application/json"):
        connection = HTTPConnection(self.target, timeout=30)
        connection.request(method, path, body.encode(), {"content-type": kind})
        reply = connection.getresponse()
        return reply.status, {}, json.loads(reply.read() or b"null")

    def clone(self, source, name):
        """osmem-server has no `_clone`: a new index with the same settings, mapping, documents."""
        found = self.forward("GET", f"/{source}")[2][source]
        settings = found["settings"]["index"]
        kept = {key: settings[key] for key in ("number_of_shards", "analysis", "similarity")}
        body = {"settings": {"index": kept}, "mappings": found["mappings"]}
        made = self.forward("PUT", f"/{name}", json.dumps(body))
        if made[0] == 200:
            hits = self.forward("GET", f"/{source}/_search?size=10000")[2]["hits"]["hits"]
            rows = []
            for hit in hits:
                row = hit["_source"]
                contents = Unit("", row["title"], row["text"]).contents
                rows += [{"index": {"_id": hit["_id"]}}, {**row, "contents_english": contents}]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            self.forward("POST", f"/{name}/_bulk?refresh=true", lines, "application/x-ndjson")
        return made


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet, which no delayed acknowledgement holds up
    disable_nagle_algorithm = True
    server: Proxy

    def log_message(self, *args):
        """Quiet."""

    def do_GET(self):
        method, proxy = self.command, self.server
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        proxy.requests.append((method, self.path, body))
        proxy.headers.append(dict(self.headers))
        given = next(filter(None, (answer(method, self.path, body) for answer in proxy.answers)), 0)
        if given == "cut":
            self.close_connection = True
            self.connection.close()
            return
        parts = self.path.split("/")
        if not given and parts[2:3] == ["_clone"]:
            given = proxy.clone(parts[1], parts[3])
        if not given:
            kind = self.headers.get("content-type", "application/json")
            given = proxy.forward(method, self.path, body, kind)
        status, headers, value = given
        for change in proxy.changes:
            value = change(method, self.path, body, value)
        data = b"" if method == "HEAD" else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **headers}.items():
            self.send_header(name, text)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET


@pytest.fixture(scope="module")
def osmem():
    with engines.osmem() as url:
        yield url


@pytest.fixture
def proxy(osmem, monkeypatch):
    monkeypatch.setattr(opensearch_client, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(opensearch_client, "_ATTEMPTS", 6)
    server = Proxy(osmem)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def unprobed(monkeypatch):
    monkeypatch.setattr(OpenSearchIndex, "_probe", lambda *arguments: 1.0)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return LexicalIndex.build(corpus(), tmp_path_factory.mktemp("lexical") / "index")


@pytest.fixture(scope="module")
def loaded(osmem, tmp_path_factory):
    """A folder that records an index of three shards."""
    path = tmp_path_factory.mktemp("opensearch") / "index"
    engine(osmem).build(corpus(), path, corpus_fingerprint="c1")
    return path


def engine(url, **settings):
    return OpenSearchEngine(url=url, **{"shards": 3, "replicas": 0, "timeout_s": 10, **settings})


@pytest.fixture
def index(proxy, loaded):
    return engine(proxy.url).open(loaded, corpus_fingerprint="c1")


def times(count, answer, where=""):
    """`answer` to the first `count` requests whose path has `where`."""
    left = [count]

    def given(method, path, body):
        if where in path and left[0]:
            left[0] -= 1
            return answer
        return None

    return given


def test_statistics_and_texts_are_those_of_the_units(index, ours):
    terms = ["alpha", "run", "gamma", "absent", "3.14"]
    assert list(map(index.document_frequency, terms)) == [*map(ours.document_frequency, terms)]
    assert [index.idf(term) for term in terms] == [ours.idf(term) for term in terms]
    counts = {"units": 121, "tokens": ours.statistics.tokens, "with_terms": 120}
    assert index.manifest["counts"] == counts
    some = [corpus()[7], corpus()[2], corpus()[120]]
    assert index.texts([unit.unit_id for unit in some]) == some
    with pytest.raises(KeyError):
        index.texts(["ünit 1", "no such unit"])
    assert index.docnos.numbers(["none", "x", "ünit 3"]).tolist() == [120, -1, 3]


def test_rankings_hold_the_same_documents_in_any_setting(unprobed, index, ours):
    for k1, b in SETTINGS:
        mine = index.rank(QUERIES, index.bm25(k1, b), 1000)
        reference = ours.rank(QUERIES, ours.bm25(k1, b), 1000)
        for theirs, expected in zip(mine, reference, strict=True):
            assert set(theirs.docnos) == set(expected.docnos) and len(theirs.docnos) > 50


def test_requests_ask_for_the_statistics_of_all_shards_and_no_texts(unprobed, proxy, index):
    index.rank(QUERIES, index.bm25(), 10)
    rows = [body for _, path, body in proxy.requests if path == "/_msearch"][-1].splitlines()
    head, search = json.loads(rows[0]), json.loads(rows[1])
    assert len(rows) == 6 and head["search_type"] == "dfs_query_then_fetch"
    assert head["allow_partial_search_results"] is False
    assert search["track_total_hits"] is False and search["_source"] is False
    weighted = json.loads(rows[5])["query"]["bool"]["should"]
    assert weighted[1] == {"term": {"contents_english": {"value": "run", "boost": 0.25}}}


def test_each_setting_has_an_index_of_its_own_that_no_search_changes(unprobed, proxy, index):
    for k1, b in [*SETTINGS, (1.5, 0.75)]:
        index.rank(["alpha"], index.bm25(k1, b), 5)
    name = index.manifest["index"]
    found = proxy.forward("GET", f"/{name}*")[2]
    settings = {key: opensearch._k1_b(value["settings"]) for key, value in found.items()}
    clones = {f"{name}-k1_25.0-b_1.0": (25.0, 1.0), f"{name}-k1_1.5-b_0.75": (1.5, 0.75)}
    assert settings == {name: (0.9, 0.4), **clones}
    index.check_unchanged()
    before = len(proxy.requests)
    index.rank(["alpha"], index.bm25(25.0, 1.0), 5)
    assert len(proxy.requests) == before + 1


def test_without_sharing_the_index_itself_is_set_and_another_job_is_noticed(
    unprobed, proxy, tmp_path
):
    alone = engine(proxy.url, shared=False)
    alone.build(corpus(), tmp_path / "i", corpus_fingerprint="c1")
    index = alone.open(tmp_path / "i")
    name = index.manifest["index"]
    for k1, b in SETTINGS:
        index.rank(["alpha"], index.bm25(k1, b), 5)
        now = proxy.forward("GET", f"/{name}")[2][name]["settings"]
        assert opensearch._k1_b(now) == (k1, b)

    def meanwhile(method, path, body, value):
        if path == "/_msearch":
            index._set_similarity(name, 3.0, 0.5)
        return value

    proxy.changes.append(meanwhile)
    refused("another job changed k1 and b", lambda: index.rank(["alpha"], index.bm25(), 5))


def test_feedback_reads_the_documents_as_it_does_over_our_index(unprobed, index, ours):
    frame = ours.bm25(depth=10).search("alpha gammas")
    rewritten = [
        Feedback(one, fb_terms=4).transform(frame)["query_toks"][0] for one in (index, ours)
    ]
    assert rewritten[0] == rewritten[1] and len(rewritten[0]) >= 2
    assert len(index.bm25().rm3().search("alpha gammas")) > 50


def test_given_documents_are_scored_as_in_the_whole_ranking(unprobed, index):
    whole = index.bm25().search("alpha running").set_index("docno")["score"]
    docnos = ["ünit 5", "none", "ünit 40", "ünit 5"]
    frame = pd.DataFrame({"qid": "1", "query": "alpha running", "docno": docnos})
    scored = index.bm25(depth=1).transform(frame)
    expected = sorted((whole.get(docno, 0.0) for docno in docnos), reverse=True)
    assert scored["score"].tolist() == pytest.approx(expected)


def test_terms_of_our_own_analyzers_are_made_here(unprobed, proxy, tmp_path):
    pairs = engine(proxy.url, analyzer="english:2")
    pairs.build(corpus(), tmp_path / "i", corpus_fingerprint="c1")
    index = pairs.open(tmp_path / "i")
    ours = LexicalIndex.build(corpus(), tmp_path / "l", analyzer="english:2")
    terms = ["alpha beta", "run", "beta alpha", "gamma gamma"]
    assert list(map(index.document_frequency, terms)) == [*map(ours.document_frequency, terms)]
    found, expected = (one.bm25().search("alpha beta") for one in (index, ours))
    assert set(found["docno"]) == set(expected["docno"])


@pytest.mark.parametrize(("k1", "b"), SETTINGS)
def test_a_server_with_another_bm25_is_refused_with_both_numbers(index, ours, k1, b):
    shown = rf"term '(.+)' in document (\d+) (\S+) where BM25 with k1={k1:g}, b={b:g} is (\S+)\. "
    line = refused(shown, index.rank, ["alpha"], index.bm25(k1, b), 5)
    term, number, theirs, lucenes = re.search(shown, line).groups()
    ((expected,),) = ours.score([[term]], [np.array([int(number)])], ours.bm25(k1, b))
    assert float(lucenes) == pytest.approx(float(expected), rel=1e-4)
    assert float(theirs) != pytest.approx(float(expected), rel=0.1)


@pytest.mark.parametrize(
    ("factor", "refused"), [(1.0, False), (26.0, False), (1.001, True), (0.0, True), (2.0, True)]
)
def test_the_probe_takes_lucenes_formula_and_its_older_factor(proxy, index, ours, factor, refused):
    """The explanations are those of our index, which has Lucene's scores, times a factor."""

    def explained(method, path, body, value):
        rows = [json.loads(row) for row in body.splitlines()] if path == "/_msearch" else []
        for search, reply in zip(rows[1::2], (value or {}).get("responses", []), strict=True):
            if search.get("explain"):
                term = search["query"]["term"]["contents_english"]["value"]
                (number,) = search["post_filter"]["terms"]["number"]
                ((score,),) = ours.score([[term]], [np.array([number])], ours.bm25(25.0, 1.0))
                reply["hits"]["hits"][0]["_explanation"]["value"] = float(score) * factor
        return value

    plain = index.cluster.searched  # the server's own scores
    proxy.changes.append(explained)
    if refused:
        with pytest.raises(InputError, match="use another server, or engine=lexical"):
            index.rank(["alpha"], index.bm25(25.0, 1.0), 5)
    else:
        found = index.rank(["alpha"], index.bm25(25.0, 1.0), 5)[0]
        body = {"query": index._term("alpha"), "size": 5}
        (hits,) = plain(index.manifest["index"], [body], ["alpha"])
        assert found.scores[0] == pytest.approx(hits[0]["_score"] / factor)


def test_an_analyzer_that_is_not_ours_is_refused(proxy, tmp_path):
    def stems_nothing(method, path, body, value):
        if path.endswith("/_analyze"):
            for token in value["tokens"]:
                token["token"] = {"run": "running"}.get(token["token"], token["token"])
        return value

    proxy.changes.append(stems_nothing)
    message = r"the analyzer 'english' of .* gives \['running'.* where ours gives \['run'"
    with pytest.raises(InputError, match=message):
        engine(proxy.url).build(corpus(), tmp_path / "i", corpus_fingerprint="odd")
    assert not (tmp_path / "i").exists()


def test_a_stopped_loading_goes_on_with_the_units_that_are_missing(proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(opensearch, "_UNITS_AT_ONCE", 40)

    def stopped():
        yield from corpus()[:90]
        raise KeyboardInterrupt

    def sent():
        rows = [body for _, path, body in proxy.requests if "/_bulk" in path]
        return sum(body.count('"create"') for body in rows)

    with pytest.raises(KeyboardInterrupt):
        engine(proxy.url).build(stopped(), tmp_path / "i", corpus_fingerprint="k")
    assert sent() == 80 and not (tmp_path / "i").exists()
    engine(proxy.url).build(corpus(), tmp_path / "i", corpus_fingerprint="k")
    assert sent() == 121 and len(engine(proxy.url).open(tmp_path / "i")) == 121
    engine(proxy.url).build(iter([]), tmp_path / "elsewhere", corpus_fingerprint="k")
    assert sent() == 121  # another machine finds the complete index


def test_units_that_a_busy_cluster_rejects_are_sent_again(proxy, tmp_path):
    left = [3]

    def rejected(method, path, body):
        if "/_bulk" in path and left[0]:
            left[0] -= 1
            ids = [json.loads(row)["create"]["_id"] for row in body.splitlines()[::2]]
            error = {"type": "rejected_execution_exception", "reason": "queue is full"}
            items = [{"create": {"_id": name, "status": 429, "error": error}} for name in ids]
            return 200, {}, {"errors": True, "items": items}
        return None

    proxy.answers.append(rejected)
    engine(proxy.url).build(corpus(), tmp_path / "i", corpus_fingerprint="429")
    index = engine(proxy.url).open(tmp_path / "i")
    assert left == [0] and index.manifest["identity"]["documents"] == 121
    left[0] = 1000
    with pytest.raises(
        InputError, match=r"121 units were not loaded .*queue is full.*same command"
    ):
        engine(proxy.url).build(corpus(), tmp_path / "j", corpus_fingerprint="always 429")


def test_a_refused_unit_and_a_too_long_id_end_the_loading(proxy, tmp_path):
    def refused(method, path, body):
        error = {"type": "mapper_parsing_exception", "reason": "no"}
        items = [{"create": {"_id": "1", "status": 400, "error": error}}]
        return (200, {}, {"errors": True, "items": items}) if "/_bulk" in path else None

    one, long = Unit("1", "", "words"), Unit("é" * 257, "", "words")
    with pytest.raises(InputError, match="512 bytes at most"):
        engine(proxy.url).build([long], tmp_path / "i", corpus_fingerprint="long")
    proxy.answers.append(refused)
    with pytest.raises(InputError, match=r"refuses unit '1'.*mapper_parsing"):
        engine(proxy.url).build([one], tmp_path / "i", corpus_fingerprint="refused")


def test_an_alias_names_the_newest_index_and_the_older_one_stays(proxy, tmp_path):
    named = engine(proxy.url, index="mine")
    for corpus_fingerprint in ("a", "b"):
        named.build(corpus(), tmp_path / corpus_fingerprint, corpus_fingerprint=corpus_fingerprint)
    names = [named.open(tmp_path / one).manifest["index"] for one in "ab"]
    assert list(proxy.forward("GET", "/mine")[2]) == [names[1]] != [names[0]]
    with pytest.raises(InputError, match="is an index at"):
        engine(proxy.url, index=names[0]).build(corpus(), tmp_path / "x", corpus_fingerprint="a")


def world_in(tmp_path, url, segmenter):
    benchmark = BeirBenchmark(WORLD, split=None)
    return prepare(benchmark, segmenter, engine(url), tmp_path / "indexes")


def test_documents_and_passages_of_one_corpus_have_an_index_each(proxy, tmp_path):
    segmenters = WholeDocument(), Passages(max_tokens=20), DocumentHead(max_tokens=20)
    opened = [world_in(tmp_path, proxy.url, segmenter) for segmenter in segmenters]
    assert len({each.index.manifest["index"] for each in opened}) == 3
    for each in opened:
        units = list(each.store.units())
        assert each.index.texts([unit.unit_id for unit in units]) == units
    assert len(opened[1].index) > len(opened[0].index)
    assert len({each.engine.of_content("phrases").fingerprint for each in opened}) == 3


def test_an_index_that_was_deleted_in_the_cluster_is_loaded_again(proxy, tmp_path, capsys):
    before = world_in(tmp_path, proxy.url, WholeDocument()).index
    proxy.forward("DELETE", f"/{before.manifest['index']}")
    with pytest.raises(InputError, match=rf"has no index '.*', which '{before.path}' records"):
        engine(proxy.url).open(before.path)
    index = world_in(tmp_path, proxy.url, WholeDocument()).index
    assert len(index) == len(before) and index.manifest["index"] == before.manifest["index"]
    assert "records; it is loaded again" in capsys.readouterr().err
    world_in(tmp_path, proxy.url, WholeDocument())
    assert "again" not in capsys.readouterr().err


def test_a_changed_index_is_named(proxy, tmp_path):
    built = engine(proxy.url)
    built.build(corpus(), tmp_path / "i", corpus_fingerprint="changed")
    name = built.open(tmp_path / "i").manifest["index"]
    proxy.forward("PUT", f"/{name}/_settings", json.dumps({"index.blocks.write": False}))
    proxy.forward("DELETE", f"/{name}/_doc/none?refresh=true")
    refused(r"has changed since .*documents \(121 -> 120\)", built.open, tmp_path / "i")


def test_too_many_terms_and_units_are_refused_in_one_line(unprobed, index):
    refused("depth=10001. valid: 10000 at most", index.rank, ["alpha"], index.bm25(), 10_001)
    many = {f"term{number}": 1.0 for number in range(1025)}
    with pytest.raises(InputError, match=r"1025 terms. valid: 1024 at most.*max_clause_count"):
        index.rank([many], index.bm25(), 5)
    many.popitem()
    assert [len(found.docnos) for found in index.rank([many], index.bm25(), 5)] == [0]


PARTIAL = {"total": 3, "successful": 2, "skipped": 0, "failed": 1, "failures": [{"reason": "lost"}]}


def broken(count, **fields):
    """Changes replies to the first `count` batches: fields of the first search's reply."""
    left = [count]

    def change(method, path, body, value):
        if path == "/_msearch" and left[0]:
            left[0] -= 1
            value["responses"][0].update(fields)
        return value

    return change


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"_shards": PARTIAL}, "1 of 3 shards failed: .*lost"),
        ({"timed_out": True}, "stopped the search at its time limit"),
        ({"error": {"type": "rejected", "reason": "full"}, "status": 429}, "rejected"),
        ({"error": {"type": "search_phase_execution_exception"}, "status": 503}, "search_phase"),
    ],
)
def test_a_partial_ranking_is_asked_for_again_and_is_never_returned(
    unprobed, proxy, index, fields, message
):
    whole = index.rank(QUERIES, index.bm25(), 5)
    proxy.changes.append(broken(2, **fields))
    before = len(proxy.requests)
    again = index.rank(QUERIES, index.bm25(), 5)
    assert [one.docnos for one in again] == [one.docnos for one in whole]
    # The other two searches of the batch are not repeated.
    assert [body.count("\n") for _, _, body in proxy.requests[before:]] == [6, 2, 2]
    proxy.changes.append(broken(-1, **fields))
    with pytest.raises(InputError, match=rf"the search for 'alpha running' failed: .*{message}"):
        index.rank(QUERIES, index.bm25(), 5)


def test_a_wrong_search_is_not_repeated(unprobed, proxy, index):
    proxy.changes.append(broken(-1, error={"type": "parsing_exception"}, status=400))
    index._targets[0.9, 0.4] = index.manifest["index"], 1.0
    before = len(proxy.requests)
    refused("parsing_exception", lambda: index.rank(["alpha"], index.bm25(), 5))
    assert len(proxy.requests) == before + 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_cluster_is_asked_again_after_the_time_that_it_names(
    unprobed, proxy, index, monkeypatch, status
):
    waits: list[float] = []
    fake = SimpleNamespace(sleep=waits.append, time=time.time)
    monkeypatch.setattr(opensearch_client, "time", fake)
    full = {"error": {"type": "circuit_breaking_exception", "reason": "Data too large"}}
    proxy.answers = [times(2, (status, {"Retry-After": "7"}, full), "/_msearch")]
    assert len(index.rank(["alpha"], index.bm25(), 5)[0].docnos) == 5
    assert waits == [7.0, 7.0]
    proxy.answers = [times(-1, (status, {}, full), "/_msearch")]
    with pytest.raises(InputError, match=rf"{status} to POST /_msearch after 6.*Data too large"):
        index.rank(["alpha"], index.bm25(), 5)
    assert waits[2:] == pytest.approx([0.001 * 2**n for n in range(5)])


def test_a_lost_connection_is_made_again_and_a_slow_cluster_is_named(
    unprobed, proxy, index, loaded, monkeypatch
):
    proxy.answers = [times(3, "cut")]
    assert len(index.rank(["alpha"], index.bm25(), 5)[0].docnos) == 5
    monkeypatch.setattr(opensearch_client, "_ATTEMPTS", 2)
    proxy.answers = [lambda method, path, body: time.sleep(0.3)]
    with pytest.raises(InputError, match=r"no answer to GET /\S+ within 0.1 s"):
        engine(proxy.url, timeout_s=0.1).open(loaded)


def test_a_cluster_that_never_answered_is_waited_for_less_long_than_one_that_did(
    proxy, loaded, monkeypatch
):
    waits: list[float] = []
    fake = SimpleNamespace(sleep=waits.append, time=time.time)
    monkeypatch.setattr(opensearch_client, "time", fake)
    monkeypatch.setattr(opensearch_client, "_ATTEMPTS", 9)
    refused(r"127.0.0.1:9 cannot be reached", lambda: engine("http://127.0.0.1:9").open(loaded))
    assert len(waits) == 5
    cluster = opensearch_client.Cluster([proxy.url], None, 5.0)
    cluster.ask("GET", "/")
    proxy.answers = [times(-1, "cut")]
    waits.clear()
    refused("cannot be reached", cluster.ask, "GET", "/")
    assert len(waits) == 8


def test_another_node_answers_for_one_that_is_down(unprobed, proxy, loaded):
    index = engine(["http://127.0.0.1:9", proxy.url]).open(loaded)
    assert len(index.rank(["alpha"], index.bm25(), 5)[0].docnos) == 5


def test_a_red_index_is_not_searched(proxy, loaded, capsys):
    proxy.answers = [times(2, (200, {}, {"status": "red"}), "/_cluster/health")]
    assert len(engine(proxy.url).open(loaded)) == 121
    assert capsys.readouterr().err.count("is red: a shard has no copy") == 1
    proxy.answers = [times(-1, (200, {}, {"status": "red"}), "/_cluster/health")]
    refused("is red: a shard has no copy", lambda: engine(proxy.url).open(loaded))


# What OpenSearch 3.3 and 2.19 say while a node is lost.
LOST = [
    {"type": "node_disconnected_exception", "reason": "[n2][127.0.0.1:9302][indices] disconnected"},
    {"type": "search_phase_execution_exception", "reason": "all shards failed"},
    {"type": "search_phase_execution_exception", "reason": "Partial shards failure"},
    {"type": "x", "reason": "-" * 400, "caused_by": {"type": "node_not_connected_exception"}},
]


@pytest.mark.parametrize("error", LOST)
def test_a_search_is_sent_again_to_the_copies_of_a_lost_node(unprobed, proxy, index, capsys, error):
    expected = index.rank(QUERIES, index.bm25(), 5)
    proxy.changes.append(broken(2, error=error, status=500))
    assert index.rank(QUERIES, index.bm25(), 5) == expected
    proxy.answers = [times(2, (500, {}, {"error": error, "status": 500}), "/_msearch")]
    assert index.rank(QUERIES, index.bm25(), 5) == expected
    told = capsys.readouterr().err.splitlines()
    assert len(told) <= 4 and "The request is sent again for at least 0 s" in told[0]
    proxy.changes.append(broken(-1, error={**LOST[1], "phase": "query"}, status=400))
    before = len(proxy.requests)
    refused("all shards failed", lambda: index.rank(QUERIES, index.bm25(), 5))
    assert len(proxy.requests) == before + 1


def test_an_index_that_was_created_by_a_request_without_a_reply_is_loaded(proxy, tmp_path):
    def cut_after(method, path, body):
        if method == "PUT" and "mappings" in body:
            proxy.answers.clear()
            proxy.forward(method, path, body)
            return "cut"
        return None

    proxy.answers = [cut_after]
    engine(proxy.url).build(corpus(), tmp_path / "i", corpus_fingerprint="no reply")
    assert len(engine(proxy.url).open(tmp_path / "i")) == 121


def test_units_of_a_lost_shard_are_waited_for_with_a_line(proxy, tmp_path, capsys):
    error = {"type": "unavailable_shards_exception", "reason": "[i][2] primary shard is not active"}

    def lost(method, path, body):
        if "/_bulk" not in path:
            return None
        left[0] -= 1
        ids = [json.loads(row)["create"]["_id"] for row in body.splitlines()[::2]]
        items = [{"create": {"_id": name, "status": 503, "error": error}} for name in ids]
        return 200, {}, {"errors": True, "items": items}

    left = [3]
    proxy.answers = [lambda *request: left[0] and lost(*request)]
    engine(proxy.url).build(corpus(), tmp_path / "i", corpus_fingerprint="lost shard")
    told = capsys.readouterr().err
    assert "121 units were not loaded into" in told and "primary shard is not active" in told
    assert any("timeout=5s" in path for _, path, _ in proxy.requests if "/_bulk" in path)


def test_many_threads_search_at_once_without_a_warning(unprobed, proxy, index, caplog):
    index.rank(["alpha"], index.bm25(), 5)
    together = threading.Barrier(24)

    def answered(method, path, body):
        together.wait(10)

    proxy.answers = [answered]
    with ThreadPoolExecutor(24) as pool:
        rankings = list(pool.map(lambda _: index.rank(["alpha"], index.bm25(), 5), range(24)))
    assert len({tuple(one.docnos) for (one,) in rankings}) == 1
    assert not [one for one in caplog.records if "pool" in one.getMessage()]


def test_credentials_come_from_the_environment_and_reach_no_file_and_no_message(
    proxy, loaded, tmp_path, monkeypatch
):
    wrong = {"error": {"type": "security_exception", "reason": "no: alice s3cret-word"}}
    proxy.answers = [times(1, (401, {}, wrong))]
    with pytest.raises(InputError, match=r"401: the credentials are missing.*OPENSEARCH_USERNAME"):
        engine(proxy.url).open(loaded)
    monkeypatch.setenv("OPENSEARCH_USERNAME", "alice")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "s3cret-word")
    engine(proxy.url).build(corpus()[:3], tmp_path / "i", corpus_fingerprint="secret")
    assert all(given["authorization"].startswith("Basic ") for given in proxy.headers[1:])
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"s3cret" not in file.read_bytes()
    for status, message in [(401, "the credentials are wrong"), (403, "does not allow GET")]:
        proxy.answers = [times(1, (status, {}, wrong))]
        assert "s3cret" not in refused(message, engine(proxy.url).open, loaded)
    own = engine("https://alice:s3cret-word@search.example.org")
    assert "s3cret" not in refused("set OPENSEARCH_USERNAME and", own.open, loaded)


def test_tls_that_fails_names_the_option(proxy, loaded):
    with pytest.raises(
        InputError, match=r"TLS with https://127.0.0.1:\d+ failed: .*engine.ca_certs"
    ):
        engine(proxy.url.replace("http:", "https:")).open(loaded)


@pytest.mark.parametrize("url", [None, "localhost:9200", "ftp://localhost"])
def test_an_address_that_is_none_is_refused(loaded, url):
    refused(r"engine.url", lambda: engine(url).open(loaded))


def test_a_command_ranks_on_the_cluster_and_tells_a_refusal_in_one_line(
    proxy, capsys, caplog, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    world = ["benchmark=beir", f"benchmark.path={WORLD}", "benchmark.split=null"]
    cluster = ["engine=opensearch", f"engine.url={proxy.url}", "engine.replicas=0"]
    assert run_entry("rank", *world, *cluster, "name=refused") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "where BM25 with k1=0.9, b=0.4 is" in told and "Traceback" not in told
    monkeypatch.setattr(OpenSearchIndex, "_probe", lambda *arguments: 1.0)
    for retriever in ("bm25_tuned", "bm25_rm3"):
        chosen = f"retriever={retriever}", f"name={retriever}"
        assert run_entry("rank", *world, *cluster, *chosen) == 0
        assert len((tmp_path / "runs" / retriever / "run.trec").read_text().splitlines()) > 10
    loads = [path for _, path, _ in proxy.requests if "/_bulk" in path]
    assert not [one for one in caplog.records if one.name.startswith("opensearch")]
    assert len(loads) == 1  # the second and third run open the index of the first


def test_enriched_documents_have_an_index_of_their_own_and_rank_by_weights(
    unprobed, proxy, tmp_path
):
    (tmp_path / "phrases.jsonl").write_text(
        '{"id": "ünit 3", "phrases": ["zebra crossing"]}\n', encoding="utf-8"
    )
    source = PhraseFile(path=str(tmp_path / "phrases.jsonl"))
    indexes = {}
    for name, plain in [("ours", LexicalEngine()), ("theirs", engine(proxy.url))]:
        plain.build(corpus(), tmp_path / name, corpus_fingerprint="e")
        base = plain.open(tmp_path / name, corpus_fingerprint="e")
        collection = Collection("e", index=base)
        enriched = EnrichedEngine(plain, source, None, collection)
        enriched.build(corpus(), tmp_path / f"{name}+", corpus_fingerprint="e")
        indexes[name] = enriched.open(tmp_path / f"{name}+", corpus_fingerprint="e")
    ours, theirs = indexes["ours"], indexes["theirs"]
    assert theirs.manifest["index"] != theirs.base.manifest["index"]
    for index in (ours, theirs):
        assert [index.document_frequency("zebra"), index.base.document_frequency("zebra")] == [1, 0]
        assert index.docnos.take(np.array([3, 0, 3])).tolist() == ["ünit 3", "ünit 0", "ünit 3"]
        assert list(index.rank([{"zebra": 0.5}], index.bm25(), 5)[0].docnos) == ["ünit 3"]
    again = pickle.loads(pickle.dumps(theirs))
    assert again == theirs and again.base == theirs.base
    assert again.texts(["ünit 3"]) == [corpus()[3]]
    rewritten = [
        (one.bm25() >> Feedback(one)).search("zebra")["query_toks"][0] for one in (ours, theirs)
    ]
    assert set(rewritten[0]) == set(rewritten[1])
