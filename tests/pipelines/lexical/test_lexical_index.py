from __future__ import annotations

import itertools
import json
import pickle
import random
import re
import resource
import subprocess
import sys
import threading
from collections import Counter
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.pipelines.index_folder import signed
from soundingline.pipelines.lexical import build, invert, storage
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.storage import StringLookup, encode_lengths
from soundingline.pipelines.lexical.word_break import scan, segment
from soundingline.pipelines.lexical.word_table import WordTable
from soundingline.pipelines.shards import Shard
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import VERIFIED

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


@pytest.fixture(scope="module")
def plainly_built(many, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "index"
    return LexicalIndex.build(many, path, memory_mb=2048).path


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
            postings.setdefault(name.encode("utf-8", "surrogatepass"), []).append(
                (number, frequency)
            )
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
    ids = [unit.unit_id.encode("utf-8", "surrogatepass") for unit in units]
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
    assert manifest["counts"]["tokens"] == index.lengths.sum()


@pytest.mark.slow
@pytest.mark.parametrize("collection", ["cacm", "vaswani", "wikimix"])
def test_a_real_collections_index_has_the_bytes_of_a_slow_build(data_root, tmp_path, collection):
    lines = (data_root / collection / "corpus.jsonl").read_text("utf-8").splitlines()
    rows = map(json.loads, lines)
    units = [Unit(row["_id"], row.get("title", ""), row["text"]) for row in rows]
    expected = slowly_built(units, segment)
    for memory_mb in (1024, 16):
        index = LexicalIndex.build(
            units, tmp_path / f"{memory_mb}", memory_mb=memory_mb, keep_texts=False
        )
        assert_built_as(expected, index)


def shard_of(units, path, number, count, **settings):
    engine = LexicalEngine(**settings)
    engine.build_shard(units, path, Shard(number, count), corpus_fingerprint="")


@pytest.mark.parametrize("shards", [1, 4, 16])
def test_shards_have_the_bytes_of_one_build(many, tmp_path, shards):
    # In a small memory, each shard has several vocabularies.
    path, engine = tmp_path / "index", LexicalEngine(memory_mb=16)
    for number in reversed(range(shards)):
        if shards > 1:
            shard_of(many, path, number, shards, memory_mb=16)
    assert engine.missing_shards(path, shards, "") == ([0] if shards == 1 else [])
    engine.build(many, path, corpus_fingerprint="", shards=shards)
    expected = contents(LexicalIndex.build(many, tmp_path / "whole", keep_texts=False).path)
    assert contents(path) == expected
    assert sorted(each.name for each in tmp_path.iterdir()) == ["index", "whole"]


def test_shards_may_be_empty_and_units_may_have_no_terms(tmp_path):
    units = [*UNITS, Unit("x", "", "..."), Unit("\ud800", "", "cats\ud800 cat's")]
    for number in range(64):
        shard_of(units, tmp_path / "index", number, 64)
    LexicalEngine().build(units, tmp_path / "index", corpus_fingerprint="", shards=64)
    expected = contents(LexicalIndex.build(units, tmp_path / "whole", keep_texts=False).path)
    assert contents(tmp_path / "index") == expected


def test_shards_that_are_missing_damaged_or_of_other_units_are_told(tmp_path, capsys):
    units, path = [Unit(f"d{n}", "", f"line {n}") for n in range(50)], tmp_path / "i"
    engine = LexicalEngine()

    def merge(units, corpus=""):
        engine.build(units, path, corpus_fingerprint=corpus, shards=4)

    for number in (0, 1, 3):
        shard_of(units, path, number, 4)
    with pytest.raises(InputError, match=r"1 of 4 shards of the index .* are missing: 2"):
        merge(units)
    shard_of(units, path, 2, 4)
    with pytest.raises(InputError, match="are missing: 0, 1, 2, 3"):
        merge(units, "another")
    for others in (units[:-1], [*units, Unit("more", "", "line")], units[::-1]):
        with pytest.raises(InputError, match="is of other units than the corpus has"):
            merge(others)
    assert not path.exists()
    damaged = Shard(1, 4).folder(path) / "lengths.bin"
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\1\0\0\1")
    assert engine.missing_shards(path, 4, "") == [1]
    assert "is damaged" in " ".join(capsys.readouterr().err.split())
    shard_of(units, path, 1, 4)
    merge(units)
    assert len(LexicalIndex.open(path)) == 50
    with pytest.raises(InputError, match="have the same id 'd7'"):
        for number in range(4):
            shard_of([*units, Unit("d7", "", "again")], path, number, 4)


MARKS = "aAbs'’.,:;019_ -\"#*\n\x00éא\u0301\u20e3\u202f漢カ\U0001f600\ud800"
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
    # d1: sound line line cast cast again; d2: lead line; größe: 300 times lead.
    assert index.statistics._asdict() == {
        "documents": 4,
        "documents_with_terms": 3,
        "terms": 5,
        "postings": 7,
        "tokens": 308,
    }
    assert index.statistics.average_length == pytest.approx(308 / 3)
    assert len(index) == 4
    assert index.lengths.tolist() == [6, 2, 0, 300]


def test_document_frequencies_of_one_term_and_of_several(index):
    assert index.document_frequency("line") == 2
    assert index.document_frequency("nowhere") == 0
    assert index.document_frequency(["lead", "the", "cast"]).tolist() == [2, 0, 1]


def test_postings_hold_frequencies_above_one_byte(index):
    documents, frequencies = index.postings("lead")
    assert documents.tolist() == [1, 3]
    assert frequencies.tolist() == [1, 300]
    assert index.postings("nowhere")[0].tolist() == []


def test_unit_ids_are_found_by_number_and_numbers_by_unit_id(index):
    assert list(index.docnos.take(np.array([3, 0, 3]))) == ["größe", "d1", "größe"]
    assert index.docnos[1] == "d2%p0"
    assert index.docnos.numbers(["größe", "none", "d1"]).tolist() == [3, -1, 0]


def test_an_index_travels_between_processes_as_its_path(index):
    again = pickle.loads(pickle.dumps(index))
    assert again == index
    assert hash(again) == hash(index)
    assert again.search(["line"])[0].tolist() == index.search(["line"])[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("memory_mb", [16, 20])
def test_same_bytes_whatever_the_memory(many, plainly_built, tmp_path, memory_mb):
    path = tmp_path / "index"
    LexicalIndex.build(many, path, memory_mb=memory_mb)
    assert contents(path) == contents(plainly_built)
    assert list(tmp_path.iterdir()) == [path]


def test_a_script_without_a_main_guard_builds_an_index(tmp_path):
    """A build starts no process, which would run such a script again."""
    (tmp_path / "script.py").write_text(
        "from soundingline.pipelines.lexical.index import LexicalIndex\n"
        "units = ({'docno': str(n), 'text': f'w{n % 999} ' * 400} for n in range(2000))\n"
        "index = LexicalIndex.build(units, 'index')\n"
        "print(len(index), index.document_frequency('w7'))\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "2000 2\n"), done.stderr


def test_a_repeated_unit_id_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"units 2 and 5 .* 'd2%p0'"):
        LexicalIndex.build([*UNITS, UNITS[1]], tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(InputError, match="corpus is empty"):
        LexicalIndex.build([], tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_without_words_is_an_index_that_finds_nothing(tmp_path):
    index = LexicalIndex.build([Unit("d1", "", ""), Unit("d2", "", "the of")], tmp_path / "index")
    assert index.search(["anything"])[0].tolist() == []
    assert index.statistics.terms == 0


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [2, 400])
def test_an_error_while_reading_leaves_nothing(many, tmp_path, error, after):
    def broken():
        yield from many[:after]
        raise error("reading failed")

    threads = threading.active_count()
    with pytest.raises(error, match="reading failed") as failure:
        LexicalIndex.build(broken(), tmp_path / "index", memory_mb=16)
    assert list(tmp_path.iterdir()) == []
    # Ended, not merely left to end when it is collected, which the traceback prevents.
    assert threading.active_count() <= threads, failure


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("step", [(WordTable, "numbers"), (build, "terms_of_forms")])
def test_an_error_while_cutting_or_analysing_leaves_nothing(
    many, tmp_path, monkeypatch, error, step
):
    calls = itertools.count(1)
    work = getattr(*step)

    def broken(*arguments):
        if next(calls) == 3:
            raise error("the third batch failed")
        return work(*arguments)

    monkeypatch.setattr(*step, broken)
    threads = threading.active_count()
    with pytest.raises(error, match="the third batch failed") as failure:
        LexicalIndex.build(many, tmp_path / "index", memory_mb=16)
    assert list(tmp_path.iterdir()) == []
    # Ended, not merely left to end when it is collected, which the traceback prevents.
    assert threading.active_count() <= threads, failure


def test_an_error_while_replacing_leaves_the_old_index(index):
    before = contents(index.path)
    with pytest.raises(InputError):
        LexicalIndex.build([UNITS[0], UNITS[0]], index.path)
    assert contents(index.path) == before


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(many, tmp_path):
    # A limit on the size of a file makes the kernel refuse a write, as a full disk does.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(InputError, match="no room left on the disk"):
            LexicalIndex.build(many, tmp_path / "index")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_index_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not a lexical index"):
        LexicalIndex.build(UNITS, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


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
    with pytest.raises(InputError, match=f"{message}.*{advice}"):
        LexicalIndex.open(index.path, corpus_fingerprint="c1")


@pytest.mark.parametrize("argument", [{"memory_mb": 1}, {"analyzer": "klingon"}])
def test_bad_arguments_of_a_build_are_refused(tmp_path, argument):
    with pytest.raises(InputError, match="valid: "):
        LexicalIndex.build(UNITS, tmp_path / "index", **argument)
    assert list(tmp_path.iterdir()) == []


def test_terms_beyond_ascii_and_lone_surrogates_are_found(tmp_path):
    texts = ["größe \ud800x 東京", "zebra", "\U0001f600", "größer"]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    index = LexicalIndex.build(units, tmp_path / "index", analyzer="whitespace")
    for number, text in enumerate(texts):
        for term in text.split():
            assert index.search([term])[0].tolist() == [number]


def test_compiled_code_needs_no_place_to_be_kept():
    from soundingline.toolkit.jit import compiled

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
            doubled = places.doubled()
        if doubled is None:
            assert len(set(names)) == len(names)
        else:
            assert names[doubled[0]] == names[doubled[1]]
            assert doubled[0] < doubled[1]


class Sized:
    """Units of a known number that must not be read."""

    def __init__(self, number):
        self._number = number

    def __len__(self):
        return self._number

    def __iter__(self):
        raise AssertionError("work has begun")
        yield


def test_more_units_than_an_index_numbers_are_refused_before_work_begins(tmp_path):
    with pytest.raises(InputError, match=r"2,147,483,648 units or more.*at most 2,147,483,647"):
        LexicalIndex.build(Sized(2**31), tmp_path / "index")
    with pytest.raises(InputError, match=r"3,000,000,000 units or more"):
        LexicalIndex.build(iter(()), tmp_path / "index", total=3 * 10**9)
    assert list(tmp_path.iterdir()) == []


def test_too_many_units_of_unknown_number_are_refused_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "LARGEST_INDEX", 3)
    units = (Unit(f"d{number}", "", "tide") for number in range(4))
    with pytest.raises(InputError, match=r"4 units or more.*at most 3 in one lexical index"):
        LexicalIndex.build(units, tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_tells_in_one_line_what_very_many_units_take():
    engine = LexicalEngine(memory_mb=64)
    assert engine.notice(999_999) == ""
    line = engine.notice(10_000_000)
    assert line.startswith("10,000,000 units to index: building takes about 350 MB besides")
    assert "each search takes 40 MB while it runs" in line
    assert "\n" not in line


def test_more_terms_than_can_be_numbered_are_refused_in_one_line_and_leave_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(invert, "LARGEST_VOCABULARY", 4)
    units = [Unit("d1", "", "a b c"), Unit("d2", "", "c d e")]
    with pytest.raises(InputError, match=r"more than 4 index terms\. valid: at most 4") as error:
        LexicalIndex.build(units, tmp_path / "index", analyzer="whitespace")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    LexicalIndex.build(units[:1], tmp_path / "index", analyzer="whitespace")


def test_documents_come_as_a_frame_or_as_any_iterable_of_dicts(tmp_path):
    rows = [
        {"docno": 7, "text": "the old mill", "title": "Mill", "url": "x"},
        {"docno": 8, "text": None, "title": float("nan"), "url": "y"},
    ]
    frame = pd.DataFrame(rows)
    index = LexicalIndex.build(frame, tmp_path / "frame")
    assert list(index.docnos) == ["7", "8"]
    assert index.texts(["7", "8"]) == [Unit("7", "Mill", "the old mill"), Unit("8", "", "")]
    dicts = [{"docno": "7", "text": "the old mill", "title": "Mill"}, {"docno": "8", "text": ""}]
    for number, documents in enumerate([dicts, iter(dicts), tuple(dicts)]):
        same = LexicalIndex.build(documents, tmp_path / str(number))
        assert same.manifest["files"] == index.manifest["files"]
    untitled = LexicalIndex.build(frame[["text", "docno"]], tmp_path / "untitled")
    assert untitled.texts(["7"]) == [Unit("7", "", "the old mill")]


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        (pd.DataFrame({"id": ["1"], "text": ["a"]}), "no column docno; its columns are id, text"),
        (pd.DataFrame({"x": ["1"]}), "no column docno and no column text"),
        (pd.DataFrame({"docno": ["1", None], "text": ["a", "b"]}), "row 1 of the frame has no"),
        (pd.DataFrame({"docno": [], "text": []}), "the corpus is empty"),
        ("corpus.jsonl", "the documents came as 'corpus.jsonl'. valid: a frame with"),
        ({"docno": "1", "text": "a"}, "the documents came as {'docno'"),
        (7, "the documents came as 7"),
        ([{"docno": "1"}], "a document came as {'docno': '1'}. valid: a mapping with docno and"),
        (["a"], "a document came as 'a'"),
    ],
)
def test_documents_of_another_form_are_refused_in_one_line(documents, told, tmp_path):
    with pytest.raises(InputError, match=re.escape(told)) as refused:
        LexicalIndex.build(documents, tmp_path / "index")
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_the_class_opens_an_index(index):
    assert LexicalIndex(str(index.path)) == LexicalIndex.open(index.path) == index
    with pytest.raises(InputError, match="of another corpus"):
        LexicalIndex(index.path, corpus_fingerprint="c2")
    with pytest.raises(InputError, match="there is no lexical index at 'missing'"):
        LexicalIndex("missing")
