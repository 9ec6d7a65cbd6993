"""Costs that are not known of every question, as a reader gets them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from report_cells import fake_cell
from rich.console import Console

from toolkit.evaluation import Cell, compare
from toolkit.report import comparison_table, render


def costed(name: str, dollars: float, known: range) -> Cell:
    """A cell of 100 questions whose cost, `dollars` times the question's number, is `known`."""
    cell = fake_cell(name, 0.5, unit=name)
    values = {f"q{number}": dollars * number for number in known}
    return replace(
        cell,
        per_question={**cell.per_question, "usage_dollars": values},
        metrics={**cell.metrics, "usage_dollars": float(np.mean(list(values.values())))},
    )


def test_a_mean_over_the_known_costs_stands_beside_their_number() -> None:
    cells = [
        costed("few", 0.5, range(10)),
        costed("one", 0.25, range(1)),
        costed("all", 0.5, range(100)),
    ]
    table = io.StringIO()
    Console(file=table, width=80).print(comparison_table(cells, measures=["usage_dollars"]))
    report = render(cells, measures=["usage_dollars"])
    for text in (report.html, report.markdown, table.getvalue()):
        assert "2.2500 (n=10)" in text and "0.0000 (n=1)" in text
        assert "24.7500" in text and "n=100" not in text
    assert "over the questions of which this is known" in report.html


def test_a_comparison_of_cost_tells_over_how_many_questions_it_is() -> None:
    cells = [costed("one", 0.5, range(10)), costed("two", 0.25, range(4, 30))]
    report = render(cells, compare(cells, ["usage_dollars"], test="t", resamples=199))
    for text in (report.html, report.markdown):
        assert "of which both cells know it, 6 of 100" in text


def test_a_comparison_of_costs_that_are_all_known_needs_no_such_line() -> None:
    cells = [costed("one", 0.5, range(100)), costed("two", 0.25, range(100))]
    report = render(cells, compare(cells, ["usage_dollars"], test="t", resamples=199))
    assert "both cells know" not in report.html
