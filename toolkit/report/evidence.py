"""What agents were shown and did: the funnel, recall against exposure, and calls a question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from toolkit.contracts import TIERS
from toolkit.corpus.layers import LAYERS
from toolkit.report.data import ReportData
from toolkit.report.figures import Spread, exposure, funnel, spreads
from toolkit.report.measures import number
from toolkit.report.tables import CellStyle, Column, Entry, Figure, Section, Table

_CALLS = ("search_calls", "browse_calls", "read_calls")
_SAY_BACKGROUND = "Figures show the coloured cells (the baseline and the best); tables show all."


def funnel_section(data: ReportData) -> Section | None:
    """Recall of judged documents from tier to tier; None where no cell has a funnel."""
    with_funnel = [style for style in data.styles if style.cell.funnel]
    if not with_funnel:
        return None
    drawn = [style for style in with_funnel if style.colour is not None]
    figures = [
        Figure(funnel(style, style.cell.funnel, key=f"funnel{i}"), heading=style.label, style=style)
        for i, style in enumerate(drawn)
    ]
    judged = list(dict.fromkeys(tier for style in with_funnel for tier in style.cell.funnel))
    marks = f"Bar: {judged[0]}" + (f"; diamond: {judged[1]}" if len(judged) > 1 else "")
    return Section(
        "funnel",
        "Evidence funnel",
        lead="How much of the judged evidence an agent had in a ranking (surfaced), saw on a page "
        "(previewed), read (opened) and put into its answer (cited). Macro-averaged recall; beside "
        "it the mean number of documents exposed a question.",
        figures=figures,
        key=f"{marks}." + (f" {_SAY_BACKGROUND}" if data.crowded else ""),
        note="Surfaced counts every document of a ranking, up to the tool’s depth, "
        "often 1,000 a search, although the agent saw only a few of them: recalls at this tier are "
        "not comparable between depths. Compare cells at equal exposure instead, in the curves "
        "below.",
        tables=[_funnel_table(with_funnel, tier) for tier in judged],
    )


def _funnel_table(styles: Sequence[CellStyle], judged: str) -> Table:
    columns = [Column("cell", numeric=False)]
    present = {tier for style in styles for tier in style.cell.funnel.get(judged, {})}
    steps = [*TIERS, *(layer for layer in LAYERS if layer in present)]
    columns += [Column(step, "macro / micro, documents") for step in steps]
    rows = []
    for style in styles:
        tiers = style.cell.funnel.get(judged, {})
        rows.append([Entry(style.label, style=style), *(_tier(tiers.get(s, {})) for s in steps)])
    return Table(columns, rows, folded=f"Recall of {judged} documents, in numbers")


def _tier(row: Mapping[str, float]) -> Entry:
    if not row:
        return Entry("—")
    text = f"{number(row.get('macro'), 3)} / {number(row.get('micro'), 3)}"
    sub = f"{number(row.get('documents'), 1)} docs"
    if "tokens" in row:
        sub += f", {number(row['tokens'], 0)} tokens"
    return Entry(text, sub=sub)


def curves_section(data: ReportData) -> Section | None:
    """Mean recall against documents and tokens exposed; None where no cell has curves."""
    figures, tables = [], []
    for axis in ("documents", "tokens"):
        curves = [(k, k.cell.curves[axis]) for k in data.styles if k.cell.curves.get(axis)]
        if curves:
            label = f"{axis} exposed a question (log scale)"
            figures.append(Figure(exposure(curves, axis=label, key=f"curve-{axis}")))
            tables.append(_curve_table(curves, axis))
    if not figures:
        return None
    return Section(
        "curves",
        "Recall at equal exposure",
        lead="Mean recall of evidence among the documents that an agent was shown (previewed or "
        "opened), after so many documents or so many tokens of tool output a question. Higher at "
        "the same place: the same reading brought more evidence.",
        legend=data.highlighted,
        figures=figures,
        key="Grey: the other cells." if data.crowded else "",
        tables=tables,
    )


def _curve_table(
    curves: Sequence[tuple[CellStyle, Sequence[tuple[float, float]]]], axis: str
) -> Table:
    ends = [x for _, points in curves for x, _ in points if x > 0]
    first, last = math.ceil(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    budgets = [10**power for power in range(first, max(first, last) + 1)][-5:]
    columns = [Column("cell", numeric=False)]
    columns += [Column(f"at {budget:,}", axis) for budget in budgets]
    rows = [
        [Entry(style.label, style=style), *(Entry(number(_at(points, b), 3)) for b in budgets)]
        for style, points in curves
    ]
    return Table(columns, rows, folded=f"Recall by {axis} exposed, in numbers")


def _at(points: Sequence[tuple[float, float]], budget: float) -> float | None:
    reached = [recall for exposed, recall in points if exposed <= budget]
    return reached[-1] if reached else None


def calls_section(data: ReportData) -> Section | None:
    """Distribution over questions of each kind of call; None where no cell made any."""
    present = dict.fromkeys(n for c in data.cells for n in c.per_question if n.endswith("_calls"))
    kinds = [*(n for n in _CALLS if n in present), *(n for n in present if n not in _CALLS)]
    if not kinds:
        return None
    figures = []
    for index, kind in enumerate(kinds):
        rows = [
            Spread(style, list(style.cell.per_question[kind].values()))
            for style in data.highlighted
            if style.cell.per_question.get(kind)
        ]
        if rows:
            axis = f"{kind[:-6].replace('_', ' ')} calls a question"
            svg = spreads(rows, axis=axis, key=f"calls{index}")
            figures.append(Figure(svg, heading=axis.capitalize()))
    return Section(
        "calls",
        "Calls a question",
        figures=figures,
        key="Thin line: 5th to 95th percentile of the questions; thick: the middle half; dot: the "
        "median." + (f" {_SAY_BACKGROUND}" if data.crowded else ""),
        tables=[_calls_table(data, kinds)],
    )


def _calls_table(data: ReportData, kinds: Sequence[str]) -> Table:
    columns = [Column("cell", numeric=False)]
    columns += [Column(kind.replace("_", " "), "mean, 5–50–95%") for kind in kinds]
    rows = []
    for style in data.styles:
        values = [list(style.cell.per_question.get(kind, {}).values()) for kind in kinds]
        rows.append([Entry(style.label, style=style), *(_calls(row) for row in values)])
    return Table(columns, rows, folded="Calls a question, in numbers")


def _calls(values: Sequence[float]) -> Entry:
    if not values:
        return Entry("—")
    low, middle, high = np.percentile(values, [5, 50, 95])
    return Entry(number(float(np.mean(values)), 2), sub=f"{low:g}–{middle:g}–{high:g}")
