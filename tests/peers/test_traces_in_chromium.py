"""Traces and reports in a real browser, from the disk. Skipped where there is no Chromium."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.chromium import chromium, running_tab

sys.path.append(str(Path(__file__).resolve().parents[1] / "toolkit" / "report"))
from report_runs import AnyPassage, six_runs, traced, two_calls, two_rounds
from test_report_page import FAILED, HOSTILE, hostile_run

from soundingline.toolkit.evaluation import compare
from soundingline.toolkit.report import render, write_report
from soundingline.toolkit.trajectory import Answer

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    if path is None:
        pytest.skip("there is no Chromium")
    with running_tab(path) as tab:
        yield tab


@pytest.fixture(params=[1280, 400])
def tab(browser, request):
    """In each test, at both widths: no request to a network, no violation of the policy, and
    nothing wider than the window."""
    for noted in (browser.problems, browser.dialogs, browser.requests):
        noted.clear()
    browser.size(request.param)
    yield browser
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.problems == [] and browser.dialogs == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "about"}


def test_the_fields_of_the_index_filter_its_rows(tab, tmp_path):
    wrong = two_calls(answer=Answer(exact="Eve"))
    tab.open(traced(tmp_path / "run", two_calls(), FAILED, repeats=[[wrong]]) / "index.html")
    shown = (
        "[...document.querySelectorAll('tbody tr:not([hidden]) bdi')].map((cell) => cell.innerText)"
    )
    everything = [f"{qid}, repeat {repeat}" for qid in "789" for repeat in "12"]
    tab.wait(f"{shown}.length === 6")
    for field, value, expected in (
        ("verdict", "wrong", everything[1:2]),
        ("status", "failed", everything[2:3]),
        ("text", "BURNED", everything[2:4]),
    ):
        change = f"document.getElementById('{field}').value = {{}};"
        event = f"document.getElementById('{field}').dispatchEvent(new Event('input'));"
        tab.value(change.format(repr(value)) + event)
        assert tab.value(shown) == expected
        tab.value(change.format("''") + event)
        assert tab.value(shown) == everything


def test_foreign_texts_run_nothing_and_load_nothing(tab, tmp_path):
    folder = hostile_run(tmp_path / "run")
    for page in folder.glob("*.html"):
        tab.open(page)
        tab.wait("document.querySelector('h1')")
        tab.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert tab.value("document.querySelectorAll('img, iframe, [onerror]').length") == 0
        assert HOSTILE[:40] in tab.value("document.body.textContent")
        assert tab.value("document.documentElement.scrollWidth <= innerWidth")


def test_a_score_leads_to_its_passage(tab, tmp_path):
    tab.open(traced(tmp_path / "run", two_rounds(), passages=AnyPassage()) / "1-7.html")
    tab.wait("document.querySelector('a.satisfied')")
    tab.value("document.querySelector('a.satisfied').click()")
    tab.wait("document.querySelector('#passage-1').checkVisibility()")
    assert "The mill grinds barley." in tab.value("document.querySelector('#passage-1').innerText")


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("baseline", [None, 0])
def test_a_report_on_runs_fits_the_window_and_is_cards_on_a_narrow_one(
    browser, tmp_path, width, baseline
):
    runs = six_runs()
    name = None if baseline is None else runs[baseline].name
    rows = compare(runs, ["accuracy", "nDCG@10"], name, test="t", resamples=99)
    browser.size(width)
    browser.open(write_report(tmp_path, render(runs, rows, baseline=name)))
    browser.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    wider = "[...document.querySelectorAll('.scroll')].filter((t) => t.scrollWidth > t.clientWidth)"
    assert browser.value(f"{wider}.map((t) => t.innerText.slice(0, 60))") == []
    shown = "(kind) => getComputedStyle(document.querySelector(kind)).display"
    assert browser.value(f"({shown})('#results td')") == ("table-cell" if width > 600 else "flex")
    assert browser.value(f"({shown})('figure.wide') !== 'none'") is (width > 600)
    assert browser.value(f"({shown})('figure.narrow') !== 'none'") is (width < 600)
