"""Data and settings from outside: what passes, and the one line about what does not."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.errors import InputError, check_int, check_number, parse

ROOT = Path(__file__).resolve().parents[2]


class Call(BaseModel):
    tool_name: str
    seconds: float = 0.0


class Run(BaseModel):
    query_id: str = Field(alias="query-id")
    result: list[Call] = []


@dataclass(frozen=True)
class Exposure:
    call: int
    docid: str


class Points(TypedDict):
    name: str
    points: list[tuple[int, float]]
    shown: NotRequired[Exposure]


def test_data_become_models_dataclasses_and_whatever_an_adapter_makes():
    run = parse(Run, {"query-id": "7", "result": [{"tool_name": "search"}]}, where="a.json")
    assert run.query_id == "7" and run.result == [Call(tool_name="search")]
    assert parse(Exposure, {"call": 1, "docid": "d"}, where="a.json") == Exposure(1, "d")
    assert parse(TypeAdapter(tuple[int, str]), [1, "d"], where="a.json") == (1, "d")
    half = json.loads('{"tool_name": "\\ud83d"}')
    assert parse(Call, half, where="a.json").tool_name == "\ud83d"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, " has no field 'query-id'."),
        ({"id": 7}, " has no field 'query-id'. valid: its fields: id."),
        ({"query-id": 7}, ": query-id is 7. valid: a valid string."),
        (
            {"query-id": "7", "result": [{"tool_name": "a"}, {"tool_name": ["secret"]}]},
            ": result.1.tool_name is a value of type list. valid: a valid string.",
        ),
        (
            {"query-id": None, "result": {}},
            ": query-id is null (and 1 more). valid: a valid string.",
        ),
        (["secret"], ": a value of type list. valid: a valid dictionary or instance of Run."),
    ],
)
def test_a_misfit_is_one_line_with_its_place_and_without_texts(data, message):
    with pytest.raises(InputError) as raised:
        parse(Run, data, where="a.json:3", do="Run it again")
    assert str(raised.value) == f"a.json:3{message} Run it again."


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({}, ""),
        ({"points": [[1, 2]], "other": 1}, ""),
        ({"shown": {"call": 1, "docid": "d"}}, ""),
        ({"name": 7}, "name is 7"),
        ({"points": [["1", 2.0]]}, "points.0.0 is a value of type string"),
        ({"points": [[1.0, 2.0]]}, "points.0.0 is 1.0"),
        ({"points": [[True, 2.0]]}, "points.0.0 is true"),
        ({"points": [[2**63, 2.0]]}, "points.0.0 is 9223372036854775808"),
        ({"points": [[1, math.inf]]}, "points.0.1 is Infinity"),
        ({"points": [[1, 10**400]]}, "points.0.1 is 1000"),
        ({"points": [[1]]}, "no field 'points.0.1'"),
        ({"shown": {"call": "1", "docid": "d"}}, "shown.call is a value of type string"),
    ],
)
def test_strict_checks_convert_no_single_value(change, place):
    data = {"name": "a", "points": [[1, 2.5]], **change}
    if not place:
        assert parse(Points, data, where="a.json", strict=True)["points"][0][0] == 1
        return
    with pytest.raises(InputError) as raised:
        parse(Points, data, where="a.json", strict=True)
    assert place in str(raised.value) and len(str(raised.value)) < 200


def test_checks_are_imported_only_where_data_are_read():
    program = "import sys, soundingline.toolkit.errors; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None, math.nan, 10**30, np.float32(2)])
def test_what_is_no_integer_in_the_bounds_is_refused(value):
    with pytest.raises(InputError, match=r"^depth=.*valid: a whole number, 1 to 1000\. try 10\."):
        check_int("depth", value, le=1000, do="try 10")


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "0.5", None, math.nan, math.inf, 1j, 10**400])
def test_what_is_no_number_in_the_bounds_is_refused(value):
    with pytest.raises(InputError, match=r"^b=.*valid: 0 or more, at most 1"):
        check_number("b", value, le=1)


def test_numbers_in_the_bounds_pass():
    for integer in (1, 1000, np.int64(7), np.uint8(255)):
        check_int("depth", integer, le=1000)
    for number in (0, 1, 0.5, np.float32(0.25), np.int64(1)):
        check_number("b", number, le=1)
    check_number("mu", 1e-9, gt=0)
    with pytest.raises(InputError, match=r"mu=0\. valid: above 0, finite\."):
        check_number("mu", 0, gt=0)


def test_the_line_ends_each_part():
    line = str(InputError("a=1. ", valid="b, c, ...", do="did you mean b?"))
    assert line == "a=1. valid: b, c, ... did you mean b?"
