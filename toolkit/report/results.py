"""The table of cells, with the uncertainty of their means, and the table of exits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from toolkit.contracts import STATUSES
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.repeats import OF_QUESTIONS, variance_components
from toolkit.report.data import ReportData, factor_value, varied_factors
from toolkit.report.measures import describe, is_usage, number, ordered
from toolkit.report.tables import CellStyle, Column, Entry, Section, Table

_NO_FORMAT = (
    " No format: the answer lacked the demanded format behind the reminder too, and is not among "
    "those answered."
)


def questions(cell: Cell) -> int:
    """How many questions a cell's totals are over."""
    if "questions" in cell.counts:
        return cell.counts["questions"]
    return len({qid for values in cell.per_question.values() for qid in values})


def recorded(cell: Cell) -> int:
    """How many questions a cell has trajectories of."""
    return min(cell.counts.get("recorded", questions(cell)), questions(cell))


def counted_over(cell: Cell, count: str) -> int:
    """What one of a cell's counts is out of: its questions, or all repeats of them."""
    return questions(cell) * (1 if count in OF_QUESTIONS else cell.counts.get("repeats", 1))


def spread(counts: Sequence[int]) -> str:
    """`12`, or `3 to 12`."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def interval_text(low: float, high: float, digits: int) -> str:
    return f"[{number(low, digits)}, {number(high, digits)}]"


def cells_section(data: ReportData) -> Section:
    """Factors, main measures with intervals, and the counts that every mean stands on."""
    rest = [
        name
        for name in ordered(name for cell in data.cells for name in cell.metrics)
        if name not in data.measures
    ]
    tables = [cells_table(data, data.measures, counts=True)]
    if rest:
        tables.append(cells_table(data, rest, counts=False, folded="All other measures"))
    return Section("cells", "Cells", note=_cells_note(data), tables=tables)


def _cells_note(data: ReportData) -> str:
    note = (
        "Measures of quality are means over all questions that can be judged; a failed question "
        "counts 0. Calls, tokens and seconds are means over the questions that were run; money and "
        "tokens of models are left out where they are unknown, and n questions remain. In "
        "brackets the 95% interval of the mean (Wilson for yes/no measures, Student’s t otherwise)."
    )
    if {"no_call", "reminded"} & set(count_names(data)):
        note += (
            " no_call: answers that came without any call of a tool. reminded: questions whose "
            "answer lacked the format, so that the model was reminded of it once."
        )
    if any(data.marks(measure) for measure in data.measures):
        note += (
            " Bold: best, and separated from every other cell by the paired test. "
            "≈: best but not separated (or not tested), or not separated from the best."
        )
    if data.traces:
        note += " The name of a run opens its traces: every question, call by call."
    return note


def cells_table(
    data: ReportData,
    measures: Sequence[str],
    *,
    counts: bool,
    folded: str = "",
    factors: Sequence[str] | None = None,
) -> Table:
    """One row a cell. `counts` adds `count_names`, out of all questions. `factors`: those that are
    shown (None: all that vary)."""
    factors = varied_factors(data.cells) if factors is None else factors
    marks = {measure: data.marks(measure) for measure in measures}
    columns = [*(Column(f, numeric=False) for f in factors), *(Column(m) for m in measures)]
    rows = []
    for style in data.styles:
        cell = style.cell
        row = [Entry(factor_value(cell, factor)) for factor in factors]
        row += [_measured(cell, measure, marks[measure].get(cell.name, "")) for measure in measures]
        rows.append(row)
    if counts:  # beside the first measure, since they say how much it can be trusted
        position = len(factors) + bool(measures)
        names = count_names(data)
        columns[position:position] = [Column(name) for name in names]
        for row, style in zip(rows, data.styles, strict=True):
            row[position:position] = _counted(style.cell, names)
    # Factors that tell the cells apart read better than names, which then stand at the end.
    told_apart = all(style.label != style.cell.name for style in data.styles)
    position = len(columns) if told_apart else 0
    columns.insert(position, Column("run", numeric=False))
    for row, style in zip(rows, data.styles, strict=True):
        name = style.cell.name
        row.insert(position, Entry(name, link=data.traces.get(name, "")))
        row[0] = replace(row[0], style=style)
    return Table(columns, rows, folded=folded)


def _measured(cell: Cell, measure: str, mark: str) -> Entry:
    digits = describe(measure).digits
    interval = cell_interval(cell, measure)
    sub = interval_text(*interval, digits) if interval else ""
    count = len(cell.per_question.get(measure, {}))
    text = number(cell.metrics.get(measure), digits)
    if count and is_usage(measure) and count < recorded(cell):
        text += f" (n={count:,})"  # not beside the interval, which the terminal leaves out
    elif sub and count != questions(cell):
        sub += f" n={count:,}"
    return Entry(text, sub=sub, mark=mark)


def count_names(data: ReportData) -> list[str]:
    """The counts that every total stands on; all but the failed only where there are any."""
    names = ("missing", "unjudged", "no_call", "reminded")
    return ["failed", *(n for n in names if any(cell.counts.get(n) for cell in data.cells))]


def _counted(cell: Cell, names: Sequence[str]) -> list[Entry]:
    entries = []
    for name in names:
        count = cell.counts.get(name)
        over = f"of {counted_over(cell, name):,}"
        entries.append(Entry("—") if count is None else Entry(f"{count:,}", sub=over))
    return entries


def exits_section(data: ReportData) -> Section | None:
    """How the questions of every cell ended; None where no cell ran an agent."""
    present = [s for s in STATUSES if any(cell.counts.get(s) for cell in data.cells)]
    if not any(s in cell.counts for s in STATUSES[:-1] for cell in data.cells):
        return None
    extra = [n for n in ("missing", "no_format") if any(c.counts.get(n) for c in data.cells)]
    names = list(dict.fromkeys([*present, "failed", *extra]))
    columns = [Column("cell", numeric=False), Column("questions")]
    columns += [Column(name.replace("_", " ")) for name in names]
    columns += [Column("answered"), Column("unjudged")]
    rows = [_exits(style, names) for style in data.styles]
    return Section(
        "exits",
        "Exit statuses and failures",
        lead="How the questions ended, as counts out of the cell’s questions. Failed questions "
        "stay in every denominator." + (_NO_FORMAT if "no_format" in extra else ""),
        tables=[
            Table(columns, rows),
            *_by_code(data, "ended", (), note="Why, where the status alone does not tell."),
            *_by_code(
                data,
                "refused",
                ("calls", "repeated", "refused"),
                note="Calls of tools, those that repeat an earlier one of the question, those that "
                "were refused, and the codes of the refusals.",
            ),
        ],
    )


def _by_code(data: ReportData, kind: str, totals: Sequence[str], note: str) -> list[Table]:
    """A table of the counts `totals` and `<kind>_<code>`; none where there is nothing to tell: no
    such code, and none of the totals behind the first."""
    prefix = f"{kind}_"
    codes = {name for cell in data.cells for name in cell.counts if name.startswith(prefix)}
    if not codes and not any(cell.counts.get(name) for cell in data.cells for name in totals[1:]):
        return []
    names = [*totals, *sorted(codes)]
    titles = [name.removeprefix(prefix).replace("_", " ") for name in names]
    columns = [Column("cell", numeric=False), *map(Column, titles)]
    rows = []
    for style in data.styles:
        counts = style.cell.counts
        # Evaluations from before there were these counts say nothing of them.
        absent = "0" if "calls" in counts else "—"
        entries = [Entry(f"{counts[name]:,}" if name in counts else absent) for name in names]
        rows.append([Entry(style.label, style=style), *entries])
    return [Table(columns, rows, note=note)]


def _exits(style: CellStyle, names: Sequence[str]) -> list[Entry]:
    row = [Entry(style.label, style=style), Entry(f"{counted_over(style.cell, 'recorded'):,}")]
    for name in (*names, "answered", "unjudged"):
        total = counted_over(style.cell, name)
        count = style.cell.counts.get(name, 0 if name in STATUSES else None)
        share = number(100 * count / total, 0) + "%" if count and total else ""
        row.append(Entry("—" if count is None else f"{count:,}", sub=share))
    return row


def repeats_section(data: ReportData) -> Section | None:
    """How far the repeats of a question differ; None where every question was asked once."""
    having = [style for style in data.styles if style.cell.repeats]
    if not having:
        return None
    measures = list(dict.fromkeys([*([data.main] if data.main else []), *data.measures]))
    columns = [Column("cell", numeric=False), Column("measure", numeric=False), Column("repeats")]
    columns += [Column("within", "sd"), Column("between", "sd"), Column("share within")]
    rows = [row for style in having for row in _repeat_rows(style, measures)]
    return Section(
        "repeats",
        "Repeats of a question",
        lead="Each question was asked several times. Its value is the mean of its repeats, and the "
        "question stays the unit of every interval and test. Within: how far repeats of one "
        "question differ (standard deviation), which a single run hides; between: how far "
        "questions do.",
        note="Components of variance by a one-way random-effects analysis; the share within is 1 "
        "less the intraclass correlation ICC(1).",
        tables=[Table(columns, rows)],
    )


def _repeat_rows(style: CellStyle, measures: Sequence[str]) -> list[list[Entry]]:
    rows = []
    for measure in measures:
        components = variance_components(style.cell.repeats.get(measure, {}))
        if components is None:
            continue
        digits = describe(measure).digits
        share = "—" if components.share is None else number(100 * components.share, 0) + "%"
        texts = [number(components.within, digits), number(components.between, digits), share]
        repeats = number(components.repeats, 0 if components.repeats.is_integer() else 1)
        texts = [measure, repeats, *texts]
        rows.append([Entry(style.label, style=style), *map(Entry, texts)])
    return rows


def mean_interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float] | None:
    """Interval of the mean over questions; None for fewer than two values.

    Wilson's score interval where every value is 0 or 1 (Wilson, 1927), else Student's t, cut to
    0..1 where the values lie there.
    """
    array = np.asarray(list(values), dtype=float)
    if len(array) < 2 or not np.isfinite(array).all():
        return None
    from scipy import stats  # here, because a command's start would wait for it

    if np.isin(array, (0.0, 1.0)).all():
        interval = stats.binomtest(int(array.sum()), len(array)).proportion_ci(level, "wilson")
        return float(interval.low), float(interval.high)
    half = float(stats.t.ppf(0.5 + level / 2, len(array) - 1) * stats.sem(array))
    low, high = float(array.mean()) - half, float(array.mean()) + half
    if array.min() >= 0 and array.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


def cell_interval(cell: Cell, measure: str) -> tuple[float, float] | None:
    """The interval of a cell's metric, None unless the metric is the mean of its questions."""
    values = list(cell.per_question.get(measure, {}).values())
    if not values or measure not in cell.metrics:
        return None
    if not np.isclose(np.mean(values), cell.metrics[measure], rtol=1e-3, atol=1e-4):
        return None
    return mean_interval(values)
