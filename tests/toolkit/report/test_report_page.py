"""The report as a reader gets it, and the formats of numbers, intervals and best runs."""

import hashlib
import html
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import fake_run, paired, printed, six_runs, written
from rich.text import Text
from support.html_page import Page

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import compare
from soundingline.toolkit.report import comparison_table, render, write_report
from soundingline.toolkit.report.agents import curves_section
from soundingline.toolkit.report.measures import (
    HIGHER,
    LOWER,
    NEITHER,
    describe,
    number,
    ordered,
    probability,
)
from soundingline.toolkit.report.page import plain_markdown
from soundingline.toolkit.report.results import (
    exits_section,
    mean_interval,
    report_data,
    results_section,
    run_interval,
    stages_section,
)

EVIL = '<script>alert("x")</script> & | `a` *b* $c$ 漢'


def markdown_tables(text):
    tables = []
    previous = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                tables.append([])
            entries = re.split(r"(?<!\\)\|", line)[1:-1]
            if not all(re.fullmatch(r" ---:? ", entry) for entry in entries):
                tables[-1].append([plain(entry) for entry in entries])
        previous = line
    return tables


def plain(text):
    text = re.sub(r"\\(\W|_)", r"\1", html.unescape(text).replace("**", ""))
    return re.sub(r"[\s\u202f()]+", "", text)


@pytest.fixture(scope="module")
def six():
    runs = six_runs()
    return render(runs, paired(runs, "accuracy", "nDCG@10"), title="Units")


@pytest.fixture(scope="module")
def page(six):
    return Page(six.html)


@pytest.mark.slow
def test_both_formats_hold_the_same_tables(page, six):
    shown = [[[plain(c) for c in row] for row in table] for table in page.tables()]
    assert len(shown) > 10
    assert shown == markdown_tables(six.markdown)
    assert page.attributes("id", tag="section") == [
        *("differences", "results", "effects", "funnel", "curves", "calls", "exits", "setup"),
        *("provenance", "glossary"),
    ]


def results_of(page):
    """The table of results."""
    return next(table for table in page.tables() if "failed" in table[0])


@pytest.mark.slow
def test_the_table_of_results_has_the_varied_factors_every_metric_and_denominators(page, six):
    header, *rows = results_of(page)
    assert header[0] == "unit · retriever" and rows[3][0] == "passage · bm25_tuned"
    assert "demo-passage-bm25_tuned" in six.markdown.partition("## Fingerprints and versions")[2]
    for row, run in zip(rows, six_runs(), strict=True):
        for measure, digits in (("accuracy", 3), ("recall_cited", 3), ("AP", 4), ("nDCG@10", 4)):
            value = f"{run.metrics[measure]:.{digits}f}"
            assert value in six.html and value in six.markdown
            if measure in header:
                assert value in row[header.index(measure)]
    place = header.index("failed")
    assert header[place - 1] == "accuracy"
    assert [row[place] for row in rows] == ["3 of 100"] * 3 + ["2 of 100"] * 3
    assert "15 of 600 questions" in page.raw("main")[0]


@pytest.mark.slow
def test_nothing_is_loaded_from_anywhere_and_every_reference_has_its_target(page, six):
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    loads = page.attributes("src", "href", "xlink:href", "action")
    assert loads and all(value.startswith("#") for value in loads)
    assert "@import" not in six.html and "@font-face" not in six.html
    assert set(re.findall(r"url\((.)", six.html)) <= {"#"}
    assert "http" not in six.html
    ids = Counter(page.attributes("id"))
    assert max(ids.values()) == 1
    assert set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", six.html)) <= set(ids)
    assert set(re.findall(r"\b20\d\d-\d\d-\d\d", six.html)) == {"2026-01-02"}


@pytest.mark.slow
def test_names_and_titles_are_shown_and_never_run():
    runs = [replace(c, name=f"{EVIL} {i}", factors={}) for i, c in enumerate(six_runs()[:2])]
    made = render(runs, paired(runs, "accuracy"), title=EVIL)
    page = Page(made.html)
    assert "script" not in page.tags
    assert EVIL in page.raw("main")[0]
    assert f"{EVIL} 1" in [row[0] for row in results_of(page)]
    assert "<script" not in made.markdown
    assert r"\`a\` \*b\*" in made.markdown


@pytest.mark.slow
def test_equal_input_gives_equal_text_in_another_process_without_pyplot(six):
    """Of a fresh process, whose sets and hashes are ordered otherwise."""
    program = (
        "import hashlib, json, sys; from report_runs import *;"
        "from soundingline.toolkit.report import render;"
        "c = six_runs(); r = render(c, paired(c, 'accuracy', 'nDCG@10'), title='Units');"
        "digest = hashlib.sha256((r.html + r.markdown).encode()).hexdigest();"
        "print(json.dumps({'digest': digest, 'modules': list(sys.modules)}))"
    )
    here = Path(__file__).resolve()
    paths = os.pathsep.join(
        str(folder) for folder in (here.parents[3], here.parents[2], here.parent)
    )
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    elsewhere = json.loads(done.stdout)
    digest = hashlib.sha256((six.html + six.markdown).encode()).hexdigest()
    assert elsewhere["digest"] == digest
    assert "matplotlib.figure" in elsewhere["modules"]
    assert "matplotlib.pyplot" not in elsewhere["modules"]


@pytest.mark.slow
def test_rankings_without_an_agent_leave_the_agents_sections_out():
    runs = [
        replace(
            run,
            metrics={"AP": run.metrics["AP"]},
            per_question={"AP": run.per_question["AP"]},
            funnel={},
            curves={},
            counts={"questions": 100, "answered": 100, "failed": 0, "unjudged": 0},
        )
        for run in six_runs()
    ]
    made = render(runs, paired(runs, "AP"))
    page = Page(made.html)
    anchors = set(page.attributes("id", tag="section"))
    assert anchors == {"results", "differences", "setup", "provenance", "glossary"}
    assert "main measure AP" in page.raw("main")[0]
    assert "funnel" not in made.markdown.lower()


def test_refused_and_repeated_calls_and_reasons_are_counted_by_run():
    calling, quiet, old = six_runs()[:3]
    ends = {"no_format": 2, "ended_turns": 1}
    calls = {"calls": 1203, "repeated": 5, "refused": 7, "refused_missing_argument": 7}
    calling = replace(calling, counts={**calling.counts, **ends, **calls})
    quiet = replace(quiet, counts={**quiet.counts, "calls": 5, "repeated": 0, "refused": 0})
    data = report_data([calling, quiet, old])
    report = written(data, exits_section(data))
    tables = {tuple(table[0][1:]): table[1:] for table in Page(report.html).tables()}
    assert "No format: the answer did not have" in report.html
    exits = next(titles for titles in tables if "answered" in titles)
    place = 1 + exits.index("no format")
    assert [row[place] for row in tables[exits]] == ["2 2%", "—", "—"]
    assert [row[1:] for row in tables[("turns",)]] == [["1"], ["0"], ["—"]]
    refusals = [row[1:] for row in tables[("calls", "repeated", "refused", "missing argument")]]
    assert refusals == [["1,203", "5", "7", "7"], ["5", "0", "0", "0"], ["—"] * 4]
    for repeated in (4, 0):
        counts = {**old.counts, "calls": 9, "refused": 0, "repeated": repeated}
        notes = [
            each.note for each in exits_section(report_data([replace(old, counts=counts)])).tables
        ]
        assert ("that repeat an earlier one" in " ".join(notes)) == bool(repeated)


@pytest.mark.slow
def test_one_run_and_a_run_with_nothing_in_it_are_reported():
    run = six_runs()[0]
    page = Page(render([run]).html)
    assert "differences" not in page.attributes("id")
    assert "no other run to compare with" in page.raw("main")[0]
    empty = replace(run, metrics={}, per_question={}, funnel={}, curves={}, counts={}, factors={})
    made = render([replace(empty, manifest={})])
    assert "The runs have no measure" in Page(made.html).raw("main")[0]


@pytest.mark.slow
def test_many_runs_are_compared_with_the_baseline_only():
    factors = [{"unit": f"u{n // 5}", "retriever": f"r{n % 5}"} for n in range(15)]
    runs = [
        fake_run(f"run{n}", 0.25 + 0.03 * n, questions=40, **row) for n, row in enumerate(factors)
    ]
    against = compare(runs, ["accuracy"], "run7", test="t", resamples=99)
    others = paired(runs[:3], "accuracy")
    made = render(runs, [*others, *against], baseline="run7")
    page = Page(made.html)
    tables = [t for t in page.tables() if t[0][1:2] == ["difference 95% interval"]]
    assert [len(rows) for rows in tables] == [1 + 14]
    assert "u1 · r2" in page.raw("main")[0]
    assert len(page.tables()[1]) == 1 + 15
    coloured = {value for value in page.attributes("class") if "swatch" in value}
    assert len(coloured - {"swatch other"}) == 8


@pytest.mark.slow
def test_missing_tiers_curves_and_calls_of_one_run_are_dashes():
    first, second = six_runs()[:2]
    bare = replace(
        second,
        funnel={"evidence": {"opened": {"macro": 0.25, "micro": 0.2}}},
        curves={},
        per_question={"accuracy": second.per_question["accuracy"]},
    )
    text = render([first, bare], paired([first, bare], "accuracy")).markdown
    assert "| bm25_tuned | — | — | 0.250 / 0.200 — docs | — |" in text


def test_curves_in_numbers_are_the_last_recall_within_the_budget():
    curve = [(1.0, 0.0), (9.0, 0.125), (11.0, 0.5), (90.0, 0.75), (101.0, 0.875)]
    runs = [replace(c, curves={"documents": curve}) for c in six_runs()[:2]]
    data = report_data(runs)
    text = written(data, curves_section(data)).markdown
    assert "at 1 (documents) | at 10 (documents) | at 100 (documents) | at 1,000" in text
    assert "| 0.000 | 0.125 | 0.750 | 0.875 |" in text


def before_results(*runs):
    data = report_data(runs)
    return Page(written(data, results_section(data)).html).raw("main")[0].split("Results")[0]


def test_failures_missing_questions_and_other_benchmarks_are_warnings_at_the_top():
    first, second = six_runs()[:2]
    second = replace(
        second,
        counts={**second.counts, "missing": 12},
        manifest={**second.manifest, "fingerprints": {"benchmark": "other"}},
        per_question={**second.per_question, "accuracy": {"q1": 1.0, "q500": 0.0}},
    )
    top = before_results(first, second)
    assert "6 of 200 questions" in top
    assert "12 of 200 questions" in top
    assert "2 different benchmark contents" in top and "the same questions" not in top
    again = replace(second, manifest=first.manifest)
    top = before_results(first, again)
    assert "do not have the same questions on accuracy: all share 1, and each has 2 to 100" in top


@pytest.mark.slow
def test_both_files_are_written(tmp_path, six):
    path = write_report(tmp_path / "runs" / "a", six)
    assert path == tmp_path / "runs" / "a" / "report.html"
    assert path.read_text(encoding="utf-8") == six.html
    assert (path.parent / "report.md").read_text(encoding="utf-8") == six.markdown
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "report.md"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": []}, "no runs"),
        ({"runs": [six_runs()[0]] * 2}, "more than one run is named"),
        ({"baseline": "nobody"}, "baseline 'nobody'"),
        ({"main": "acuracy"}, "measure 'acuracy'"),
        ({"measures": ["AP", "MAP"]}, "measure 'MAP'"),
    ],
)
def test_a_mistaken_argument_is_named_with_what_is_valid(arguments, message):
    runs = arguments.pop("runs", six_runs()[:2])
    with pytest.raises(InputError, match=message):
        render(runs, **arguments)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("bm25_tuned [0.1, 0.2]", "bm25_tuned [0.1, 0.2]"),
        ("_a_ *b* `c` $d$ | \\", r"\_a\_ \*b\* \`c\` \$d\$ \| " + "\\\\"),
        ("[x](javascript:y)", r"[x\]\(javascript:y)"),
        ("<b> & \n two\tlines", "&lt;b&gt; &amp; two lines"),
        ("# no heading", r"\# no heading"),
        ("- no item", r"\- no item"),
    ],
)
def test_markdown_markup_in_names_loses_its_meaning(text, written):
    assert plain_markdown(text) == written


# Names and formats of numbers, intervals of means, and which run is marked as best.


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
    shown = ["reranker", "pairs_scored 1,234, cache_hit_rate 0.5"]
    assert [entry.text for entry in row[1:]] == shown
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
    table = comparison_table(runs, title=attack, measures=["AP", f"usage_{attack}"])
    text = printed(table, width=200)
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
    runs = [replace(run, factors=row) for run, row in zip(six_runs(), settings, strict=False)]
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
