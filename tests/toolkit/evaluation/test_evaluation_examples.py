"""The examples in the docstrings of the evaluation modules."""

from __future__ import annotations

import doctest

import pytest

from soundingline.toolkit.evaluation import answers, evaluation, grid, statistics


@pytest.mark.parametrize(
    "module", [answers, evaluation, grid, statistics], ids=lambda module: module.__name__
)
def test_examples_give_what_they_show(module):
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
