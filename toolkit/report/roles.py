"""What each role of a language model took, where a run has several: agent, re-ranker, navigator."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.evaluation.cells import Cell
from toolkit.llm.accounts import ROLES
from toolkit.report.data import ReportData
from toolkit.report.measures import describe, number
from toolkit.report.tables import CellStyle, Column, Entry, Section, Table

_QUANTITIES = ("calls", "input_tokens", "cached_tokens", "output_tokens", "seconds", "dollars")


def roles_section(data: ReportData) -> Section | None:
    """A row for each role of each cell; None where no cell has more than one."""
    roles = {style.cell.name: cell_roles(style.cell) for style in data.styles}
    if all(len(names) < 2 for names in roles.values()):
        return None
    columns = [Column("cell", numeric=False), Column("role", numeric=False)]
    columns += [Column(name.replace("_", " ")) for name in _QUANTITIES]
    columns.append(Column("share", "of the dollars"))
    rows = [
        row
        for style in data.styles
        if roles[style.cell.name]
        for row in _rows(style, roles[style.cell.name])
    ]
    return Section(
        "roles",
        "Cost by role",
        lead="What language models took for a question, by the part that asked them.",
        note="Means over the questions of which they are known; — where they are known of none. "
        "The judge, and phrases for a whole corpus, are no part of a question.",
        tables=[Table(columns, rows)],
    )


def cell_roles(cell: Cell) -> list[str]:
    """The roles that asked a language model in a cell, in the order of `ROLES`."""
    return [role for role in ROLES if cell.metrics.get(f"usage_{role}_calls")]


def _rows(style: CellStyle, roles: Sequence[str]) -> list[list[Entry]]:
    cell = style.cell
    rows = [_row(cell, role, f"usage_{role}_") for role in roles]
    if len(roles) > 1:
        rows.append(_row(cell, "all", "usage_"))
    return [[Entry(style.label, style=style), *row] for row in rows]


def _row(cell: Cell, role: str, prefix: str) -> list[Entry]:
    names = [f"{prefix}{name}" for name in _QUANTITIES]
    texts = [number(cell.metrics.get(name), describe(name).digits) for name in names]
    dollars, total = cell.metrics.get(f"{prefix}dollars"), cell.metrics.get("usage_dollars")
    share = number(100 * dollars / total, 0) + "%" if dollars is not None and total else "—"
    return [Entry(role), *map(Entry, texts), Entry(share)]
