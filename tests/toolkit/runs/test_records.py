"""Trajectories survive the way to JSON and back."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.trajectory import (
    STATUSES,
    TIERS,
    Answer,
    Exposure,
    ToolCall,
    Trajectory,
    dump_trajectory,
    from_record,
    read_trajectory,
    surfaced,
    to_record,
)

CALLS = (
    ToolCall(
        "search",
        {"reason": "start", "query": "naïve Bayes"},
        "1. d1 ...",
        seconds=0.01,
        tokens=12,
        ranking=("d1%p2", "d2%p0", "d1%p0", "d3"),
        shown=("d1%p2", "d2%p0"),
        notes={"query": "What is naïve Bayes?", "query_0": "naïve Bayes", "rewrite": {"n": 1}},
    ),
    ToolCall("read_document", {"docid": "d9"}, "unknown", error="no document d9", tokens=3),
    ToolCall("search", {"query": "more"}, "...", ranking=("d4%p1", "d2%p7"), shown=("d4%p1",)),
)
EXAMPLE = Trajectory(
    qid="q/1",
    question="Who?",
    status="steered",
    answer=Answer("Because [d1].", "Ada", 80.0, ("d1",)),
    messages=({"role": "user", "content": "Who?"}, {"role": "tool", "content": [{"a": None}]}),
    calls=CALLS,
    tiers={
        "surfaced": ("d1", "d2", "d3", "d4"),
        "previewed": ("d1", "d2", "d4"),
        "opened": (),
        "cited": ("d1",),
    },
    exposures=(Exposure(1, "previewed", "d1", 1, 12), Exposure(1, "previewed", "d2", 2, 12)),
    usage={"input_tokens": 10, "dollars": 0.25},
    started="2026-01-01T00:00:00+00:00",
    seconds=1.5,
)
LISTED = replace(EXAMPLE, answer=Answer("e", "x", None, ("d1",), ("d2", "d1")))
LAYERS = (Exposure(1, "opened", "d1", 1, 5, "abstract"), Exposure(1, "opened", "d2", 2, 5))


def test_what_is_derived_or_empty_is_not_written_and_each_part_has_a_line():
    record = to_record(EXAMPLE)
    assert from_record(json.loads(dump_trajectory(EXAMPLE).encode())) == EXAMPLE
    assert surfaced(EXAMPLE.calls) == ("d1", "d2", "d3", "d4")
    assert "surfaced" not in record["tiers"]
    assert record["calls"][0]["notes"]["query_0"] == "naïve Bayes"
    assert not any("notes" in call for call in record["calls"][1:])
    assert "documents" not in record["answer"]
    assert to_record(LISTED)["answer"]["documents"] == ("d2", "d1")
    rows = to_record(replace(EXAMPLE, exposures=LAYERS))["exposures"]
    assert rows == [[1, "opened", "d1", 1, 5, "abstract"], [1, "opened", "d2", 2, 5]]
    lines = dump_trajectory(EXAMPLE).splitlines()
    assert sum('"arguments"' in line for line in lines) == 3
    assert sum('"role"' in line for line in lines) == 2


# Two halves that meet by chance are one character to JSON; that is no loss worth a test.
text = st.text(st.characters(codec=None), max_size=8).filter(
    lambda text: json.loads(json.dumps(text)) == text
)
ids = st.lists(text, max_size=4).map(tuple)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**9)
amounts = st.floats(0, allow_infinity=False) | st.integers(0, 10**9)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall,
    name=text,
    arguments=st.dictionaries(text, json_values, max_size=3),
    output=text,
    error=text,
    seconds=numbers,
    tokens=st.integers(0, 99),
    ranking=ids,
    shown=ids,
    notes=st.dictionaries(text, json_values, max_size=2),
)
small = st.integers(1, 99)
layers = st.sampled_from(["", "abstract"])
exposures = st.builds(Exposure, small, st.sampled_from(TIERS), text, small, small, layers)


def test_an_impossible_usage_in_a_file_is_unknown():
    record = json.loads(dump_trajectory(EXAMPLE))
    record["usage"] = {"calls": 4, "agent_dollars": -3.2, "input_tokens": 10**400}
    assert from_record(record).usage == {"calls": 4, "agent_unmetered": 1, "unmetered": 1}


@settings(max_examples=cases(60), deadline=None)
@given(
    st.builds(
        Trajectory,
        qid=text,
        question=text,
        status=st.sampled_from(STATUSES),
        answer=st.builds(Answer, text, text, st.none() | st.floats(0, 100), ids, ids),
        messages=st.lists(st.dictionaries(text, json_values, max_size=3), max_size=3).map(tuple),
        calls=st.lists(calls, max_size=3).map(tuple),
        tiers=st.fixed_dictionaries({}, optional=dict.fromkeys(TIERS, ids)),
        exposures=st.lists(exposures, max_size=3).map(tuple),
        usage=st.dictionaries(text, amounts, max_size=2),
        started=text,
        seconds=numbers,
        traceback=text,
        reason=text,
        warnings=st.lists(text, max_size=2).map(tuple),
    )
)
def test_any_trajectory_round_trips_through_utf8(trajectory):
    stored = dump_trajectory(trajectory).encode("utf-8")
    assert from_record(json.loads(stored)) == trajectory


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ('"qid"', "", "is damaged"),
        (
            '"citations": ["d1"]',
            '"citations": [], "documents": "d1"',
            "answer.documents is a value",
        ),
        ('"status": "steered"', '"status": "fine"', "'fine'"),
        ('"question"', '"kwestion"', "'question'"),
        ('"tokens": 12', '"token": 12', "no field 'calls.0.tokens'"),
        ('"notes": {', '"notes": 1, "of": {', "calls.0.notes is 1"),
        ('"format": 1', '"format": 7', "format"),
        ('[1, "previewed", "d1"', '[1, "dreamt", "d1"', "dreamt"),
        (None, "", "is damaged"),
        (None, "[]", "valid: a valid dictionary"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, good, bad, message):
    path, text = tmp_path / "q1.json", dump_trajectory(EXAMPLE)
    assert good is None or good in text
    text = text.replace(good, bad) if good else bad
    path.write_bytes(text.encode())
    with pytest.raises(InputError) as error:
        read_trajectory(path)
    assert str(path) in str(error.value) and message in str(error.value)
    assert "\n" not in str(error.value)


def places(value, *path):
    """The paths of keys and positions to all values within a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, *path, key)


ODD = [None, True, -1, 1.5, "x", [], {}, ["a"], [1], {"a": 1}, 10**400, 2**70, float("nan")]


def test_whatever_takes_the_place_of_a_value_is_read_or_refused_in_one_line():
    whole = json.loads(dump_trajectory(replace(EXAMPLE, source={"tool_call_counts": {"a": 1}})))
    refused = 0
    for path in places(whole):
        for odd in ODD:
            record = json.loads(json.dumps(whole))
            inner = record
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            try:
                dump_trajectory(from_record(record, where="q.json"))
            except InputError as error:
                refused += 1
                assert str(error).startswith("q.json") and "\n" not in str(error)
    assert refused > 300


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.json"):
        read_trajectory(tmp_path / "gone.json")
