"""The parts of a report, free of any format: HTML, Markdown and terminal print the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.evaluation.cells import Cell

COLOURS = 8


@dataclass(frozen=True)
class CellStyle:
    """How one cell is named and drawn, the same in every table and figure.

    `colour` is 0 to `COLOURS - 1`, or None for a cell that stays in the background because there
    are more cells than colours that can be told apart.
    """

    cell: Cell
    label: str
    colour: int | None


@dataclass(frozen=True)
class Column:
    title: str
    note: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Entry:
    """One table entry. `sub` is printed small after `text`; `mark` is `best`, `tie` or empty;
    `link` is a relative address, or empty."""

    text: str
    sub: str = ""
    mark: str = ""
    style: CellStyle | None = None
    link: str = ""


@dataclass(frozen=True)
class Table:
    """`folded` is the summary line of a table that starts closed in HTML; empty: open."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]
    note: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Figure:
    """`svg` is trusted markup made by `toolkit.report.svg`; everything else is plain text."""

    svg: str
    heading: str = ""
    style: CellStyle | None = None


@dataclass(frozen=True)
class Section:
    """One heading with what stands below it, in this order: lead, legend, figures, `key` (how to
    read the figures), note, tables."""

    anchor: str
    title: str
    lead: str = ""
    legend: Sequence[CellStyle] = ()
    figures: Sequence[Figure] = ()
    key: str = ""
    note: str = ""
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Span:
    """A piece of a sentence."""

    text: str
    strong: bool = False
