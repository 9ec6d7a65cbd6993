"""Repeated unit ids are refused, whatever their distance, in little memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from soundingline.pipelines import index_folder
from soundingline.pipelines.index_folder import Checked
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError


def check(names):
    checked = Checked(Unit(name, "", "") for name in names)
    assert [unit.unit_id for unit in checked] == list(names)
    return checked.finish()


def remember(patch, number):
    patch.setattr(index_folder, "_RECENT", number)
    patch.setattr(index_folder, "_LARGEST_BLOCK", 4 * number)


@pytest.fixture(params=[1, 4, 1 << 16])
def recent(request, monkeypatch):
    """The number of ids that are kept as strings: fewer than there are names, or all."""
    remember(monkeypatch, request.param)


def test_distinct_ids_are_counted(recent):
    names = [f"d{n}" for n in range(1000)] + ["", "é", "\ud800", "d1\x00", "d1 "]
    assert check(names) == len(names)


@pytest.mark.parametrize("gap", [1, 2, 7, 64, 500])
def test_a_repeated_id_is_refused_by_its_name(recent, gap):
    names = [f"d{n}" for n in range(600)]
    names[60 + gap] = "d60"
    with pytest.raises(InputError, match="unit id 'd60' comes twice"):
        check(names)


def test_an_engine_that_stops_early_hears_of_a_repeated_id_at_the_end():
    checked = Checked([Unit("a", "", ""), Unit("b", "", "")])
    next(iter(checked))
    assert checked.finish() == 1


def test_a_corpus_without_units_is_refused():
    with pytest.raises(InputError, match="the corpus is empty"):
        check([])


@settings(max_examples=cases(200))
@given(st.lists(st.text(st.characters(exclude_categories=[]), max_size=2), min_size=1, max_size=60))
def test_ids_are_refused_if_a_set_of_them_is_smaller(names):
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, 3)
        if len(set(names)) == len(names):
            assert check(names) == len(names)
        else:
            with pytest.raises(InputError, match="comes twice"):
                check(names)


def test_one_repeated_id_among_very_many_is_found_in_random_order():
    names = [f"{n:x}" for n in range(300_000)]
    random.Random(1).shuffle(names)
    with pytest.raises(InputError, match=f"'{names[7]}' comes twice"):
        check([*names, names[7]])


def test_an_id_takes_few_bytes_whatever_its_length(monkeypatch):
    remember(monkeypatch, 1 << 8)
    peaks = {}
    for count in (12_500, 37_500):
        checked = Checked(Unit(f"{'long ' * 20}{number}", "", "") for number in range(count))
        tracemalloc.start()
        try:
            assert sum(1 for _ in checked) == count
            peaks[count] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # A set takes more than 150 bytes for each of these.
    assert peaks[37_500] - peaks[12_500] < 20 * 25_000
