"""The store of documents and units: what is read, refused, and left by a killed build."""

import multiprocessing
import os
import pickle
import re
import shutil
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.commands import forked

from soundingline.toolkit import files
from soundingline.toolkit.corpus import store as module
from soundingline.toolkit.corpus.segmentation import DocumentHead, Passages, WholeDocument
from soundingline.toolkit.corpus.store import SqliteStore
from soundingline.toolkit.data import Document
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
    for unit_id in ("d1%p3", "d9%p0", "empty%p1", "d1%p01", "d1%p" + "9" * 5000, "\ud800"):
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
        if not segmenter.passages:
            with pytest.raises(KeyError):
                opened.texts(["d1%p0"])


def test_lines_are_numbered_from_one_and_paged():
    text = "\n".join(f"line {number}" for number in range(1, 11))
    store = SqliteStore.in_memory([Document("d", "T", text), CORPUS[2]])
    assert store.lines("d", offset=4, limit=2) == ("d", "T", 4, ["line 4", "line 5"], 10)
    assert list(store.lines("d", offset=10, limit=5).lines) == ["line 10"]
    assert "\n".join(store.lines("d").lines) == text
    assert store.lines("empty") == ("empty", "Nothing", 1, [""], 1)
    for arguments, message in (
        ({"offset": 11}, "offset is 11; document 'd' has lines 1 to 10"),
        ({"offset": 0}, "offset is 0; document 'd' has lines 1 to 10"),
        ({"limit": 0}, "limit is 0; it must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            store.lines("d", **arguments)


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
    with pytest.raises(InputError, match=message):
        SqliteStore.build(tmp_path / "texts", documents, corpus_fingerprint="c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 sets limits from Python 3.11 on")
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
    with pytest.raises(InputError, match=r"run soundingline index"):
        SqliteStore(tmp_path / "texts")


def test_other_kinds_versions_and_fingerprints_are_refused(passages, tmp_path):
    texts, units, other = (tmp_path / name for name in ("texts", "units", "other"))
    cut = Passages(5).fingerprint
    SqliteStore(texts, units, corpus_fingerprint="c1", segmenter_fingerprint=cut).close()
    with pytest.raises(InputError, match=r"another corpus \(c1\). valid: corpus c2"):
        SqliteStore(texts, units, corpus_fingerprint="c2")
    with pytest.raises(InputError, match=r"another segmenter"):
        SqliteStore(texts, units, segmenter_fingerprint=Passages(6).fingerprint)
    with pytest.raises(InputError, match=r"holds document store, version 2. valid: unit table"):
        SqliteStore(texts, texts)
    SqliteStore.build(other, CORPUS[:1], corpus_fingerprint="c2").close()
    message = r"units was built for another corpus .c1.\. valid: corpus c2"
    with pytest.raises(InputError, match=message):
        SqliteStore(other, units)
    with sqlite3.connect(texts / module._FILE) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'version'")
    connection.close()
    (texts / files.CHECKSUM_LIST).unlink()
    files.write_checksum_list(texts)
    with pytest.raises(InputError, match=r"holds document store, version 1. valid: .* version 2"):
        SqliteStore(texts)


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
    with pytest.raises(InputError, match=r"docid 'a' comes twice"):
        SqliteStore.in_memory([Document("a", "", "")] * 2)
