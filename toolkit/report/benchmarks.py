"""Systems by benchmarks: one table a measure, with the macro average, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.evaluation.systems import System, Systems
from toolkit.report.data import ReportData
from toolkit.report.measures import HIGHER, LOWER, describe, number
from toolkit.report.results import cell_interval, interval_text
from toolkit.report.tables import Column, Entry, Section, Table

MACRO = "macro average"


def benchmarks_section(data: ReportData) -> Section | None:
    """None where all cells are over one benchmark, or share no measure over two."""
    systems = data.systems
    if systems is None:
        return None
    wanted = [data.main, *(name for name in data.measures if name != data.main)]
    measures = [name for name in wanted if comparable(systems, name)]
    if not measures:
        return None
    tables = [benchmarks_table(data, systems, measures[0])]
    if differences := differences_table(data, systems, measures[0]):
        tables.append(differences)
    tables += [
        benchmarks_table(data, systems, name, folded=f"{name} by benchmark")
        for name in measures[1:]
    ]
    return Section(
        "benchmarks",
        f"{measures[0]} by benchmark",
        lead=f"{len(systems.systems)} systems over {len(systems.benchmarks)} benchmarks: a system "
        "is what has the same settings but for the benchmark’s.",
        note="The macro average is the mean over the benchmarks, each alike; it is not tested, "
        "because a few benchmarks are no sample. Tests are paired within each benchmark, and "
        "corrected over its own comparisons. Bold: best there, and separated from every other; "
        "≈: not separated from the best, or not tested.",
        tables=tables,
    )


def comparable(systems: Systems, measure: str) -> bool:
    """Whether a table of benchmarks says anything on a measure of quality."""
    better = describe(measure).better in (HIGHER, LOWER)
    return better and len(systems.benchmarks_of(measure)) > 1


def benchmarks_table(
    data: ReportData, systems: Systems, measure: str, *, folded: str = ""
) -> Table:
    """One row a system, one column a benchmark, and the macro average."""
    benchmarks = systems.benchmarks_of(measure)
    digits = describe(measure).digits
    marks = data.marks(measure)
    rows = []
    for system in systems.systems:
        row = [Entry(system.label)]
        row += [_value(system, measure, benchmark, marks) for benchmark in benchmarks]
        row.append(Entry(number(systems.macro_average(system, measure), digits)))
        rows.append(row)
    columns = [
        Column("system", numeric=False),
        *(Column(benchmark) for benchmark in benchmarks),
        Column(MACRO),
    ]
    return Table(columns, rows, note=missing(systems, measure), folded=folded)


def differences_table(data: ReportData, systems: Systems, measure: str) -> Table | None:
    """The systems less the baseline's, on each benchmark on which both were compared; None without
    any such comparison."""
    baseline = systems.of(data.baseline) or systems.systems[0]
    others = [system for system in systems.systems if system is not baseline]
    benchmarks = systems.benchmarks_of(measure)
    rows = [
        [
            Entry(system.label),
            *(_difference(data, measure, system, baseline, name) for name in benchmarks),
        ]
        for system in others
    ]
    if all(entry.text == "—" for row in rows for entry in row[1:]):
        return None
    columns = [Column("system", numeric=False), *(Column(name) for name in benchmarks)]
    note = (
        f"Difference in {measure} from {baseline.label}, with its 95% interval. Bold: resolved, "
        f"that is p after Holm’s correction at most {data.alpha:g}."
    )
    return Table(columns, rows, note=note)


def missing(systems: Systems, measure: str) -> str:
    """What the table of a measure lacks, and what that leaves out; empty where nothing is."""
    benchmarks = systems.benchmarks_of(measure)
    lines = []
    without = [name for name in systems.benchmarks if name not in benchmarks]
    if without:
        lines.append(f"No system has {measure} on {', '.join(without)}.")
    for system in systems.systems:
        lacks = [name for name in benchmarks if system.value(measure, name) is None]
        if lacks:
            lines.append(f"No macro average of {system.label}: missing on {', '.join(lacks)}.")
    return " ".join(lines)


def _value(system: System, measure: str, benchmark: str, marks: Mapping[str, str]) -> Entry:
    value, digits = system.value(measure, benchmark), describe(measure).digits
    if value is None:
        return Entry("—")
    cell = system.cells[benchmark]
    interval = cell_interval(cell, measure)
    sub = interval_text(*interval, digits) if interval else ""
    return Entry(number(value, digits), sub=sub, mark=marks.get(cell.name, ""))


def _difference(
    data: ReportData, measure: str, system: System, baseline: System, benchmark: str
) -> Entry:
    cells = [row.cells.get(benchmark) for row in (system, baseline)]
    one, other = cells
    pair = data.pair(measure, one.name, other.name) if one and other else None
    if pair is None:
        return Entry("—")
    digits = describe(measure).digits
    return Entry(
        number(pair.difference, digits, sign=True),
        sub=interval_text(pair.low, pair.high, digits),
        mark="best" if data.resolved(pair) else "",
    )


def leaders(systems: Systems, measure: str) -> Sequence[tuple[System, float]]:
    """Systems with a macro average, the best first."""
    averages = [(system, systems.macro_average(system, measure)) for system in systems.systems]
    present = [(system, value) for system, value in averages if value is not None]
    lower = describe(measure).better == LOWER
    return sorted(present, key=lambda row: row[1] if lower else -row[1])
