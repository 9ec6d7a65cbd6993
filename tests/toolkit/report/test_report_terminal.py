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


def test_the_best_is_bold_or_a_tie_as_in_the_report():
    runs = six_runs()
    verdicts = paired(runs, "accuracy")
    for p_holm, text in ((0.2, Text("≈0.620")), (0.001, Text("0.620", "bold"))):
        changed = [verdict._replace(p_holm=p_holm) for verdict in verdicts]
        column = comparison_table(runs, changed).columns[2]
        entry = list(column.cells)[-1]
        assert (entry, entry.style) == (text, text.style)


@pytest.mark.parametrize("attack", ["\x1b]0;owned\x07", "\x1b[2J[/red]", "\x9b31m", ":smile:[/]"])
def test_names_factors_and_measures_control_no_terminal_and_break_no_line(attack):
    runs = [
        replace(
            run,
            name=f"{attack}{place}",
            factors={f"llm.{attack}": f"{attack}{place}"},
            metrics={**run.metrics, f"usage_{attack}": 1.0},
        )
        for place, run in enumerate(six_runs())
    ]
    text = printed(
        comparison_table(runs, title=attack, measures=["AP", f"usage_{attack}"]), width=200
    )
    assert not any(unicodedata.category(char) == "Cc" for char in text.replace("\n", ""))
    assert text.count(escape_control(attack)) >= 2 + len(runs)
    assert len({len(line) for line in text.splitlines()[2:]}) <= 2  # columns stay aligned


def test_the_requested_measures_are_the_columns():
    table = comparison_table(six_runs(), measures=["AP", "nDCG@10"])
    headers = [str(column.header) for column in table.columns]
    assert headers == ["unit", "retriever", "AP", "nDCG@10", "failed", "unjudged"]


@pytest.mark.parametrize("more", [False, True])
def test_runs_fit_eighty_columns_one_line_each_and_no_digit_is_cut(more):
    """`more`: many factors leave room for fewer measures."""
    runs = [
        replace(run, factors={**run.factors, "reranker": f"monot5_{n}", "reranker.depth": str(n)})
        if more
        else run
        for n, run in enumerate(six_runs())
    ]
    text = printed(comparison_table(runs, title="demo"))
    assert "…" not in text
    lines = [line for line in text.splitlines() if "bm25_" in line]
    for line, run in zip(lines, runs, strict=True):
        assert f"{run.metrics['accuracy']:.3f}" in line
        assert f"{run.counts['failed']}/100" in line
    unnamed = [replace(run, factors={}) for run in runs]
    assert "demo-maxp-bm25_tuned" in printed(comparison_table(unnamed), width=120)


def test_a_setting_that_a_run_does_not_change_has_the_value_of_its_configuration():
    rows = [
        ({"rewriter": "none"}, None),
        ({"rewriter": "q2q", "rewriter.apply_to": "retriever"}, "both"),
        ({"rewriter": "q2q"}, "both"),
    ]
    runs = [
        replace(run, factors=factors, manifest={"config": {"rewriter": {"apply_to": value}}})
        for run, (factors, value) in zip(six_runs(), rows, strict=False)
    ]
    (column,) = [c for c in comparison_table(runs).columns if str(c.header) == "rewriter apply to"]
    assert [str(run) for run in column.cells] == ["—", "retriever", "both"]


def test_labels_replace_factors_that_do_not_fit():
    """As in a sweep over an agent with a language model and one without."""
    asks = {
        "agent": "chat",
        "llm": "llamacpp-gguf",
        "llm.settings.temperature": "0.0",
        "llm.server.gguf": "qwen2.5-coder-0.5b-instruct-q4.gguf",
    }
    settings = [{"agent": "keyword"}, {**asks, "llm.seed": "7"}, {**asks, "llm.seed": "8"}]
    runs = [
        replace(run, factors=factors) for run, factors in zip(six_runs(), settings, strict=False)
    ]
    table = comparison_table(runs)
    headers = [str(column.header) for column in table.columns]
    assert headers[:2] == ["run", "accuracy"]
    text = "".join(printed(table).split())
    for run in runs:
        assert f"{run.metrics['accuracy']:.3f}" in text and f"{run.counts['failed']}/100" in text
    few = [replace(run, factors=dict(list(run.factors.items())[:2])) for run in runs[:2]]
    headers = [str(column.header) for column in comparison_table(few).columns]
    assert headers[:2] == ["agent", "llm"]


def test_given_measures_without_room_are_named_and_no_number_is_cut():
    metrics = {f"R@{depth}": 0.123456 for depth in range(1, 31)}
    runs = [replace(run, metrics={**run.metrics, **metrics}) for run in six_runs()]
    text = printed(comparison_table(runs, measures=list(metrics)))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert "No room for R@" in text and "R@30: see the" in text
    counts = [line.count(" 0.1235") for line in text.splitlines() if "/100" in line]
    assert len(counts) == 6 and set(counts) == {6}


def test_the_name_and_the_path_of_a_benchmark_are_shown_once():
    named = {"benchmark": "beir", "benchmark.name": "vaswani", "benchmark.path": "vaswani"}
    settings = [{"benchmark": "cacm"}, named]
    runs = [replace(run, factors=row) for run, row in zip(six_runs(), settings, strict=False)]
    assert [style.label for style in report_data(runs).styles] == ["cacm", "vaswani"]
    stages = [{"reranker": "none"}, {"reranker": "monot5", "reranker.depth": "10"}]
    lacking = [replace(run, factors=row) for run, row in zip(runs, stages, strict=True)]
    assert [style.label for style in report_data(lacking).styles] == ["none", "monot5 · 10"]
    table = comparison_table(runs)
    assert [str(column.header) for column in table.columns][:2] == ["benchmark", "accuracy"]
