"""Cells into verdicts, a table and a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from toolkit.console import Console, tell
from toolkit.evaluation import Cell, Verdict, compare, load_cells
from toolkit.evaluation.systems import Systems, by_benchmark, systems_of
from toolkit.files import write_json
from toolkit.report import benchmark_tables, comparison_table, render, write_report
from toolkit.report.traces import PAGE

ALL_PAIRS = 8  # cells, above which each is tested against the baseline (or the first) only
TESTED = ("accuracy", "F1@20", "nDCG@20", "recall_opened", "nDCG@10", "AP")


def compare_folders(
    paths: Sequence[Path],
    folder: Path,
    *,
    title: str,
    tested: Sequence[str] | None = None,
    baseline: str | None = None,
    factors: Mapping[str, str] | None = None,
    test: str = "randomisation",
    unfinished: Sequence[str] = (),
    by: Sequence[str] = (),
) -> None:
    """Load, test, print the table, write `report.html`, `report.md` and `verdicts.json`.

    Verdicts are between runs over the same benchmark content; a sweep over several benchmarks is
    compared within each, against the baseline's system, and has a table of systems by benchmarks
    with macro averages. `baseline` names the cell that the others are held against; or the first
    cell that has these `factors` is it. `unfinished` are lines about cells that have no numbers;
    `by` as in `systems_of`.
    """
    cells = load_cells(paths)
    if factors and baseline is None:
        baseline = cell_with(cells, factors)
    systems = systems_of(cells, by)
    verdicts: list[Verdict] = []
    for group in by_benchmark(cells):
        inside = _baseline_of(group, baseline, systems)
        if inside is None and len(group) > ALL_PAIRS:
            inside = _baseline_of(group, cells[0].name, systems) or group[0].name
        if len(group) > 1:
            verdicts += compare(group, shared(group, tested), inside, test=test)
    write_json(folder / "verdicts.json", [verdict._asdict() for verdict in verdicts])
    report = render(
        cells,
        verdicts,
        title=title,
        baseline=baseline,
        unfinished=unfinished,
        traces=trace_links(cells, paths, folder),
        by=by,
    )
    report_path = write_report(folder, report)
    console = Console()
    console.print(comparison_table(cells, verdicts, baseline=baseline))
    shown = list(dict.fromkeys(tested or ()))
    for table in benchmark_tables(cells, verdicts, baseline=baseline, measures=shown, by=by):
        console.print(table)
    console.print(f"Report: {report_path}", highlight=False, soft_wrap=True)


def cell_with(cells: Sequence[Cell], factors: Mapping[str, str]) -> str | None:
    """The name of the first cell that has all of these factors; None, and a line to the terminal,
    where there is none."""
    for cell in cells:
        if all(str(cell.factors.get(name)) == value for name, value in factors.items()):
            return cell.name
    wanted = ", ".join(f"{name}={value}" for name, value in factors.items())
    tell(f"no cell has {wanted}: the report has no such baseline")
    return None


def trace_links(cells: Sequence[Cell], paths: Sequence[Path], folder: Path) -> dict[str, str]:
    """Addresses, seen from a report in `folder`, of the traces of those cells that have some. The
    cells are those of `load_cells(paths)`."""
    cell_folders = dict.fromkeys(path.resolve() for path in paths)
    pages = {
        cell.name: cell_folder / PAGE for cell, cell_folder in zip(cells, cell_folders, strict=True)
    }
    return {
        name: quote(os.path.relpath(page, folder.resolve()))
        for name, page in pages.items()
        if page.is_file()
    }


def _baseline_of(
    group: Sequence[Cell], baseline: str | None, systems: Systems | None
) -> str | None:
    """The cell of one benchmark that others are tested against: the baseline, or its system's cell
    there; None where it has none."""
    names = {cell.name for cell in group}
    if baseline is None or baseline in names:
        return baseline
    system = systems.of(baseline) if systems else None
    cells = system.cells.values() if system else ()
    return next((cell.name for cell in cells if cell.name in names), None)


def shared(cells: Sequence[Cell], tested: Sequence[str] | None) -> list[str]:
    """The measures to test: those asked for, or the usual ones that all cells have."""
    return list(tested or [m for m in TESTED if all(m in cell.per_question for cell in cells)])
