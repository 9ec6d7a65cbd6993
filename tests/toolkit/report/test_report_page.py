"""The report as a reader gets it, the formats of numbers, intervals and best runs, and the traces
of questions."""

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from report_runs import (
    ASKED,
    BENCHMARK,
    CHECKLIST,
    AnyPassage,
    WithTexts,
    evaluated,
    fake_run,
    paired,
    printed,
    searched,
    six_runs,
    texts,
    traced,
    two_calls,
    two_rounds,
    write_run,
    written,
)
from rich.text import Text
from support.benchmarks import SmallBenchmark
from support.html_page import Page

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import compare
from soundingline.toolkit.evaluation.judge import ModelVerdict
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.report import comparison_table, pairs_tables, render, write_report
from soundingline.toolkit.report.agents import curves_section, steps_section
from soundingline.toolkit.report.measures import (
    HIGHER,
    LOWER,
    NEITHER,
    headline_first,
    look_up_measure,
    number,
    probability,
)
from soundingline.toolkit.report.page import Column, Table, TableEntry, plain_markdown
from soundingline.toolkit.report.results import (
    ReportData,
    exits_section,
    mean_interval,
    results_section,
    run_interval,
    stages_section,
)
from soundingline.toolkit.report.traces import (
    judged_documents,
    marked,
    matrix_values,
    trace_values,
    write_side_by_side,
    write_traces,
)
from soundingline.toolkit.trajectory import Answer, Trajectory

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
    return render(ReportData(runs, paired(runs, "accuracy", "nDCG@10")), title="Units")


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


@pytest.mark.slow
def test_the_tables_are_frames_of_the_values_themselves(six):
    runs = six_runs()
    results, *_ = (table.to_frame() for table in six.tables["results"])
    assert list(results["unit · retriever"][:2]) == [
        "document · bm25_default", "document · bm25_tuned"
    ]  # fmt: skip
    assert list(results["accuracy"]) == [run.metrics["accuracy"] for run in runs]
    assert list(results["failed"]) == [run.counts["failed"] for run in runs]
    columns = [Column("cost", note="once"), Column("cost", "later", note="again"), Column("n")]
    frame = Table(columns, [{"cost": 1.5, "later": TableEntry(2, "two")}]).to_frame()
    assert frame.to_dict("list") == {"cost (once)": [1.5], "cost (again)": [2], "n": [None]}


def results_of(page):
    """The table of results."""
    return next(table for table in page.tables() if "failed" in table[0])


def titled(page):
    """The tables that can be scrolled, as lists of the titles of their columns, and of each row's
    entries: what a narrow screen, which has no head of a table, shows next to each."""
    for table in page.soup.select(".scroll > table"):
        heads = []
        for th in table.select("thead th"):
            title = "".join(th.find_all(string=True, recursive=False))
            small = f" ({th.small.string})" if th.small else ""
            heads.append(f"{title}{small}" + (f". {th['title']}" if th.get("title") else ""))
        yield (
            heads[1:],
            [[td.get("data-column") for td in tr("td")] for tr in table.select("tbody tr")],
        )


@pytest.mark.slow
def test_each_entry_names_its_column_for_narrow_screens(page, tmp_path):
    folder = traced(tmp_path / "run", two_rounds(), passages=AnyPassage())
    counts = []
    for each in (page, Page(folder / "index.html"), Page(folder / "1-7.html")):
        tables = list(titled(each))
        counts.append(len(tables))
        for heads, rows in tables:
            assert rows and all(row == heads for row in rows)
    assert counts == [len(page.tables()), 1, 2]


@pytest.mark.slow
def test_the_table_of_results_has_the_varied_factors_every_metric_and_denominators(page, six):
    header, *rows = results_of(page)
    assert header[0] == "unit · retriever" and rows[3][0] == "passage · bm25_tuned"
    assert "demo-passage-bm25_tuned" in six.markdown.partition("## Fingerprints and versions")[2]
    for row, run in zip(rows, six_runs(), strict=True):
        for measure, digits in (("accuracy", 3), ("recall_cited", 3), ("AP", 4), ("nDCG@10", 4)):
            value = f"{run.metrics[measure]:.{digits}f}"
            assert value in six.html and value in six.markdown
        for measure, digits in (("accuracy", 3), ("recall_cited", 3)):
            assert f"{run.metrics[measure]:.{digits}f}" in row[header.index(measure)]
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
    made = render(ReportData(runs, paired(runs, "accuracy")), title=EVIL)
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
        "from soundingline.toolkit.report import ReportData, render;"
        "c = six_runs(); data = ReportData(c, paired(c, 'accuracy', 'nDCG@10'));"
        "r = render(data, title='Units');"
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
    made = render(ReportData(runs, paired(runs, "AP")))
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
    data = ReportData([calling, quiet, old])
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
            each.note for each in exits_section(ReportData([replace(old, counts=counts)])).tables
        ]
        assert ("that repeat an earlier one" in " ".join(notes)) == bool(repeated)


@pytest.mark.slow
def test_one_run_and_a_run_with_nothing_in_it_are_reported():
    run = six_runs()[0]
    page = Page(render(ReportData([run])).html)
    assert "differences" not in page.attributes("id")
    assert "no other run to compare with" in page.raw("main")[0]
    empty = replace(run, metrics={}, per_question={}, funnel={}, curves={}, counts={}, factors={})
    made = render(ReportData([replace(empty, manifest={})]))
    assert "The runs have no measure" in Page(made.html).raw("main")[0]


@pytest.mark.slow
def test_many_runs_are_compared_with_the_baseline_only():
    factors = [{"unit": f"u{n // 5}", "retriever": f"r{n % 5}"} for n in range(15)]
    runs = [
        fake_run(f"run{n}", 0.25 + 0.03 * n, questions=40, **row) for n, row in enumerate(factors)
    ]
    against = compare(runs, ["accuracy"], "run7", test="t", resamples=99)
    others = paired(runs[:3], "accuracy")
    made = render(ReportData(runs, [*others, *against], baseline="run7"))
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
    text = render(ReportData([first, bare], paired([first, bare], "accuracy"))).markdown
    assert "| bm25_tuned | — | — | 0.250 / 0.200 — docs | — |" in text


def test_curves_in_numbers_are_the_last_recall_within_the_budget():
    curve = [(1.0, 0.0), (9.0, 0.125), (11.0, 0.5), (90.0, 0.75), (101.0, 0.875)]
    runs = [replace(c, curves={"documents": curve}) for c in six_runs()[:2]]
    data = ReportData(runs)
    text = written(data, curves_section(data)).markdown
    assert "at 1 (documents) | at 10 (documents) | at 100 (documents) | at 1,000" in text
    assert "| 0.000 | 0.125 | 0.750 | 0.875 |" in text


def before_results(*runs):
    data = ReportData(runs)
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
    ],
)
def test_a_mistaken_argument_is_named_with_what_is_valid(arguments, message):
    runs = arguments.pop("runs", six_runs()[:2])
    with pytest.raises(InputError, match=message):
        render(ReportData(runs, **arguments))


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


def test_a_value_that_is_not_a_mean_of_its_questions_has_no_interval():
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
    measure = look_up_measure(name)
    assert (measure.name, measure.digits, measure.better) == (name, digits, better)
    assert said in measure.definition
    assert "{" not in measure.definition


def test_headline_measures_come_first_and_none_twice():
    assert headline_first(["zeta", "AP", "accuracy", "zeta", "AP"]) == ["accuracy", "AP", "zeta"]


def test_counts_of_stages_are_shown_by_run_and_stage():
    one, other = six_runs()[:2]
    counted = {"reranker": {"pairs_scored": 1234, "unscored": 0, "cache_hit_rate": 0.5}}
    runs = [replace(one, manifest={**one.manifest, "stages": counted}), other]
    data = ReportData(runs)
    section = stages_section(data)
    ((row,),) = (table.rows for table in section.tables)
    shown = ["reranker", "pairs_scored 1,234, cache_hit_rate 0.5"]
    assert [entry.text for entry in row[1:]] == shown
    assert stages_section(ReportData(runs[1:])).tables == []


def test_the_report_says_which_judge_made_each_accuracy():
    first, second = (replace(run, judge="Qwen/Qwen3-32B") for run in six_runs()[:2])
    same = results_section(ReportData([first, second])).note
    assert "Answers were judged by Qwen/Qwen3-32B." in same
    exact = replace(second, judge="the exact rule")
    data = ReportData([first, exact])
    one, other = (style.label for style in data.styles)
    note = results_section(data).note
    assert f"Qwen/Qwen3-32B ({one}); the exact rule ({other})." in note
    assert "Answers were judged" not in results_section(ReportData(six_runs())).note


# The table that the terminal prints.


def test_the_best_is_bold_or_a_tie_as_in_the_report():
    runs = six_runs()
    verdicts = paired(runs, "accuracy")
    for p_holm, text in ((0.2, Text("≈0.620")), (0.001, Text("0.620", "bold"))):
        changed = [verdict._replace(p_holm=p_holm) for verdict in verdicts]
        column = comparison_table(ReportData(runs, changed)).columns[2]
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
    table = comparison_table(ReportData(runs), ["AP", f"usage_{attack}"])
    text = printed(table, width=200)
    assert not any(unicodedata.category(char) == "Cc" for char in text.replace("\n", ""))
    assert text.count(escape_control(attack)) > len(runs)
    lines = text.splitlines()
    rule = next(place for place, line in enumerate(lines) if line.startswith("─"))
    assert len({len(line) for line in lines[rule:][: len(runs)]}) == 1  # columns stay aligned


def test_the_requested_measures_are_the_columns():
    table = comparison_table(ReportData(six_runs()), ["AP", "nDCG@10"])
    headers = [str(column.header) for column in table.columns]
    assert headers == ["unit", "retriever", "AP", "nDCG@10"]


@pytest.mark.parametrize("more", [False, True])
def test_runs_fit_eighty_columns_one_line_each_and_no_digit_is_cut(more):
    """`more`: many factors leave room for fewer measures."""
    runs = [
        replace(run, factors={**run.factors, "reranker": f"monot5_{n}", "reranker.depth": str(n)})
        if more
        else run
        for n, run in enumerate(six_runs())
    ]
    text = printed(comparison_table(ReportData(runs)))
    assert "…" not in text
    lines = [line for line in text.splitlines() if "bm25_" in line and "0." in line]
    for line, run in zip(lines, runs, strict=True):
        assert f"{run.metrics['accuracy']:.3f}" in line
    assert "Failed, and counted as wrong: 15 of 600 questions, over all runs" in text
    unnamed = [replace(run, factors={}) for run in runs]
    assert "demo-maxp-bm25_tuned" in printed(comparison_table(ReportData(unnamed)), width=120)


def differing(run, baseline, rows, measure):
    """The difference, its interval, p and mark as the terminal has them."""
    row = next(row for row in rows if (row.measure, row.a) == (measure, run.name))
    values = [each.per_question[measure] for each in (run, baseline)]
    difference = fmean(values[0][qid] - values[1][qid] for qid in values[0])
    mark = "" if row.p_holm > 0.05 else "▲" if difference > 0 else "▼"
    sign = "+" if f"{abs(difference):.3f}" != "0.000" else ""
    text = f"{mark}{difference:{sign}.3f} [{row.low:.3f}, {row.high:.3f}]".replace("-", "−")
    return text, "<0.001" if row.p_holm < 0.001 else f"{row.p_holm:.3f}"


def test_a_table_with_a_baseline_has_differences_with_interval_p_and_mark():
    runs = six_runs()
    runs[3] = replace(runs[3], counts={**runs[3].counts, "failed": 7})
    baseline = runs[5]
    rows = compare(runs, ["accuracy", "AP"], baseline.name, test="t", resamples=199)
    text = printed(comparison_table(ReportData(runs, rows, baseline=baseline.name)))
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    titles = " ".join(" ".join(lines[:3]).split())
    assert "difference in accuracy" in titles and "[95% interval]" in titles
    marks = set()
    for run in runs[:5]:
        text, p = differing(run, baseline, rows, "accuracy")
        (line,) = (line for line in lines if text in line)
        assert line.split()[-1] == p and f" {run.metrics['accuracy']:.3f} " in line
        marks.add(text[0])
    assert marks == {"▼", "−"}
    own = next(line for line in lines if line.startswith("baseline"))
    assert own.split()[-2:] == ["—", "—"]
    assert "▲, ▼: significantly higher, lower than the baseline (p ≤ 0.05, Holm)." in lines
    failed = " ".join("".join(f"{line.strip()} " for line in lines).split())
    assert "20 of 600 questions, over all runs (" in failed and ", baseline 2)." in failed


def test_two_runs_are_compared_in_their_table_and_several_by_pairs():
    runs = [
        replace(run, counts={**run.counts, "yes_no": 4, "yes_no_by_chance": 3})
        for run in six_runs()
    ]
    two, three = [runs[0], runs[5]], runs[:3]
    rows = paired(two, "accuracy")
    text = printed(comparison_table(ReportData(two, rows)))
    expected, p = differing(runs[5], runs[0], rows, "accuracy")
    assert expected in text and expected[0] == "▲" and p in text
    assert "Differences from document · bm25_default." in text
    assert pairs_tables(ReportData(two, rows)) == []
    # The guess rate.
    assert "Yes/no questions: 4 of 100." in text and "accuracy 0.030 without" in " ".join(
        text.split()
    )
    rows = paired(three, "accuracy")
    assert "difference" not in printed(comparison_table(ReportData(three, rows)))
    text = printed(*pairs_tables(ReportData(three, rows)))
    for row in rows:
        a, b = (next(run for run in three if run.name == name) for name in (row.a, row.b))
        assert differing(a, b, [row], "accuracy")[0] in text
    assert "▲, ▼: significantly higher, lower (p ≤ 0.05, Holm)." in text
    assert pairs_tables(ReportData(three)) == []


def test_names_break_between_words():
    changes = [{}, {"agent": "closed_book_simulated"}, {"benchmark.remove_evidence": "True"}]
    changes += [{"agent": "retrieve_then_read_with_a_name_of_its_own"}, {"retriever.k1": "0.9"}]
    same = {"unit": "document", "agent": "keyword", "retriever": "bm25"}
    runs = [
        replace(run, factors={**same, **change})
        for run, change in zip(six_runs(), changes, strict=False)
    ]
    rows = compare(runs, ["accuracy"], runs[0].name, test="t", resamples=99)
    lines = printed(comparison_table(ReportData(runs, rows, baseline=runs[0].name))).splitlines()
    width = next(line.index("accuracy") for line in lines if line.startswith("run"))
    names = [line[:width].strip() for line in lines[3:]]
    parts = [
        *("baseline", "agent=", "closed_book_simulated", "benchmark.remove_evidence=", "True"),
        *("agent=retrieve_then_read_", "with_a_name_of_its_own", "retriever.k1=0.9"),
    ]
    assert names[: len(parts)] == parts


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
    columns = comparison_table(ReportData(runs)).columns
    (column,) = [c for c in columns if str(c.header) == "rewriter apply to"]
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
    table = comparison_table(ReportData(runs))
    headers = [str(column.header) for column in table.columns]
    assert headers[:2] == ["run", "accuracy"]
    text = "".join(printed(table).split())
    for run in runs:
        assert f"{run.metrics['accuracy']:.3f}" in text
    few = [replace(run, factors=dict(list(run.factors.items())[:2])) for run in runs[:2]]
    headers = [str(column.header) for column in comparison_table(ReportData(few)).columns]
    assert headers[:2] == ["agent", "llm"]


def test_given_measures_without_room_are_named_and_no_number_is_cut():
    metrics = {f"R@{depth}": 0.123456 for depth in range(1, 31)}
    runs = [replace(run, metrics={**run.metrics, **metrics}) for run in six_runs()]
    text = printed(comparison_table(ReportData(runs), list(metrics)))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert "No room for R@" in text and "R@30: see the" in text
    counts = [line.count(" 0.1235") for line in text.splitlines() if " 0.1" in line]
    assert len(counts) == 6 and set(counts) == {9}


def test_the_name_and_the_path_of_a_benchmark_are_shown_once():
    named = {"benchmark": "beir", "benchmark.name": "vaswani", "benchmark.path": "vaswani"}
    settings = [{"benchmark": "cacm"}, named]
    runs = [replace(run, factors=row) for run, row in zip(six_runs(), settings, strict=False)]
    assert [style.label for style in ReportData(runs).styles] == ["cacm", "vaswani"]
    stages = [{"reranker": "none"}, {"reranker": "monot5", "reranker.depth": "10"}]
    partly = [replace(run, factors=row) for run, row in zip(runs, stages, strict=True)]
    assert [style.label for style in ReportData(partly).styles] == [
        "reranker=none",
        "monot5 · depth=10",
    ]
    # As in the document rows of Table 3 of arXiv 2602.21456.
    readers = [{"unit": "document", "tool.get_document": value} for value in ("False", "True")]
    rows = [replace(run, factors=row) for run, row in zip(runs, readers, strict=True)]
    labels = [style.label for style in ReportData(rows).styles]
    assert labels == ["get_document=False", "get_document=True"]
    table = comparison_table(ReportData(runs))
    assert [str(column.header) for column in table.columns][:2] == ["benchmark", "accuracy"]


# Traces: what their pages show, when they are written, and that foreign texts stay texts.


FAILED = Trajectory(
    "8", "Who burned it?", "failed", traceback="Traceback\nValueError: no", seconds=2
)
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\u2029 ${1} `*/ \\ -->"
)


def names(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def versions(folder):
    """What changes when a file is written anew, even with the same content."""
    stats = {path.name: path.stat() for path in folder.glob("*.*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def test_each_question_has_a_page_and_the_index_has_a_row_for_it(tmp_path):
    folder = traced(tmp_path / "run", two_calls(), FAILED)
    assert names(folder) == {"index.html", "1-7.html", "1-8.html"}
    index = Page(folder / "index.html")
    assert [" ".join(row) for row in index.rows()[1:]] == [
        "7 Who built the mill? completed correct 0.67 0.33 0.33 0.33 2 17 0.5000 1.5",
        "8 Who burned it? failed — 0.00 0.00 0.00 0.00 0 0 — 2.0",
        "9 Never asked? missing" + " —" * 9,
    ]
    links = index.attributes("href", tag="a")
    assert links == ["1-7.html", "1-8.html"]
    failed = Page(folder / "1-8.html")
    assert failed.raw("pre") == [FAILED.traceback]
    assert not {"Rounds", "Documents and requirements"} & set(failed.texts("h2"))


def test_the_index_has_the_label_of_each_repeat_and_the_report_leads_to_the_pages_of_a_label(
    tmp_path,
):
    wrong = two_calls(answer=Answer(exact="Eve"))
    benchmark = WithTexts(*ASKED)
    folder = write_run(tmp_path / "run", two_calls(), FAILED, repeats=[[wrong]])
    run = evaluated(folder, benchmark)
    index = Page(write_traces(folder, benchmark, run))
    labels = ["right", "wrong", "failed", "failed", "—", "—"]
    assert index.rows()[0][3] == "Label" and [row[3] for row in index.rows()[1:]] == labels
    data = ReportData([run], traces={run.name: "run/traces/index.html"})
    *_, table = steps_section(data).tables
    counts = {c.title: e for c, e in zip(table.columns, table.rows[0], strict=True)}
    assert (counts["wrong"].text, counts["wrong"].link) == ("1", "run/traces/index.html#wrong")
    assert (counts["not shown"].text, counts["not shown"].link) == ("0", "")


def side_by_side(tmp_path, *others):
    """The page of two runs on 7, 8 and 9: the first answers 7, and the second does not."""
    wrong = two_calls(answer=Answer(exact="Eve"))
    benchmark = WithTexts(*ASKED)
    runs = []
    for name, trajectory in (("a", two_calls()), ("b", wrong), *others):
        folder = write_run(tmp_path / name, trajectory, FAILED)
        runs.append((folder.path, evaluated(folder, benchmark)))
        write_traces(folder, benchmark, runs[-1][1])
    return write_side_by_side(tmp_path / "compared", runs), runs


def test_two_runs_are_shown_side_by_side_with_links_to_their_traces(tmp_path):
    written, runs = side_by_side(tmp_path)
    page = Page(written)
    head, *rows = page.rows()
    first, second, third = (dict(zip(head, row, strict=True)) for row in rows)
    assert first == {
        "Question": "7 Who built the mill?", "Right in": "A, not B",
        "Verdict A": "correct Ada", "Verdict B": "wrong Eve",
        "Label A": "right", "Label B": "wrong",
        "recall opened A": "0.33", "recall opened B": "0.33",
        "calls A": "2", "calls B": "2", "tokens A": "17", "tokens B": "17",
    }  # fmt: skip
    assert (second["Right in"], second["Label A"], second["calls B"]) == ("neither", "failed", "0")
    assert (third["Question"], third["calls A"]) == ("9", "—")
    assert page.attributes("href", tag="a") == [
        "../a/traces/index.html", "../b/traces/index.html",
        "../a/traces/1-7.html", "../b/traces/1-7.html",
        "../a/traces/1-8.html", "../b/traces/1-8.html",
    ]  # fmt: skip
    assert page.texts("option")[1:3] == ["A, not B", "neither"]
    # Without traces of both, which an obfuscated run has only if asked for, the page goes.
    (runs[1][0] / "traces" / "index.html").unlink()
    assert write_side_by_side(written.parent, runs) is None and not written.exists()


def test_more_or_fewer_than_two_runs_have_no_page_side_by_side(tmp_path):
    written, runs = side_by_side(tmp_path, ("c", two_calls()))
    assert written is None and write_side_by_side(tmp_path / "compared", runs[:1]) is None


def test_a_page_leaves_out_columns_without_a_value_and_has_blocks_for_a_table_too_wide_for_paper():
    def worded(*rows):
        return Table([Column(name, numeric=False) for name in rows[0]], rows)

    narrow = worded({"run": "a", "empty": None, "n": "1"}, {"run": "b", "empty": "", "n": None})
    assert narrow.shown == [0, 2] and not narrow.blocks
    # Thirteen columns of ten letters are 156 characters of the 160 of a line, fourteen are 168.
    for count, blocks in ((13, False), (14, True)):
        row = {f"c{n}": "abcdefghij" for n in range(count)}
        assert worded(row).blocks == blocks
    # Words of a text are on lines of their own.
    words = {f"c{n}": "abcde fghij " * 9 for n in range(20)}
    assert not worded(words).blocks


def test_a_page_has_each_call_with_its_evidence_and_the_usage_so_far(tmp_path):
    page = Page(traced(tmp_path / "run", two_calls()) / "1-7.html")
    assert page.texts("p", "exact") == ["Ada"] and page.texts("li", "exact") == ["Ada"]
    assert "d2 evidence 2, gold" in page.texts("li")
    first, second = page.texts("section", "call")
    assert first.startswith("Call 1: search querymill Ranked by who built the mill")
    assert "evidence d1, rank 1 of 4, shown, first time previewed" in first
    assert "evidence d3, rank 4 of 4, not shown" in first
    assert "evidence 2, gold d2, shown, first time opened" in second
    assert "8 tokens of tool output so far" in first and "17 tokens of tool output" in second
    # By the price: 100 * 10 + 10 * 100 = 2000, then 100 * 10 + 100 * 1 + 10 * 100 = 2100, then
    # 300 * 10 + 20 * 100 = 5000 millionths; 9100 of them are the half dollar on record.
    assert f"10 out · ≈ ${0.5 * 2000 / 9100:.4f} so far" in first
    assert f"300 tokens in (100 cached), 20 out · ≈ ${0.5 * 4100 / 9100:.4f} so far" in second
    assert page.texts("section")[-1].endswith("≈ $0.5000 so far")
    for call in two_calls().calls:
        assert call.output in page.raw("pre")
    # Marked in the result page: the id of a judged document, and no other one.
    assert page.texts("mark") == ["d1", "d2"]
    rows = {row[0]: row[1:] for row in page.rows()}
    assert rows["d1"] == ["evidence", "1 in call 1", "call 1", "call 1", "never", "never"]
    assert rows["d2"] == ["evidence 2, gold", "—", "never", "never", "call 2", "yes"]
    assert rows["d3"] == ["evidence", "4 in call 1", "call 1", "never", "never", "never"]
    for tier, calls in (("best rank", "11"), ("surfaced", "11"), ("opened", "2"), ("cited", "")):
        links = page.soup.select(f'td[data-column="{tier}"] a')
        assert [link["href"] for link in links] == [f"#call-{call}" for call in calls]


def test_a_page_leaves_out_what_it_does_not_have(tmp_path):
    unjudged = SmallBenchmark([Topic("7", "Who built the mill?")], {}, {})
    page = Page(traced(tmp_path / "run", two_calls(), benchmark=unjudged) / "1-7.html")
    text = page.texts("main")[0]
    assert {"Accepted answers", "Verdict"}.isdisjoint(page.texts("h3"))
    assert "No judged evidence" not in text and "Answer of the agent" in text


def test_links_within_a_page_have_their_targets(tmp_path):
    page = Page(traced(tmp_path / "run", two_rounds(), passages=AnyPassage()) / "1-7.html")
    targets, links = page.attributes("id"), page.attributes("href", tag="a")
    assert len(set(targets)) == len(targets) and len(links) > 10
    assert {link for link in links if link.startswith("#")} <= {f"#{name}" for name in targets}


def test_money_is_left_out_where_a_price_or_a_count_is_unknown(tmp_path):
    folder = traced(tmp_path / "a", two_calls(usage={"agent_calls": 3}))
    assert "$" not in Page(folder / "1-7.html").texts("main")[0]
    assert "dollars" not in Page(folder / "index.html").rows()[0]
    uncounted = [dict(message) for message in two_calls().messages]
    uncounted[2]["usage"] = {"output": 10}
    folder = traced(tmp_path / "b", two_calls(messages=tuple(uncounted)))
    assert "≈ $" not in Page(folder / "1-7.html").texts("main")[0]


def test_calls_without_a_message_are_shown_and_so_are_replies_to_other_tools(tmp_path):
    page = Page(traced(tmp_path / "a", two_calls(messages=())) / "1-7.html")
    assert [text[:6] for text in page.texts("section")] == ["Call 1", "Call 2"]
    calls = two_calls().calls
    contents = ("from a tool of the harness", calls[0].output, calls[1].output)
    messages = tuple({"role": "tool", "content": content} for content in contents)
    page = Page(traced(tmp_path / "b", two_calls(messages=messages)) / "1-7.html")
    reply, *shown = page.texts("section")
    assert reply == "Reply to another tool from a tool of the harness"
    assert [text[:6] for text in shown] == ["Call 1", "Call 2"]


def test_a_page_has_the_verdict_with_the_reasons_of_a_judging_model(tmp_path):
    folder = write_run(tmp_path / "run", two_calls())
    reason = ModelVerdict("7", True, "Ada L.", "It names Ada.", 90.0)
    index = write_traces(folder, BENCHMARK, evaluated(folder), [{"7": reason}])
    page = Page(index.with_name("1-7.html"))
    text = page.texts("main")[0]
    assert "correct by exact_answer" in text and "The judge read the answer as: Ada L." in text
    assert "By rule: equal yes, contained yes, F1 1.00" in text
    assert "It names Ada." in page.raw("pre")


def test_evaluating_again_writes_only_pages_that_change(tmp_path):
    folder = write_run(tmp_path / "run", two_calls(), FAILED)
    traces = write_traces(folder, BENCHMARK, evaluated(folder)).parent
    before = versions(traces)
    write_traces(folder, BENCHMARK, evaluated(folder))
    assert versions(traces) == before
    reason = ModelVerdict("7", True, reasoning="It names Ada.")
    write_traces(folder, BENCHMARK, evaluated(folder), [{"7": reason}])
    changed = {name for name, version in versions(traces).items() if version != before[name]}
    assert changed == {"1-7.html"}


def test_a_page_of_an_earlier_attempt_or_a_damaged_one_is_written_anew(tmp_path):
    folder = write_run(tmp_path / "run", FAILED)
    traces = write_traces(folder, BENCHMARK, evaluated(folder)).parent
    # A second attempt whose file is as long as the first one's.
    with folder.writing(folder.manifest()):
        folder.write(replace(FAILED, traceback=FAILED.traceback.replace("no", "on")))
    write_traces(folder, BENCHMARK, evaluated(folder))
    written = (traces / "1-8.html").read_text()
    assert "ValueError: on" in written
    for damage in ("", "<!-- {", '<!-- {"key": 0} -->\n<p>', "<!-- [] -->\n", "<!-- 1 -->\n"):
        (traces / "1-8.html").write_text(damage)
        write_traces(folder, BENCHMARK, evaluated(folder))
        assert (traces / "1-8.html").read_text() == written
    for old, new in (('"failed"', '"<b>"'), ('"seconds": 2', '"seconds": "long"')):
        assert old in written
        (traces / "1-8.html").write_text(written.replace(old, new, 1))
        write_traces(folder, BENCHMARK, evaluated(folder))
        assert (traces / "1-8.html").read_text() == written


def test_pages_link_to_the_index_and_to_their_neighbours(tmp_path):
    last = replace(FAILED, qid="9")
    folder = traced(tmp_path / "run", two_calls(), FAILED, last, repeats=[[two_calls()]])

    def links(name):
        addresses = Page(folder / name).attributes("href", tag="a")
        return [address for address in addresses if not address.startswith("#")]

    assert links("1-7.html") == ["index.html", "1-8.html"]
    assert links("1-8.html") == ["index.html", "1-7.html", "1-9.html"]
    assert links("1-9.html") == ["index.html", "1-8.html"]
    assert links("2-7.html") == ["index.html"]


def test_repeats_have_pages_and_rows_of_their_own(tmp_path):
    wrong = two_calls(answer=Answer(exact="Eve"), tiers={"opened": ("d1", "d2")})
    folder = traced(tmp_path / "run", two_calls(), FAILED, repeats=[[wrong]])
    _, *rows = Page(folder / "index.html").rows()
    assert [row[0][:11] for row in rows] == [
        f"{qid}, repeat {repeat}" for qid in ("7", "8", "9") for repeat in (1, 2)
    ]
    assert [row[2] for row in rows[:2]] == ["correct", "wrong"]
    assert [row[5] for row in rows[:2]] == ["0.33", "0.67"]
    assert [row[1] for row in rows[2:4]] == ["failed", "missing"]
    assert Page(folder / "2-7.html").texts("p", "exact") == ["Eve"]


# Texts of others.


def hostile_run(path):
    """The traces of a run in which every foreign text contains markup."""
    qid = f"q/../{HOSTILE}"
    judged = {"evidence": {qid: {HOSTILE: 1}}}
    benchmark = SmallBenchmark([Topic(qid, HOSTILE)], judged, {qid: [HOSTILE]})
    call = searched(
        HOSTILE,
        f"docid={HOSTILE}\n" + "a" * 20_000 + "\u202e backwards \ud800",
        tokens=3,
        ranking=(HOSTILE,),
        shown=(HOSTILE,),
        notes={HOSTILE: {"__proto__": HOSTILE}, "rewrite": {"rewritten": HOSTILE}},
    )
    requirement = dict.fromkeys(("verdict", "score", "rationale"), HOSTILE)
    requirement["passage"] = f"{HOSTILE}%p0"
    trajectory = two_calls(
        qid,
        question=HOSTILE,
        answer=Answer(HOSTILE, HOSTILE, 50.0, (HOSTILE,), (HOSTILE,)),
        calls=(
            replace(call, arguments={"query": HOSTILE, HOSTILE: [HOSTILE]}),
            replace(call, name=HOSTILE, error=HOSTILE),
        ),
        messages=({"role": HOSTILE, "content": HOSTILE, "reasoning": HOSTILE},),
        tiers={"surfaced": (HOSTILE,), "opened": (HOSTILE,)},
        exposures=(),
        usage={HOSTILE: 1.0},
        reason=HOSTILE,
        warnings=(HOSTILE,),
        traceback=HOSTILE,
        source={"__proto__": HOSTILE},
        rounds=(
            {
                "reason": HOSTILE,
                "librarians": [{"text": HOSTILE, "operator": HOSTILE, "reason": HOSTILE}],
                "checklist": [HOSTILE],
                "planned_by": HOSTILE,
                "documents": {HOSTILE: {"score": 1, "requirements": {HOSTILE: requirement}}},
            },
        ),
    )
    folder = write_run(path, trajectory)
    reason = ModelVerdict(qid, False, HOSTILE, HOSTILE)
    passages = AnyPassage(HOSTILE)
    write_traces(folder, benchmark, evaluated(folder, benchmark), [{qid: reason}], passages)
    return folder.path / "traces"


def test_foreign_texts_become_no_markup_leave_no_folder_and_load_nothing(tmp_path):
    folder = hostile_run(tmp_path / "run")
    assert {path.parent for path in tmp_path.rglob("*.html")} == {folder}
    for path in folder.glob("*.html"):
        page, is_index = Page(path), path.name == "index.html"
        assert not set(page.tags) & {"img", "iframe", "object", "embed", "form", "link", "base"}
        names = {name for element in page.elements for name in element.attrs}
        assert not any(name.startswith("on") for name in names)
        links = page.attributes("href", tag="a")
        assert all(re.fullmatch(r"#[\w-]+|index\.html|1-[\w%.-]+\.html", link) for link in links)
        assert len(page.comments) == (not is_index)
        assert not re.search(r"https?://|url\(|@import", page.source)
        policy = page.soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
        directives = dict(part.split(" ", 1) for part in policy.split("; "))
        assert directives["default-src"] == "'none'"
        scripts = page.raw("script")
        digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
        allowed = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        assert allowed == ([directives["script-src"]] if is_index else [])
        assert is_index or "script-src" not in directives
    (path,) = folder.glob("1-*.html")
    page, shown = Page(path), " ".join(HOSTILE.split())
    assert page.source.count("<script") == 0
    assert shown in page.texts("p", "asked") and shown in page.texts("p", "exact")
    assert shown in page.texts("mark") or shown in page.texts("bdi")
    assert page.raw("pre").count(HOSTILE) >= 4
    assert json.dumps([HOSTILE], ensure_ascii=False) in page.raw("dd")


def test_marks_are_of_judged_documents_alone_and_take_linear_time():
    labels = {"d1": ["gold"], "<b>": ["evidence"]}
    shown = str(marked('docid="d1" docid=d12 d1 docid: <b>', labels))
    assert shown == (
        'docid=&#34;<mark title="judged: gold">d1</mark>&#34; docid=d12 d1 docid: '
        '<mark title="judged: evidence">&lt;b&gt;</mark>'
    )
    start = time.perf_counter()
    marked("docid=" * 200_000 + "docid" + " " * 200_000, labels)
    assert time.perf_counter() - start < 5


def test_without_a_readable_price_in_the_manifest_dollars_are_left_out(tmp_path):
    folder = write_run(tmp_path / "run", two_calls())
    run = evaluated(folder)
    for price in ("dear", {"input": -1}, {"unknown": 1}, {"long_context": {"above": 1}}, None):
        damaged = replace(run, manifest={"config": {"llm": {"price": price}}})
        shutil.rmtree(folder.path / "traces", ignore_errors=True)
        page = Page(write_traces(folder, BENCHMARK, damaged).parent / "1-7.html")
        assert len(page.texts("section", "step")) == 7
        assert "≈ $" not in page.texts("main")[0]


# A navigator's rounds.


def values(trajectory):
    labels = judged_documents(BENCHMARK.qrels, trajectory.qid)
    return trace_values(trajectory, labels, Price(), AnyPassage())


def test_rounds_have_their_queries_and_checklist():
    first, second = values(two_rounds())["rounds"]
    assert (first["number"], first["note"]) == (1, "Begin with the rarest.")
    search, expand = first["queries"]
    assert search["text"] == "mill" and search["call"] == 1
    assert search["facts"] == "search, 3 candidates, 3 new"
    assert (expand["text"], expand["call"]) == ("d1 d2", None)
    assert expand["facts"] == "expand, in, failed: timed_out"
    listed = replace(two_rounds().calls[1], arguments={"docids": '["d1", "d2"]'})
    called = replace(two_rounds(), calls=(*two_rounds().calls, listed))
    assert values(called)["rounds"][0]["queries"][1]["call"] == 3
    assert first["checklist"] == list(CHECKLIST[:2])
    assert second["checklist"] == list(CHECKLIST)
    assert first["facts"] == {"planned by": "model"}
    plan = {"strategy": "Follow links.", "missing": ["mills", "kilns"], "stopped": "coverage"}
    planned = replace(two_rounds(), rounds=({**two_rounds().rounds[0], **plan},))
    assert values(planned)["rounds"][0]["facts"] == {
        **{"strategy": "Follow links.", "missing": "mills; kilns"},
        **{"planned by": "model", "stopped": "coverage"},
    }
    assert second["facts"] == {"unscored": '{"timed_out": 3}'}


def test_documents_are_in_the_order_of_the_answer_with_the_newest_scores():
    labels = judged_documents(BENCHMARK.qrels, "7")
    matrix = matrix_values(two_rounds(), labels, AnyPassage())
    titles = [column.title for column in matrix["table"].columns]
    assert titles[1:] == ["place in the answer", "score", "overall", "1", "2", "3"]
    assert [column.tip for column in matrix["table"].columns[4:]] == list(CHECKLIST)
    assert texts(matrix["table"]) == [
        ["d2", "1", "0.97", "0.99", "✓ 0.95", "✓ 0.95", "✓ 0.95"],
        ["d1", "2", "0.90", "—", "✓ 0.95", "✓ 0.95", "? 0.00"],
        ["x9", "—", "0.05", "—", "✗ 0.10", "? 0.00", "—"],
    ]
    (document, *_, second, _), (*_, unknown), _ = matrix["table"].rows
    assert document.judged == ["evidence 2", "gold"] and document.sub == "Of d2"
    assert (second.kind, second.tip) == ("satisfied", "because of d2")
    assert second.link == f"#passage-{matrix['passages']['d2%p1']['place']}"
    assert (unknown.kind, unknown.link) == ("unknown", "")
    shown = {name: passage["text"] for name, passage in matrix["passages"].items()}
    assert shown["d2%p1"] == "The mill grinds barley."
    assert shown["d1%p0"] == "", "the store does not have those of d1"
    assert matrix["passages"]["d2%p1"]["reasons"] == [(2, "✓ 0.95", "because of d2")]
    answer = values(two_rounds())["documents"]
    assert answer == [("d2", ["evidence 2", "gold"]), ("d1", ["evidence"]), ("gone", ())]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"librarians": [1, None], "checklist": "x", "documents": {"d1": 3}},
        {"documents": {"d1": {"requirements": {"r": {"verdict": "perhaps", "score": "high"}}}}},
        {"checklist": [3], "documents": {"d1": {"score": True, "requirements": {"r": 1}}}},
        {"round": "one", "checklist": ["r"], "documents": []},
    ],
)
def test_rounds_of_another_kind_are_shown_as_far_as_they_can_be_read(tmp_path, row):
    page = Page(traced(tmp_path / "run", two_calls(rounds=(row,))) / "1-7.html")
    assert page.texts("section", "step")[0].startswith("Round 1")
