"""The table of cells for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table as RichTable

from toolkit.evaluation.cells import Cell
from toolkit.evaluation.compare import Verdict
from toolkit.report.results import cells_table, count_names, questions
from toolkit.report.setting import Setting, settle
from toolkit.report.tables import Entry

_FEW = (
    "accuracy",
    "recall_surfaced",
    "recall_opened",
    "recall_cited",
    "search_calls",
    "nDCG@10",
    "AP",
    "R@1000",
)
_NARROW = 16


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
    setting = settle(cells, verdicts, main=main, baseline=baseline, measures=measures, alpha=alpha)
    counted = count_names(setting)
    chosen = list(measures) or _few(setting)[: 7 - len(counted)]
    table = cells_table(setting, chosen, counts=False)
    last = table.columns[-1].title == "run"
    shown = len(table.columns) - last
    made = RichTable(
        title=escape(title) or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for index, column in enumerate(table.columns[:shown]):
        title = column.title.replace("_", " ")
        width = max(cell_len(_text(row[index])) for row in table.rows)
        if column.numeric:  # headers may break at spaces, numbers never
            made.add_column(escape(title), justify="right", width=_fitting(title, width))
        else:
            made.add_column(escape(title), overflow="fold", no_wrap=width <= _NARROW)
    for name in counted:
        made.add_column(name, justify="right", no_wrap=True)
    for look, row in zip(setting.looks, table.rows, strict=True):
        counts = [_count(look.cell, name) for name in counted]
        made.add_row(*(_entry(entry) for entry in row[:shown]), *counts)
    return made


def _few(setting: Setting) -> list[str]:
    present = {name for cell in setting.cells for name in cell.metrics}
    return [name for name in _FEW if name in present] or list(setting.measures)


def _count(cell: Cell, name: str) -> str:
    return f"{cell.counts.get(name, 0):,}/{questions(cell):,}"


def _fitting(title: str, width: int) -> int:
    return max(width, *(cell_len(word) for word in title.split()))


def _text(entry: Entry) -> str:
    return f"≈{entry.text}" if entry.mark == "tie" else entry.text


def _entry(entry: Entry) -> str:
    text = escape(_text(entry))
    return f"[bold]{text}[/bold]" if entry.mark == "best" else text
