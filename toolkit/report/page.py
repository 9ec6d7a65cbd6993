"""The parts of a report (sections, tables, figures) and their form as HTML and Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.files import write_text
from soundingline.toolkit.report.measures import read_data

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment

# Colours of runs: those of Okabe and Ito (2008), darkened where they are too light on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b3528a", "#b98100", "#56a8dc", "#4c4c9d", "#7a7a2e")
OTHER = "#a9b0b7"  # the colour of runs without one of their own
DASH = "—"  # for what is unknown
_LINE = 160  # characters of a line of a table on a printed page


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


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table: its `value` (None if it is unknown), and how it is shown. By default
    the column formats the value as `text`. `sub` is in small print, and `mark` is `best`, `tie`,
    `higher`, `lower` or empty. A swatch of the run `style` precedes the text, and `link` is its
    relative address. On a page, the text has the class `kind` and says `tip` where a pointer is;
    the judgements `judged` follow it."""

    value: Any
    text: str = ""
    sub: str = ""
    mark: str = ""
    style: RunStyle | None = None
    link: str = ""
    kind: str = ""
    tip: str = ""
    judged: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """Whether there is something to read."""
        return self.text not in ("", DASH) or bool(self.sub or self.judged)


@dataclass(frozen=True)
class Column:
    """One column of a table, the same for a page, Markdown, the terminal and a data frame.

    Args:
        title: the title, from which lines may break at underscores.
        source: a function from a row to its value or `TableEntry`, or the key of this in a row.
            None is an unknown value. Default: the key is the title.
        form: the text of a known value.
        note: is printed small below the title.
        numeric: whether entries are aligned to the right, else to the left.
        mark: a function from a row to its significance, a `TableEntry.mark`.
        tip: what a page says where a pointer is on the title.
    """

    title: str
    source: Callable[[Any], Any] | str = ""
    form: Callable[[Any], str] = str
    note: str = ""
    numeric: bool = True
    mark: Callable[[Any], str] | None = None
    tip: str = ""

    @property
    def label(self) -> str:
        """The title with the note or the tip, as it stands beside an entry on a narrow screen."""
        return self.title + (
            f" ({self.note})" if self.note else f". {self.tip}" if self.tip else ""
        )

    def entry(self, row: Any) -> TableEntry:
        source = self.source
        value = source(row) if callable(source) else row.get(source or self.title)
        entry = value if isinstance(value, TableEntry) else TableEntry(value)
        text = entry.text or (DASH if entry.value is None else self.form(entry.value))
        return replace(entry, text=text, mark=self.mark(row) if self.mark else entry.mark)


def columns(
    source: Callable[[Any, str], Any],
    names: Iterable[str],
    form: Callable[[Any], str] = str,
    note: str = "",
    numeric: bool = True,
) -> list[Column]:
    """A column for each name, with the values `source(row, name)`."""

    def column(name: str) -> Column:
        return Column(name.replace("_", " "), lambda row: source(row, name), form, note, numeric)

    return [column(name) for name in names]


class Table:
    """A table of `columns`, with a `note` below it: `rows` of entries, made from one item each.
    Instead of a table with `folded`, the HTML page shows that line and opens the table on a
    click. The page leaves out columns without a known value, and has a block instead of a line for
    each row of a table that is wider than a printed page."""

    def __init__(
        self,
        columns: Sequence[Column],
        items: Iterable[Any],
        *,
        note: str = "",
        folded: str = "",
    ) -> None:
        self.columns, self.note, self.folded = columns, note, folded
        self.rows = [[column.entry(item) for column in columns] for item in items]

    @property
    def shown(self) -> list[int]:
        """The places of the columns of the page: the first, and those with a known value."""
        known = [any(row[place].holds for row in self.rows) for place in range(len(self.columns))]
        return [place for place, holds in enumerate(known) if holds or not (place and any(known))]

    @property
    def blocks(self) -> bool:
        """Whether the longest words of the columns are longer than a line of a printed page."""
        words = [
            [*self.columns[place].title.replace("_", " ").split(), self.columns[place].note]
            + [word for row in self.rows for word in f"{row[place].text} {row[place].sub}".split()]
            for place in self.shown
        ]
        return sum(min(max(map(len, each)), 24) + 2 for each in words) > _LINE

    def to_frame(self) -> pd.DataFrame:
        """The values as a data frame. Columns of one title have their notes in the names too."""
        import pandas as pd

        titles = [column.title for column in self.columns]
        names = [
            f"{column.title} ({column.note})" if titles.count(column.title) > 1 else column.title
            for column in self.columns
        ]
        return pd.DataFrame([[entry.value for entry in row] for row in self.rows], columns=names)


def texts(*titles: str) -> list[Column]:
    """Columns of texts, which rows have under their titles."""
    return [Column(title, numeric=False) for title in titles]


RUN = Column("run", attrgetter("entry"), numeric=False)
"""The first column of a table whose items are the `RunStyle`s of runs."""


@dataclass(frozen=True)
class Figure:
    """A figure. `svg` is trusted markup of `soundingline.toolkit.report.plots`; the rest is
    text. A narrow screen scrolls over a `wide` figure."""

    svg: str
    heading: str = ""
    style: RunStyle | None = None
    wide: bool = False


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
    link: str = ""  # the address of a page with the questions one by one


def sentences(anchor: str, **words: Any) -> dict[str, str]:
    """The texts of a section in `sections.yaml`, in which `words` replace their names in braces."""
    texts = read_data("sections.yaml").get(anchor, {})
    return {name: text.format_map(words) if words else text for name, text in texts.items()}


def section(
    anchor: str, words: Mapping[str, Any] | None = None, *, also: Sequence[str] = (), **parts: Any
) -> Section:
    """A section with its `sentences` and these parts of a `Section`, without tables that have no
    rows. The sentences named `also` follow its note."""
    texts = sentences(anchor, **(words or {}))
    texts["note"] = " ".join(texts[name] for name in ("note", *also) if name in texts)
    parts = {name: texts[name] for name in _SENTENCES if name in texts} | parts
    tables = [table for table in parts.pop("tables", ()) if table.rows]
    return Section(anchor, **parts, tables=tables)


_SENTENCES = ("title", "lead", "key", "note")


@dataclass(frozen=True)
class TextSpan:
    """A piece of the summary."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Report:
    """One report as HTML (a file that loads nothing) and as Markdown, with its `tables` by section.

    Example:
        >>> from soundingline.toolkit.evaluation import EvaluatedRun
        >>> from soundingline.toolkit.report import ReportData, render
        >>> data = ReportData([EvaluatedRun(name="bm25", metrics={"AP": 0.25})])
        >>> report = render(data, title="mine")
        >>> report.tables["results"][0].to_frame()["AP"].tolist()
        [0.25]
        >>> write_report(folder, report)  # doctest: +SKIP
    """

    html: str
    markdown: str
    tables: Mapping[str, Sequence[Table]]


def page(
    title: str,
    subtitle: str,
    summary: Sequence[TextSpan],
    warnings: Sequence[str],
    sections: Iterable[Section | None],
    notice: str = "",
) -> Report:
    """Render the sections that have a figure or a table, and a notice below them, in both formats.
    Equal arguments give equal text."""
    shown = [section for section in sections if section and (section.figures or section.tables)]
    parts = {
        "title": title,
        "subtitle": subtitle,
        "summary": summary,
        "warnings": warnings,
        "sections": shown,
        "notice": notice,
        "colours": COLOURS,
    }
    text = {
        kind: templates().get_template(f"report.{kind}").render(parts) for kind in ("html", "md")
    }
    markdown = re.sub(r"\n{3,}", "\n\n", text["md"]).strip() + "\n"
    return Report(text["html"], markdown, {section.anchor: section.tables for section in shown})


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

    Characters that are not markup where they are, such as the underscore of `bm25_tuned`, stay as
    they are, because reports are read in terminals too.

    >>> plain_markdown("bm25_tuned | *")
    'bm25_tuned \\\\| \\\\*'
    """
    joined = escape_control(" ".join(str(text).split()))
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", joined), quote=False)
