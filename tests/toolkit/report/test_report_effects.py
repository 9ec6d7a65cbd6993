"""The section on main effects and interactions of a factorial sweep."""

import re
from dataclasses import replace

import pytest
from report_runs import fake_run, six_runs

from soundingline.toolkit.report import render

UNITS, RETRIEVERS = ("document", "passage", "maxp"), ("bm25_default", "bm25_tuned")


def effects(runs, **arguments):
    """The rows of the section in Markdown; None without a section."""
    page = render(runs, **arguments).markdown
    _, title, rest = page.partition("## Main effects and interactions")
    if not title:
        return None
    rows = re.findall(r"^\| (.*) \|$", rest.partition("\n## ")[0], re.M)
    return [row.split(" | ") for row in rows[2:]]


def test_main_effects_are_differences_from_the_mean_over_all_levels():
    runs = six_runs()
    found = {row[0]: row[1] for row in effects(runs)}
    means = {tuple(run.factors.values()): run.metrics["accuracy"] for run in runs}
    grand = sum(means.values()) / 6
    for unit in UNITS:
        effect = sum(means[unit, retriever] for retriever in RETRIEVERS) / 2 - grand
        text = found[f"unit: {unit}"].replace("\\", "").replace("*", "").split()[0]
        assert float(text.replace("−", "-")) == pytest.approx(effect, abs=6e-4)


def test_a_factor_with_two_levels_is_shown_once():
    # The baseline is the first run, with the default retriever.
    names = [row[0] for row in effects(six_runs())]
    assert names == [
        "retriever: bm25_tuned",
        *(f"unit: {unit}" for unit in sorted(UNITS)),
        *(f"retriever: bm25_tuned × unit: {unit}" for unit in sorted(UNITS)),
    ]


def test_a_setting_that_its_option_determines_is_no_factor():
    runs = [
        replace(run, factors={**run.factors, "retriever.k1": "25"})
        if run.factors["retriever"] == "bm25_tuned"
        else run
        for run in six_runs()
    ]
    assert "k1" not in str(effects(runs)) and len(effects(runs)) == 7


def test_there_are_no_effects_without_a_full_design_and_ten_questions():
    assert effects(six_runs()[:5]) is None
    assert effects(six_runs()[:2]) is None  # one factor
    few = [
        fake_run(f"{u}-{r}", 0.4, questions=9, unit=u, retriever=r)
        for u in UNITS
        for r in RETRIEVERS
    ]
    assert effects(few) is None


def test_equal_values_have_no_effects():
    right = {f"q{number}": 1.0 for number in range(20)}
    runs = [replace(run, per_question={"accuracy": right}) for run in six_runs()]
    assert effects(runs) is None
