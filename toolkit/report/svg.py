"""From a matplotlib figure to inline SVG that takes colours and font from the page around it.

Sizes are in CSS pixels. Colours are CSS variables of the page's style sheet, so that a figure
turns dark with the page; matplotlib is handed stand-ins that are replaced afterwards.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from toolkit.report.tables import COLOURS

if TYPE_CHECKING:  # matplotlib is imported when something is drawn: it takes long
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_VARIABLES = ("ink", "muted", "grid", "paper", "other", *(f"k{i}" for i in range(COLOURS)))
_STAND_IN = {name: f"#0a0b{i:02x}" for i, name in enumerate(_VARIABLES)}
_VARIABLE = {stand_in: f"var(--{name})" for name, stand_in in _STAND_IN.items()}

INK, MUTED, GRID, PAPER, OTHER = (
    _STAND_IN[name] for name in ("ink", "muted", "grid", "paper", "other")
)
SMALL, TEXT = 12, 13


def colour(index: int | None) -> str:
    """The stand-in of a cell's colour; None is the background colour of unhighlighted cells."""
    return OTHER if index is None else _STAND_IN[f"k{index}"]


def canvas(width: float, height: float) -> Canvas:
    """An empty drawing of that many pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def axes(
    figure: Canvas, *, left: float, right: float, top: float, bottom: float, bare: bool = False
) -> Axes:
    """Axes with margins in pixels; `bare` ones have no ticks and no frame."""
    width, height = figure.get_size_inches() * 72
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    plot = figure.add_axes(box)
    for side in ("top", "right", "left", *(("bottom",) if bare else ())):
        plot.spines[side].set_visible(False)
    plot.spines["bottom"].set_color(MUTED)
    plot.patch.set_visible(False)
    plot.tick_params(colors=MUTED, labelsize=SMALL, length=3, labelcolor=INK)
    if bare:
        plot.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
    return plot


def inline(figure: Canvas, *, key: str, label: str) -> str:
    """The figure as an `<svg>` element; `key` keeps its ids apart from other figures' ids.

    Equal figures give equal text: no date, no random ids.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "path.simplify": False,
    }
    with rc_context(settings), warnings.catch_warnings():
        # The reader's font draws the text; that matplotlib's own lacks a glyph does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    width, height = (round(side * 72, 1) for side in figure.get_size_inches())
    body = buffer.getvalue()
    body = body[body.index(">", body.index("<svg")) + 1 :]
    for pattern, replacement in _CLEANING:
        body = pattern.sub(replacement, body)
    head = (
        f'<svg class="plot" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" style="max-width: {width * 1.2:g}px">'
    )
    return head + _own_ids(body, key).strip()


def _shortened(attribute: str) -> str:
    return " " + re.sub(r"(\d\.\d\d)\d+", r"\1", " ".join(attribute.split()))


_CLEANING: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", re.S), ""),
    (re.compile(r"font-family: [^;\"]*;? ?"), ""),
    (re.compile(r"#0a0b[0-9a-f]{2}(?=[;\"])"), lambda m: _VARIABLE.get(m[0], m[0])),
    (re.compile(r" transform=\"rotate\(-0 [^)]*\)\""), ""),
    (re.compile(r"xlink:href"), "href"),
    (re.compile(r" (?:d|x|y|width|height|transform)=\"[^\"]*\""), lambda m: _shortened(m[0])),
    (re.compile(r"\n\s*"), "\n"),
)


def _own_ids(body: str, key: str) -> str:
    used = dict.fromkeys(re.findall(r"(?:href=\"#|url\(#)([\w.-]+)", body))
    for index, name in enumerate(used):
        body = re.sub(
            rf"(id=\"|href=\"#|url\(#){re.escape(name)}(?=[\")])", rf"\g<1>{key}-{index}", body
        )
    return re.sub(rf" id=\"(?!{re.escape(key)}-\d)[^\"]*\"", "", body)
