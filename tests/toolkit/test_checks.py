"""Numbers in settings: what is refused, and what the line says."""

import math

import numpy as np
import pytest

from soundingline.toolkit.errors import InputError, check_int, check_number


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None, math.nan, 10**30, np.float32(2)])
def test_what_is_no_whole_number_in_the_bounds_is_refused(value):
    with pytest.raises(InputError, match=r"^depth=.*valid: a whole number, 1 to 1000\. try 10\."):
        check_int("depth", value, le=1000, do="try 10")


@pytest.mark.parametrize("value", [1, 1000, np.int64(7), np.uint8(255)])
def test_whole_numbers_in_the_bounds_pass(value):
    check_int("depth", value, le=1000)


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "0.5", None, math.nan, math.inf, 1j, 10**400])
def test_what_is_no_number_in_the_bounds_is_refused(value):
    with pytest.raises(InputError, match=r"^b=.*valid: 0 or more, at most 1"):
        check_number("b", value, le=1)


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25), np.int64(1)])
def test_numbers_in_the_bounds_pass(value):
    check_number("b", value, le=1)


def test_a_bound_may_be_left_out_of_the_range():
    check_number("mu", 1e-9, gt=0)
    with pytest.raises(InputError, match=r"mu=0\. valid: above 0, finite\."):
        check_number("mu", 0, gt=0)


def test_the_line_ends_each_part_and_keeps_what_goes_on():
    assert str(InputError("a=1. ", valid="b, c", do="try b")) == "a=1. valid: b, c. try b."
    line = str(InputError("no a", valid="b, c, ...", do="give path=..."))
    assert line == "no a. valid: b, c, ... give path=..."
    assert str(InputError("no a", do="did you mean b?")) == "no a. did you mean b?"
