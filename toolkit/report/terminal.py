"""The tables of results, and of systems by benchmarks, for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.evaluation.comparison import by_benchmark, varied_factors
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.funnel import STEP_MEASURES, STEPS, UNSUPPORTED
from soundingline.toolkit.report.agents import GPU, cell_costs_table
from soundingline.toolkit.report.comparison import (
    Compared,
    averaged,
    benchmarks_table,
    difference_column,
    p_column,
    warnings,
)
from soundingline.toolkit.report.measures import percent
from soundingline.toolkit.report.page import RUN, Column, Table, TableEntry
from soundingline.toolkit.report.results import (
    ALPHA,
    ReportData,
    factor_value,
    labelled_by_factors,
    result_column,
)

WIDTH = 80
SIGNS = {"tie": "≈", "higher": "▲", "lower": "▼"}
_NAME = 16  # the least width of longer factors and names, which fold
_FEW = (
    *("accuracy", "F1@20", "nDCG@20", "nDCG@10", "tokens_exposed", "AP", "R@1000"),
    *("recall_surfaced", "recall_opened", "search_calls"),
)
_DIFFERENCE = "difference in"
_COLUMNS, _BESIDE = 6, 3  # of measures in a table, and in one with differences
# Where lines of names may break: after these signs, and at underscores if a part is still too long.
_BREAKS = re.compile(r"(?<=[\s=,·/])|(?<=\w-)|(?<=\.)(?!\d)")


@dataclass(frozen=True)
class _FilledColumn:
    """A column and its entries, from the first row to the last."""

    column: Column
    entries: Sequence[TableEntry]

    @property
    def texts(self) -> list[str]:
        """What the terminal shows of the entries."""
        return [escape_control(f"{SIGNS.get(e.mark, '')}{e.text}") for e in self.entries]

    @property
    def longest(self) -> int:
        """The width of the longest entry, or of a word of the title if that is longer."""
        word = max(map(cell_len, _broken(self.column.title).split()), default=0)
        return max([min(word, _NAME), *map(cell_len, self.texts)])

    @property
    def least_width(self) -> int:
        """The width that the column needs: names longer than `_NAME` fold, numbers do not."""
        return min(self.longest, WIDTH if self.column.numeric else _NAME)


def _filled(columns: Iterable[Column], items: Iterable[Any]) -> list[_FilledColumn]:
    rows = list(items)
    return [_FilledColumn(column, [column.entry(item) for item in rows]) for column in columns]


def comparison_table(data: ReportData, measures: Sequence[str] = ()) -> RichTable:
    """The table of results for 80 columns, with the differences on the main measure, their
    intervals and p values, if all runs of a benchmark were compared with one of them. Below it
    stand a legend, and what a reader must know, such as how many questions failed.

    Args:
        data: the runs and their paired comparisons.
        measures: the columns of numbers. Default: the usual ones that the runs have. Those that do
            not fit are left out; a line below the table names them if they were given.
    """
    present = [name for name in _FEW if any(name in run.metrics for run in data.runs)]
    rows = {row.a: row for row in data.comparisons_on(data.main)} if _one_reference(data) else {}
    usual = dict.fromkeys([*([data.main] if rows else []), *(present or data.measures)])
    most = _BESIDE if data.comparisons else _COLUMNS
    chosen = list(dict.fromkeys(measures)) or list(usual)[:most]
    by_factors = labelled_by_factors(data.styles) and not data.against_baseline
    results = [result_column(data, name) for name in chosen]
    if rows:  # the difference has the mark
        results = [replace(c, mark=None) if c.title == data.main else c for c in results]
    differences = _difference_columns(data, lambda style: rows.get(style.run.name)) if rows else []
    varied = [_factor_column(name) for name in varied_factors(data.runs) if by_factors]
    names, factors, numbers, compared = (
        _filled(group, data.styles) for group in ([RUN], varied, results, differences)
    )
    if factors and _width([*factors, *numbers, *compared]) <= WIDTH:
        names = factors
    left_out: list[str] = []
    while len(numbers) > 1 and _width([*names, *numbers, *compared]) > WIDTH:
        left_out.insert(0, numbers.pop().column.title)
    shown = [*names, *numbers, *compared]
    notes = [_legend(data, shown), *warnings(data)]
    if data.against_baseline:
        notes.insert(0, f"Baseline: {data.style(data.baseline).within}.")
    elif rows:
        notes.insert(0, f"Differences from {data.style(next(iter(rows.values())).b).label}.")
    if measures and left_out:
        notes.append(f"No room for {', '.join(left_out)}: see the report.")
    return _printed(shown, "\n".join(filter(None, notes)))


def pairs_tables(data: ReportData) -> list[RichTable]:
    """The differences of all pairs on the main measure; no table if `comparison_table` has the
    differences."""
    rows = data.comparisons_on(data.main)
    if not rows or _one_reference(data):
        return []
    pair = [
        Column("run", lambda row: data.style(row.a).change, numeric=False),
        Column("compared with", lambda row: data.style(row.b).change, numeric=False),
    ]
    shown = _filled([*pair, *_difference_columns(data, lambda row: row)], rows)
    return [_printed(shown, _legend(data, shown))]


def _one_reference(data: ReportData) -> bool:
    """Whether the runs of each benchmark were compared with one of them on the main measure."""
    others = {row.b for row in data.comparisons_on(data.main)}
    groups = [{run.name for run in group} for group in by_benchmark(data.runs)]
    return bool(others) and all(len(others & names) <= 1 for names in groups)


def _difference_columns(data: ReportData, compared: Compared) -> list[Column]:
    """The differences on the main measure with marks and intervals, and their p values."""
    column = difference_column(data, f"{_DIFFERENCE} {data.main} [95% interval]", compared)

    def difference(item: Any) -> TableEntry:
        row, entry = compared(item), column.entry(item)
        mark = ""
        if row is not None and data.significant(row):
            mark = "higher" if row.difference > 0 else "lower"
        return replace(entry, text=f"{entry.text} {entry.sub}".rstrip(), mark=mark)

    return [replace(column, source=difference), p_column(compared)]


def _legend(data: ReportData, columns: Sequence[_FilledColumn]) -> str:
    """What the signs of a table of differences, or of ties, mean, in one line; else empty."""
    signs = []
    if any(filled.column.title.startswith(_DIFFERENCE) for filled in columns):
        than = " than the baseline" if data.against_baseline else ""
        signs.append(f"{SIGNS['higher']}, {SIGNS['lower']}: significantly higher, lower{than}")
    if any(entry.mark == "tie" for filled in columns for entry in filled.entries):
        signs.append(f"{SIGNS['tie']}: tied with the best")
    return f"{'; '.join(signs)} (p ≤ {ALPHA:g}, Holm)." if signs else ""


def _factor_column(name: str) -> Column:
    return Column(name, lambda style: factor_value(style.run, name), numeric=False)


def benchmark_tables(data: ReportData, measures: Sequence[str] = ()) -> list[RichTable]:
    """Systems by benchmarks with the macro average, if there is one, without intervals.

    Args:
        data: the runs and their paired comparisons.
        measures: the measures to show. Default: the main measure.

    Returns:
        A table for each measure, several where the benchmarks need more than 80 columns; no table
        if all runs are over one benchmark.
    """
    if data.systems is None:
        return []
    tables = []
    for measure in measures or [data.main]:
        if averaged(data.systems, measure):
            tables += _narrow(benchmarks_table(data, data.systems, measure), measure)
    return tables


def evidence_line(data: ReportData) -> str:
    """The share of questions that passed each step from the evidence to a right answer, of the
    baseline that runs were compared with, else of the run with the highest accuracy. Empty for runs
    of which it is not known."""
    systems = [style for style in data.styles if style.run.name not in data.bounds]
    measured = {s.run.name: s for s in systems if STEP_MEASURES[0] in s.run.metrics}
    if not measured:
        return ""
    best = max(measured.values(), key=lambda style: style.run.metrics["accuracy"])
    style = measured.get(data.baseline if data.against_baseline else "", best)
    metrics = style.run.metrics
    steps = zip(STEPS, STEP_MEASURES, strict=True)
    shares = [f"{step.replace('_', ' ')} {percent(metrics[measure])}" for step, measure in steps]
    count = len(style.run.per_question[STEP_MEASURES[0]])
    return (
        f"Evidence in {style.label}, {count:,} questions: {', '.join(shares)}; right without a "
        f"shown answer {percent(metrics[UNSUPPORTED])}."
    )


def cost_tables(runs: Sequence[EvaluatedRun]) -> list[RichTable]:
    """The median and the 90th percentile of what a question cost, and the seconds of GPUs, indexes
    and phrases, in tables of 80 columns; none for runs without language models and GPUs."""
    table = cell_costs_table(ReportData(runs))
    if table is None or not {"dollars", "tokens", GPU} & {one.title for one in table.columns}:
        return []
    return _narrow(table, "Cost: median / 90th percentile of a question")


def _narrow(table: Table, title: str) -> list[RichTable]:
    """A table as one for the terminal, or as several with the same first column where its columns
    need more than 80 characters."""
    first, *others = [
        _FilledColumn(column, [row[place] for row in table.rows])
        for place, column in enumerate(table.columns)
    ]
    groups = [[first]]
    for column in others:
        if len(groups[-1]) > 1 and _width([*groups[-1], column]) > WIDTH:
            groups.append([first])
        groups[-1].append(column)
    notes = [*[""] * (len(groups) - 1), table.note]
    return [_printed(group, note, title) for group, note in zip(groups, notes, strict=True)]


def _printed(columns: Sequence[_FilledColumn], note: str, title: str = "") -> RichTable:
    printed = RichTable(
        title=Text(escape_control(title)) if title else None,
        title_justify="left",
        # In lines of its own, because Rich would fold it to the width of the table.
        caption=Text("\n".join(_lines(note)), no_wrap=True, overflow="ignore") if note else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    numbers = [filled for filled in columns if filled.column.numeric]
    # Names share what the numbers leave.
    names = len(columns) - len(numbers)
    room = max((WIDTH - _width(numbers) - names) // max(1, names), _NAME)
    cells = []
    for filled in columns:
        column, texts, width = filled.column, filled.texts, filled.longest
        if not column.numeric:
            texts, width = [_folded(text, room) for text in texts], min(width, room)
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        # The width is fixed, because Rich would cut or break numbers that have no room.
        head = Text(_broken(column.title))
        printed.add_column(head, justify=justify, overflow="fold", width=width)
        # `Text`, because brackets in a string are markup for Rich.
        styles = ["bold" if entry.mark == "best" else "" for entry in filled.entries]
        cells.append([Text(text, style=s) for text, s in zip(texts, styles, strict=True)])
    for row in zip(*cells, strict=True):
        printed.add_row(*row)
    return printed


def _lines(note: str) -> Iterator[str]:
    for line in escape_control(note).splitlines():
        yield from textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def _folded(text: str, width: int) -> str:
    """A name in lines of at most `width` columns, which break between words where they can."""
    lines = [""]
    for part in _BREAKS.split(text):
        for word in [part] if cell_len(part.rstrip()) <= width else re.split("(?<=_)", part):
            if cell_len(f"{lines[-1]}{word}".rstrip()) > width:
                lines.append("")
            lines[-1] += word
    return "\n".join(line.rstrip() for line in lines if line)


def _width(columns: Sequence[_FilledColumn]) -> int:
    """The characters of a line, with gaps between the columns and long names folded."""
    return sum(filled.least_width for filled in columns) + len(columns) - 1


def _broken(title: str) -> str:
    """A title whose lines break at underscores, and at the dots of settings."""
    return re.sub(r"_|\.(?!\d)", " ", escape_control(title))
