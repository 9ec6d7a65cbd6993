"""What each role of a language model took, in the report."""

from __future__ import annotations

from dataclasses import replace

from report_cells import fake_cell

from toolkit.evaluation import Cell
from toolkit.report import render
from toolkit.report.page import Report


def cell(name: str, **usage: float) -> Cell:
    base = fake_cell(name, 0.5, unit="document", agent=name)
    return replace(base, metrics={**base.metrics, **{f"usage_{n}": v for n, v in usage.items()}})


ONE = {"calls": 5.0, "dollars": 0.01, "agent_calls": 5.0, "agent_dollars": 0.01}
TWO = {
    "calls": 12.0,
    "dollars": 0.04,
    "input_tokens": 3000.0,
    "agent_calls": 2.0,
    "agent_dollars": 0.03,
    "agent_input_tokens": 1000.0,
    "reranker_calls": 10.0,
    "reranker_dollars": 0.01,
    "reranker_input_tokens": 2000.0,
    "rewriter_calls": 0.0,
}


def lines(report: Report) -> list[str]:
    """The rows of the table of roles, without the cells' names."""
    _, _, section = report.markdown.partition("## Cost by role")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [
        line.partition("|")[2].partition("|")[2].strip() for line in rows[1:] if "--" not in line
    ]


def test_a_run_of_several_roles_has_a_row_for_each_and_for_all() -> None:
    report = render([cell("one", **ONE), cell("two", **TWO)])
    assert lines(report) == [
        "agent | 5.00 | — | — | — | — | 0.0100 | 100% |",
        "agent | 2.00 | 1,000 | — | — | — | 0.0300 | 75% |",
        "reranker | 10.00 | 2,000 | — | — | — | 0.0100 | 25% |",
        "all | 12.00 | 3,000 | — | — | — | 0.0400 | 100% |",
    ]
    assert 'id="roles"' in report.html


def test_unknown_money_has_no_share() -> None:
    known = {name: value for name, value in TWO.items() if "dollars" not in name}
    report = render([cell("two", **known)])
    assert lines(report)[0] == "agent | 2.00 | 1,000 | — | — | — | — | — |"


def test_runs_of_one_role_have_no_such_section() -> None:
    assert "Cost by role" not in render([cell("one", **ONE)]).markdown
    assert "Cost by role" not in render([cell("none")]).markdown
