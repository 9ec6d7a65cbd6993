"""The store of documents and units, the link graph, and how references and findings of others
become documents of the corpus."""

import multiprocessing
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.assertions import refused
from support.commands import forked

from soundingline.toolkit import checksums
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus import store as module
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.corpus.segmentation import DocumentHead, Passages, WholeDocument
from soundingline.toolkit.corpus.store import SqliteStore
from soundingline.toolkit.data import Document, Link
from soundingline.toolkit.errors import InputError

CORPUS = [
    Document("d1", "Ships", "The ship sank. Nobody drowned. It was old.", "http://ships"),
    Document("é %p/2", "", "Zwei Wörter.\n\nTail\x00 ends.", ""),
    Document("empty", "Nothing", "", ""),
]


@pytest.fixture
def store(tmp_path):
    with SqliteStore.build(tmp_path / "texts", CORPUS, corpus_fingerprint="c1") as built:
        yield built


@pytest.fixture
def passages(store, tmp_path):
    store.add_units(tmp_path / "units", Passages(5))
    with SqliteStore(tmp_path / "texts", tmp_path / "units") as opened:
        yield opened


def test_documents_come_back_as_they_were_in_their_order(store):
    assert [store.document(document.docid) for document in CORPUS] == CORPUS
    assert list(store.documents()) == CORPUS
    assert list(store.documents(texts=False)) == [each._replace(text="") for each in CORPUS]
    assert (len(store), "d1" in store, "d2" in store, 7 in store) == (3, True, False, False)


def test_unknown_ids_are_key_errors(passages):
    for call in (passages.document, passages.lines, lambda docid: passages.texts([docid])):
        with pytest.raises(KeyError, match=r"d9"):
            call("d9")
    for unit_id in ("d1%p3", "d9%p0", "empty%p1", "d1%p01", "d1%p" + "9" * 5000):
        with pytest.raises(KeyError, match=re.escape(repr(unit_id))):
            passages.texts([unit_id])


def test_units_come_in_the_order_of_their_ids_and_a_docid_is_the_whole_document(passages):
    assert passages.texts(["d1"]) == [("d1", "Ships", CORPUS[0].text)]
    ships = [("d1%p1", "Ships", "Nobody drowned."), ("d1%p0", "Ships", "The ship sank.")]
    expected = [("empty%p0", "Nothing", ""), *ships, ("é %p/2%p1", "", "Tail\x00 ends.")]
    assert passages.texts([unit_id for unit_id, *_ in expected]) == expected


def test_without_a_unit_table_units_are_documents(store):
    assert store.texts(["d1"]) == list(WholeDocument().units(CORPUS[0]))
    assert [unit.unit_id for unit in store.units()] == [document.docid for document in CORPUS]
    assert store.unit_count == 3
    with pytest.raises(KeyError):
        store.texts(["d1%p0"])


@pytest.mark.parametrize("segmenter", [WholeDocument(), DocumentHead(3), Passages(5)])
def test_stored_units_are_those_of_the_segmenter(store, tmp_path, segmenter):
    total = store.add_units(tmp_path / "units", segmenter)
    expected = [unit for document in CORPUS for unit in segmenter.units(document)]
    with (
        SqliteStore(tmp_path / "texts", tmp_path / "units") as opened,
        SqliteStore.in_memory(CORPUS, segmenter) as memory,
    ):
        assert list(opened.units()) == list(memory.units()) == expected
        assert opened.texts([unit.unit_id for unit in expected]) == expected
        assert opened.unit_count == total == len(expected)
        assert opened.segmenter_fingerprint == segmenter.fingerprint
        with nullcontext() if segmenter.passages else pytest.raises(KeyError):
            opened.texts(["d1%p0"])


def test_lines_are_numbered_from_one_and_paged():
    text = "\n".join(f"line {number}" for number in range(1, 11))
    store = SqliteStore.in_memory([Document("d", "T", text), CORPUS[2]])
    assert store.lines("d", offset=4, limit=2) == ("d", "T", 4, ["line 4", "line 5"], 10)
    assert list(store.lines("d", offset=10, limit=5).lines) == ["line 10"]
    assert "\n".join(store.lines("d").lines) == text
    assert store.lines("empty") == ("empty", "Nothing", 1, [""], 1)
    assert store.lines("d", offset=11) == ("d", "T", 11, [], 10)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "the corpus holds no document"),
        ([CORPUS[0], CORPUS[2], CORPUS[0]], "docid 'd1' comes twice .again as document 3"),
        ([Document("", "", "x")], "document 1 has the docid ''"),
        ([Document("a%p3", "", "x")], "document 1 has the docid 'a%p3'"),
        ([Document("a", "", "\ud800")], "document 'a' is not valid Unicode"),
    ],
)
def test_a_bad_corpus_is_refused_and_leaves_nothing(tmp_path, documents, message):
    refused(message, SqliteStore.build, tmp_path / "texts", documents, corpus_fingerprint="c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 sets limits from Python 3.11 on")
def test_a_store_and_a_unit_table_replace_nothing(store, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("years of work")
    for path in (store.path, tmp_path / "notes"):
        before = {file.name: file.read_bytes() for file in path.iterdir()}
        with pytest.raises(InputError, match="exists and would be replaced"):
            SqliteStore.build(path, CORPUS[:1], corpus_fingerprint="c2")
        refused("exists and would be replaced", store.add_units, path, Passages(8))
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_document_beyond_sqlites_limit_of_a_value_is_refused_and_leaves_nothing(
    tmp_path, monkeypatch
):
    connect = sqlite3.connect

    def limited(*arguments, **named):
        connection = connect(*arguments, **named)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        return connection

    monkeypatch.setattr("soundingline.toolkit.corpus.store.sqlite3.connect", limited)
    fitting, many = Document("d1", "t", "x" * 9900), Document("d2", "", "go\n" * 3000)
    for document in (Document("big", "", "x" * 10_001), Document("big", "x" * 5000, "é" * 2600)):
        with pytest.raises(InputError, match=r"document 'big' \([\d,]+ char.*too large.*SQLite's"):
            SqliteStore.build(tmp_path / "no", [fitting, document], corpus_fingerprint="c")
    with (
        SqliteStore.build(tmp_path / "texts", [fitting, many], corpus_fingerprint="c") as store,
        pytest.raises(InputError, match=r"list of 3,000 units of document 'd2' is too large"),
    ):
        store.add_units(tmp_path / "units", Passages(1))
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    tight = "PRAGMA max_page_count=8; " + module._TEXTS_SCHEMA
    monkeypatch.setattr(module, "_TEXTS_SCHEMA", tight)
    big = Document("d", "", "x" * 1_000_000)
    with pytest.raises(InputError, match=r"cannot write .*full.* free space"):
        SqliteStore.build(tmp_path / "texts", [big], corpus_fingerprint="c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [None, 0, 50, 20_000])
def test_an_absent_or_truncated_store_says_how_to_build_it(store, tmp_path, size):
    if size is None:
        shutil.rmtree(tmp_path / "texts")
    else:
        os.truncate(tmp_path / "texts" / module._FILE, size)
    refused(r"run soundingline index", SqliteStore, tmp_path / "texts")


def test_other_kinds_versions_and_fingerprints_are_refused(passages, tmp_path):
    texts, units, other = (tmp_path / name for name in ("texts", "units", "other"))
    cut = Passages(5).fingerprint
    SqliteStore(texts, units, corpus_fingerprint="c1", segmenter_fingerprint=cut).close()
    with pytest.raises(InputError, match=r"another corpus \(c1\). valid: corpus c2"):
        SqliteStore(texts, units, corpus_fingerprint="c2")
    with pytest.raises(InputError, match=r"another segmenter"):
        SqliteStore(texts, units, segmenter_fingerprint=Passages(6).fingerprint)
    refused(r"holds document store, version 2. valid: unit table", SqliteStore, texts, texts)
    SqliteStore.build(other, CORPUS[:1], corpus_fingerprint="c2").close()
    message = r"units was built for another corpus .c1.\. valid: corpus c2"
    refused(message, SqliteStore, other, units)
    with sqlite3.connect(texts / module._FILE) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'version'")
    connection.close()
    (texts / checksums.CHECKSUM_LIST).unlink()
    checksums.write_checksum_list(texts)
    refused(r"holds document store, version 1. valid: .* version 2", SqliteStore, texts)


def test_many_threads_read_at_once(passages):
    with ThreadPoolExecutor(8) as pool:
        titles = pool.map(lambda _: passages.texts(["d1%p0"])[0].title, range(200))
        assert list(titles) == ["Ships"] * 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_opens_a_connection_of_its_own(passages):
    for store in (passages, SqliteStore.in_memory(CORPUS, Passages(5))):
        inherited = store._texts.connection()
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def child(store=store, inherited=inherited, answers=answers):
            answers.put(store.texts(["d1%p0"])[0].title)
            answers.put(store._texts.connection() is inherited)

        process = context.Process(target=child)
        process.start()
        assert [answers.get(), answers.get()] == ["Ships", False]
        process.join()
        assert store._texts.connection() is inherited


def test_a_pickled_store_opens_the_same_folders(passages):
    with pickle.loads(pickle.dumps(passages)) as copy:
        assert list(copy.units()) == list(passages.units())


def test_a_closed_store_says_so(store):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.document, "d1").result()
        store.close()
        with pytest.raises(ValueError, match=r"closed"):
            pool.submit(store.document, "d1").result()
    with pytest.raises(ValueError, match=r"closed"):
        store.document("d1")


def test_a_thread_that_ends_takes_its_connection_along(store):
    store.document("d1")
    for _ in range(5):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.document, "d1").result()
    assert len(store._texts._connections) <= 2


def test_reading_writes_nothing(passages, tmp_path):
    names = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(sqlite3.OperationalError, match=r"readonly"):
        passages._texts.execute("DELETE FROM documents")
    assert sorted(path.name for path in tmp_path.rglob("*")) == names


def build_until_killed(ready, path):
    def documents():
        for number in range(1000):
            yield Document(str(number), "", "x" * 10_000)
        ready()
        time.sleep(60)

    SqliteStore.build(path, documents(), corpus_fingerprint="c")


def test_a_killed_build_leaves_no_store_and_is_swept_by_the_next(tmp_path):
    path = tmp_path / "texts"
    process = forked(build_until_killed, path)
    process.kill()
    process.join(30)
    assert not path.exists()
    with SqliteStore.build(path, CORPUS, corpus_fingerprint="c") as store:
        assert len(store) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["texts"]


def test_a_store_in_memory_reads_like_one_on_disk(passages):
    with SqliteStore.in_memory(CORPUS, Passages(5)) as memory:
        assert list(memory.documents()) == CORPUS
        assert memory.lines("é %p/2", 3) == passages.lines("é %p/2", 3)
        assert memory.texts(["d1%p1", "d1"]) == passages.texts(["d1%p1", "d1"])
        with ThreadPoolExecutor(4) as pool:
            titles = pool.map(lambda _: memory.document("d1").title, range(50))
            assert set(titles) == {"Ships"}
        assert list(pickle.loads(pickle.dumps(memory)).units()) == list(passages.units())
    assert SqliteStore.in_memory({"a": "one"}).document("a") == Document("a", "", "one")
    empty = SqliteStore.in_memory({})
    assert (len(empty), list(empty.documents()), "a" in empty) == (0, [], False)
    refused(r"docid 'a' comes twice", lambda: SqliteStore.in_memory([Document("a", "", "")] * 2))


# References and findings of others become documents of the corpus.


RESNET = "Deep Residual Learning for Image Recognition"
HEADINGS = [
    Document("p1", "Attention Is All You Need", "", "https://arxiv.org/abs/1706.03762"),
    Document("p2", RESNET, "", "https://www.Example.org/resnet/"),
    Document("p3", "Café culture: a survey", "", "https://doi.org/10.1145/3397271.3401075"),
    Document("p4", "Notes on tides", ""),
    Document("p5", "Notes on tides", ""),
    Document("p6", "Rice", ""),
    Document("p7", "Лингвистика и поиск", ""),
]
RESOLVER = Resolver(HEADINGS)


@pytest.mark.parametrize(
    ("finding", "docid", "how"),
    [
        ("p4", "p4", "id"),
        ("see [p4], page 3", "p4", "id"),
        ("docid=p4", "p4", "id"),
        ("http://example.org/resnet#top", "p2", "url"),
        ("Read it at <https://arxiv.org/abs/1706.03762>.", "p1", "url"),
        ("arXiv:1706.03762v5 [cs.CL]", "p1", "identifier"),
        ("https://dl.acm.org/doi/10.1145/3397271.3401075", "p3", "identifier"),
        ("attention is  all you NEED", "p1", "title"),
        ("CAFE CULTURE - A SURVEY", "p3", "title"),
        ('Vaswani et al., "Attention is all you need", NeurIPS 2017', "p1", "title"),
        ("Vaswani et al. (2017). Attention is all you need. NeurIPS.", "p1", "title"),
        ("лингвистика и поиск", "p7", "title"),
        ("Atention is all you need", "p1", "similar title"),
        ("Attention is all you have", "p1", "similar title"),  # 42 of 52 trigrams
        ("Deep residual learning for image recogntion", "p2", "similar title"),
    ],
)
def test_a_finding_is_recognised_by_the_surest_of_its_marks(finding, docid, how):
    assert RESOLVER.resolve(finding)[:3] == (finding, docid, how)


@pytest.mark.parametrize(
    ("finding", "how", "candidates"),
    [
        ("Notes on tides", "ambiguous", ["p4", "p5"]),
        ("Notes on tide", "ambiguous", ["p4", "p5"]),
        ("[p1] or [p2]", "ambiguous", ["p1", "p2"]),
        ("Quantum gravity for cats", "unknown", []),
        ("Attention is what you need", "unknown", []),  # 42 of 53 trigrams
        ("Where rice is grown in Asia", "unknown", []),
        ("p99", "unknown", []),
        ("https://example.org/other", "unknown", []),
        ("", "unknown", []),
    ],
)
def test_a_finding_that_is_none_or_two_is_refused(finding, how, candidates):
    *resolution, documents = RESOLVER.resolve(finding)
    assert (resolution, list(documents)) == ([finding, "", how], candidates)
    assert Resolver([]).resolve(finding).how == "unknown"


def test_titles_that_are_nearly_alike_are_told_apart_exactly_or_not_at_all():
    resolver = Resolver([Document("a", "Lady Seithinax", ""), Document("b", "Lady Seithinex", "")])
    assert resolver.resolve("Lady Seithinex").docid == "b"
    assert resolver.resolve("Lady Seithinix").how == "ambiguous"


def test_lines_are_findings_with_or_without_list_marks():
    text = "- Rice\n\n2. Notes on tides\n * nobody knows this one\n"
    resolutions = RESOLVER.resolve_lines(text)
    assert [one.docid for one in resolutions] == ["p6", "", ""]
    assert [one.how for one in resolutions] == ["title", "ambiguous", "unknown"]


@given(st.text(max_size=300))
def test_whatever_the_text_no_document_is_invented(finding):
    docid = RESOLVER.resolve(finding).docid
    assert docid == "" or docid in {heading.docid for heading in HEADINGS}


WRITE = """
import sys
from pathlib import Path
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document
titles = ("The Harbour of Brel", "The tides at Brel", "A customs house", "Slate roofs", "The mill")
Resolver([Document(f"d{n}", title, "") for n, title in enumerate(titles)]).write(Path(sys.argv[1]))
"""


def test_the_files_do_not_depend_on_the_seed_of_hashes(tmp_path):
    contents = []
    for seed in ("0", "1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", WRITE, str(folder)], check=True, env=environment)
        contents.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert contents[0] and contents[0] == contents[1] == contents[2]


# The link graph: counts, neighbours, and what is left out.


PLACES = {"a", "b", "c", "d"}


def graph(*pairs, corpus=PLACES):
    return LinkGraph.build([Link(*pair.split(">")) for pair in pairs], corpus)


def test_neighbours_go_out_in_or_both_ways():
    links = graph("a>b", "a>c", "c>a", "d>a")
    assert set(links.neighbours("a", "out")) == {"b", "c"}
    assert set(links.neighbours("a", "in")) == {"c", "d"}
    assert sorted(links.neighbours("a")) == ["b", "c", "d"]
    assert links.neighbours("b", "out") == links.neighbours("nobody") == []
    assert len(graph()) == 0 and graph().neighbours("a") == []


def test_a_hub_of_ten_thousand_links_is_a_graph_like_any_other():
    corpus = {f"d{number}" for number in range(10_001)}
    spokes = [f"d0>d{number}" for number in range(1, 10_001)]
    links = graph(*spokes, "d1>d0", "d1>d2", "d2>d1", corpus=corpus)
    assert len(links.neighbours("d0", "out")) == 10_000
    assert links.neighbours("d0", "in") == ["d1"]
    assert set(links.neighbours("d1", "both")) == {"d0", "d2"}


def test_the_fingerprint_is_of_the_links():
    assert graph("a>b").fingerprint == graph("a>b", "a>b").fingerprint
    assert graph("a>b").fingerprint != graph("b>a").fingerprint
    # Runs record it. The arrays that the sparse matrix replaced gave this value.
    assert graph("a>b", "c>a", "a>d", "d>c", "a>b").fingerprint == "6b547b2e96fa"


def test_what_is_left_out_is_counted_and_a_graph_is_written_and_opened(tmp_path):
    links = graph("a>b", "c>a", "a>d", "d>c", "a>b", "b>ghost", "ghost>spirit", "c>c")
    links.write(tmp_path)
    opened = LinkGraph.open(tmp_path)
    for each in (links, opened):
        assert (len(each), each.missing, each.repeated, each.own) == (4, 2, 1, 1)
        assert "ghost" not in each
    assert opened.docids == links.docids and opened.fingerprint == links.fingerprint
    for docid in PLACES:
        for direction in ("out", "in", "both"):
            assert opened.neighbours(docid, direction) == links.neighbours(docid, direction)


def test_cacm_has_the_links_that_its_file_tells(data_root):
    benchmark = BeirBenchmark(data_root / "cacm")
    corpus = {document.docid for document in benchmark.documents()}
    links = LinkGraph.build(benchmark.links() or (), corpus)
    assert (len(links), len(links.docids)) == (2720, 1751)
    assert (links.missing, links.repeated, links.own) == (0, 0, 0)
    assert set(links.neighbours("CACM-0001", "out")) >= {"CACM-0100", "CACM-0123"}
    assert "CACM-0001" in links.neighbours("CACM-0100", "in")
