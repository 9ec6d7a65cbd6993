"""Commands write traces of the runs that they evaluate, and reports link to them."""

import html
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from experiment_samples import TINY
from support.benchmarks import ANSWERS, CANARY, QUESTIONS, VARIABLE, leaks, write_benchmark
from support.html_page import Page
from test_run_with_model import MODEL

from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import escape_qid


def links(report):
    """The files that a report's links lead to, seen from its folder."""
    page = report.read_text(encoding="utf-8")
    addresses = re.findall(r'<a href="([^#"][^"]*)"', page)
    return {(report.parent / unquote(html.unescape(address))).resolve() for address in addresses}


def test_each_cell_of_a_report_links_to_its_traces(entry):
    assert entry("run", "-m", *TINY, "unit=document,maxp", "name=s") == 0
    pages = {path.resolve() for path in Path("runs/s").glob("*/traces/index.html")}
    assert len(pages) == 2
    assert links(Path("runs/s/report.html")) == pages
    cells = sorted(str(path.parent) for path in Path("runs/s").glob("*/metrics.json"))
    (Path(cells[0]) / "traces" / "index.html").unlink()
    assert entry("compare", *cells, "name=both") == 0
    (left,) = links(Path("runs/both/report.html"))
    assert left == Path(cells[1], "traces/index.html").resolve()
    assert "/traces/index.html)" in Path("runs/both/report.md").read_text()


def test_a_run_alone_has_traces_of_all_its_repeats(entry, capsys):
    command = (*TINY, *MODEL, "llm.wavering=true", "name=r", "repeats=2", "preflight=0")
    assert entry("run", *command) == 0
    assert "runs/r/traces/index.html" in capsys.readouterr().err
    traces = Path("runs/r/traces")
    rows = Page(traces / "index.html").rows()
    assert len(rows) == 13 and len(list(traces.glob("[12]-*.html"))) == 12
    for repeat in (1, 2):
        for trajectory in RunFolder("runs/r").repeat(repeat).trajectories():
            page = Page(traces / f"{repeat}-{escape_qid(trajectory.qid)}.html")
            assert len(page.texts("section", "call")) == len(trajectory.calls)
            outputs = page.raw("pre")
            assert all(call.output in outputs for call in trajectory.calls)
            assert f"${trajectory.usage['dollars']:.4f}" in page.texts("span")


def test_traces_can_be_left_out_and_written_later(entry):
    assert entry("run", *TINY, "name=x", "traces=false") == 0
    assert not Path("runs/x/traces").exists()
    # Whether they are written changes no trajectory: it is the same run.
    assert entry("run", *TINY, "name=x", "traces=false") == 0
    assert entry("evaluate", "runs/x") == 0
    assert len(list(Path("runs/x/traces").glob("1-*.html"))) == 6


def test_an_obfuscated_run_has_traces_only_where_plain_ones_are_asked_for(
    entry,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.setenv(VARIABLE, CANARY)
    benchmark = write_benchmark(tmp_path / "published")
    assert entry("run", *benchmark, "name=s") == 0
    assert "traces=plain" in capsys.readouterr().err
    assert not Path("runs/s/traces").exists()
    assert not list(leaks("runs"))
    for command in (("run", *benchmark, "name=p"), ("evaluate", "runs/p")):
        assert entry(*command, "traces=plain") == 0
        for qid, answer in ANSWERS.items():
            page = Page(Path(f"runs/p/traces/1-{qid}.html"))
            assert page.texts("p", "asked") == [QUESTIONS[qid]]
            assert page.texts("li", "exact") == [answer]
        shutil.rmtree("runs/p/traces")
    assert not list(leaks("runs"))
    assert entry("run", *benchmark, "name=clear", "sealed=false") == 0
    shown = {text for _, text in leaks("runs/clear/traces")}
    assert shown >= {*QUESTIONS.values(), *ANSWERS.values()}
