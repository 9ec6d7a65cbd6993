"""The figures of a report, drawn with matplotlib as SVG elements that a page can contain.

Every figure repeats numbers that a table of the report has too. On a dark page, its style sheet
replaces the colours of this module. Sizes are in CSS pixels. Texts stay texts, in the font of the
page.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.report.measures import number
from soundingline.toolkit.report.page import COLOURS, OTHER, RunStyle
from soundingline.toolkit.trajectory import TIERS

if TYPE_CHECKING:  # matplotlib takes long to import, so each function imports it when it draws.
    from matplotlib.axes import Axes

INK, MUTED, GRID, PAPER = "#1d2328", "#66707a", "#e3e6e9", "#ffffff"
_MARKERS = "osD^vPX*"  # in the order of the swatches in templates/style.css
_SMALL, _TEXT, _LINE = 12, 13, 16.0


@dataclass(frozen=True)
class ForestPanel:
    """The differences of one measure in a forest plot: (difference, lower end, upper end) of each
    row, and whether its dot is filled. `digits` is the number of digits after the point of the
    printed differences."""

    axis: str
    values: Sequence[tuple[float, float, float]]
    significant: Sequence[bool]
    digits: int


def forest(
    labels: Sequence[str],
    panels: Sequence[ForestPanel],
    column: tuple[str, Sequence[str]] | None = None,
    *,
    name: str = "",
) -> str:
    """Draw differences with their confidence intervals around zero.

    Args:
        labels: one for each row; a line break separates the two sides of a long label.
        panels: what is drawn from left to right. The labels are above the rows of the first.
        column: the title and the entries of a column of texts at the right.
        name: what the description says besides the axes; figures of one page differ in it.
    """
    first, *others = panels
    extra = 210.0 * len(others) + (120.0 if column else 0.0)
    width, wrap = (320, 34) if extra else (440, 44)
    lines = [label.split("\n") for label in labels]
    plot, rows = _rows(lines, width=width, wrap=wrap, gap=24, extra=extra)
    _differences(plot, first, rows)
    for place, panel in enumerate(others):
        _differences(_right_of(plot, width + 16 + 210 * place, 180), panel, rows)
    if column:
        texts = _right_of(plot, width + 8 + 210 * len(others), 104)
        title, entries = column
        texts.spines["bottom"].set_visible(False)
        texts.set(xticks=[])
        texts.set_xlabel(title, color=INK, fontsize=_SMALL, parse_math=False, loc="right")
        for entry, (top, _) in zip(entries, rows, strict=True):
            _text(texts, 1.0, top + 0.8 * _LINE, entry, ha="right")
    about = ", ".join(filter(None, [*(panel.axis for panel in panels), name]))
    return _svg(plot, f"Forest plot: {about}")


def _differences(plot: Axes, panel: ForestPanel, rows: Sequence[tuple[float, float]]) -> None:
    """Draw a panel of a forest plot."""
    reach = max((abs(v) for row in panel.values for v in row if np.isfinite(v)), default=0.0) or 1.0
    for (middle, low, high), filled, (top, base) in zip(
        panel.values, panel.significant, rows, strict=True
    ):
        _text(plot, 1.0, top + 0.8 * _LINE, number(middle, panel.digits, sign=True), ha="right")
        shade = INK if filled else MUTED
        plot.plot([0, 0], [base + 2, base + 14], color=MUTED, linewidth=1)
        plot.plot([low, high], [base + 8] * 2, color=shade, linewidth=2)
        face = shade if filled else PAPER
        plot.plot(middle, base + 8, "o", markersize=8, color=shade, markerfacecolor=face)
    plot.set_xlim(-1.08 * reach, 1.08 * reach)
    plot.xaxis.set_major_formatter(
        lambda x, _: f"{x:+.3g}".replace("-", "−") if abs(x) > 1e-12 else "0"
    )
    plot.set_xlabel(panel.axis, color=INK, fontsize=_SMALL, parse_math=False)


def spreads(rows: Sequence[tuple[RunStyle, Sequence[float]]], *, axis: str) -> str:
    """Draw the distribution over questions of each run: a thin line from the 5th to the 95th
    percentile, a thick one from the 25th to the 75th, and a dot at the median."""
    labels = [[style.label] for style, _ in rows]
    plot, places = _rows(labels, width=380, wrap=27, gap=20)
    largest = 1.0
    for (style, values), (top, base) in zip(rows, places, strict=True):
        low, first, middle, third, high = np.percentile(values, [5, 25, 50, 75, 95])
        shade, largest = colour(style), max(largest, high)
        text = f"median {middle:g} · mean {number(float(np.mean(values)), 2)}"
        _text(plot, 1.0, top + 0.8 * _LINE, text, ha="right")
        plot.plot([low, high], [base + 8] * 2, color=shade, linewidth=2)
        plot.plot([first, third], [base + 8] * 2, color=shade, linewidth=8, solid_capstyle="butt")
        plot.plot(middle, base + 8, "o", markersize=8, color=PAPER, markeredgecolor=INK)
    plot.set_xlim(-0.02 * largest, 1.02 * largest)
    plot.locator_params(axis="x", integer=True)
    return _svg(plot, axis, axis)


def funnel(style: RunStyle, tiers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Draw the recall of one run from tier to tier.

    Args:
        tiers: level of judgement (`evidence`, `gold`) -> tier -> the numbers of `Cell.funnel`.
            Bars show the first level, diamonds the second.
    """
    first, *others = tiers.values()
    steps = [tier for tier in TIERS if tier in first]
    plot = _axes(300, 36.0 * len(steps) + 4, left=2, right=8, top=2, bottom=2)
    plot.set_axis_off()
    plot.set(xlim=(0, 1), ylim=(36.0 * len(steps), 0))
    for top, step in zip(np.arange(len(steps)) * 36.0, steps, strict=True):
        recall, documents = first[step].get("macro"), first[step].get("documents")
        text = number(recall, 3)
        if documents is not None:
            text += f" · {number(documents, 1)} docs"
        _text(plot, 0.0, top + 15, step)
        _text(plot, 1.0, top + 15, text, ha="right")
        plot.barh(top + 25, 1, height=9, color=GRID, linewidth=0)
        if recall is not None and np.isfinite(recall):
            plot.barh(top + 25, recall, height=9, color=colour(style), linewidth=0)
        second = others[0].get(step, {}).get("macro") if others else None
        if second is not None:
            plot.plot(second, top + 25, "D", markersize=7, color=INK, mec=PAPER, clip_on=False)
    return _svg(plot, f"Evidence funnel of {style.label}")


def exposure(curves: Sequence[tuple[RunStyle, Sequence[tuple[float, float]]]], *, axis: str) -> str:
    """Draw mean recall as a step function of what agents were shown, on a logarithmic axis."""
    from matplotlib.ticker import NullLocator

    plot = _axes(440, 320, left=38, right=12, top=12, bottom=46)
    plot.set_xscale("log")
    plot.set_ylim(0, min(1.02, 1.1 * max(y for _, points in curves for _, y in points) or 1.02))
    plot.grid(color=GRID, linewidth=1)
    for style, points in sorted(curves, key=lambda item: item[0].colour is not None):
        positive = [point for point in points if point[0] > 0]
        if not positive:  # nothing was exposed, which a logarithmic axis cannot show
            continue
        x, y = _thinned(np.array(positive))
        front = style.colour is not None
        plot.plot(x, y, color=colour(style), linewidth=2 if front else 1, drawstyle="steps-post")
        if style.colour is not None:
            # Each run has its markers at other places, so that those of equal curves stay visible.
            places = np.linspace(0, len(x) - 1, 7)[:-1] + len(x) / 7 * 0.1 * style.colour
            marks = np.unique(places.round().astype(int))
            _marker(plot, style, x[marks], y[marks], size=7, linestyle="none")
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    return _svg(plot, f"Mean recall against {axis}", axis)


def _thinned(points: NDArray[Any], most: int = 90) -> NDArray[Any]:
    """Columns x and y of at most `most` points, at equal distances on a logarithmic axis, from the
    last one before the recall rises above 0."""
    rising = np.flatnonzero(points[:, 1] > 0)
    points = points[max(0, int(rising[0] if len(rising) else 1) - 1) :]
    x = np.log(points[:, 0])
    chosen = np.searchsorted(x, np.linspace(x[0], x[-1], most), side="right") - 1
    columns: NDArray[Any] = points[np.unique([0, *chosen])].T
    return columns


def against_cost(
    points: Sequence[tuple[RunStyle, float, float, tuple[float, float] | None]],
    *,
    axis: str,
    measure: str,
    front: Sequence[int] = (),
    lines: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Draw each run at its cost and its value, with the confidence interval of the value.

    Args:
        points: (run, cost, value, interval).
        axis: the label of the axis of costs.
        measure: the name of the measure of the values.
        front: the places in `points` of a Pareto front, cheapest first, which a line joins in
            steps; its points and the runs with a colour of their own then have labels.
        lines: by its label, the places in `points` that a line joins, from left to right.
    """
    width, height = (560, 320) if front or lines else (380, 260)
    plot = _axes(width, height, left=46, right=14, top=12, bottom=46)
    plot.grid(color=GRID, linewidth=1)
    if front:
        x, y = zip(*(points[place][1:3] for place in front), strict=True)
        plot.plot(x, y, color=MUTED, linewidth=1.5, linestyle="--", drawstyle="steps-post")
    for places in (lines or {}).values():
        x, y = zip(*(points[place][1:3] for place in places), strict=True)
        plot.plot(x, y, color=colour(points[places[0]][0]), linewidth=1.5)
    for style, cost, value, interval in sorted(points, key=lambda row: row[0].colour is not None):
        if interval is not None:
            plot.plot([cost] * 2, interval, color=colour(style), linewidth=1.5)
        _marker(plot, style, cost, value, size=9)
    largest = max((cost for _, cost, _, _ in points), default=0.0) or 1.0
    plot.set_xlim(-0.06 * largest, 1.06 * largest)
    plot.locator_params(axis="x", nbins=5)
    plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    plot.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    named = [p for i, p in enumerate(points) if i in front or p[0].colour is not None]
    if front:
        _label(plot, [(style.label, cost, value) for style, cost, value, _ in named])
    if lines:
        _label(plot, [(name, *points[places[-1]][1:3]) for name, places in lines.items()])
    label = f"{measure} against {axis}"
    if front:
        label += "; the Pareto front is " + ", then ".join(points[i][0].label for i in front)
    return _svg(plot, label, axis)


def _label(plot: Axes, named: Sequence[tuple[str, float, float]]) -> None:
    """Write the label of each point next to it, above or below what is written already."""
    box = plot.get_window_extent()
    taken: list[tuple[float, float, float]] = []  # left end, right end and middle of a label
    for text, x, y in sorted(named, key=lambda point: -point[2]):
        cut = textwrap.shorten(text, 40, placeholder=" …")
        at, middle = plot.transData.transform((x, y))
        left = at - box.x0 > box.x1 - at
        long = 6.6 * len(cut)  # pixels, of a font that the browser chooses
        start, end = (at - 10 - long, at - 10) if left else (at + 10, at + 10 + long)
        for step in range(2 * len(named) + 2):
            place = middle + (14 + step // 2 * _LINE) * (-1 if step % 2 else 1)
            inside = box.y0 <= place <= box.y1
            free = all(e < start or s > end or abs(m - place) >= _LINE for s, e, m in taken)
            if inside and free:
                break
        taken.append((start, end, place))
        written = plot.annotate(
            cut,
            (x, y),
            ((-10 if left else 10), place - middle),
            textcoords="offset pixels",
            va="center",
            parse_math=False,
        )
        written.set(ha="right" if left else "left", fontsize=_SMALL, color=INK)


# Marker, size, face, and edges: a light edge on a dark one shows on every colour of the map.
_MARKS: dict[str, tuple[str, float, str, tuple[tuple[str, float], ...]]] = {
    "default": ("X", 11, "#e8411a", ((PAPER, 1.0),)),
    "chosen": ("*", 15, PAPER, ((INK, 1.0),)),
    "best": ("o", 14, "none", ((INK, 4.0), (PAPER, 1.8))),
}


def heat_map(
    k1: Sequence[float],
    b: Sequence[float],
    values: NDArray[np.float64],
    *,
    label: str,
    marks: Mapping[str, tuple[float, float]] | None = None,
    outline: NDArray[np.bool_] | None = None,
) -> str:
    """Draw values [k1, b] over a grid of BM25's parameters in ascending order, one square a point.

    The colours are cividis (Nuñez, Anderton and Renslow, 2018), which people with and without
    colour blindness see alike.

    Args:
        k1, b: the parameters, from left to right and from below.
        values: the values.
        label: the description of the figure for screen readers.
        marks: `default`, `chosen` or `best` -> (k1, b). Marks between grid points are interpolated,
            those outside the grid are left out.
        outline: [k1, b]; a line surrounds the points that are true.
    """
    height = max(15.0 * len(b), 60.0) + 96
    plot = _axes(440, height, left=48, right=10, top=8, bottom=88)
    low, high = float(values.min()), float(values.max())
    style: dict[str, Any] = {
        "cmap": "cividis",
        "vmin": low if high > low else low - 1,
        "vmax": high if high > low else low + 1,
        "aspect": "auto",
        "interpolation": "none",  # one image of a pixel a point: paths would be much larger
    }
    plot.imshow(values.T, origin="lower", **style)
    if outline is not None and outline.any():
        _surround(plot, outline)
    for kind, (x, y) in (marks or {}).items():
        if k1[0] <= x <= k1[-1] and b[0] <= y <= b[-1]:
            place = np.interp(x, k1, range(len(k1))), np.interp(y, b, range(len(b)))
            shape, size, face, edges = _MARKS[kind]
            for edge, width in edges:
                drawn: dict[str, Any] = {"ms": size, "mfc": face, "mec": edge, "mew": width}
                plot.plot(*place, shape, clip_on=False, zorder=4, **drawn)
    plot.spines["bottom"].set_visible(False)
    for axis, numbers in ((plot.xaxis, k1), (plot.yaxis, b)):
        shown = range(0, len(numbers), -(-len(numbers) // 12))
        axis.set_ticks(list(shown), [f"{numbers[place]:g}" for place in shown])
    plot.set_ylabel("b", color=INK, fontsize=_SMALL, labelpad=8, rotation=0, va="center")
    bar = plot.figure.add_axes((104 / 440, 22 / height, 266 / 440, 12 / height))
    bar.imshow(np.linspace(low, high, 64)[None, :], **style)
    bar.set_axis_off()
    for x, value, side in ((-0.03, low, "right"), (1.03, high, "left")):
        text = bar.text(x, 0.5, number(value, 3), transform=bar.transAxes, va="center")
        text.set(ha=side, fontsize=_SMALL, color=INK)
    return _svg(plot, label, "k1")


def _surround(plot: Axes, inside: NDArray[np.bool_]) -> None:
    """Draw a line along every edge between a point inside and one outside."""
    padded = np.pad(inside, 1)
    upright = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])
    level = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])
    lines = [[(x - 0.5, y - 0.5), (x - 0.5, y + 0.5)] for x, y in upright]
    lines += [[(x - 0.5, y - 0.5), (x + 0.5, y - 0.5)] for x, y in level]
    x, y = np.array([[*line, (np.nan, np.nan)] for line in lines]).reshape(-1, 2).T
    for shade, width in ((INK, 3.2), (PAPER, 1.4)):
        plot.plot(x, y, color=shade, linewidth=width, solid_capstyle="projecting", clip_on=False)


def colour(style: RunStyle) -> str:
    """The colour of a run; runs without a colour of their own are grey."""
    return OTHER if style.colour is None else COLOURS[style.colour]


def _marker(plot: Axes, style: RunStyle, x: Any, y: Any, *, size: int, **more: Any) -> None:
    shape = "o" if style.colour is None else _MARKERS[style.colour]
    plot.plot(x, y, marker=shape, color=colour(style), ms=size, mec=PAPER, **more)


def _rows(
    labels: Sequence[Sequence[str]], *, width: float, wrap: int, gap: float, extra: float = 0.0
) -> tuple[Axes, list[tuple[float, float]]]:
    """Axes with a row below another for each label, and for each row the y of the label's top and
    bottom. Each line of a label is cut to two lines of `wrap` characters. The figure has `extra`
    pixels at the right of the axes' `width`."""
    cut = partial(textwrap.wrap, width=wrap, max_lines=2, placeholder=" …")
    wrapped = [[line for text in lines for line in cut(text)] for lines in labels]
    tops = np.cumsum([0.0, *(len(lines) * _LINE + gap for lines in wrapped)]).tolist()
    plot = _axes(width + extra, tops[-1] + 52, left=8, right=12 + extra, top=4, bottom=48)
    _without_y(plot, tops[-1])
    rows = []
    for lines, top in zip(wrapped, tops, strict=False):
        for index, line in enumerate(lines):
            _text(plot, 0.0, top + (index + 0.8) * _LINE, line)
        rows.append((top, top + len(lines) * _LINE))
    return plot, rows


def _without_y(plot: Axes, bottom: float) -> None:
    """Count y in pixels from above, without ticks."""
    plot.set_ylim(bottom, 0)
    plot.set_yticks([])
    plot.locator_params(axis="x", nbins=5)


def _right_of(plot: Axes, left: float, width: float) -> Axes:
    """Further axes in the figure of `plot`, with its rows, `left` pixels from the left."""
    full, box = plot.figure.bbox.width, plot.get_position()
    axes = plot.figure.add_axes((left / full, box.y0, width / full, box.height))
    _styled(axes)
    _without_y(axes, plot.get_ylim()[0])
    return axes


def _text(plot: Axes, x: float, y: float, text: str, *, ha: str = "left") -> None:
    """Write at a share of the width of the axes, and at a y in the units of the data."""
    written = plot.text(x, y, text, transform=plot.get_yaxis_transform(), parse_math=False)
    written.set(ha=ha, fontsize=_TEXT, color=INK)


def _axes(
    width: float, height: float, *, left: float, right: float, top: float, bottom: float
) -> Axes:
    """Axes in a new figure, with margins in pixels and a line below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    plot = figure.add_axes(box)
    _styled(plot)
    return plot


def _styled(plot: Axes) -> None:
    plot.spines[["top", "right", "left"]].set_visible(False)
    plot.spines["bottom"].set_color(MUTED)
    plot.set_axisbelow(True)
    plot.tick_params(colors=MUTED, labelsize=_SMALL, length=3, labelcolor=INK)


def _svg(plot: Axes, label: str, axis: str = "") -> str:
    """The figure of the axes as an `<svg>` element. Equal figures give equal text: without a date,
    and with ids that are hashes of the content and the label."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if axis:
        plot.set_xlabel(axis, color=INK, fontsize=_SMALL, parse_math=False)
    buffer, figure = io.StringIO(), plot.figure
    assert isinstance(figure, Figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": label}), warnings.catch_warnings():
        # The browser draws the texts, so glyphs may be missing in matplotlib's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r"(font: [^;\"]*?px) [^;\"]*|font-family: [^;\"]*;? ?", r"\1", body)
    # Elements have ids such as `patch_1`, which no reference needs and other figures repeat.
    body = re.sub(r" id=\"[a-zA-Z0-9.]+_\d+\"", "", body).replace("xlink:href", "href")
    body = re.sub(r"\n\s*", "\n", body)
    body = re.sub(
        r" (?:d|x|y|width|height|transform)=\"[^\"]*\"",
        lambda match: " " + re.sub(r"(\.\d\d)\d+", r"\1", " ".join(match[0].split())),
        body,
    )
    width, height = figure.get_size_inches() * 72
    return (
        f'<svg class="plot" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" style="max-width: {width * 1.2:g}px">'
        f"{body.strip()}"
    )
