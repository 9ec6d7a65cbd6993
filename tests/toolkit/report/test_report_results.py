"""Names and formats of numbers, intervals of means, and which run is marked as best."""

import unicodedata
from dataclasses import replace

import pytest
from report_runs import paired, printed, six_runs
from rich.text import Text

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.report import comparison_table
from soundingline.toolkit.report.measures import (
    HIGHER,
    LOWER,
    NEITHER,
    describe,
    number,
    ordered,
    probability,
)
from soundingline.toolkit.report.results import (
    mean_interval,
    report_data,
    results_section,
    run_interval,
    stages_section,
)


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_yes_no_measures_have_wilsons_interval_as_published(right, total, low, high):
    """Newcombe (1998), Statistics in Medicine 17, table I, method 3."""
    result = mean_interval([1.0] * right + [0.0] * (total - right))
    assert result == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        # t(4) = 2.776 at 97.5%, standard error of 1..5 is sqrt(2.5 / 5).
        ([1, 2, 3, 4, 5], (3 - 1.963, 3 + 1.963)),
        ([0.9, 1.0, 1.0, 0.95], (0.8855, 1.0)),  # shares stay within 0 and 1
        ([], None),
        ([0.5], None),
        ([0.5, float("nan")], None),
    ],
)
def test_other_measures_have_students_interval(values, interval):
    result = mean_interval(values)
    assert result is None if interval is None else result == pytest.approx(interval, abs=1e-3)


def test_a_value_that_is_no_mean_of_its_questions_has_no_interval():
    run = six_runs()[0]
    assert run_interval(run, "completion") is None
    assert run_interval(run, "accuracy") is not None
    odd = replace(run, metrics={**run.metrics, "accuracy": run.metrics["accuracy"] + 0.2})
    assert run_interval(odd, "accuracy") is None


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [
        (0.31230, 4, False, "0.3123"),
        (-0.04, 3, False, "−0.040"),
        (0.12, 3, True, "+0.120"),
        (0.0, 3, True, "0.000"),
        (-0.0001, 3, True, "0.000"),
        (1204.26, 1, False, "1,204.3"),
        (None, 2, False, "—"),
        (float("inf"), 0, False, "—"),
        (float("nan"), 0, False, "—"),
    ],
)
def test_numbers_are_written_for_people(value, digits, sign, text):
    assert number(value, digits, sign=sign) == text


def test_a_small_p_value_is_never_zero():
    written = [probability(p) for p in (0.0, 0.0009999, 0.0012, 1.0)]
    assert written == ["<0.001", "<0.001", "0.001", "1.000"]


@pytest.mark.parametrize(
    ("name", "digits", "better", "said"),
    [
        ("AP", 4, HIGHER, "Average precision of the ranking."),
        ("P@30", 4, HIGHER, "first 30 results"),
        ("nDCG@10", 4, HIGHER, "first 10 results"),
        ("R@1000", 4, HIGHER, "first 1000 results"),
        ("nDCG(dcg='exp-log2')@5", 4, HIGHER, "first 5 results"),
        ("P(rel=2)@5", 4, HIGHER, "first 5 results"),
        ("nDCG", 4, HIGHER, "cumulative gain."),
        ("accuracy", 3, HIGHER, "final answer"),
        ("search_calls", 2, NEITHER, "search"),
        ("librarian_calls", 2, NEITHER, "librarian"),
        ("calibration_error", 2, LOWER, "confidence"),
        ("usage_input_tokens", 0, NEITHER, ""),
        ("something", 4, NEITHER, ""),
    ],
)
def test_measures_are_known_by_name(name, digits, better, said):
    measure = describe(name)
    assert (measure.name, measure.digits, measure.better) == (name, digits, better)
    assert said in measure.definition
    assert "{" not in measure.definition


def test_headline_measures_come_first_and_none_twice():
    assert ordered(["zeta", "AP", "accuracy", "zeta", "AP"]) == ["accuracy", "AP", "zeta"]


def test_counts_of_stages_are_shown_by_run_and_stage():
    one, other = six_runs()[:2]
    counted = {"reranker": {"pairs_scored": 1234, "unscored": 0, "cache_hit_rate": 0.5}}
    runs = [replace(one, manifest={**one.manifest, "stages": counted}), other]
    data = report_data(runs)
    section = stages_section(data)
    ((row,),) = (table.rows for table in section.tables)
    assert [entry.text for entry in row[1:]] == [
        "reranker",
        "pairs_scored 1,234, cache_hit_rate 0.5",
    ]
    assert stages_section(replace(data, styles=data.styles[1:])) is None


def test_the_report_says_which_judge_made_each_accuracy():
    first, second = (replace(run, judge="Qwen/Qwen3-32B") for run in six_runs()[:2])
    same = results_section(report_data([first, second])).note
    assert "Answers were judged by Qwen/Qwen3-32B." in same
    exact = replace(second, judge="the exact rule")
    data = report_data([first, exact])
    one, other = (style.label for style in data.styles)
    note = results_section(data).note
    assert f"Qwen/Qwen3-32B ({one}); the exact rule ({other})." in note
    assert "Answers were judged" not in results_section(report_data(six_runs())).note


# The table that the terminal prints.


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
