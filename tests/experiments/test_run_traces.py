"""Commands write traces of the runs that they evaluate, and reports link to them."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from experiment_samples import TINY
from sealed_benchmark import ANSWERS, CANARY, QUESTIONS, VARIABLE, write_benchmark
from test_run_with_model import MODEL

from toolkit.runs import RunFolder

sys.path.append(str(Path(__file__).resolve().parents[1] / "toolkit" / "report"))
from trace_samples import handed_over, table

Entry = Callable[..., int]


def links(report: Path) -> set[Path]:
    """The files that a report's links lead to, seen from its folder."""
    page = report.read_text(encoding="utf-8")
    addresses = re.findall(r'<a href="([^#"][^"]*)"', page)
    return {(report.parent / unquote(html.unescape(address))).resolve() for address in addresses}


def test_each_cell_of_a_report_links_to_its_traces(entry: Entry) -> None:
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


def test_a_run_alone_has_traces_of_all_its_repeats(
    entry: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (*TINY, *MODEL, "llm.wavering=true", "name=r", "repeats=2", "preflight=0")
    assert entry("run", *command) == 0
    assert "runs/r/traces/index.html" in capsys.readouterr().err
    rows = table(Path("runs/r/traces"))
    assert len(rows) == 12 and {row["repeat"] for row in rows} == {1, 2}
    for row in rows:
        trajectory = RunFolder("runs/r").repeat(row["repeat"]).read(row["qid"])
        assert trajectory is not None
        trace = handed_over(Path("runs/r/traces", f"{row['name']}.js"))
        calls = [step for step in trace["steps"] if "call" in step]
        assert [call["output"] for call in calls] == [call.output for call in trajectory.calls]
        assert row["dollars"] == pytest.approx(trajectory.usage["dollars"])


def test_traces_can_be_left_out_and_written_later(entry: Entry) -> None:
    assert entry("run", *TINY, "name=x", "traces=false") == 0
    assert not Path("runs/x/traces").exists()
    # Whether they are written changes no trajectory: it is the same run.
    assert entry("run", *TINY, "name=x", "traces=false") == 0
    assert entry("evaluate", "runs/x") == 0
    assert len(list(Path("runs/x/traces").glob("1-*.js"))) == 6


def test_traces_of_a_sealed_run_are_sealed_and_hold_its_texts(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, CANARY)
    benchmark = write_benchmark(tmp_path / "published")
    assert entry("run", *benchmark, "name=s") == 0
    traces = Path("runs/s/traces")
    assert {row["qid"]: row["question"] for row in table(traces, CANARY)} == QUESTIONS
    for qid, answer in ANSWERS.items():
        trace = handed_over(traces / f"1-{qid}.js", CANARY)
        assert trace["question"] == QUESTIONS[qid] and trace["accepted"] == [answer]
    assert entry("scan", *benchmark, "runs") == 0
    assert entry("run", *benchmark, "name=clear", "sealed=false") == 0
    assert table(Path("runs/clear/traces"))[0]["qid"] in QUESTIONS
    assert entry("scan", *benchmark, "runs/clear/traces") == 1
