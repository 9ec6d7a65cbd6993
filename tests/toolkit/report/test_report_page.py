"""The report as a reader gets it: what it says, in both formats, and what it must not load."""

import hashlib
import html
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from html_page import Page
from report_runs import fake_run, paired, six_runs

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import compare
from soundingline.toolkit.report import render, write_report
from soundingline.toolkit.report.page import plain_markdown

pytestmark = pytest.mark.slow

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


def test_both_formats_hold_the_same_tables(page, six):
    shown = [[[plain(c) for c in row] for row in table] for table in page.tables()]
    assert len(shown) > 10
    assert shown == markdown_tables(six.markdown)


def results_of(page):
    """The table of results."""
    return next(table for table in page.tables() if "failed" in table[0])


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
    root = Path(__file__).resolve().parents[3]
    paths = os.pathsep.join([str(root), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    elsewhere = json.loads(done.stdout)
    here = hashlib.sha256((six.html + six.markdown).encode()).hexdigest()
    assert elsewhere["digest"] == here
    assert "matplotlib.figure" in elsewhere["modules"]
    assert "matplotlib.pyplot" not in elsewhere["modules"]


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
    report = render([calling, quiet, old])
    tables = {tuple(table[0][1:]): table[1:] for table in Page(report.html).tables()}
    assert "No format: the answer did not have" in report.html
    exits = next(titles for titles in tables if "answered" in titles)
    place = 1 + exits.index("no format")
    assert [row[place] for row in tables[exits]] == ["2 2%", "—", "—"]
    assert [row[1:] for row in tables[("turns",)]] == [["1"], ["0"], ["—"]]
    refusals = [row[1:] for row in tables[("calls", "repeated", "refused", "missing argument")]]
    assert refusals == [["1,203", "5", "7", "7"], ["5", "0", "0", "0"], ["—"] * 4]
    run, totals = six_runs()[0], {"calls": 9, "refused": 0}
    for repeated in (4, 0):
        counts = {**run.counts, **totals, "repeated": repeated}
        page = render([replace(run, counts=counts)]).html
        assert ("that repeat an earlier one" in page) == bool(repeated)


def test_one_run_and_a_run_with_nothing_in_it_are_reported():
    run = six_runs()[0]
    page = Page(render([run]).html)
    assert "differences" not in page.attributes("id")
    assert "no other run to compare with" in page.raw("main")[0]
    empty = replace(run, metrics={}, per_question={}, funnel={}, curves={}, counts={}, factors={})
    made = render([replace(empty, manifest={})])
    assert "The runs have no measure" in Page(made.html).raw("main")[0]


def test_many_runs_are_compared_with_the_baseline_only():
    runs = [
        fake_run(
            f"run{i}", 0.25 + 0.015 * i, questions=40, unit=f"u{i // 5}", retriever=f"r{i % 5}"
        )
        for i in range(30)
    ]
    against = compare(runs, ["accuracy"], "run7", test="t", resamples=99)
    others = paired(runs[:3], "accuracy")
    made = render(runs, [*others, *against], baseline="run7")
    page = Page(made.html)
    tables = [t for t in page.tables() if t[0][1:2] == ["difference 95% interval"]]
    assert [len(rows) for rows in tables] == [1 + 29]
    assert "u1 · r2" in page.raw("main")[0]
    assert len(page.tables()[1]) == 1 + 30
    coloured = {value for value in page.attributes("class") if "swatch" in value}
    assert len(coloured - {"swatch other"}) == 8


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
    text = render(runs).markdown
    assert "at 1 (documents) | at 10 (documents) | at 100 (documents) | at 1,000" in text
    assert "| 0.000 | 0.125 | 0.750 | 0.875 |" in text


def test_failures_missing_questions_and_other_benchmarks_are_warnings_at_the_top():
    first, second = six_runs()[:2]
    second = replace(
        second,
        counts={**second.counts, "missing": 12},
        manifest={**second.manifest, "fingerprints": {"benchmark": "other"}},
        per_question={**second.per_question, "accuracy": {"q1": 1.0, "q500": 0.0}},
    )
    top = Page(render([first, second]).html).raw("main")[0].split("Results")[0]
    assert "6 of 200 questions" in top
    assert "12 of 200 questions" in top
    assert "2 different benchmark contents" in top and "the same questions" not in top
    again = replace(second, manifest=first.manifest)
    top = Page(render([first, again]).html).raw("main")[0].split("Results")[0]
    assert "do not have the same questions on accuracy: all share 1, and each has 2 to 100" in top


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
