"""The figures of a report. Each is narrow enough for a phone; the page sets several in a row.

A figure says nothing that a table beside it does not say in numbers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toolkit.contracts import TIERS
from toolkit.report.measures import number
from toolkit.report.svg import (
    GRID,
    INK,
    MUTED,
    PAPER,
    SMALL,
    TEXT,
    axes,
    canvas,
    colour,
    inline,
)
from toolkit.report.tables import CellStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, MEDIUM, NARROW = 440.0, 380.0, 300.0
MARKERS = "osD^vPX*"
_LINE = 16.0


class Interval(NamedTuple):
    """One row of a forest plot. `against` is empty where the axis names it."""

    label: str
    against: str
    value: float
    low: float
    high: float
    resolved: bool
    digits: int


class Spread(NamedTuple):
    """One row of a distribution: the values of one cell, one a question."""

    style: CellStyle
    values: Sequence[float]


def forest(rows: Sequence[Interval], *, axis: str, key: str) -> str:
    """Differences with their intervals around zero. Filled: resolved; hollow: not."""
    wrapped = [_sides(row.label, row.against, 44) for row in rows]
    tops = np.cumsum([0.0, *(len(lines) * _LINE + 24 for lines in wrapped)])
    figure = canvas(WIDTH, float(tops[-1]) + 52)
    plot = axes(figure, left=8, right=8, top=4, bottom=48)
    plot.set_ylim(tops[-1], 0)
    _symmetric(plot, [end for row in rows for end in (row.low, row.high, row.value)])
    for row, lines, top in zip(rows, wrapped, tops, strict=False):
        base = float(top) + len(lines) * _LINE
        for index, line in enumerate(lines):
            _text(plot, 0.0, top + (index + 0.8) * _LINE, line)
        _text(plot, 1.0, top + 0.8 * _LINE, number(row.value, row.digits, sign=True), right=True)
        shade = INK if row.resolved else MUTED
        plot.plot([0, 0], [base + 2, base + 14], color=MUTED, linewidth=1)
        plot.plot([row.low, row.high], [base + 8] * 2, color=shade, linewidth=2)
        face = shade if row.resolved else PAPER
        plot.plot(row.value, base + 8, "o", markersize=8, color=shade, markerfacecolor=face)
    plot.set_xlabel(axis, color=INK, fontsize=SMALL, parse_math=False)
    return inline(figure, key=key, label=f"Forest plot: {axis}")


def _lines(text: str, width: int) -> list[str]:
    # Two lines at most: tables beside the figure give names whole.
    return textwrap.wrap(text, width, max_lines=2, placeholder=" …") or [""]


def _sides(one: str, other: str, width: int) -> list[str]:
    text = f"{one} − {other}" if other else one
    if len(text) <= width or not other:
        return _lines(text, width)
    return [*_lines(one, width), *_lines(f"− {other}", width)]


def _symmetric(plot: Axes, ends: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    reach = max((abs(end) for end in ends if np.isfinite(end)), default=1.0) or 1.0
    plot.set_xlim(-1.08 * reach, 1.08 * reach)
    plot.xaxis.set_major_locator(MaxNLocator(5))
    plot.xaxis.set_major_formatter(lambda x, _: _signed(x))
    plot.yaxis.set_major_locator(NullLocator())


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−") if abs(value) > 1e-12 else "0"


def _text(plot: Axes, x: float, y: float, text: str, *, right: bool = False) -> None:
    # x in shares of the axes' width, y in data units: rows are counted in pixels from the top.
    plot.text(
        x,
        y,
        text,
        transform=plot.get_yaxis_transform(),
        ha="right" if right else "left",
        fontsize=TEXT,
        color=INK,
        parse_math=False,
    )


def funnel(
    style: CellStyle, tiers: Mapping[str, Mapping[str, Mapping[str, float]]], *, key: str
) -> str:
    """One cell's recall from tier to tier. Bar: the first judged tier; diamond: the second."""
    judged = list(tiers)
    steps = [tier for tier in TIERS if tier in tiers[judged[0]]]
    figure = canvas(NARROW, 36.0 * len(steps) + 4)
    plot = axes(figure, left=2, right=8, top=2, bottom=2, bare=True)
    plot.set(xlim=(0, 1), ylim=(36.0 * len(steps), 0))
    for index, step in enumerate(steps):
        top, row = 36.0 * index, tiers[judged[0]][step]
        recall = row.get("macro", float("nan"))
        documents = row.get("documents")
        text = number(recall, 3)
        if documents is not None:
            text += f" · {number(documents, 1)} docs"
        _text(plot, 0.0, top + 15, step)
        _text(plot, 1.0, top + 15, text, right=True)
        plot.barh(top + 25, 1, height=9, color=GRID, linewidth=0)
        if np.isfinite(recall):
            plot.barh(top + 25, recall, height=9, color=colour(style.colour), linewidth=0)
        second = tiers[judged[1]].get(step, {}).get("macro") if len(judged) > 1 else None
        if second is not None:
            plot.plot(second, top + 25, "D", markersize=7, color=INK, mec=PAPER, clip_on=False)
    return inline(figure, key=key, label=f"Evidence funnel of {style.label}")


def exposure(
    curves: Sequence[tuple[CellStyle, Sequence[tuple[float, float]]]], *, axis: str, key: str
) -> str:
    """Mean recall against what had been exposed, log x; background cells thin and below."""
    from matplotlib.ticker import NullLocator

    figure = canvas(WIDTH, 320)
    plot = axes(figure, left=38, right=12, top=12, bottom=46)
    plot.set_xscale("log")
    plot.set_ylim(0, min(1.02, 1.1 * max(y for _, points in curves for _, y in points) or 1.02))
    plot.grid(color=GRID, linewidth=1)
    plot.set_axisbelow(True)
    for style, points in sorted(curves, key=lambda item: item[0].colour is not None):
        drawn = _thinned(_from_the_first_find(points))
        x, y = [point[0] for point in drawn], [point[1] for point in drawn]
        shade, front = colour(style.colour), style.colour is not None
        plot.plot(x, y, color=shade, linewidth=2 if front else 1, drawstyle="steps-post")
        if style.colour is not None and drawn:
            marks = _spaced(x, 6, style.colour)
            plot.plot(
                [x[i] for i in marks],
                [y[i] for i in marks],
                MARKERS[style.colour],
                color=shade,
                markersize=7,
                markeredgecolor=PAPER,
            )
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    plot.set_xlabel(axis, color=INK, fontsize=SMALL)
    return inline(figure, key=key, label=f"Mean recall against {axis}")


def _from_the_first_find(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    # A log axis has much room for the exposures at which nobody has found anything yet.
    positive = [(x, y) for x, y in points if x > 0]
    zeros = next((i for i, (_, y) in enumerate(positive) if y > 0), 1)
    return positive[max(0, zeros - 1) :]


def _thinned(points: Sequence[tuple[float, float]], most: int = 90) -> list[tuple[float, float]]:
    if len(points) <= most:
        return list(points)
    x = np.log([point[0] for point in points])
    chosen = np.searchsorted(x, np.linspace(x[0], x[-1], most), side="right") - 1
    return [points[int(i)] for i in dict.fromkeys([0, *chosen.tolist()])]


def _spaced(x: Sequence[float], count: int, shift: int) -> list[int]:
    # Every cell marks other places, so that markers of curves that overlap stay visible.
    logs = np.log(x)
    positions = np.linspace(logs[0], logs[-1], count, endpoint=False)
    positions += (logs[-1] - logs[0]) / count * (0.15 + 0.1 * shift)
    return sorted(set((np.searchsorted(logs, positions, side="right") - 1).tolist()))


def spreads(rows: Sequence[Spread], *, axis: str, key: str) -> str:
    """Per cell: 5th to 95th percentile (thin), middle half (thick), median (dot)."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    wrapped = [_lines(row.style.label, 27) for row in rows]
    tops = np.cumsum([0.0, *(len(lines) * _LINE + 20 for lines in wrapped)])
    figure = canvas(MEDIUM, float(tops[-1]) + 52)
    plot = axes(figure, left=8, right=12, top=4, bottom=48)
    plot.set_ylim(tops[-1], 0)
    for row, lines, top in zip(rows, wrapped, tops, strict=False):
        low, first, middle, third, high = np.percentile(row.values, [5, 25, 50, 75, 95])
        base, shade = float(top) + len(lines) * _LINE + 8, colour(row.style.colour)
        for index, line in enumerate(lines):
            _text(plot, 0.0, top + (index + 0.8) * _LINE, line)
        text = f"median {middle:g} · mean {number(float(np.mean(row.values)), 2)}"
        _text(plot, 1.0, top + 0.8 * _LINE, text, right=True)
        plot.plot([low, high], [base] * 2, color=shade, linewidth=2)
        plot.plot([first, third], [base] * 2, color=shade, linewidth=8, solid_capstyle="butt")
        plot.plot(middle, base, "o", markersize=8, color=PAPER, markeredgecolor=INK)
    largest = max(float(np.percentile(row.values, 95)) for row in rows)
    plot.set_xlim(-0.02 * max(largest, 1), 1.02 * max(largest, 1))
    plot.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    plot.yaxis.set_major_locator(NullLocator())
    plot.set_xlabel(axis, color=INK, fontsize=SMALL, parse_math=False)
    return inline(figure, key=key, label=axis)
