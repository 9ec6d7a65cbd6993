"""The tables of results, and of systems by benchmarks, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from soundingline.toolkit.report.page import Table, TableEntry
from soundingline.toolkit.report.results import (
    count_names,
    denominator,
    factor_value,
    labelled_by_factors,
    measured,
    report_data,
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

Columns = Mapping[str, Sequence[TableEntry]]


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
            not fit are left out; a line below the table names them if they were given.
        options: `main`, `baseline` and `alpha` of `soundingline.toolkit.report.render`.
    """
    data = report_data(runs, comparisons, measures=measures, **options)
    counts = {
        name: [
            TableEntry(f"{run.counts.get(name, 0):,}/{denominator(run, name):,}")
            for run in data.runs
        ]
        for name in count_names(data)
    }
    usual = [name for name in _FEW if any(name in run.metrics for run in runs)]
    numbers: dict[str, Sequence[TableEntry]] = {}
    for name in measures or (usual or data.measures)[: 7 - len(counts)]:
        marks = data.marks(name)
        numbers[name] = [measured(run, name, marks.get(run.name, "")) for run in data.runs]
    names: Columns = {"run": [style.entry for style in data.styles]}
    notes = []
    if data.against_baseline:
        notes.append(f"Baseline: {data.style(data.baseline).within}.")
        if any(data.marks(measure) for measure in data.measures):
            notes.append("▲, ▼: significantly higher or lower than the baseline.")
    elif labelled_by_factors(data.styles):
        factors = {
            factor: [TableEntry(factor_value(run, factor)) for run in data.runs]
            for factor in varied_factors(data.runs)
        }
        if _width(factors, {**numbers, **counts}) <= WIDTH:
            names = factors
    left_out: list[str] = []
    while len(numbers) > 1 and _width(names, {**numbers, **counts}) > WIDTH:
        left_out.insert(0, numbers.popitem()[0])
    notes.append(stand_ins(runs))
    if measures and left_out:
        notes.append(f"No room for {', '.join(left_out)}: see the report.")
    return _table(names, {**numbers, **counts}, title, " ".join(filter(None, notes)))


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
        options: `main`, `baseline`, `by` and `alpha` of `soundingline.toolkit.report.render`.

    Returns:
        A table for each measure, several where the benchmarks need more than 80 columns; no table
        if all runs are over one benchmark.
    """
    data = report_data(runs, comparisons, measures=measures, **options)
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
    data = report_data(runs, comparisons, baseline=baseline)
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
    table = cell_costs_table(report_data(runs))
    if table is None or not {"dollars", "tokens", GPU} & {one.title for one in table.columns}:
        return []
    return _parts(table, "Cost: median / 90th percentile of a question")


def _parts(source: Table, heading: str) -> list[RichTable]:
    """A table as one for the terminal, or as several where its columns need more than 80
    characters."""
    tables = []
    titles = [column.title for column in source.columns]
    (first, labels), *rest = zip(titles, zip(*source.rows, strict=True), strict=True)
    names, part = {first: labels}, dict[str, Sequence[TableEntry]]()
    for title, entries in rest:
        if part and _width(names, {**part, title: entries}) > WIDTH:
            tables.append(_table(names, part, heading))
            part = {}
        part[title] = entries
    tables.append(_table(names, part, heading, source.note))
    return tables


def _table(names: Columns, numbers: Columns, title: str, note: str = "") -> RichTable:
    table = RichTable(
        title=Text(escape_control(title)) if title else None,
        title_justify="left",
        caption=Text(escape_control(note)) if note else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for head, entries in {**names, **numbers}.items():
        # The width is fixed, because Rich would cut or break numbers that have no room.
        width = _longest(head, entries)
        folds = head in names and width > _NAME
        justify: Literal["left", "right"] = "left" if head in names else "right"
        column = Text(_words(head))
        table.add_column(column, justify=justify, overflow="fold", width=None if folds else width)
    for row in zip(*names.values(), *numbers.values(), strict=True):
        # `Text`, because brackets in a string are markup for Rich.
        table.add_row(*(Text(_text(e), style="bold" if e.mark == "best" else "") for e in row))
    return table


def _width(names: Columns, numbers: Columns) -> int:
    """The characters of a line, with gaps between the columns and long names folded."""
    widths = [min(_longest(head, entries), _NAME) for head, entries in names.items()]
    widths += [_longest(head, entries) for head, entries in numbers.items()]
    return sum(widths) + len(widths) - 1


def _longest(head: str, entries: Sequence[TableEntry]) -> int:
    """The width of a column: of its longest entry, or of a word of its title if that is longer."""
    word = max(map(cell_len, _words(head).split()), default=0)
    return max([min(word, _NAME), *(cell_len(_text(entry)) for entry in entries)])


def _words(head: str) -> str:
    """A title whose lines break at underscores, and at the dots of settings."""
    return re.sub(r"_|\.(?!\d)", " ", escape_control(head))


def _text(entry: TableEntry) -> str:
    return escape_control(f"{SIGNS.get(entry.mark, '')}{entry.text}")
