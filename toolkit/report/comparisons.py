"""The paired verdicts, as a table and as a forest plot."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.report.compared_pairs import ComparedPair
from toolkit.report.data import ReportData
from toolkit.report.figures import Interval, forest
from toolkit.report.measures import describe, is_usage, number, ordered, probability
from toolkit.report.results import interval_text, recorded, spread
from toolkit.report.tables import Column, Entry, Figure, Section, Table

_SIDES = (Column("cell", numeric=False), Column("against", numeric=False))
_COLUMNS = (
    Column("difference", "95% interval"),
    Column("p (Holm)", "raw p"),
    Column("wins / ties / losses", "of questions"),
    Column("questions needed"),
)


def verdicts_section(data: ReportData) -> Section | None:
    """Differences on the main measure; those on other measures folded. None without verdicts."""
    tested = ordered(verdict.measure for verdict in data.verdicts)
    if not tested:
        return None
    first = data.main if data.main in tested else tested[0]
    pairs = data.pairs(first)
    tables = [verdict_table(data, pairs)]
    tables += [
        verdict_table(data, data.pairs(measure), folded=f"Paired differences on {measure}")
        for measure in tested
        if measure != first
    ]
    figure = Figure(_forest(data, pairs, first))
    lead = f"Differences on {first}, question by question: the same questions under both cells."
    if data.crowded:
        lead += f" Only comparisons with the baseline, {data.label(data.baseline)}, are shown."
    return Section(
        "verdicts",
        "Paired differences",
        lead=lead,
        figures=[figure],
        key="In the figure, filled: resolved; hollow: not resolved.",
        note=_note(data, first),
        tables=tables,
    )


def _note(data: ReportData, measure: str) -> str:
    family = sum(verdict.measure == measure for verdict in data.verdicts)
    return (
        f"Bold: resolved, that is p after Holm’s correction at most {data.alpha:g}, over "
        f"{family:,} comparisons on this measure. Intervals are not corrected. "
        "“Questions needed” is the number at which a difference of the size seen would be resolved "
        "by itself, before correction; — where no number would do."
    )


def verdict_table(data: ReportData, pairs: Sequence[ComparedPair], *, folded: str = "") -> Table:
    """One row a pair; the difference in bold where it is resolved.

    Where every pair is against the same cell, that cell is named in the note alone.
    """
    against = _common(pairs)
    notes = [f"Against {data.label(against)}, {_mean(pairs[0])}."] if against else []
    notes += _left_out(data, pairs)
    columns = [*(_SIDES[:1] if against else _SIDES), *_COLUMNS]
    rows = [_row(data, pair, bool(against)) for pair in pairs]
    return Table(columns, rows, note=" ".join(notes), folded=folded)


def _left_out(data: ReportData, pairs: Sequence[ComparedPair]) -> list[str]:
    """A line on questions of which one of the cells does not know what it took."""
    if not pairs or not is_usage(pairs[0].measure):
        return []
    counts = {style.cell.name: recorded(style.cell) for style in data.styles}
    most = max(min(counts[pair.one], counts[pair.other]) for pair in pairs)
    least = min(pair.n for pair in pairs)
    if least == most:
        return []
    both = spread([pair.n for pair in pairs])
    return [
        f"{pairs[0].measure} is not known of every question: each pair is compared, and its means "
        f"taken, over the questions of which both cells know it, {both} of {most:,}."
    ]


def _common(pairs: Sequence[ComparedPair]) -> str:
    others = {pair.other for pair in pairs}
    return others.pop() if len(others) == 1 else ""


def _mean(pair: ComparedPair) -> str:
    return f"{pair.measure} {number(pair.mean_other, describe(pair.measure).digits)}"


def _row(data: ReportData, pair: ComparedPair, alone: bool) -> list[Entry]:
    digits = describe(pair.measure).digits
    sides = [
        Entry(data.label(pair.one), sub=number(pair.mean_one, digits)),
        Entry(data.label(pair.other), sub=number(pair.mean_other, digits)),
    ]
    return [
        *(sides[:1] if alone else sides),
        Entry(
            number(pair.difference, digits, sign=True),
            sub=interval_text(pair.low, pair.high, digits),
            mark="best" if data.resolved(pair) else "",
        ),
        Entry(probability(pair.p_holm), sub=probability(pair.p)),
        Entry(f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}", sub=f"of {pair.n:,}"),
        Entry(number(pair.needed, 0)),
    ]


def _forest(data: ReportData, pairs: Sequence[ComparedPair], measure: str) -> str:
    digits, against = describe(measure).digits, _common(pairs)
    rows = [
        Interval(
            data.label(pair.one),
            "" if against else data.label(pair.other),
            pair.difference,
            pair.low,
            pair.high,
            data.resolved(pair),
            digits,
        )
        for pair in pairs
    ]
    axis = f"difference in {measure}"
    if against:
        axis = f"{measure}: difference from {data.label(against)}"
    return forest(rows, axis=axis, key="forest")
