"""Question ids become file names without loss and without collision."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.runs import run_folder
from soundingline.toolkit.runs.run_folder import escape_qid, unescape_qid

HOSTILE = ["", ".", "..", "../../x", "a/b", "a\\b", "A1", "a1", "%", "%2e", "+a", "q 1", "CON", "é"]
HOSTILE += ["e\u0301", "\ud800", "\0", "x.json", ".hidden", "=", "a=b", "-rf", "~", "\n", "😀" * 9]


@pytest.mark.parametrize("qid", HOSTILE)
def test_hostile_ids_come_back(qid):
    name = escape_qid(qid)
    assert unescape_qid(name) == qid
    assert name and "/" not in name and not name.startswith(".") and name.isascii()


def test_hostile_ids_stay_distinct_where_case_is_folded():
    assert len({escape_qid(qid).casefold() for qid in HOSTILE}) == len(HOSTILE)


@given(st.text(max_size=40), st.text(max_size=40))
def test_different_ids_have_different_names(one, other):
    assert (escape_qid(one).casefold() == escape_qid(other).casefold()) == (one == other)


@given(st.text(alphabet=st.characters(codec=None), max_size=25))
def test_any_short_id_comes_back(qid):
    assert unescape_qid(escape_qid(qid)) in (qid, None)
    if len(qid) <= 15:
        assert unescape_qid(escape_qid(qid)) == qid


def test_long_ids_fit_a_file_name_and_stay_distinct():
    names = {escape_qid("x" * 5000 + end) for end in ("1", "2", "")}
    assert len(names) == 3
    assert all(len(name) <= 180 and unescape_qid(name) is None for name in names)


def test_ordinary_ids_stay_readable():
    assert escape_qid("1042") == "1042"
    assert escape_qid("dev-3_2") == "dev-3_2"
    assert escape_qid("Q12") == "+q12"


def test_the_example_of_the_documentation_holds():
    results = doctest.testmod(run_folder)
    assert results.attempted and not results.failed
