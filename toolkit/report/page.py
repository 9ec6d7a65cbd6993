"""Puts the parts of a report together: one HTML file that needs no network, and Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.console import visible
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.compare import Verdict
from toolkit.files import write_atomic
from toolkit.report.benchmarks import benchmarks_section
from toolkit.report.comparisons import verdicts_section
from toolkit.report.costs import costs_section, roles_section
from toolkit.report.data import ReportData, report_data
from toolkit.report.evidence import calls_section, curves_section, funnel_section
from toolkit.report.provenance import (
    glossary_section,
    provenance_section,
    setup_section,
    stages_section,
)
from toolkit.report.results import cells_section, exits_section, repeats_section
from toolkit.report.tables import Section, Span
from toolkit.report.words import notes, verdict

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Report:
    """One report in both formats. Equal input gives equal text."""

    html: str
    markdown: str


_SECTIONS = (
    benchmarks_section,
    cells_section,
    verdicts_section,
    costs_section,
    roles_section,
    repeats_section,
    funnel_section,
    curves_section,
    calls_section,
    exits_section,
    setup_section,
    stages_section,
    provenance_section,
    glossary_section,
)


def render(
    cells: Sequence[Cell],
    verdicts: Sequence[Verdict] = (),
    *,
    title: str = "Comparison of runs",
    main: str | None = None,
    baseline: str | None = None,
    measures: Sequence[str] = (),
    alpha: float = 0.05,
    unfinished: Sequence[str] = (),
    traces: Mapping[str, str] | None = None,
    by: Sequence[str] = (),
) -> Report:
    """The report on `cells`.

    `verdicts` are paired comparisons of `toolkit.evaluation`; those between cells that are not in
    `cells` are left out. `main` is the measure of the verdict in words (default: the first tested
    one, accuracy before ranking measures); `baseline` the cell that others are held against
    (default: the first); `measures` the columns of the first table (default: the first eight).
    `unfinished`: lines about cells that have no numbers, which come first of the notes. `traces`:
    cell name -> address of its traces, relative to the report. `by`: the factors that tell systems
    apart in the table of systems by benchmarks (default: all settings but the benchmark's).
    A difference is called resolved when its p value after Holm's correction is at most `alpha`.
    Raises `InputError` for no cells, cells named alike, and an unknown measure or baseline.
    """
    data = report_data(
        cells,
        verdicts,
        main=main,
        baseline=baseline,
        measures=measures,
        alpha=alpha,
        traces=traces,
        by=by,
    )
    sections = [section for make in _SECTIONS if (section := make(data)) is not None]
    all_notes = [*unfinished, *notes(data)]
    return page(title, _subtitle(data), verdict(data), all_notes, sections)


def page(
    title: str,
    subtitle: str,
    verdict: Sequence[Span],
    notes: Sequence[str],
    sections: Sequence[Section],
) -> Report:
    """A report of any sections, in both formats."""
    parts = {
        "title": title,
        "subtitle": subtitle,
        "verdict": verdict,
        "notes": notes,
        "sections": sections,
    }
    return Report(
        html=templates().get_template("report.html").render(parts),
        markdown=_tidy(templates().get_template("report.md").render(parts)),
    )


def write_report(folder: Path, report: Report) -> Path:
    """Write `report.html` and `report.md` into `folder` (made if absent); the HTML file's path."""
    write_atomic(folder / "report.md", report.markdown, clear=True)
    write_atomic(folder / "report.html", report.html, clear=True)
    return folder / "report.html"


def _subtitle(data: ReportData) -> str:
    count = len(data.styles)
    parts = [f"{count} cell{'s' if count != 1 else ''}"]
    if data.main:
        parts.append(f"main measure {data.main}")
    if count > 1:
        parts.append(f"baseline {data.label(data.baseline)}")
    dates = sorted({str(c.manifest["created"])[:10] for c in data.cells if "created" in c.manifest})
    if dates:
        parts.append("made " + " to ".join(dict.fromkeys((dates[0], dates[-1]))))
    return ", ".join(parts)


@cache
def templates() -> Environment:
    """The templates of this package; those of HTML escape what is put into them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("toolkit.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = plain_markdown
    return environment


_MARKDOWN = re.compile(r"[\\`*|$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|(?<=\])[(\[]|^[#>+-]")


def plain_markdown(text: str) -> str:
    """Text that Markdown prints as it is: markup, table bars and line breaks lose their meaning,
    and what has none where it stands, such as the underscore of `bm25_tuned`, stays readable.
    Reports are read in terminals too, so control characters are made `visible`."""
    joined = visible(" ".join(str(text).split()))
    return html.escape(_MARKDOWN.sub(r"\\\g<0>", joined), quote=False)


def _tidy(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
