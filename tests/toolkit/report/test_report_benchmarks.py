"""Systems by benchmarks: which cells are one system, macro averages, and what is missing."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from report_cells import fake_cell
from rich.console import Console

from toolkit.errors import InputError
from toolkit.evaluation import Cell, compare
from toolkit.evaluation.systems import by_benchmark, systems_of
from toolkit.report import Report, benchmark_tables, render

pytestmark = pytest.mark.slow

LEVELS = {"bm25": 0.4, "tuned": 0.5, "sira": 0.8}


def cell(benchmark: str, retriever: str, level: float = 0.5, **settings: str) -> Cell:
    name = f"{benchmark}-{retriever}"
    factors = {"benchmark": "beir", "unit": "passage", "retriever": retriever, **settings}
    one = fake_cell(name, level, questions=40, **factors)
    return replace(
        one,
        factors={**factors, "benchmark.limit": benchmark},
        manifest={
            "config": {"benchmark": {"name": benchmark}, "retriever": {}, "unit": {}},
            "fingerprints": {
                "benchmark": f"content of {benchmark}",
                "index": f"{benchmark}-{retriever}",
                "retriever": retriever,
                "retriever.content": f"{benchmark}-{retriever}",
                "unit": "passage",
                **settings,
            },
        },
    )


def grid(*left_out: str) -> list[Cell]:
    cells = [cell(b, r, level) for b in ("nq", "fever", "quora") for r, level in LEVELS.items()]
    return [one for one in cells if one.name not in left_out]


def report(cells: list[Cell], **arguments: Any) -> Report:
    verdicts = []
    for group in by_benchmark(cells):
        verdicts += compare(group, ["nDCG@10"], test="t", resamples=99)
    return render(cells, verdicts, main="nDCG@10", **arguments)


def table(page: Report) -> list[list[str]]:
    """The first table of the Markdown report, as rows of texts."""
    lines = page.markdown.split("\n")
    first = next(n for n, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([entry.strip() for entry in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_rows_are_systems_columns_benchmarks_and_the_last_the_mean_of_the_row() -> None:
    cells = grid()
    header, *rows = table(report(cells))
    assert header == ["system", "nq", "fever", "quora", "macro average"]
    assert [row[0] for row in rows] == ["bm25", "tuned", "sira"]
    for row in rows:
        own = [one.metrics["nDCG@10"] for one in cells if one.factors["retriever"] == row[0]]
        shown = [entry.strip("*≈ ").split(" ")[0].strip("*") for entry in row[1:]]
        assert shown == [f"{value:.4f}" for value in (*own, sum(own) / 3)]
    # The best of each benchmark is marked there, not the best of all cells alone.
    assert all(entry.startswith(("**", "≈")) for entry in rows[2][1:4])


def test_a_system_that_lacks_a_benchmark_has_no_macro_average_and_it_is_said() -> None:
    page = report(grid("fever-sira"))
    _, *rows = table(page)
    assert rows[2][2] == "—" and rows[2][4] == "—"
    assert rows[0][4] != "—"
    for text in (page.markdown, page.html):
        assert "No macro average of sira: missing on fever." in text
    assert "**tuned** has the highest macro average of nDCG@10 over 3 benchmarks" in page.markdown


def test_a_measure_that_a_benchmark_does_not_have_is_averaged_over_the_others() -> None:
    cells = [
        replace(one, metrics={k: v for k, v in one.metrics.items() if k != "nDCG@10"})
        if one.name.startswith("quora")
        else one
        for one in grid()
    ]
    systems = systems_of(cells)
    assert systems is not None
    (bm25, *_) = systems.systems
    own = [one.metrics["nDCG@10"] for one in cells[:6] if one.factors["retriever"] == "bm25"]
    assert systems.macro_average(bm25, "nDCG@10") == pytest.approx(sum(own) / 2)
    assert "No system has nDCG@10 on quora." in render(cells, main="nDCG@10").markdown


def test_differences_are_those_of_the_paired_comparison_on_each_benchmark() -> None:
    cells = grid()
    text = report(cells, baseline="fever-tuned").markdown
    lines = [line for line in text.split("\n") if line.startswith("| sira")]
    entries = [entry.strip() for entry in lines[1].strip("|").split("|")]
    for entry, benchmark in zip(entries[1:], ("nq", "fever", "quora"), strict=True):
        pair = [one for one in cells if one.name in (f"{benchmark}-sira", f"{benchmark}-tuned")]
        (row,) = compare(pair[::-1], ["nDCG@10"], baseline=f"{benchmark}-tuned", test="t")
        assert f"+{row.difference:.4f}" in entry
    assert "Difference in nDCG@10 from tuned" in text


def test_settings_tell_systems_apart_and_contents_do_not() -> None:
    cells = [cell("nq", "sira", task="claim"), cell("fever", "sira", task="claim")]
    for at, content in enumerate("ab"):
        prints = {**cells[at].manifest["fingerprints"], "splade-index": content}
        cells[at] = replace(cells[at], manifest={**cells[at].manifest, "fingerprints": prints})
    systems = systems_of(cells)
    assert systems is not None and len(systems.systems) == 1
    cells = [cells[0], cell("fever", "sira", task="argument")]
    for one in cells:
        one.manifest["config"]["task"] = {}
    apart, together = systems_of(cells), systems_of(cells, by=["retriever"])
    assert apart is not None and [s.label for s in apart.systems] == ["claim", "argument"]
    assert together is not None and [s.label for s in together.systems] == ["sira"]


def test_factors_that_do_not_tell_the_runs_of_a_benchmark_apart_are_refused() -> None:
    """Else the rows of the table would be a matter of the order of the runs."""
    cells = [cell(benchmark, name) for benchmark in ("nq", "fever") for name in ("sira", "bm25")]
    with pytest.raises(InputError, match=r"no run has the factor retreiver\. valid: retriever"):
        systems_of(cells, by=["retreiver"])
    alike = "nq-sira and nq-bm25 have the same unit and differ otherwise.*add retriever"
    with pytest.raises(InputError, match=alike):
        systems_of(cells, by=["unit"])
    again = replace(cells[0], name="nq-sira-again")
    systems = systems_of([*cells, again], by=["retriever"])
    assert systems is not None and len(systems.systems) == 3


def test_equal_configurations_on_one_benchmark_are_systems_of_their_own() -> None:
    again = replace(cell("nq", "bm25"), name="nq-bm25-again")
    systems = systems_of([cell("nq", "bm25"), again, cell("fever", "bm25")])
    assert systems is not None
    assert [sorted(system.cells) for system in systems.systems] == [["fever", "nq"], ["nq"]]
    assert [system.label for system in systems.systems] == ["nq-bm25", "nq-bm25-again"]
    assert systems_of([cell("nq", "bm25"), again]) is None


def test_the_terminal_has_a_table_for_each_measure_asked_for() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    tables = benchmark_tables(grid("nq-sira"), measures=["nDCG@10", "accuracy"])
    for one in tables:
        console.print(one)
    text = console.export_text()
    assert len(tables) == 2 and "nDCG@10" in text and "accuracy" in text
    assert "macro average" in " ".join(text.split()) and "missing on nq" in text
    assert benchmark_tables([cell("nq", "bm25"), cell("nq", "sira")]) == []
