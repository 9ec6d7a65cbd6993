"""The tables of cells, and of systems by benchmarks, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from toolkit.console import visible
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.compare import Verdict
from toolkit.report.benchmarks import benchmarks_table, comparable
from toolkit.report.data import ReportData, report_data, telling_factors
from toolkit.report.results import cells_table, count_names, counted_over
from toolkit.report.tables import Column, Entry, Table

_FEW = (
    "accuracy",
    "F1@20",
    "nDCG@20",
    "recall_surfaced",
    "recall_opened",
    "recall_cited",
    "search_calls",
    "nDCG@10",
    "AP",
    "R@1000",
)
_NARROW = 16
_WIDEST = 80
_COUNT = 7  # characters of a count out of all questions, usually


def comparison_table(
    cells: Sequence[Cell],
    verdicts: Sequence[Verdict] = (),
    *,
    title: str = "",
    main: str | None = None,
    baseline: str | None = None,
    measures: Sequence[str] = (),
    alpha: float = 0.05,
) -> RichTable:
    """The table of cells, without intervals, to fit 80 columns; the arguments are `render`'s.

    Where the varied factors tell the cells apart, they stand in place of the names. Failed and
    unjudged questions are counts out of the cell's questions.
    """
    data = report_data(
        cells, verdicts, main=main, baseline=baseline, measures=measures, alpha=alpha
    )
    counted = count_names(data)
    chosen = list(measures) or _few(data)[: 7 - len(counted)]
    table = cells_table(data, chosen, counts=False)
    # Many factors leave room for fewer of them, and for fewer measures.
    if _width(table, counted) > _WIDEST:
        factors = telling_factors(data.cells)
        table = cells_table(data, chosen, counts=False, factors=factors)
        while not measures and len(chosen) > 1 and _width(table, counted) > _WIDEST:
            chosen.pop()
            table = cells_table(data, chosen, counts=False, factors=factors)
    columns_shown = _shown(table)
    rich_table = RichTable(
        title=Text(visible(title)) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for index, column in enumerate(table.columns[:columns_shown]):
        title, width = _title(column), _fitting(table, index)
        if column.numeric:  # headers may break at spaces, numbers never
            rich_table.add_column(Text(title), justify="right", width=width)
        elif width <= _NARROW:
            rich_table.add_column(Text(title), overflow="fold", width=width)
        else:
            rich_table.add_column(Text(title), overflow="fold")
    for name in counted:
        rich_table.add_column(name, justify="right", no_wrap=True)
    for style, row in zip(data.styles, table.rows, strict=True):
        counts = [_count(style.cell, name) for name in counted]
        rich_table.add_row(*(_entry(entry) for entry in row[:columns_shown]), *counts)
    return rich_table


def benchmark_tables(
    cells: Sequence[Cell],
    verdicts: Sequence[Verdict] = (),
    *,
    main: str | None = None,
    baseline: str | None = None,
    measures: Sequence[str] = (),
    by: Sequence[str] = (),
    alpha: float = 0.05,
) -> list[RichTable]:
    """Systems by benchmarks with the macro average: a table for each of `measures` (default: the
    main one), without intervals; none where all cells are over one benchmark."""
    data = report_data(
        cells, verdicts, main=main, baseline=baseline, measures=measures, alpha=alpha, by=by
    )
    systems = data.systems
    if systems is None:
        return []
    tables = []
    for measure in list(measures) or [data.main]:
        if not comparable(systems, measure):
            continue
        table = benchmarks_table(data, systems, measure)
        rich_table = RichTable(
            title=Text(visible(measure)),
            title_justify="left",
            caption=Text(visible(table.note)) if table.note else None,
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=0,
            show_edge=False,
        )
        for column in table.columns:
            justify: JustifyMethod = "right" if column.numeric else "left"
            rich_table.add_column(Text(visible(column.title)), justify=justify, overflow="fold")
        for row in table.rows:
            rich_table.add_row(*map(_entry, row))
        tables.append(rich_table)
    return tables


def _few(data: ReportData) -> list[str]:
    present = {name for cell in data.cells for name in cell.metrics}
    return [name for name in _FEW if name in present] or list(data.measures)


def _count(cell: Cell, name: str) -> str:
    return f"{cell.counts.get(name, 0):,}/{counted_over(cell, name):,}"


def _shown(table: Table) -> int:
    """How many columns stand in the terminal: not the names of runs, where factors tell them."""
    return len(table.columns) - (table.columns[-1].title == "run")


def _width(table: Table, counted: Sequence[str]) -> int:
    """Characters of a line, gaps between columns included; long names fold."""
    widths = [min(_fitting(table, index), _NARROW) for index in range(_shown(table))]
    widths += [max(len(name), _COUNT) for name in counted]
    return sum(widths) + len(widths) - 1


def _title(column: Column) -> str:
    title = visible(column.title)
    return title.replace("_", " ").replace(".", " ", 0 if column.numeric else -1)


def _fitting(table: Table, index: int) -> int:
    """The width of a column: of its longest value or word of its title."""
    words = _title(table.columns[index]).split()
    return max(cell_len(text) for text in (*words, *(_text(row[index]) for row in table.rows)))


def _text(entry: Entry) -> str:
    return visible(f"≈{entry.text}" if entry.mark == "tie" else entry.text)


def _entry(entry: Entry) -> Text:
    # Not markup: the table is printed by whatever console a caller has.
    return Text(_text(entry), style="bold" if entry.mark == "best" else "")
