import random
import subprocess
import sys
from pathlib import Path

import pytest
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
    names = [f"d{n}" for n in range(1000)]
    names[300 + gap] = "d300"
    told, _ = doubles(names)
    assert told[0] == ("d300", 300 + gap)


@settings(max_examples=200)
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


def test_two_million_take_less_than_a_third_of_a_set_of_them() -> None:
    program = """
import resource
from toolkit.identifiers import DistinctIds
names = ("document number %d" % n for n in range(2_000_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if {kind!r} == "set":
    seen = set(names)
else:
    ids = DistinctIds()
    assert not any(ids.add(name, None) for name in names)
    assert not ids.close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    root = Path(__file__).resolve().parents[2]
    taken = {
        kind: int(
            subprocess.check_output([sys.executable, "-c", program.format(kind=kind)], cwd=root)
        )
        for kind in ("set", "hashes")
    }
    assert taken["hashes"] < taken["set"] / 3
