"""The table that the terminal prints."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from report_runs import paired, printed, six_runs
from rich.text import Text

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.report import comparison_table
from soundingline.toolkit.report.results import report_data


def test_six_runs_fit_eighty_columns_one_line_each():
    text = printed(comparison_table(six_runs(), title="demo"))
    lines = [line for line in text.splitlines() if "bm25_" in line]
    assert len(lines) == 6
    for line, cell in zip(lines, six_runs(), strict=True):
        assert f"{cell.metrics['accuracy']:.3f}" in line
        assert f"{cell.metrics['recall_surfaced']:.3f}" in line
        assert f"{cell.counts['failed']}/100" in line


def test_the_best_is_bold_or_a_tie_as_in_the_report():
    cells = six_runs()
    verdicts = paired(cells, "accuracy")
    for p_holm, text in ((0.2, Text("≈0.620")), (0.001, Text("0.620", "bold"))):
        told = [verdict._replace(p_holm=p_holm) for verdict in verdicts]
        column = comparison_table(cells, told).columns[2]
        entry = list(column.cells)[-1]
        assert (entry, entry.style) == (text, text.style)


def test_names_stand_where_factors_do_not_tell_cells_apart():
    cells = [replace(cell, factors={}) for cell in six_runs()]
    assert "demo-maxp-bm25_tuned" in printed(comparison_table(cells), width=120)


def test_markup_in_names_is_printed_and_not_obeyed():
    cell = replace(six_runs()[0], name="[red]x[/red]", factors={})
    assert "[red]x[/red]" in printed(comparison_table([cell], title="[b]t"))


@pytest.mark.parametrize("attack", ["\x1b]0;owned\x07", "\x1b[2J[/red]", "\x9b31m", ":smile:[/]"])
def test_names_factors_and_measures_control_no_terminal_and_break_no_line(attack):
    cells = [
        replace(
            cell,
            name=f"{attack}{place}",
            factors={f"llm.{attack}": f"{attack}{place}"},
            metrics={**cell.metrics, f"usage_{attack}": 1.0},
        )
        for place, cell in enumerate(six_runs())
    ]
    text = printed(
        comparison_table(cells, title=attack, measures=["AP", f"usage_{attack}"]), width=200
    )
    assert not any(unicodedata.category(char) == "Cc" for char in text.replace("\n", ""))
    assert text.count(escape_control(attack)) >= 2 + len(cells)
    assert len({len(line) for line in text.splitlines()[2:]}) <= 2  # columns stay aligned


def test_the_asked_measures_are_the_columns():
    table = comparison_table(six_runs(), measures=["AP", "nDCG@10"])
    headers = [str(column.header) for column in table.columns]
    assert headers == ["unit", "retriever", "AP", "nDCG@10", "failed", "unjudged"]


def test_many_factors_leave_room_for_fewer_measures_and_cut_no_digits():
    cells = [
        replace(
            cell,
            factors={**cell.factors, "reranker": f"monot5_{place}", "reranker.depth": str(place)},
        )
        for place, cell in enumerate(six_runs())
    ]
    text = printed(comparison_table(cells))
    assert "…" not in text
    lines = [line for line in text.splitlines() if "bm25_" in line]
    assert len(lines) == 6
    for line, cell in zip(lines, cells, strict=True):
        assert f"{cell.metrics['accuracy']:.3f}" in line
        assert f"{cell.counts['failed']}/100" in line


def test_a_setting_that_a_cell_leaves_as_it_is_has_the_value_of_its_configuration():
    rows = [
        ({"rewriter": "none"}, None),
        ({"rewriter": "q2q", "rewriter.apply_to": "retriever"}, "both"),
        ({"rewriter": "q2q"}, "both"),
    ]
    cells = [
        replace(cell, factors=factors, manifest={"config": {"rewriter": {"apply_to": value}}})
        for cell, (factors, value) in zip(six_runs(), rows, strict=False)
    ]
    (column,) = [c for c in comparison_table(cells).columns if str(c.header) == "rewriter apply to"]
    assert [str(cell) for cell in column.cells] == ["—", "retriever", "both"]


def test_where_room_is_short_labels_stand_for_factors():
    """As in a sweep over an agent with a language model and one without."""
    asks = {
        "agent": "chat",
        "llm": "llamacpp-gguf",
        "llm.settings.temperature": "0.0",
        "llm.server.gguf": "qwen2.5-coder-0.5b-instruct-q4.gguf",
    }
    settings = [{"agent": "keyword"}, {**asks, "llm.seed": "7"}, {**asks, "llm.seed": "8"}]
    cells = [
        replace(cell, factors=factors) for cell, factors in zip(six_runs(), settings, strict=False)
    ]
    table = comparison_table(cells)
    headers = [str(column.header) for column in table.columns]
    assert headers[:2] == ["run", "accuracy"]
    text = "".join(printed(table).split())
    for cell in cells:
        assert f"{cell.metrics['accuracy']:.3f}" in text and f"{cell.counts['failed']}/100" in text
    few = [replace(cell, factors=dict(list(cell.factors.items())[:2])) for cell in cells[:2]]
    headers = [str(column.header) for column in comparison_table(few).columns]
    assert headers[:2] == ["agent", "llm"]


def test_given_measures_without_room_are_named_and_no_number_is_cut():
    metrics = {f"R@{depth}": 0.123456 for depth in range(1, 31)}
    cells = [replace(cell, metrics={**cell.metrics, **metrics}) for cell in six_runs()]
    text = printed(comparison_table(cells, measures=list(metrics)))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert "No room for R@" in text and "R@30: see the" in text
    counts = [line.count(" 0.1235") for line in text.splitlines() if "/100" in line]
    assert len(counts) == 6 and set(counts) == {6}


def test_a_factor_that_a_cell_has_not_is_not_in_its_label():
    settings = [{"reranker": "none"}, {"reranker": "monot5", "reranker.depth": "10"}]
    cells = [replace(cell, factors=row) for cell, row in zip(six_runs(), settings, strict=False)]
    labels = [style.label for style in report_data(cells).styles]
    assert labels == ["none", "monot5 · 10"]
