"""The table of cells and the table of exits: what every cell scored, over how many questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolkit.contracts import STATUSES
from toolkit.evaluation.cells import Cell
from toolkit.report.intervals import cell_interval
from toolkit.report.measures import describe, is_usage, number, ordered
from toolkit.report.setting import Setting, varied_factors
from toolkit.report.tables import Column, Entry, Look, Section, Table


def questions(cell: Cell) -> int:
    """How many questions a cell's totals are over."""
    if "questions" in cell.counts:
        return cell.counts["questions"]
    return len({qid for values in cell.per_question.values() for qid in values})


def recorded(cell: Cell) -> int:
    """How many questions a cell has trajectories of."""
    return cell.counts.get("recorded", questions(cell))


def spread(counts: Sequence[int]) -> str:
    """`12`, or `3 to 12`."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def interval_text(low: float, high: float, digits: int) -> str:
    return f"[{number(low, digits)}, {number(high, digits)}]"


def cells_section(setting: Setting) -> Section:
    """Factors, main measures with intervals, and the counts that every mean stands on."""
    rest = [
        name
        for name in ordered(name for cell in setting.cells for name in cell.metrics)
        if name not in setting.measures
    ]
    tables = [cells_table(setting, setting.measures, counts=True)]
    if rest:
        tables.append(cells_table(setting, rest, counts=False, folded="All other measures"))
    return Section("cells", "Cells", note=_cells_note(setting), tables=tables)


def _cells_note(setting: Setting) -> str:
    note = (
        "Measures of quality are means over all questions that can be judged; a failed question "
        "counts 0. Calls, tokens and seconds are means over the questions that were run; money and "
        "tokens of models are left out where they are unknown, and n questions remain. In "
        "brackets the 95% interval of the mean (Wilson for yes/no measures, Student’s t otherwise)."
    )
    if any(setting.marks(measure) for measure in setting.measures):
        note += (
            " Bold: best, and separated from every other cell by the paired test. "
            "≈: best but not separated (or not tested), or not separated from the best."
        )
    return note


def cells_table(
    setting: Setting, measures: Sequence[str], *, counts: bool, folded: str = ""
) -> Table:
    """One row a cell. `counts` adds `count_names`, out of all questions."""
    factors = varied_factors(setting.cells)
    marks = {measure: setting.marks(measure) for measure in measures}
    columns = [*(Column(f, numeric=False) for f in factors), *(Column(m) for m in measures)]
    rows = []
    for look in setting.looks:
        cell = look.cell
        row = [Entry(str(cell.factors.get(factor, "—"))) for factor in factors]
        row += [_measured(cell, measure, marks[measure].get(cell.name, "")) for measure in measures]
        rows.append(row)
    if counts:  # beside the first measure, since they say how much it can be trusted
        place = len(factors) + bool(measures)
        names = count_names(setting)
        columns[place:place] = [Column(name) for name in names]
        for row, look in zip(rows, setting.looks, strict=True):
            row[place:place] = _counted(look.cell, names)
    # Factors that tell the cells apart read better than names, which then stand at the end.
    told_apart = all(look.label != look.cell.name for look in setting.looks)
    place = len(columns) if told_apart else 0
    columns.insert(place, Column("run", numeric=False))
    for row, look in zip(rows, setting.looks, strict=True):
        row.insert(place, Entry(look.cell.name))
        row[0] = replace(row[0], look=look)
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


def count_names(setting: Setting) -> list[str]:
    """The counts that every total stands on; missing and unjudged only where there are any."""
    cells = setting.cells
    return ["failed", *(n for n in ("missing", "unjudged") if any(c.counts.get(n) for c in cells))]


def _counted(cell: Cell, names: Sequence[str]) -> list[Entry]:
    counts = [cell.counts.get(name) for name in names]
    over = f"of {questions(cell):,}"
    return [Entry("—") if c is None else Entry(f"{c:,}", sub=over) for c in counts]


def exits_section(setting: Setting) -> Section | None:
    """How the questions of every cell ended; None where no cell ran an agent."""
    present = [s for s in STATUSES if any(cell.counts.get(s) for cell in setting.cells)]
    if not any(s in cell.counts for s in STATUSES[:-1] for cell in setting.cells):
        return None
    extra = [n for n in ("missing",) if any(cell.counts.get(n) for cell in setting.cells)]
    names = list(dict.fromkeys([*present, "failed", *extra]))
    columns = [Column("cell", numeric=False), Column("questions")]
    columns += [Column(name.replace("_", " ")) for name in names]
    columns += [Column("answered"), Column("unjudged")]
    rows = [_exits(look, names) for look in setting.looks]
    return Section(
        "exits",
        "Exit statuses and failures",
        lead="How the questions ended, as counts out of the cell’s questions. Failed questions "
        "stay in every denominator.",
        tables=[Table(columns, rows)],
    )


def _exits(look: Look, names: Sequence[str]) -> list[Entry]:
    total = questions(look.cell)
    row = [Entry(look.label, look=look), Entry(f"{total:,}")]
    for name in (*names, "answered", "unjudged"):
        count = look.cell.counts.get(name, 0 if name in STATUSES else None)
        share = number(100 * count / total, 0) + "%" if count and total else ""
        row.append(Entry("—" if count is None else f"{count:,}", sub=share))
    return row
