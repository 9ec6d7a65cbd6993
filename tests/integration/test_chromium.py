"""Traces and reports in a real browser. Skipped where there is no Chromium.

The browser is headless. It is driven by its own protocol over a pipe, which needs no driver:
https://chromedevtools.github.io/devtools-protocol/; messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.needs import needs_real

sys.path.append(str(Path(__file__).resolve().parents[1] / "toolkit" / "report"))
from report_runs import ASKED, AnyPassage, WithTexts, six_runs, traced, two_calls, two_rounds
from test_report_comparison import tuned
from test_report_page import FAILED, HOSTILE, hostile_run, side_by_side

from soundingline.toolkit.evaluation import compare
from soundingline.toolkit.report import ReportData, render, write_report
from soundingline.toolkit.report.page import COLOURS
from soundingline.toolkit.report.tuning import render_tuning
from soundingline.toolkit.trajectory import Answer

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LONGEST = 30.0  # seconds to wait for a reply or a condition
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-extensions",
    "--disable-dev-shm-usage",
)
# The path of a browser; None where there is none.
BROWSER = os.environ.get("SOUNDINGLINE_CHROMIUM") or next(
    filter(None, map(shutil.which, NAMES)), None
)
pytestmark = needs_real(
    "peers", missing="" if BROWSER else "Chromium (or the path of a browser, SOUNDINGLINE_CHROMIUM)"
)


class Tab:
    """One tab. `problems` are what its console and its security policy complained about, and
    `dialogs` what scripts asked a person, such as `alert`."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._pending = b""
        self._number = 0
        self._session = ""
        self.problems = []
        self.dialogs = []
        self.requests = []
        self._session = self._attached()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def _attached(self):
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            for target in self.ask("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    identifier = {"targetId": target["targetId"], "flatten": True}
                    return str(self.ask("Target.attachToTarget", **identifier)["sessionId"])
            time.sleep(0.05)
        raise AssertionError("the browser opened no tab")

    def ask(self, method, **parameters):
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == message["id"]:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._heard(reply)

    def _next(self):
        while b"\0" not in self._pending:
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser has ended"
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\0")
        return json.loads(line)

    def _heard(self, event):
        name, detail = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(detail["exceptionDetails"])[:600])
        elif name == "Log.entryAdded" and detail["entry"]["level"] in ("warning", "error"):
            self.problems.append(detail["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(detail["request"]["url"])
        elif name == "Page.javascriptDialogOpening":
            self.dialogs.append(detail["message"])
            accept = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            os.write(
                self._send, json.dumps({**accept, "sessionId": self._session}).encode() + b"\0"
            )

    def open(self, path, fragment=""):
        """A file of this machine, from its disk, loaded anew."""
        for url in ("about:blank", path.resolve().as_uri() + fragment):
            self.ask("Page.navigate", url=url)
            self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, expression):
        """The value of an expression of JavaScript."""
        # By default the protocol switches off what a page's policy says of `eval`.
        how = {"returnByValue": True, "awaitPromise": True, "allowUnsafeEvalBlockedByCSP": False}
        result = self.ask("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression):
        """Until an expression is truthy."""
        end = time.monotonic() + LONGEST
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < end, f"waited for {expression}"
            time.sleep(0.02)

    def size(self, width, scheme="light", media="screen"):
        """Set the width of the window in pixels, the colours that the reader prefers, and whether
        the page is printed."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def picture(self, path):
        """A PNG of what is seen."""
        data = self.ask("Page.captureScreenshot")["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def running_tab(browser):
    """A new browser with one tab, and a profile that is thrown away."""
    to_browser, from_browser = os.pipe(), os.pipe()
    redirected = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", redirected, *command],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Tab(to_browser[1], from_browser[0])
        finally:
            process.kill()
            process.wait()
            os.close(to_browser[1])
            os.close(from_browser[0])


# Traces and reports, from the disk.


@pytest.fixture(scope="module")
def browser():
    with running_tab(BROWSER) as tab:
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


def test_the_address_of_a_label_shows_its_questions_alone(tab, tmp_path):
    wrong = two_calls(answer=Answer(exact="Eve"))
    folder = traced(
        tmp_path / "run", two_calls(), FAILED, repeats=[[wrong]], benchmark=WithTexts(*ASKED)
    )
    shown = (
        "[...document.querySelectorAll('tbody tr:not([hidden]) bdi')].map((cell) => cell.innerText)"
    )
    for label, expected in (
        ("wrong", ["7, repeat 2"]),
        ("failed", ["8, repeat 1", "8, repeat 2"]),
    ):
        tab.open(folder / "index.html", f"#{label}")
        tab.wait(f"{shown}.length === {len(expected)}")
        assert tab.value(shown) == expected


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
    browser.open(write_report(tmp_path, render(ReportData(runs, rows, baseline=name))))
    browser.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    wider = "[...document.querySelectorAll('.scroll')].filter((t) => t.scrollWidth > t.clientWidth)"
    assert browser.value(f"{wider}.map((t) => t.innerText.slice(0, 60))") == []
    shown = "(kind) => getComputedStyle(document.querySelector(kind)).display"
    assert browser.value(f"({shown})('#results td')") == ("table-cell" if width > 600 else "flex")
    # The figure of several measures stays legible: a narrow screen scrolls over it.
    figures = "[...document.querySelectorAll('figure.wide')]"
    scrolled = browser.value(f"{figures}.map((f) => f.scrollWidth > f.clientWidth)")
    assert scrolled and set(scrolled) == {width < 600}


SHOWN = (
    "[...document.querySelectorAll('tbody tr:not([hidden]) th bdi')].map((cell) => cell.innerText)"
)


def choose(tab, field, value):
    tab.value(
        f"(() => {{ const field = document.getElementById('{field}');"
        f"field.type === 'checkbox' ? field.checked = {json.dumps(value)}"
        f" : field.value = {json.dumps(value)};"
        "field.dispatchEvent(new Event('input')); })()"
    )


def test_two_runs_side_by_side_are_filtered_and_sorted_by_any_column(tab, tmp_path):
    tab.open(side_by_side(tmp_path)[0])
    tab.wait(f"{SHOWN}.length === 3")
    choose(tab, "right-in", "A, not B")
    assert tab.value(SHOWN) == ["7"]
    choose(tab, "right-in", "")
    choose(tab, "label-b", "failed")
    assert tab.value(SHOWN) == ["8"]
    choose(tab, "label-b", "")
    columns = tab.value("[...document.querySelectorAll('#sort option')].map((one) => one.value)")
    assert len(columns) == 12
    # 17 tokens of question 7, 0 of question 8, and no trace of question 9.
    choose(tab, "sort", "tokens A")
    assert tab.value(SHOWN) == ["8", "7", "9"]
    choose(tab, "descending", True)
    assert tab.value(SHOWN) == ["7", "8", "9"]
    # The titles sort as well, and a second time the other way round.
    for expected in (["7", "8", "9"], ["9", "8", "7"]):
        tab.value("document.querySelector('thead th').click()")
        assert tab.value(SHOWN) == expected


# What stands before an entry on a narrow screen, and whether all of it is within the window.
LABELS_SHOWN = """[...document.querySelectorAll('td[data-column]')].map((entry) => {
  const [before, box] = [getComputedStyle(entry, '::before'), entry.getBoundingClientRect()];
  return before.content.slice(1, -1) === entry.dataset.column && before.display !== 'none'
    && box.right <= innerWidth;
})"""


WIDE = """[...document.querySelectorAll('main, main *')].filter((one) =>
  one.scrollWidth > one.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(one).overflowX)
).map((one) => one.outerHTML.slice(0, 99))"""


def check_phone(browser, page):
    browser.size(420)
    browser.open(page)
    browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert set(browser.value(LABELS_SHOWN)) == {True}
    assert browser.value(WIDE) == []
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")


def test_traces_have_labelled_entries_on_a_phone_and_do_not_scroll(browser, tmp_path):
    pages = [*traced(tmp_path / "run", two_rounds(), passages=AnyPassage()).glob("*.html")]
    for page in [*pages, side_by_side(tmp_path)[0]]:
        check_phone(browser, page)


def test_a_tuning_has_labelled_entries_on_a_phone_and_does_not_scroll(browser, tmp_path):
    settings = {"title": "T", "splits": ("dev", "test"), "cutoffs": [5]}
    report = render_tuning(tuned("held_out"), **settings, manifest={"config": {"a": 1}})
    check_phone(browser, write_report(tmp_path, report))
    # Columns of one title are told apart.
    row = "[...document.querySelector('#choices tbody tr').querySelectorAll('td')]"
    labels = browser.value(f"{row}.map((one) => one.dataset.column)")
    assert len(set(labels)) == len(labels) and "its value (dev)" in labels


def luminance(colour):
    """The relative luminance of WCAG 2.2 of red, green and blue from 0 to 255."""
    parts = [part / 255 for part in colour]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


PAINTED = """((colour, what) => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  return [...document.querySelectorAll(`.plot [style*="${what}: ${colour}"]`)].map((one) => {
    canvas.fillStyle = getComputedStyle(one)[what];
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  });
})"""


def test_figures_have_the_colours_of_a_dark_page(browser, tmp_path):
    runs = six_runs()
    rows = compare(runs, ["accuracy"], runs[0].name, test="t", resamples=99)
    page = write_report(tmp_path, render(ReportData(runs, rows, baseline=runs[0].name)))
    fills = "[...new Set([...document.querySelectorAll('.plot text')].map("
    fills += "(text) => getComputedStyle(text).fill))]"
    for scheme in ("light", "dark"):
        browser.size(1400, scheme)
        browser.open(page)
        assert browser.value(fills) == [browser.value("getComputedStyle(document.body).color")]
    # The contrast that WCAG 2.2 asks of text, against the dark page.
    paper = [int(part) for part in browser.value(
        "getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")]  # fmt: skip
    assert luminance(paper) < 0.01
    for colour in COLOURS[: len(runs)]:
        for what in ("fill", "stroke"):
            painted = browser.value(f"{PAINTED}('{colour}', '{what}')")
            lowest = min(luminance(each) for each in painted)
            assert (lowest + 0.05) / (luminance(paper) + 0.05) >= 4.5


def test_a_printed_report_has_no_column_of_single_letters(browser, tmp_path):
    runs = [
        replace(run, manifest={**run.manifest, "config": {f"key_{n}": {"setting": f"{run.name}-{n}"}
                                                          for n in range(30)}})
        for run in six_runs()
    ]  # fmt: skip
    browser.size(718, media="print")  # A4 at 96 pixels an inch, less margins of 1 cm
    browser.open(write_report(tmp_path, render(ReportData(runs))))
    browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    narrow = """[...document.querySelectorAll('tbody :is(th, td)')].filter((cell) =>
      cell.innerText.length > 8
      && cell.getBoundingClientRect().width < 40).map((cell) => cell.innerText.slice(0, 40))"""
    assert browser.value(narrow) == []
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
