"""The examples in the docstrings of evaluation and report."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        *(f"evaluation.{module}" for module in ("answers", "evaluation", "grid", "statistics")),
        *(f"report.{module}" for module in ("measures", "page", "results", "traces")),
    ],
)
def test_examples_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(f"soundingline.toolkit.{name}"))
    assert result.attempted and not result.failed
