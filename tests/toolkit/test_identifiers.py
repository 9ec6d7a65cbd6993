import random
import tracemalloc

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit import identifiers
from toolkit.identifiers import DistinctIds


def doubles(names: list[str]) -> tuple[list[tuple[str, int]], DistinctIds[int]]:
    """Every double that is told while names are added by their positions, and at the end."""
    ids = DistinctIds[int]()
    results = [ids.add(name, position) for position, name in enumerate(names)]
    return [result for result in [*results, ids.close()] if result], ids


@pytest.fixture(params=[1, 4, 1 << 16])
def recent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kept as strings: fewer than there are names, or all."""
    monkeypatch.setattr(identifiers, "_RECENT", request.param)
    monkeypatch.setattr(identifiers, "_LARGEST", 4 * request.param)
    number: int = request.param
    return number


def test_different_identifiers_are_counted_and_no_double(recent: int) -> None:
    names = [f"d{n}" for n in range(1000)] + ["", "é", "\ud800", "d1\x00", "d1 "]
    told, ids = doubles(names)
    assert told == []
    assert len(ids) == len(names)


@pytest.mark.parametrize("gap", [1, 2, 7, 64, 500])
def test_a_double_is_told_with_the_mark_of_its_later_coming(recent: int, gap: int) -> None:
    names = [f"d{n}" for n in range(600)]
    names[60 + gap] = "d60"
    told, _ = doubles(names)
    assert told[0] == ("d60", 60 + gap)


@settings(max_examples=cases(200))
@given(st.lists(st.text(st.characters(exclude_categories=[]), max_size=2), max_size=60))
def test_there_is_a_double_where_a_set_sees_one(names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identifiers, "_RECENT", 3)
        patch.setattr(identifiers, "_LARGEST", 12)
        told, ids = doubles(names)
    assert bool(told) == (len(set(names)) < len(names))
    if not told:
        assert len(ids) == len(names)
    else:
        name, position = told[0]
        assert names[position] == name
        assert name in names[:position]


def test_one_among_very_many_is_told_in_random_order() -> None:
    names = [f"{n:x}" for n in range(300_000)]
    random.Random(1).shuffle(names)
    names.append(names[7])
    told, _ = doubles(names)
    assert told == [(names[7], 300_000)]


def test_an_identifier_takes_few_bytes_whatever_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiers, "_RECENT", 1 << 8)
    monkeypatch.setattr(identifiers, "_LARGEST", 1 << 11)
    peaks = {}
    for count in (12_500, 37_500):
        ids = DistinctIds[None]()
        tracemalloc.start()
        try:
            for number in range(count):
                assert not ids.add(f"{'long ' * 20}{number}", None)
            peaks[count] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert not ids.close()
        assert len(ids) == count
    # A set takes more than 150 bytes for each of these.
    assert peaks[37_500] - peaks[12_500] < 20 * 25_000
