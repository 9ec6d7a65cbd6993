"""Comparison of run folders: paired tests, a table on the terminal, and a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from soundingline.toolkit.console import Console, notify
from soundingline.toolkit.evaluation import EvaluatedRun, PairedComparison, compare, load_runs
from soundingline.toolkit.evaluation.comparison import Systems, by_benchmark, systems_of
from soundingline.toolkit.files import write_json
from soundingline.toolkit.report import benchmark_tables, comparison_table, render, write_report
from soundingline.toolkit.report.traces import PAGE

ALL_PAIRS = 8  # with more runs, each is compared only with the baseline (or the first run)
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
    """Compare evaluated runs, print a table, and write `report.html`, `report.md` and
    `verdicts.json`.

    Only runs over the same benchmark content are compared. Runs over several benchmarks are
    compared within each, with the run of the baseline's system, and have a table of systems by
    benchmarks with macro averages.

    Args:
        paths: the run folders.
        folder: where the report is written.
        title: the report's title.
        tested: the measures to test; None for those of `TESTED` that all runs have.
        baseline: the name of the run that the others are compared with.
        factors: without a baseline, the first run with these factors is the baseline.
        test: see `statistics.paired_test`.
        unfinished: lines about runs without an evaluation, for the report.
        by: see `systems_of`.
    """
    runs = load_runs(paths)
    if factors and baseline is None:
        baseline = _run_with(runs, factors)
    systems = systems_of(runs, by)
    comparisons: list[PairedComparison] = []
    for group in by_benchmark(runs):
        inside = _baseline_of(group, baseline, systems)
        if inside is None and len(group) > ALL_PAIRS:
            inside = _baseline_of(group, runs[0].name, systems) or group[0].name
        questions = max((len(values) for values in group[0].per_question.values()), default=0)
        if len(group) > 1 and questions < 2:
            notify(f"{group[0].name} has one question: paired comparisons need two or more")
        elif len(group) > 1:
            known = [m for m in TESTED if all(m in run.per_question for run in group)]
            comparisons += compare(group, list(tested or known), inside, test=test)
    write_json(folder / "verdicts.json", [row._asdict() for row in comparisons])
    report = render(
        runs,
        comparisons,
        title=title,
        baseline=baseline,
        unfinished=unfinished,
        traces=_trace_links(runs, paths, folder),
        by=by,
    )
    report_path = write_report(folder, report)
    console = Console()
    console.print(comparison_table(runs, comparisons, baseline=baseline))
    shown = list(dict.fromkeys(tested or ()))
    for table in benchmark_tables(runs, comparisons, baseline=baseline, measures=shown, by=by):
        console.print(table)
    console.print(f"Report: {report_path}", highlight=False, soft_wrap=True)


def _run_with(runs: Sequence[EvaluatedRun], factors: Mapping[str, str]) -> str | None:
    """The name of the first run with these factors; None, with a line on the terminal, if there is
    none."""
    for run in runs:
        if all(str(run.factors.get(name)) == value for name, value in factors.items()):
            return run.name
    wanted = ", ".join(f"{name}={value}" for name, value in factors.items())
    notify(f"no run has {wanted}: the report has no such baseline")
    return None


def _trace_links(
    runs: Sequence[EvaluatedRun], paths: Sequence[Path], folder: Path
) -> dict[str, str]:
    """The addresses of the runs' traces, relative to a report in `folder`. The runs are those of
    `load_runs(paths)`."""
    folders = dict.fromkeys(path.resolve() for path in paths)
    pages = {run.name: path / PAGE for run, path in zip(runs, folders, strict=True)}
    return {
        name: quote(os.path.relpath(page, folder.resolve()))
        for name, page in pages.items()
        if page.is_file()
    }


def _baseline_of(
    group: Sequence[EvaluatedRun], baseline: str | None, systems: Systems | None
) -> str | None:
    """The run of one benchmark that the others are compared with: the baseline, or the run of the
    baseline's system; None if there is none."""
    names = {run.name for run in group}
    if baseline is None or baseline in names:
        return baseline
    system = systems.of(baseline) if systems else None
    runs = system.runs.values() if system else ()
    return next((run.name for run in runs if run.name in names), None)
