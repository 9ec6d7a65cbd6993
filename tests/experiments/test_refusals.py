"""The one line that a command prints for an error."""

from __future__ import annotations

from soundingline.experiments.refusals import one_line
from soundingline.toolkit.errors import InputError


def test_the_innermost_input_error_is_printed():
    error = RuntimeError("outer")
    error.__context__ = ValueError("middle")
    error.__context__.__cause__ = InputError("inner")
    assert one_line(error) == "inner."


def test_a_cycle_of_causes_ends():
    """A library that raises one exception object again can make it part of its own context."""
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert one_line(first) == "first"
