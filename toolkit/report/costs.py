"""What cells cost: an enriched corpus beside what it buys, once and for a query; and each role of a
language model (agent, re-ranker, navigator), where a run has several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.evaluation.cells import Cell
from toolkit.llm.accounts import ROLES
from toolkit.report.data import ReportData
from toolkit.report.figures import MARKERS, MEDIUM
from toolkit.report.measures import describe, number
from toolkit.report.results import cell_interval
from toolkit.report.svg import GRID, INK, PAPER, SMALL, axes, canvas, colour, inline
from toolkit.report.tables import CellStyle, Column, Entry, Figure, Section, Table

_TIMES = {"once": "once, for the corpus", "query": "for a query"}
_TOKENS = ("input_tokens", "output_tokens")
_OF_AGENT = {
    "seconds": "seconds",
    **{f"usage_{name}": name for name in ("dollars", *_TOKENS)},
}
_UNITS = ("dollars", "tokens", "seconds")
_OF_ROLES = ("calls", "input_tokens", "cached_tokens", "output_tokens", "seconds", "dollars")


class CostPoint(NamedTuple):
    """A cell at what it costs and what it reaches, with the interval of that, if it has one."""

    style: CellStyle
    cost: float
    value: float
    interval: tuple[float, float] | None


def costs_section(data: ReportData) -> Section | None:
    """Recall against cost; None where no cell's corpus was enriched."""
    costs = {style.cell.name: _costs(style.cell) for style in data.styles}
    if not any(cost.get("once", {}).get("documents") for cost in costs.values()):
        return None
    recalls = [name for name in data.measures if name.startswith("R@")]
    measure = recalls[0] if recalls else data.main
    unit = _unit(
        [_amounts(costs[style.cell.name], when) for style in data.styles for when in _TIMES]
    )
    figures = []
    for when, words in _TIMES.items():
        points = [
            CostPoint(
                style,
                _amounts(costs[style.cell.name], when).get(unit, 0.0),
                style.cell.metrics[measure],
                cell_interval(style.cell, measure),
            )
            for style in data.styles
            if measure in style.cell.metrics
        ]
        axis = f"{unit} {words}"
        svg = against_cost(points, axis=axis, measure=measure, key=f"cost-{when}")
        figures.append(Figure(svg, heading=f"{measure}, {words}"))
    return Section(
        "costs",
        "Recall against cost",
        lead=f"{measure} against what a cell costs: once, for phrases of the whole corpus and "
        "their index, and again for each query.",
        legend=data.highlighted,
        figures=figures,
        key="Lines: 95% interval of the mean."
        + (" Grey: the other cells." if data.crowded else ""),
        note="Dollars and tokens are those of language models, as if no reply had been kept from "
        "earlier runs; — where unknown. Seconds are wall time on the machine of the run, loading "
        "included, without waiting for phrases of the corpus. Of an agent, what a question "
        "takes stands for a query, without the replies that were kept.",
        tables=[_table(data, measure)],
    )


def against_cost(points: Sequence[CostPoint], *, axis: str, measure: str, key: str) -> str:
    """Each cell at its cost, to the right from 0, and its value, with the interval of its mean."""
    from matplotlib.ticker import MaxNLocator

    figure = canvas(MEDIUM, 260)
    plot = axes(figure, left=46, right=14, top=12, bottom=46)
    plot.grid(color=GRID, linewidth=1)
    plot.set_axisbelow(True)
    for point in sorted(points, key=lambda point: point.style.colour is not None):
        shade = colour(point.style.colour)
        if point.interval is not None:
            plot.plot([point.cost] * 2, point.interval, color=shade, linewidth=1.5)
        marker = "o" if point.style.colour is None else MARKERS[point.style.colour]
        plot.plot(point.cost, point.value, marker, color=shade, markersize=9, markeredgecolor=PAPER)
    largest = max((point.cost for point in points), default=0.0) or 1.0
    plot.set_xlim(-0.06 * largest, 1.06 * largest)
    plot.xaxis.set_major_locator(MaxNLocator(5))
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    plot.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    plot.set_xlabel(axis, color=INK, fontsize=SMALL, parse_math=False)
    return inline(figure, key=key, label=f"{measure} against {axis}")


def _costs(cell: Cell) -> dict[str, dict[str, float]]:
    """What a cell's manifest tells; of an agent, what it took for a question as well, since that is
    what it answers."""
    costs: dict[str, dict[str, float]] = dict(cell.manifest.get("costs", {}))
    if "query" not in costs and "search_calls" in cell.metrics:
        costs["query"] = {
            name: cell.metrics[measure]
            for measure, name in _OF_AGENT.items()
            if measure in cell.metrics
        }
    return costs


def _amounts(costs: dict[str, dict[str, float]], when: str) -> dict[str, float]:
    """Costs by unit; tokens are those that went in and came out."""
    amounts = dict(costs.get(when, {}))
    if set(_TOKENS) <= set(amounts):
        amounts["tokens"] = sum(amounts[name] for name in _TOKENS)
    return amounts


def _unit(amounts: Sequence[dict[str, float]]) -> str:
    """Dollars where any are known to have been paid, else tokens, else seconds."""
    return next((unit for unit in _UNITS if any(a.get(unit) for a in amounts)), "seconds")


def _table(data: ReportData, measure: str) -> Table:
    columns = [Column("cell", numeric=False), Column(measure)]
    columns += [Column(unit, words) for words in _TIMES.values() for unit in _UNITS]
    rows = []
    for style in data.styles:
        costs = _costs(style.cell)
        row = [
            Entry(style.label, style=style),
            Entry(number(style.cell.metrics.get(measure), describe(measure).digits)),
        ]
        for when in _TIMES:
            amounts = _amounts(costs, when)
            row += [Entry(_shown(amounts.get(unit), unit)) for unit in _UNITS]
        rows.append(row)
    return Table(columns, rows)


def _shown(amount: float | None, unit: str) -> str:
    digits = 4 if unit != "tokens" else 0
    return number(amount, 2 if amount is not None and amount >= 100 and digits else digits)


def roles_section(data: ReportData) -> Section | None:
    """A row for each role of each cell; None where no cell has more than one."""
    roles = {style.cell.name: cell_roles(style.cell) for style in data.styles}
    if all(len(names) < 2 for names in roles.values()):
        return None
    columns = [Column("cell", numeric=False), Column("role", numeric=False)]
    columns += [Column(name.replace("_", " ")) for name in _OF_ROLES]
    columns.append(Column("share", "of the dollars"))
    rows = [
        row
        for style in data.styles
        if roles[style.cell.name]
        for row in _rows_of_roles(style, roles[style.cell.name])
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


def _rows_of_roles(style: CellStyle, roles: Sequence[str]) -> list[list[Entry]]:
    cell = style.cell
    rows = [_row_of_role(cell, role, f"usage_{role}_") for role in roles]
    if len(roles) > 1:
        rows.append(_row_of_role(cell, "all", "usage_"))
    return [[Entry(style.label, style=style), *row] for row in rows]


def _row_of_role(cell: Cell, role: str, prefix: str) -> list[Entry]:
    names = [f"{prefix}{name}" for name in _OF_ROLES]
    texts = [number(cell.metrics.get(name), describe(name).digits) for name in names]
    dollars, total = cell.metrics.get(f"{prefix}dollars"), cell.metrics.get("usage_dollars")
    share = number(100 * dollars / total, 0) + "%" if dollars is not None and total else "—"
    return [Entry(role), *map(Entry, texts), Entry(share)]
