"""Heat maps of a grid of settings, as inline SVG.

Colours are fixed, not the page's: a value must style the same on a dark page. Cividis (Nuñez,
Anderton & Renslow, 2018) reads the same with and without colour blindness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolkit.report.measures import number
from toolkit.report.svg import INK, SMALL, axes, canvas, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure as Canvas

_MAP = "cividis"
_LIGHT, _DARK = "#ffffff", "#111111"
_TALL = 15.0
_TICKS = 12
# Marker, size, face, and edges from the lowest: a dark one under a light one shows on any colour.
_SHAPES: dict[str, tuple[str, float, str, tuple[tuple[str, float], ...]]] = {
    "default": ("X", 11, "#e8411a", ((_LIGHT, 1.0),)),
    "chosen": ("*", 15, _LIGHT, ((_DARK, 1.0),)),
    "best": ("o", 14, "none", ((_DARK, 4.0), (_LIGHT, 1.8))),
}


class Mark(NamedTuple):
    """A setting to be marked: `kind` is `default`, `chosen` or `best`."""

    kind: str
    k1: float
    b: float


def heat_map(
    k1: Sequence[float],
    b: Sequence[float],
    values: NDArray[np.float64],
    *,
    key: str,
    label: str,
    marks: Sequence[Mark] = (),
    outline: NDArray[np.bool_] | None = None,
    digits: int = 3,
    width: float = 440.0,
) -> str:
    """Values [k1, b] over the grid: k1 to the right, b upwards, one square a cell whatever the
    steps. `marks` may lie between cells (they are interpolated) but not outside the grid, where
    they are left out. `outline` [k1, b] frames the cells that it holds."""
    from matplotlib.colors import Normalize

    tall = max(_TALL * len(b), 60.0)
    figure = canvas(width, tall + 96)
    plot = axes(figure, left=48, right=10, top=8, bottom=88)
    low, high = float(values.min()), float(values.max())
    shades = Normalize(low, high) if high > low else Normalize(low - 1, low + 1)
    _paint(plot, values.T, shades, (-0.5, len(k1) - 0.5, -0.5, len(b) - 0.5))
    if outline is not None:
        _frame(plot, outline)
    for mark in marks:
        _mark(plot, mark, k1, b)
    plot.spines["bottom"].set_visible(False)
    plot.set(xlim=(-0.5, len(k1) - 0.5), ylim=(-0.5, len(b) - 0.5))
    plot.set_xticks(*_ticks(k1))
    plot.set_yticks(*_ticks(b))
    plot.set_xlabel("k1", color=INK, fontsize=SMALL, labelpad=1)
    plot.set_ylabel("b", color=INK, fontsize=SMALL, labelpad=8, rotation=0, va="center")
    _scale(figure, shades, low, high, digits)
    return inline(figure, key=key, label=label)


def _paint(
    plot: Axes,
    values: NDArray[np.float64],
    shades: Normalize,
    extent: tuple[float, float, float, float],
) -> None:
    # One picture of a pixel a cell: paths would make the page much larger.
    plot.imshow(
        values,
        cmap=_MAP,
        norm=shades,
        extent=extent,
        origin="lower",
        aspect="auto",
        interpolation="none",
    )


def _ticks(values: Sequence[float]) -> tuple[list[int], list[str]]:
    step = -(-len(values) // _TICKS)
    positions = list(range(0, len(values), step))
    return positions, [f"{values[position]:g}" for position in positions]


def _mark(plot: Axes, mark: Mark, k1: Sequence[float], b: Sequence[float]) -> None:
    if not (k1[0] <= mark.k1 <= k1[-1] and b[0] <= mark.b <= b[-1]):
        return
    x = float(np.interp(mark.k1, k1, range(len(k1))))
    y = float(np.interp(mark.b, b, range(len(b))))
    shape, size, face, edges = _SHAPES[mark.kind]
    for edge, wide in edges:
        plot.plot(
            x,
            y,
            shape,
            markersize=size,
            markerfacecolor=face,
            markeredgecolor=edge,
            markeredgewidth=wide,
            clip_on=False,
            zorder=4,
        )


def _frame(plot: Axes, inside: NDArray[np.bool_]) -> None:
    """A line along every edge between a cell inside and one outside."""
    padded = np.pad(inside, 1)
    lines: list[tuple[list[float], list[float]]] = []
    for x, y in np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]).tolist():
        lines.append(([x - 0.5, x - 0.5], [y - 0.5, y + 0.5]))
    for x, y in np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]).tolist():
        lines.append(([x - 0.5, x + 0.5], [y - 0.5, y - 0.5]))
    gap = [float("nan")]
    xs = [x for line, _ in lines for x in (*line, *gap)]
    ys = [y for _, line in lines for y in (*line, *gap)]
    for shade, wide in ((_DARK, 3.2), (_LIGHT, 1.4)):
        plot.plot(
            xs,
            ys,
            color=shade,
            linewidth=wide,
            solid_capstyle="projecting",
            clip_on=False,
            zorder=3,
        )


def _scale(figure: Canvas, shades: Normalize, low: float, high: float, digits: int) -> None:
    """The colours from the lowest to the highest value, with both as numbers."""
    bar = axes(figure, left=104, right=70, top=_height(figure) - 34, bottom=22)
    _paint(bar, np.linspace(low, high, 64)[None, :], shades, (0, 1, 0, 1))
    bar.set_axis_off()
    for x, text, side in (
        (-0.03, number(low, digits), "right"),
        (1.03, number(high, digits), "left"),
    ):
        bar.text(
            x, 0.5, text, transform=bar.transAxes, ha=side, va="center", fontsize=SMALL, color=INK
        )


def _height(figure: Canvas) -> float:
    return float(figure.get_size_inches()[1] * 72)
