"""The parts of a report (sections, tables, figures) and their form as HTML and Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.files import write_text

if TYPE_CHECKING:
    from jinja2 import Environment

# Colours of runs: those of Okabe and Ito (2008), darkened where they are too light on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b3528a", "#b98100", "#56a8dc", "#4c4c9d", "#7a7a2e")
OTHER = "#a9b0b7"  # the colour of runs without one of their own


@dataclass(frozen=True)
class Column:
    """A column of a table; `note` is printed small below its title."""

    title: str
    note: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table: `text`, `sub` in small print, and a `mark`, which is `best`, `tie` or
    empty. A swatch of the run `style` precedes the text, and `link` is its relative address."""

    text: str
    sub: str = ""
    mark: str = ""
    style: RunStyle | None = None
    link: str = ""


@dataclass(frozen=True)
class RunStyle:
    """How one run is named and drawn in every table and figure. `colour` is an index into
    `COLOURS`; a run without one is drawn in grey, because there are more runs than colours.
    `benchmark` is the label of its benchmark where there are several. Among the runs over the same
    benchmark, `within` has its varied factors, and `change` what it changes against the baseline.
    """

    run: EvaluatedRun
    label: str
    colour: int | None
    benchmark: str = ""
    within: str = ""
    change: str = ""

    @property
    def entry(self) -> TableEntry:
        """The entry that names the run."""
        return TableEntry(self.label, style=self)


Entries = Iterable["TableEntry | str"]
"""The entries of a row of a table; a string is an entry of that text."""


class Table:
    """A table with a `note` below it. Instead of a table with `folded`, the HTML page shows that
    line and opens the table on a click."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Iterable[Entries],
        *,
        note: str = "",
        folded: str = "",
    ) -> None:
        self.columns, self.note, self.folded = columns, note, folded
        self.rows = [
            [TableEntry(entry) if isinstance(entry, str) else entry for entry in row]
            for row in rows
        ]

    @classmethod
    def of_runs(
        cls,
        styles: Iterable[RunStyle],
        columns: Iterable[Column],
        entries: Callable[[EvaluatedRun], Entries],
        *,
        note: str = "",
        folded: str = "",
    ) -> Table:
        """A table with one row for each run: its name, and `entries` of the run."""
        rows = [[style.entry, *entries(style.run)] for style in styles]
        return cls([*texts("run"), *columns], rows, note=note, folded=folded)


def texts(*titles: str) -> list[Column]:
    """Columns of texts."""
    return [Column(title, numeric=False) for title in titles]


@dataclass(frozen=True)
class Figure:
    """A figure. `svg` is trusted markup of `soundingline.toolkit.report.plots`; the rest is
    text. A figure of the `width` `wide` is shown on wide screens only, and `narrow` on narrow
    ones."""

    svg: str
    heading: str = ""
    style: RunStyle | None = None
    width: str = ""


@dataclass(frozen=True)
class Section:
    """A section and its parts, in the order in which they are printed."""

    anchor: str  # the id of the section in the HTML page
    title: str
    lead: str = ""  # what the section shows
    legend: Sequence[RunStyle] = ()  # the runs that the figures show
    figures: Sequence[Figure] = ()  # only in the HTML page
    key: str = ""  # how to read the figures
    note: str = ""  # how to read the tables
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class TextSpan:
    """A piece of the summary."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Report:
    """One report as HTML (a file that loads nothing) and as Markdown.

    Example:
        >>> Report(html="<p>1</p>", markdown="1").markdown
        '1'
        >>> write_report(folder, render(runs, compare(runs), title="mine"))  # doctest: +SKIP
    """

    html: str
    markdown: str


def page(
    title: str,
    subtitle: str,
    summary: Sequence[TextSpan],
    warnings: Sequence[str],
    sections: Sequence[Section],
) -> Report:
    """Render sections in both formats. Equal arguments give equal text."""
    parts = {
        "title": title,
        "subtitle": subtitle,
        "summary": summary,
        "warnings": warnings,
        "sections": sections,
        "colours": COLOURS,
    }
    text = {
        kind: templates().get_template(f"report.{kind}").render(parts) for kind in ("html", "md")
    }
    return Report(text["html"], re.sub(r"\n{3,}", "\n\n", text["md"]).strip() + "\n")


def write_report(folder: Path, report: Report) -> Path:
    """Write `report.html` and `report.md` into a folder, and return the path of the former."""
    write_text(folder / "report.md", report.markdown)
    write_text(folder / "report.html", report.html)
    return folder / "report.html"


@cache
def templates() -> Environment:
    """The templates of this package. Those of HTML escape every value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("soundingline.toolkit.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = plain_markdown
    return environment


_MARKDOWN = re.compile(r"[\\`*|$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|(?<=\])[(\[]|^[#>+-]")


def plain_markdown(text: str) -> str:
    """Escape what Markdown would read as markup, on one line and without control characters.

    Characters that are no markup where they are, such as the underscore of `bm25_tuned`, stay as
    they are, because reports are read in terminals too.

    >>> plain_markdown("bm25_tuned | *")
    'bm25_tuned \\\\| \\\\*'
    """
    joined = escape_control(" ".join(str(text).split()))
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", joined), quote=False)
