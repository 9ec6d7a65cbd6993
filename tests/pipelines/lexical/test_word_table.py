"""Text cut by its bytes in compiled code, against analyzers that see the whole of it."""

import threading
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.pipelines.lexical import build, word_table
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.build import write_segments
from soundingline.pipelines.lexical.invert import postings_path, terms_path
from soundingline.pipelines.lexical.storage import to_bytes
from soundingline.pipelines.lexical.word_break import scan
from soundingline.pipelines.lexical.word_table import WordTable

NAMES = ["english", "english_unstemmed", "standard", "whitespace"]
# Joining and parting marks, blanks of Java and of Python, scripts and pictures of several kinds.
ALPHABET = (
    "aZs09_.':,;-\"#* \t\n\x00\x1c\x85\xa0\u200d\u202f\u3000éאבกข漢カ\u0301’“\ud800"
    "\U0001f600\U0001f1e9\u20e3"
)
LONG = ["a" * 600 + " b", "ab." * 200 + "c d", "x" * 254 + "\U0001f600y " + "1,2" * 99]
texts = st.one_of(
    st.sampled_from(LONG),
    st.text(alphabet=ALPHABET, max_size=60),
    st.text(alphabet="ab1_.':,; -\"#", max_size=60),
    st.text(alphabet="a1.'\"#*א\u20e3\u0301 ", max_size=12),
    st.text(alphabet=st.characters(), max_size=60),
)


def forms_of(table, lines):
    """The forms of each line, by way of their numbers."""
    numbers, ends = table.numbers(list(map(to_bytes, lines)))
    forms = table.forms(0)
    assert len(forms) == len(set(forms)) == len(table)
    parts = np.split(numbers, ends[:-1])
    return [[forms[number] for number in part.tolist()] for part in parts]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(300), deadline=None)
@given(lines=st.lists(texts, min_size=1, max_size=4))
def test_terms_of_the_forms_are_the_terms_of_the_text(name, lines):
    analyzer = make_analyzer(name)
    for line, forms in zip(lines, forms_of(table_of(name), lines), strict=True):
        terms = [term for form in forms for term in analyzer.terms(form)]
        assert terms == analyzer.terms(line)


@settings(max_examples=cases(300), deadline=None)
@given(text=texts)
def test_words_of_the_forms_are_those_of_the_specification(text):
    [forms] = forms_of(table_of("standard"), [text])
    assert [word for form in forms for word in scan(form)] == scan(text)


@settings(max_examples=cases(300), deadline=None)
@given(text=st.text(alphabet="ab1_.':,; -\"#", max_size=60))
def test_a_form_of_ascii_text_is_one_word_and_no_more(text):
    [forms] = forms_of(table_of("standard"), [text])
    assert [form for form in forms if form.strip("_")] == scan(text)


def test_forms_keep_their_numbers_while_the_table_grows(monkeypatch):
    monkeypatch.setattr(word_table, "_SLOTS", 4)
    monkeypatch.setattr(word_table, "_BYTES", 4)
    lines = [f"w{number} again w{number % 7} {'long' * number}" for number in range(300)]
    table = table_of("standard")
    numbered = numbers_by_dictionary(lines)
    for size in (0, 1, 2, 40, 300):
        numbers, ends = table.numbers(list(map(to_bytes, lines[:size])))
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
    monkeypatch.setattr(word_table, "_FACTOR", np.uint64(0))
    monkeypatch.setattr(word_table, "_LAST_FACTOR", np.uint64(0))
    for name in ("number_forms", "is_at", "move", "first_slot"):
        monkeypatch.setattr(word_table, name, getattr(word_table, name).py_func)
    monkeypatch.setattr(word_table, "_SLOTS", 4)
    lines = ["ab ba abc ab", "b a ab ba ca", "abc a b onelongword twolongword onelongword"]
    numbers, _ = table_of("standard").numbers(list(map(to_bytes, lines)))
    numbered = numbers_by_dictionary(lines)
    assert numbers.tolist() == [numbered[word] for line in lines for word in line.split()]


def test_bytes_of_zero_in_front_tell_forms_apart():
    # White space alone parts these; a slot holds their bytes as a number.
    forms = ["a", "\x00a", "\x00\x00a", "\x00" * 8, "\x00" * 9, "\x00" * 9 + "a", "\x00"]
    numbers, _ = table_of("whitespace").numbers([to_bytes(" ".join([*forms, *forms]))])
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
    assert written == [Counter(map(to_bytes, terms(text))) for row in rows for text in row]


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

    for number, _ in enumerate(write_segments(rows(), tmp_path, "standard", 1000)):
        assert len(rows_read) <= number + 1 + build.AHEAD


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
