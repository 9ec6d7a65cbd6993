"""The tables of results, and of systems by benchmarks, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from soundingline.toolkit.console import escape_control
from soundingline.toolkit.evaluation.comparison import PairedComparison, varied_factors
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun, stand_ins
from soundingline.toolkit.evaluation.funnel import (
    STEP_MEASURES,
    STEPS,
    UNSUPPORTED,
    decomposed_difference,
)
from soundingline.toolkit.report.agents import GPU, cell_costs_table
from soundingline.toolkit.report.comparison import averaged, benchmarks_table
from soundingline.toolkit.report.measures import percent, value_text
from soundingline.toolkit.report.page import RUN, Column, RunStyle, Table, TableEntry
from soundingline.toolkit.report.results import (
    ReportData,
    count_names,
    denominator,
    factor_value,
    labelled_by_factors,
    result_column,
)

WIDTH = 80
SIGNS = {"tie": "≈", "higher": "▲", "lower": "▼"}
_NAME = 16  # longer factors and names fold
_FEW = (
    "accuracy",
    "F1@20",
    "nDCG@20",
    "recall_surfaced",
    "recall_opened",
    "recall_cited",
    "search_calls",
    "nDCG@10",
    "AP",
    "R@1000",
)


def comparison_table(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    *,
    title: str = "",
    measures: Sequence[str] = (),
    **options: Any,
) -> RichTable:
    """The table of results without intervals, for 80 columns.

    Args:
        runs: the runs.
        comparisons: their paired comparisons.
        title: a line above the table.
        measures: the columns of numbers. Default: the usual ones that the runs have. Those that do
            not fit are left out; a line below the table names them if they were given, and counts
            of questions are then shown only if they are not 0.
        options: others of `soundingline.toolkit.report.results.ReportData`, such as `baseline`.
    """
    data = ReportData(runs, comparisons, measures=measures, **options)
    usual = [name for name in _FEW if any(name in run.metrics for run in runs)]
    counts = count_names(data)
    if measures:
        counts = [name for name in counts if any(run.counts.get(name) for run in runs)]
    chosen = list(measures or (usual or data.measures)[: 7 - len(counts)])
    by_factors = labelled_by_factors(data.styles) and not data.against_baseline
    groups = [
        [RUN],
        [_factor_column(name) for name in varied_factors(data.runs) if by_factors],
        [result_column(data, name) for name in dict.fromkeys(chosen)],
        [_count_column(name) for name in counts],
    ]
    table = Table([column for group in groups for column in group], data.styles)
    places = iter(range(len(table.columns)))
    names, factors, numbers, counted = ([next(places) for _ in group] for group in groups)
    if factors and _width(table, [*factors, *numbers, *counted]) <= WIDTH:
        names = factors
    left_out: list[str] = []
    while len(numbers) > 1 and _width(table, [*names, *numbers, *counted]) > WIDTH:
        left_out.insert(0, table.columns[numbers.pop()].title)
    notes = []
    if data.against_baseline:
        notes.append(f"Baseline: {data.style(data.baseline).within}.")
        if any(data.marks(measure) for measure in data.measures):
            notes.append("▲, ▼: significantly higher or lower than the baseline.")
    notes.append(stand_ins(runs))
    if measures and left_out:
        notes.append(f"No room for {', '.join(left_out)}: see the report.")
    shown = [*names, *numbers, *counted]
    return _printed(table, shown, title, " ".join(filter(None, notes)))


def _count_column(name: str) -> Column:
    """A count and what it is out of, which a terminal has in one line."""

    def source(style: RunStyle) -> TableEntry:
        count = style.run.counts.get(name, 0)
        return TableEntry(count, f"{count:,}/{denominator(style.run, name):,}")

    return Column(name, source)


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


def evidence_lines(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    *,
    baseline: str | None = None,
) -> list[str]:
    """Up to four lines: the accuracy of the bounds; the share of questions that passed each step
    from the evidence to a right answer; the largest difference in accuracy, by steps; and what the
    queries are like. The second and the last are of the baseline, or of the run with the highest
    accuracy. None for runs of which these are not known.

    Args: see `comparison_table`.
    """
    data = ReportData(runs, comparisons, baseline=baseline or "")
    systems = [style for style in data.styles if style.run.name not in data.bounds]
    known = [style for style in systems if STEP_MEASURES[0] in style.run.metrics]
    if not known:
        return []
    best = max(known, key=lambda style: style.run.metrics["accuracy"])
    shown = data.style(baseline) if baseline in {s.run.name for s in known} else best
    metrics, label, lines = shown.run.metrics, shown.label, []
    if data.bounds:
        accuracies = [
            f"{style.change} {value_text(style.run.metrics.get('accuracy'), 'accuracy')}"
            for style in data.styles
            if style.run.name in data.bounds
        ]
        accuracies.append(f"{label} {value_text(metrics['accuracy'], 'accuracy')}")
        lines.append(f"Accuracy of the bounds: {', '.join(accuracies)}.")
    names = [step.replace("_", " ") for step in STEPS]
    shares = [
        f"{name} {percent(metrics[measure])}"
        for name, measure in zip(names, STEP_MEASURES, strict=True)
    ]
    count = len(shown.run.per_question[STEP_MEASURES[0]])
    lines.append(
        f"Evidence in {label}, {count:,} questions: {', '.join(shares)}; right without a shown "
        f"answer {percent(metrics[UNSUPPORTED])}."
    )
    of_systems = {style.run.name for style in known}
    rows = [row for row in data.comparisons_on("accuracy") if of_systems >= {row.a, row.b}]
    if rows:
        row = max(rows, key=lambda row: abs(row.difference))
        a, b = (data.style(name) for name in (row.a, row.b))
        terms = decomposed_difference(a.run.per_question, b.run.per_question, samples=0)
        total = value_text(terms.pop("difference").value, "accuracy", sign=True)
        parts = [
            f"{name.replace('_', ' ')} {text}"
            for name, term in terms.items()
            if (text := value_text(term.value, "accuracy", sign=True)).strip("+−-0.")
        ]
        lines.append(
            f"Largest difference in accuracy, {a.change} − {b.label}: {total}"
            f"{' = ' if parts else ''}{', '.join(parts)}."
        )
    if "query_words" in metrics:
        sources = [
            f"{percent(metrics[f'query_from_{source}'])} from {where}"
            for source, where in _SOURCES.items()
            if f"query_from_{source}" in metrics
        ]
        lines.append(
            f"Queries of {label}: {metrics['query_words']:.1f} words; of the terms "
            f"{', '.join(sources)}; {percent(metrics.get('query_repeated'))} repeated."
        )
    return lines


_SOURCES = {"question": "the question", "shown": "what was shown", "neither": "neither"}


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
    return [_printed(table, part, heading, note) for part, note in zip(parts, notes, strict=True)]


def _printed(table: Table, shown: Sequence[int], title: str, note: str) -> RichTable:
    """The columns of a table at the places `shown`."""
    printed = RichTable(
        title=Text(escape_control(title)) if title else None,
        title_justify="left",
        caption=Text(escape_control(note)) if note else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for place in shown:
        # The width is fixed, because Rich would cut or break numbers that have no room.
        column, width = table.columns[place], _longest(table, place)
        folds = not column.numeric and width > _NAME
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        head = Text(_words(column.title))
        printed.add_column(head, justify=justify, overflow="fold", width=None if folds else width)
    for row in table.rows:
        entries = [row[place] for place in shown]
        # `Text`, because brackets in a string are markup for Rich.
        printed.add_row(
            *(Text(_text(e), style="bold" if e.mark == "best" else "") for e in entries)
        )
    return printed


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
