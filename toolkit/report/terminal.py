"""The tables of results, and of systems by benchmarks, for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.evaluation.comparison import (
    PairedComparison,
    by_benchmark,
    varied_factors,
)
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.funnel import STEP_MEASURES, STEPS, UNSUPPORTED
from soundingline.toolkit.report.agents import GPU, cell_costs_table
from soundingline.toolkit.report.comparison import (
    Compared,
    averaged,
    benchmarks_table,
    difference_column,
    p_column,
    warnings,
)
from soundingline.toolkit.report.measures import percent
from soundingline.toolkit.report.page import RUN, Column, Table, TableEntry
from soundingline.toolkit.report.results import (
    ReportData,
    factor_value,
    labelled_by_factors,
    result_column,
)

WIDTH = 80
SIGNS = {"tie": "≈", "higher": "▲", "lower": "▼"}
_NAME = 16  # the least width of longer factors and names, which fold
_FEW = (
    *("accuracy", "F1@20", "nDCG@20", "nDCG@10", "tokens_exposed", "AP", "R@1000"),
    *("recall_surfaced", "recall_opened", "search_calls"),
)
_DIFFERENCE = "difference in"
_COLUMNS, _BESIDE = 6, 3  # of measures in a table, and in one with differences
# Where lines of names may break: after these signs, and at underscores if a part is still too long.
_BREAKS = re.compile(r"(?<=[\s=,·/])|(?<=\w-)|(?<=\.)(?!\d)")


def comparison_table(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    *,
    measures: Sequence[str] = (),
    **options: Any,
) -> RichTable:
    """The table of results for 80 columns, with the differences on the main measure, their
    intervals and p values, if all runs of a benchmark were compared with one of them. Below it
    stand a legend, and what a reader must know, such as how many questions failed.

    Args:
        runs: the runs.
        comparisons: their paired comparisons.
        measures: the columns of numbers. Default: the usual ones that the runs have. Those that do
            not fit are left out; a line below the table names them if they were given, and counts
            of questions are then shown only if they are not 0.
        options: others of `soundingline.toolkit.report.results.ReportData`, such as `baseline`.
    """
    data = ReportData(runs, comparisons, measures=measures, **options)
    usual = [name for name in _FEW if any(name in run.metrics for run in runs)]
    rows = {row.a: row for row in data.comparisons_on(data.main)} if _one_reference(data) else {}
    main = [data.main] if rows else []
    few = [*main, *(usual or data.measures)]
    chosen = dict.fromkeys(
        measures or list(dict.fromkeys(few))[: _BESIDE if data.comparisons else _COLUMNS]
    )
    by_factors = labelled_by_factors(data.styles) and not data.against_baseline
    results = [result_column(data, name) for name in chosen]
    if rows:  # the difference has the mark
        results = [replace(c, mark=None) if c.title == data.main else c for c in results]
    groups = [
        [RUN],
        [_factor_column(name) for name in varied_factors(data.runs) if by_factors],
        results,
        _difference_columns(data, lambda style: rows.get(style.run.name)) if rows else [],
    ]
    table = Table([column for group in groups for column in group], data.styles)
    places = iter(range(len(table.columns)))
    names, factors, numbers, compared = ([next(places) for _ in group] for group in groups)
    if factors and _width(table, [*factors, *numbers, *compared]) <= WIDTH:
        names = factors
    left_out: list[str] = []
    while len(numbers) > 1 and _width(table, [*names, *numbers, *compared]) > WIDTH:
        left_out.insert(0, table.columns[numbers.pop()].title)
    shown = [*names, *numbers, *compared]
    notes = [_legend(data, table, shown), *warnings(data)]
    if data.against_baseline:
        notes.insert(0, f"Baseline: {data.style(data.baseline).within}.")
    elif rows:
        notes.insert(0, f"Differences from {data.style(next(iter(rows.values())).b).label}.")
    if measures and left_out:
        notes.append(f"No room for {', '.join(left_out)}: see the report.")
    return _printed(table, shown, "\n".join(filter(None, notes)))


def pairs_tables(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    **options: Any,
) -> list[RichTable]:
    """The differences of all pairs on the main measure; no table if `comparison_table` has the
    differences.

    Args: see `comparison_table`.
    """
    data = ReportData(runs, comparisons, **options)
    rows = data.comparisons_on(data.main)
    if not rows or _one_reference(data):
        return []
    pair = [
        Column("run", lambda row: data.style(row.a).change, numeric=False),
        Column("compared with", lambda row: data.style(row.b).change, numeric=False),
    ]
    table = Table([*pair, *_difference_columns(data, lambda row: row)], rows)
    shown = range(len(table.columns))
    return [_printed(table, shown, _legend(data, table, shown))]


def _one_reference(data: ReportData) -> bool:
    """Whether the runs of each benchmark were compared with one of them on the main measure."""
    others = {row.b for row in data.comparisons_on(data.main)}
    groups = [{run.name for run in group} for group in by_benchmark(data.runs)]
    return bool(others) and all(len(others & names) <= 1 for names in groups)


def _difference_columns(data: ReportData, compared: Compared) -> list[Column]:
    """The differences on the main measure with marks and intervals, and their p values."""
    column = difference_column(data, f"{_DIFFERENCE} {data.main} [95% interval]", compared)

    def difference(item: Any) -> TableEntry:
        row, entry = compared(item), column.entry(item)
        mark = ""
        if row is not None and data.significant(row):
            mark = "higher" if row.difference > 0 else "lower"
        return replace(entry, text=f"{entry.text} {entry.sub}".rstrip(), mark=mark)

    return [replace(column, source=difference), p_column(compared)]


def _legend(data: ReportData, table: Table, shown: Sequence[int]) -> str:
    """What the signs of a table of differences, or of ties, mean, in one line; else empty."""
    marks = {row[place].mark for row in table.rows for place in shown}
    signs = []
    if any(table.columns[place].title.startswith(_DIFFERENCE) for place in shown):
        than = " than the baseline" if data.against_baseline else ""
        signs.append(f"{SIGNS['higher']}, {SIGNS['lower']}: significantly higher, lower{than}")
    if "tie" in marks:
        signs.append(f"{SIGNS['tie']}: tied with the best")
    return f"{'; '.join(signs)} (p ≤ {data.alpha:g}, Holm)." if signs else ""


def _factor_column(name: str) -> Column:
    return Column(name, lambda style: factor_value(style.run, name), numeric=False)


def benchmark_tables(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    *,
    measures: Sequence[str] = (),
    **options: Any,
) -> list[RichTable]:
    """Systems by benchmarks with the macro average, if there is one, without intervals.

    Args:
        runs: the runs.
        comparisons: their paired comparisons.
        measures: the measures to show. Default: the main measure.
        options: others of `soundingline.toolkit.report.results.ReportData`, such as `by`.

    Returns:
        A table for each measure, several where the benchmarks need more than 80 columns; no table
        if all runs are over one benchmark.
    """
    data = ReportData(runs, comparisons, measures=measures, **options)
    if data.systems is None:
        return []
    tables = []
    for measure in list(measures) or [data.main]:
        if not averaged(data.systems, measure):
            continue
        tables += _parts(benchmarks_table(data, data.systems, measure), measure)
    return tables


def evidence_line(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    *,
    baseline: str | None = None,
) -> str:
    """The share of questions that passed each step from the evidence to a right answer, of the
    baseline, or of the run with the highest accuracy. Empty for runs of which it is not known.

    Args: see `comparison_table`.
    """
    data = ReportData(runs, comparisons, baseline=baseline or "")
    systems = [style for style in data.styles if style.run.name not in data.bounds]
    known = [style for style in systems if STEP_MEASURES[0] in style.run.metrics]
    if not known:
        return ""
    best = max(known, key=lambda style: style.run.metrics["accuracy"])
    shown = data.style(baseline) if baseline in {s.run.name for s in known} else best
    metrics = shown.run.metrics
    steps = zip(STEPS, STEP_MEASURES, strict=True)
    shares = [f"{step.replace('_', ' ')} {percent(metrics[measure])}" for step, measure in steps]
    count = len(shown.run.per_question[STEP_MEASURES[0]])
    return (
        f"Evidence in {shown.label}, {count:,} questions: {', '.join(shares)}; right without a "
        f"shown answer {percent(metrics[UNSUPPORTED])}."
    )


def cost_tables(runs: Sequence[EvaluatedRun]) -> list[RichTable]:
    """The median and the 90th percentile of what a question cost, and the seconds of GPUs, indexes
    and phrases, in tables of 80 columns; none for runs without language models and GPUs."""
    table = cell_costs_table(ReportData(runs))
    if table is None or not {"dollars", "tokens", GPU} & {one.title for one in table.columns}:
        return []
    return _parts(table, "Cost: median / 90th percentile of a question")


def _parts(table: Table, heading: str) -> list[RichTable]:
    """A table as one for the terminal, or as several with the same first column where its columns
    need more than 80 characters."""
    parts = [[0]]
    for place in range(1, len(table.columns)):
        if len(parts[-1]) > 1 and _width(table, [*parts[-1], place]) > WIDTH:
            parts.append([0])
        parts[-1].append(place)
    notes = [*[""] * (len(parts) - 1), table.note]
    return [_printed(table, part, note, heading) for part, note in zip(parts, notes, strict=True)]


def _printed(table: Table, shown: Sequence[int], note: str, title: str = "") -> RichTable:
    """The columns of a table at the places `shown`."""
    printed = RichTable(
        title=Text(escape_control(title)) if title else None,
        title_justify="left",
        # In lines of its own, because Rich would fold it to the width of the table.
        caption=Text("\n".join(_lines(note)), no_wrap=True, overflow="ignore") if note else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    names = [place for place in shown if not table.columns[place].numeric]
    # Names share what the numbers leave.
    room = WIDTH - _width(table, [place for place in shown if place not in names]) - len(names)
    room = max(room // max(1, len(names)), _NAME)
    for place in shown:
        # The width is fixed, because Rich would cut or break numbers that have no room.
        column, width = table.columns[place], _longest(table, place)
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        head, width = Text(_words(column.title)), min(width, room) if place in names else width
        printed.add_column(head, justify=justify, overflow="fold", width=width)
    for row in table.rows:
        # `Text`, because brackets in a string are markup for Rich.
        printed.add_row(
            *(
                Text(
                    _folded(_text(row[place]), room) if place in names else _text(row[place]),
                    style="bold" if row[place].mark == "best" else "",
                )
                for place in shown
            )
        )
    return printed


def _lines(note: str) -> Iterator[str]:
    for line in escape_control(note).splitlines():
        yield from textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def _folded(text: str, width: int) -> str:
    """A name in lines of at most `width` columns, which break between words where they can."""
    lines = [""]
    for part in _BREAKS.split(text):
        for word in [part] if cell_len(part.rstrip()) <= width else re.split("(?<=_)", part):
            if cell_len(f"{lines[-1]}{word}".rstrip()) > width:
                lines.append("")
            lines[-1] += word
    return "\n".join(line.rstrip() for line in lines if line)


def _width(table: Table, shown: Sequence[int]) -> int:
    """The characters of a line, with gaps between the columns and long names folded."""
    most = [WIDTH if table.columns[place].numeric else _NAME for place in shown]
    widths = [min(_longest(table, place), each) for place, each in zip(shown, most, strict=True)]
    return sum(widths) + len(widths) - 1


def _longest(table: Table, place: int) -> int:
    """The width of a column: of its longest entry, or of a word of its title if that is longer."""
    word = max(map(cell_len, _words(table.columns[place].title).split()), default=0)
    return max([min(word, _NAME), *(cell_len(_text(row[place])) for row in table.rows)])


def _words(head: str) -> str:
    """A title whose lines break at underscores, and at the dots of settings."""
    return re.sub(r"_|\.(?!\d)", " ", escape_control(head))


def _text(entry: TableEntry) -> str:
    return escape_control(f"{SIGNS.get(entry.mark, '')}{entry.text}")
