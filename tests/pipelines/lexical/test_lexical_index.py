"""The lexical index: its bytes are those of a slow build of the same texts, and PyTerrier opens,
packages and downloads it."""

import itertools
import json
import math
import multiprocessing
import os
import random
import re
import resource
import subprocess
import tarfile
import threading
import tracemalloc
from collections import Counter
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lz4.frame import LZ4FrameFile
from support.assertions import refused
from support.engines import real
from support.needs import cases

from soundingline.pipelines.index_folder import signed
from soundingline.pipelines.lexical import build, forward, invert, storage, word_break
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.build import write_segments
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.invert import postings_path, terms_path
from soundingline.pipelines.lexical.storage import StringLookup, encode_lengths
from soundingline.pipelines.lexical.word_break import WordTable, scan, segment
from soundingline.toolkit.checksums import VERIFIED
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.jit import compiled

UNITS = [
    Unit("d1", "Sounding lines", "The line is cast, and cast again."),
    Unit("d2%p0", "", "Lead and line."),
    Unit("empty", "", ""),
    Unit("größe", "", "Lead " * 300),
]


@pytest.fixture
def index(tmp_path):
    return LexicalIndex.build(UNITS, tmp_path / "index", corpus_fingerprint="c1")


@pytest.fixture(scope="module")
def many():
    """Under a small memory these are many batches, several vocabularies and several passes."""
    chance = random.Random(3)
    words = [f"w{number}" for number in range(60_000)]
    return [
        Unit(
            f"u{n}",
            "",
            " ".join(chance.choices(words, k=chance.randrange(400)) + ["often"] * (n % 300)),
        )
        for n in range(1000)
    ]


def contents(folder):
    """What was built; not what openings note beside it."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != VERIFIED]
    return {path.name: path.read_bytes() for path in paths}


def table(strings):
    """A table of strings: their bytes and where each one begins and ends."""
    return b"".join(strings), as_bytes("<i8", [0, *accumulate(map(len, strings))])


def as_bytes(kind, values):
    return np.array(list(values), kind).tobytes()


def slowly_built(units, words):
    """The files of the English index, written from their description in `storage` with nothing of
    the build but the term of a word and Lucene's code of a length."""
    term = make_analyzer().term
    documents = [Counter(filter(None, map(term, words(unit.contents)))) for unit in units]
    postings = {}
    for number, counts in enumerate(documents):
        for name, frequency in counts.items():
            postings.setdefault(name.encode(), []).append((number, frequency))
    terms = sorted(postings)
    rows = [row for name in terms for row in postings[name]]
    kind = "<u4" if any(frequency > 65_535 for _, frequency in rows) else "<u2"
    lengths = [counts.total() for counts in documents]
    files = {
        "offsets.bin": as_bytes("<i8", [0, *accumulate(len(postings[name]) for name in terms)]),
        "documents.bin": as_bytes("<u4", [number for number, _ in rows]),
        "frequencies.bin": as_bytes(kind, [frequency for _, frequency in rows]),
        "lengths.bin": as_bytes("<i4", lengths),
        "length_codes.bin": encode_lengths(np.array(lengths, np.int32)).tobytes(),
    }
    ids = [unit.unit_id.encode() for unit in units]
    names = {"type": "sparse_index", "format": "soundingline", "package_hint": "soundingline"}
    files["pt_meta.json"] = (json.dumps(names, indent=1) + "\n").encode()
    for stem, strings in (("terms", terms), ("units", ids)):
        files[f"{stem}.bytes"], files[f"{stem}.offsets"] = table(strings)
    return files


def assert_built_as(expected, index):
    written = contents(index.path)
    manifest = json.loads(written.pop("manifest.json"))
    assert written.keys() == expected.keys()
    assert [name for name in expected if written[name] != expected[name]] == []
    assert manifest["counts"]["tokens"] == index._arrays.lengths.sum()


@pytest.mark.slow
@pytest.mark.parametrize("collection", ["cacm", "vaswani", "wikimix"])
def test_a_real_collections_index_has_the_bytes_of_a_slow_build(data_root, tmp_path, collection):
    units = real(data_root / collection)[0]
    units = units[: cases(len(units), 500)]
    expected = slowly_built(units, segment)
    for memory_mb in (1024, 16):
        path = tmp_path / f"{memory_mb}"
        index = LexicalIndex.build(units, path, memory_mb=memory_mb, keep_texts=False)
        assert_built_as(expected, index)


@pytest.fixture(scope="module")
def one_build(many, tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "index"
    return contents(LexicalIndex.build(many, path, memory_mb=2048, keep_texts=False).path)


def test_a_small_memory_gives_the_bytes_of_a_large_one(many, one_build, tmp_path, monkeypatch):
    # With a kilobyte for each posting, terms are inverted in several passes.
    monkeypatch.setattr(invert, "_DOCUMENT_BYTES", 1024)
    path = tmp_path / "index"
    LexicalEngine(memory_mb=16).build(many, path, corpus_fingerprint="")
    assert contents(path) == one_build
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


MARKS = "aAbs'’.,:;019_ -\"#*\n\x00éא\u0301\u20e3\u202f漢カ\U0001f600"
ANY_TEXT = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=MARKS, max_size=40),
    st.lists(st.sampled_from(["the", "The", "cats", "cat's", "U.S.", "1,000", "x" * 300, "—"])).map(
        " ".join
    ),
)


@settings(max_examples=cases(100))
@given(texts=st.lists(ANY_TEXT, min_size=1, max_size=6))
def test_the_index_of_any_text_has_the_bytes_of_a_slow_build(texts):
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    with TemporaryDirectory() as folder:
        index = LexicalIndex.build(units, Path(folder) / "index", keep_texts=False)
        assert_built_as(slowly_built(units, scan), index)


@pytest.mark.parametrize("most", [258, 65_535, 65_536])
def test_a_frequency_above_one_byte_has_the_bytes_of_a_slow_build(most, tmp_path):
    units = [Unit(f"d{number}", "", "Lead " * (250 + number) + "line") for number in range(8)]
    units.append(Unit("most", "", "Lead " * most))
    index = LexicalIndex.build(units, tmp_path / "index", keep_texts=False)
    assert_built_as(slowly_built(units, scan), index)


def test_statistics_count_what_is_indexed(index):
    assert LexicalIndex(str(index.path)) == index
    assert [index.document_frequency(term) for term in ("lead", "the", "cast")] == [2, 0, 1]
    assert [part.tolist() for part in index.postings("lead")] == [[1, 3], [1, 300]]
    assert index.postings("nowhere")[0].tolist() == []
    assert list(index.docnos.take(np.array([3, 0, 3]))) == ["größe", "d1", "größe"]
    assert index.docnos.numbers(["größe", "none", "d1"]).tolist() == [3, -1, 0]
    # d1: sound line line cast cast again; d2: lead line; größe: 300 times lead.
    assert index.statistics._asdict() == {
        "documents": 4,
        "documents_with_terms": 3,
        "terms": 5,
        "postings": 7,
        "tokens": 308,
    }
    assert index.statistics.average_length == pytest.approx(308 / 3)
    assert index._arrays.lengths.tolist() == [6, 2, 0, 300]


def test_a_build_starts_no_process(tmp_path, monkeypatch):
    """A new process would run a user's script without a main guard again."""

    def refused(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refused)
    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.setattr(os, "fork", refused)
    units = [Unit(str(n), "", f"w{n % 999} " * 400) for n in range(2000)]
    index = LexicalIndex.build(units, tmp_path / "index")
    assert (len(index), index.document_frequency("w7")) == (2000, 2)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("step", ["reading", "cutting", "analysing"])
def test_an_error_leaves_nothing(many, tmp_path, monkeypatch, error, step):
    place = {
        "reading": None,
        "cutting": (WordTable, "numbers"),
        "analysing": (build, "terms_of_forms"),
    }[step]

    def broken(units=many):
        yield from units[:400]
        raise error("it failed")

    if step != "reading":
        calls, work = itertools.count(1), getattr(*place)

        def fails(*arguments):
            if next(calls) == 3:
                raise error("it failed")
            return work(*arguments)

        monkeypatch.setattr(*place, fails)
    threads = threading.active_count()
    with pytest.raises(error, match="it failed") as failure:
        units = broken() if step == "reading" else many
        LexicalIndex.build(units, tmp_path / "index", memory_mb=16)
    assert list(tmp_path.iterdir()) == []
    # Ended, not merely left to end when it is collected, which the traceback prevents.
    assert threading.active_count() <= threads, failure


class Counted(list):
    """Units of another number than they say, which must not be read."""

    def __iter__(self):
        raise AssertionError("work has begun")
        yield

    def __len__(self):
        return 2**31


FRAME = pd.DataFrame({"docno": ["1", None], "text": ["a", "b"]})
FLOATS = pd.DataFrame({"docno": [1, None, 3], "text": ["a", "b", "c"]}).dropna()


@pytest.mark.parametrize(
    ("documents", "arguments", "message"),
    [
        (FRAME.rename(columns={"docno": "id"}), {}, "no column docno; its columns are id, text"),
        (FRAME[[]], {}, "no column docno and no column text"),
        (FRAME, {}, "row 1 of the frame has no docno"),
        (FRAME[:0], {}, "the corpus is empty"),
        ("corpus.jsonl", {}, "the documents came as 'corpus.jsonl'. valid: a frame with"),
        ({"docno": "1", "text": "a"}, {}, "the documents came as {'docno'"),
        (7, {}, "the documents came as 7"),
        ([{"docno": "1"}], {}, "a document came as {'docno': '1'}. valid: a mapping with docno"),
        (FLOATS, {}, "document 1 has the docno 1.0. valid: text, or a whole number. pandas makes"),
        (FLOATS.to_dict("records"), {}, "document 1 has the docno 1.0. valid: text"),
        ([{"docno": np.float32(7), "text": "a"}], {}, "document 1 has the docno "),
        ([UNITS[0], {"docno": math.nan, "text": "a"}], {}, "document 2 has the docno nan"),
        ([{"docno": None, "text": "a"}], {}, "document 1 has the docno None. valid: unique ids"),
        ([{"docno": "", "text": "a"}], {}, "document 1 has the docno ''"),
        ([{"docno": ["1"], "text": "a"}], {}, "document 1 has the docno ['1']. valid: text"),
        ([{"docno": b"1", "text": "a"}], {}, "document 1 has the docno b'1'"),
        ([{"docno": True, "text": "a"}], {}, "document 1 has the docno True"),
        ([{"docno": "1", "text": math.nan}], {}, "document 1 has the text nan. valid: text"),
        ([{"docno": "1", "text": b"mill"}], {}, "document 1 has the text b'mill'"),
        ([{"docno": "1", "text": ["old", "mill"]}], {}, "document 1 has the text ['old', 'mill']"),
        (FRAME.assign(docno="1", text=[["a"], ["b"]]), {}, "document 1 has the text ['a']"),
        ([{"docno": "1", "text": "a", "title": math.nan}], {}, "document 1 has the title nan"),
        (["a"], {}, "a document came as 'a'"),
        ([*UNITS, UNITS[1]], {}, "unit id 'd2%p0' comes twice"),
        (UNITS, {"memory_mb": 1}, "memory_mb"),
        (UNITS, {"analyzer": "klingon"}, "analyzer 'klingon' is unknown"),
        (Counted(), {}, "2,147,483,648 units or more"),
        (range(3 * 10**9), {}, "3,000,000,000 units or more"),
        (iter(UNITS), {}, "4 units or more to index. valid: at most 2"),
        (UNITS[:2], {"analyzer": "whitespace"}, "more than 4 index terms. valid: at most 4"),
    ],
)
def test_documents_and_arguments_that_do_not_fit_are_refused(
    documents, arguments, message, tmp_path, monkeypatch
):
    if "at most 2" in message:
        monkeypatch.setattr(build, "LARGEST_INDEX", 2)
    if "at most 4" in message:
        monkeypatch.setattr(invert, "LARGEST_VOCABULARY", 4)
    refused(re.escape(message), LexicalIndex.build, documents, tmp_path / "index", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_index_is_replaced_on_request_and_only_by_a_complete_one(index, tmp_path):
    before, path = contents(index.path), str(index.path)
    with pytest.raises(InputError, match=r"holds an index of the kind lexical.* overwrite=True"):
        LexicalIndex.build(UNITS[:1], path)
    refused("comes twice", lambda: LexicalIndex.build([UNITS[0], UNITS[0]], path, overwrite=True))
    assert contents(index.path) == before
    assert len(LexicalIndex.build(UNITS[:1], path, overwrite=True)) == 1
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="not an index of the kind lexical"):
            LexicalIndex.build(UNITS, tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_documents_come_as_a_frame_or_as_any_iterable_of_dicts(tmp_path):
    rows = [{"docno": 7, "text": "the old mill", "title": "Mill"}, {"docno": 8, "title": None}]
    frame = pd.DataFrame(rows).assign(url="x")
    index = LexicalIndex.build(frame, tmp_path / "frame")
    assert index.texts(["7", "8"]) == [Unit("7", "Mill", "the old mill"), Unit("8", "", "")]
    rows[1]["text"] = ""
    numbers = [{**row, "docno": np.int64(row["docno"])} for row in rows]
    for number, documents in enumerate([rows, iter(rows), tuple(rows), numbers]):
        same = LexicalIndex.build(documents, tmp_path / str(number))
        assert same.manifest["files"] == index.manifest["files"]
    untitled = LexicalIndex.build(frame[["text", "docno"]], tmp_path / "untitled")
    assert untitled.texts(["7"]) == [Unit("7", "", "the old mill")]


def test_a_corpus_without_words_is_an_index_that_finds_nothing(tmp_path):
    index = LexicalIndex.build([Unit("d1", "", ""), Unit("d2", "", "the of")], tmp_path / "index")
    assert index.search(["anything"])[0].tolist() == []
    assert index.statistics.terms == 0


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(many, tmp_path):
    # A limit on the size of a file makes the kernel refuse a write, as a full disk does.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        refused("no space left on the disk", LexicalIndex.build, many, tmp_path / "index")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def edit(**changes):
    def apply(path):
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(signed({**manifest, **changes})))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.rename(path.parent / "elsewhere"), "no lexical index"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "missing or damaged"),
        (lambda path: (path / "documents.bin").write_bytes(b"123"), "damaged: documents.bin"),
        (lambda path: (path / "terms.bytes").unlink(), "damaged: terms.bytes"),
        (edit(version=0), "soundingline-lexical, version 0"),
        (edit(format="other"), "format other"),
        (edit(corpus_fingerprint="c2"), "another corpus"),
        (edit(analyzer_fingerprint="0"), "another analyzer than"),
    ],
)
def test_an_index_that_does_not_fit_is_refused_with_how_to_rebuild(index, damage, message):
    damage(index.path)
    advice = (
        "build it again: remove the folder"
        if index.path.exists()
        else "build it: soundingline index"
    )
    refused(f"{message}.*{advice}", LexicalIndex, index.path, corpus_fingerprint="c1")


def test_compiled_code_needs_no_place_to_be_kept():
    # A function without a file is one whose machine code numba has nowhere to keep.
    space = {}
    exec("def twice(x): return 2 * x", space)
    assert compiled(space["twice"])(21) == 42


@settings(max_examples=cases(200))
@given(names=st.lists(st.text(max_size=3), max_size=40), looked_for=st.text(max_size=3))
def test_places_are_those_of_a_list_whatever_the_hashes(names, looked_for):
    for hashed in (hash, len, lambda text: 0, lambda text: 2**63 - 1 - len(text)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "hash", hashed, raising=False)
            values = np.array([hashed(name) for name in names], np.int64)
            places = StringLookup(values, names.__getitem__)
            for name in [*names, looked_for]:
                assert places.find(name) == (names.index(name) if name in names else -1)


NAMES = ["english", "english_unstemmed", "standard", "whitespace"]
# Joining and parting marks, blanks of Java and of Python, scripts and pictures of several kinds.
CUT_ALPHABET = (
    "aZs09_.':,;-\"#* \t\n\x00\x1c\x85\xa0\u200d\u202f\u3000éאבกข漢カ\u0301’“"
    "\U0001f600\U0001f1e9\u20e3\u00bd\u2026\u212a\u0130"
)
LONG = ["a" * 600 + " b", "ab." * 200 + "c d", "x" * 254 + "\U0001f600y " + "1,2" * 99]
texts = st.one_of(
    st.sampled_from(LONG),
    st.text(alphabet=CUT_ALPHABET, max_size=60),
    st.text(alphabet="ab1_.':,; -\"#", max_size=60),
    st.text(alphabet="a1.'\"#*א\u20e3\u0301 ", max_size=12),
    st.text(max_size=60),
)


def forms_of(table, lines):
    """The forms of each line, by way of their numbers."""
    numbers, ends = table.numbers(list(map(str.encode, lines)))
    forms = table.forms(0)
    assert len(forms) == len(set(forms)) == len(table)
    parts = np.split(numbers, ends[:-1])
    return [[forms[number] for number in part.tolist()] for part in parts]


@pytest.mark.parametrize("name", [*NAMES, "sira"])
@settings(max_examples=cases(300), deadline=None)
@given(lines=st.lists(texts, min_size=1, max_size=4))
def test_terms_of_the_forms_are_the_terms_of_the_text_and_of_its_words(name, lines):
    if name == "sira":
        pytest.importorskip("snowballstemmer")
    analyzer = make_analyzer(name)
    for line, forms in zip(lines, forms_of(table_of(name), lines), strict=True):
        terms = [term for form in forms for term in analyzer.terms(form)]
        of_words = map(analyzer.term, analyzer.words(line))
        assert terms == analyzer.terms(line) == [term for term in of_words if term is not None]


@settings(max_examples=cases(300), deadline=None)
@given(text=st.text(alphabet="ab1_.':,; -\"#", max_size=60))
def test_a_form_of_ascii_text_is_one_word_and_no_more(text):
    [forms] = forms_of(table_of("standard"), [text])
    assert [form for form in forms if form.strip("_")] == scan(text)


def test_forms_keep_their_numbers_while_the_table_grows(monkeypatch):
    monkeypatch.setattr(word_break, "_SLOTS", 4)
    monkeypatch.setattr(word_break, "_BYTES", 4)
    lines = [f"w{number} again w{number % 7} {'long' * number}" for number in range(300)]
    table = table_of("standard")
    numbered = numbers_by_dictionary(lines)
    for size in (0, 1, 2, 40, 300):
        numbers, ends = table.numbers(list(map(str.encode, lines[:size])))
        expected = [numbered[word] for line in lines[:size] for word in line.split()]
        assert numbers.tolist() == expected
        assert ends.tolist() == np.cumsum([len(line.split()) for line in lines[:size]]).tolist()
    assert table.forms(0) == list(numbered)
    assert table.length == sum(map(len, numbered))
    table.clear()
    assert (len(table), table.length) == (0, 0)
    assert table.numbers([b"w9 w9"])[0].tolist() == [0, 0]


def test_forms_of_equal_hashes_are_told_apart(monkeypatch):
    # What is compiled holds the factors that it was compiled with, so it runs as Python here.
    monkeypatch.setattr(word_break, "_FACTOR", np.uint64(0))
    monkeypatch.setattr(word_break, "_LAST_FACTOR", np.uint64(0))
    for name in ("number_forms", "find_form", "keep_form", "is_at", "move", "first_slot"):
        monkeypatch.setattr(word_break, name, getattr(word_break, name).py_func)
    monkeypatch.setattr(word_break, "_SLOTS", 4)
    lines = ["ab ba abc ab", "b a ab ba ca", "abc a b onelongword twolongword onelongword"]
    numbers, _ = table_of("standard").numbers(list(map(str.encode, lines)))
    numbered = numbers_by_dictionary(lines)
    assert numbers.tolist() == [numbered[word] for line in lines for word in line.split()]


def test_bytes_of_zero_in_front_tell_forms_apart():
    # White space alone parts these; a slot holds their bytes as a number.
    forms = ["a", "\x00a", "\x00\x00a", "\x00" * 8, "\x00" * 9, "\x00" * 9 + "a", "\x00"]
    numbers, _ = table_of("whitespace").numbers([" ".join([*forms, *forms]).encode()])
    assert numbers.tolist() == [*range(7), *range(7)]


def test_long_forms_without_terms_are_not_kept_beyond_the_memory_allowed(tmp_path):
    # Forms of underscores have no term, so that the number of terms bounds nothing.
    rows = [["_" * (5_000 + number) + " line"] for number in range(500)]
    list(write_segments([["__ line"]], tmp_path, "english", 500))  # compiled before the count
    tracemalloc.start()
    try:
        batches = list(write_segments(rows, tmp_path, "english", 500))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(batch.lengths.tolist() == [1] for batch in batches)
    assert peak < sum(len(text) for [text] in rows) / 4


@pytest.mark.parametrize("name", ["english", "english:2"])
@settings(max_examples=cases(100), deadline=None)
@given(
    rows=st.lists(st.lists(texts, min_size=1, max_size=3), max_size=12), limit=st.integers(0, 30)
)
def test_postings_are_those_of_each_text_however_often_forms_and_terms_are_forgotten(
    name, rows, limit
):
    terms = make_analyzer(name).terms
    with TemporaryDirectory() as folder:
        batches = list(write_segments(rows, Path(folder), name, limit))
        written = [postings for batch in batches for postings in postings_of(batch, Path(folder))]
    assert written == [Counter(map(str.encode, terms(text))) for row in rows for text in row]


def test_the_next_texts_are_cut_while_the_first_are_analysed(tmp_path, monkeypatch):
    rows = [[f"line {number}"] for number in range(8)]
    cut, analyse = WordTable.numbers, build.terms_of_forms
    cuts = threading.Semaphore(0)
    cutters = set()

    def cut_and_tell(table, lines):
        cutters.add(threading.get_ident())
        numbers = cut(table, lines)
        cuts.release()
        return numbers

    def analyse_after_three_cuts(*arguments):
        if not begun:
            begun.append([cuts.acquire(timeout=60) for _ in range(3)])
        return analyse(*arguments)

    begun = []
    monkeypatch.setattr(WordTable, "numbers", cut_and_tell)
    monkeypatch.setattr(build, "terms_of_forms", analyse_after_three_cuts)
    batches = list(write_segments(rows, tmp_path, "standard", 1000))
    assert begun == [[True, True, True]]
    assert len(cutters) == 1
    assert threading.get_ident() not in cutters
    assert [batch.lengths.tolist() for batch in batches] == [[2]] * 8


def test_no_more_texts_are_read_than_are_cut_ahead(tmp_path):
    rows_read = []

    def rows():
        for number in range(20):
            rows_read.append(number)
            yield ["line"]

    ahead = [
        len(rows_read) - number
        for number, _ in enumerate(write_segments(rows(), tmp_path, "standard", 1000), start=1)
    ]
    assert 0 <= max(ahead) <= build.AHEAD and len(rows_read) == 20


def postings_of(batch, folder):
    """The frequency of each term, for each text of a batch, as they stand in its segment."""
    terms = terms_path(folder, batch.segment).read_bytes().split(b"\n")
    data = postings_path(folder, batch.segment).read_bytes()
    size = int(batch.distinct.sum())
    numbers, frequencies = np.frombuffer(data, np.int32, 2 * size, batch.start).reshape(2, size)
    pairs = iter(zip([terms[number] for number in numbers], frequencies.tolist(), strict=True))
    return [dict(islice(pairs, count)) for count in batch.distinct.tolist()]


def table_of(name):
    classes = make_analyzer(name).byte_classes
    assert classes is not None
    return WordTable(classes)


def numbers_by_dictionary(lines):
    numbered = {}
    for word in " ".join(lines).split():
        numbered.setdefault(word, len(numbered))
    return numbered


LINES = [
    Unit("d1%p0", "Tides", "The tide rises nine metres, and falls again."),
    Unit("empty", "", ""),
    Unit("größe", "", "lead " * 300 + "line"),
    *(Unit(f"d{n}", "", f"line {n} and tide {n % 7}") for n in range(2, 60)),
]
QUERIES = pd.DataFrame({"qid": ["1", "2"], "query": ["tide lead", "line 7"]})


@pytest.fixture
def packaged(tmp_path):
    return LexicalIndex.build(LINES, tmp_path / "index", corpus_fingerprint="c")


@pytest.fixture
def address(tmp_path):
    """Of a server that gives the files in `tmp_path`."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_pyterrier_opens_it_by_its_path(packaged):
    opened = pt.Artifact.load(str(packaged.path))
    assert isinstance(opened, LexicalIndex) and opened == packaged
    assert LexicalIndex.load(packaged.path) == packaged
    assert pt.Artifact.load(str(packaged.path), corpus_fingerprint="c") == packaged
    with pytest.raises(InputError, match="another corpus"):
        pt.Artifact.load(str(packaged.path), corpus_fingerprint="other")
    assert pt.inspect.artifact_type_format(packaged) == ("sparse_index", "soundingline")
    (packaged.path / "documents.bin").write_bytes(b"")
    refused(r"is damaged: documents\.bin", lambda: pt.Artifact.load(str(packaged.path)))


def test_a_package_is_what_was_built_and_is_the_same_index_elsewhere(
    packaged, tmp_path, address, monkeypatch
):
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(forward, "_FILES_PAY", 0)
    built = {path.name for path in packaged.path.iterdir() if path.name != VERIFIED}
    expected = LexicalIndex(packaged.path).bm25().rm3()(QUERIES)
    assert (packaged.path / "forward").is_dir()  # noted since, and no part of the index
    metadata = {}
    package = packaged.build_package(verbose=False, metadata_out=metadata)
    assert (metadata["type"], metadata["format"]) == ("sparse_index", "soundingline")
    with LZ4FrameFile(package) as stream, tarfile.open(fileobj=stream) as files:
        assert set(files.getnames()) == built
    downloaded = pt.Artifact.from_url(f"{address}/{Path(package).name}")
    assert isinstance(downloaded, LexicalIndex)
    assert downloaded.path.is_relative_to(tmp_path / "home")
    pd.testing.assert_frame_equal(downloaded.bm25().rm3()(QUERIES), expected, check_flags=False)
    assert [downloaded.texts([unit.unit_id])[0] for unit in LINES] == LINES


@pytest.mark.parametrize("strings", [[], [""], ["d1", "", "d22"], ["ü", "d1", "", "𝔡"]])
def test_a_table_gives_strings_one_by_one_and_together(strings, tmp_path):
    with closing(storage.StringWriter(tmp_path / "ids")) as writer:
        writer.extend(map(str.encode, strings))
    table = storage.StringTable(tmp_path / "ids")
    assert list(table) == strings
    order = np.array([*range(len(strings)), *range(len(strings))][::-1], dtype=np.int32)
    assert table.take(order) == [strings[position] for position in order]
    docnos = storage.Docnos(table)
    assert docnos.take(order[::2]).tolist() == [strings[position] for position in order[::2]]
    assert docnos.take(order).tolist() == [strings[position] for position in order]
