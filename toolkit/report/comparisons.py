"""The paired verdicts, as a table and as a forest plot."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.report.figures import Interval, forest
from toolkit.report.measures import describe, number, ordered, probability
from toolkit.report.results import interval_text
from toolkit.report.setting import Pair, Setting
from toolkit.report.tables import Column, Entry, Figure, Section, Table

_COLUMNS = (
    Column("a", numeric=False),
    Column("b", numeric=False),
    Column("a − b", "[95% interval]"),
    Column("p (Holm)", "raw p"),
    Column("a wins / ties / b wins", "of questions"),
    Column("questions needed"),
)


def verdicts_section(setting: Setting) -> Section | None:
    """Differences on the main measure; those on other measures folded. None without verdicts."""
    tested = ordered(verdict.measure for verdict in setting.verdicts)
    if not tested:
        return None
    first = setting.main if setting.main in tested else tested[0]
    pairs = setting.pairs(first)
    tables = [verdict_table(setting, pairs)]
    tables += [
        verdict_table(setting, setting.pairs(measure), folded=f"Paired differences on {measure}")
        for measure in tested
        if measure != first
    ]
    figure = Figure(_forest(setting, pairs, first))
    lead = f"Differences on {first}, question by question: the same questions under both cells."
    if setting.crowded:
        lead += (
            f" Only comparisons with the baseline, {setting.label(setting.baseline)}, are shown."
        )
    return Section(
        "verdicts",
        "Paired differences",
        lead=lead,
        figures=[figure],
        note=_note(setting, first),
        tables=tables,
    )


def _note(setting: Setting, measure: str) -> str:
    family = sum(verdict.measure == measure for verdict in setting.verdicts)
    return (
        f"Filled: resolved (p after Holm’s correction at most {setting.alpha:g}, over {family:,} "
        "comparisons on this measure). Hollow: not resolved. Intervals are not corrected. "
        "“Questions needed” is the number of questions at which a difference of the size seen "
        "would be resolved; — where no number would do."
    )


def verdict_table(setting: Setting, pairs: Sequence[Pair], *, folded: str = "") -> Table:
    """One row a pair; the difference in bold where it is resolved."""
    return Table(_COLUMNS, [_row(setting, pair) for pair in pairs], folded=folded)


def _row(setting: Setting, pair: Pair) -> list[Entry]:
    digits = describe(pair.measure).digits
    return [
        Entry(setting.label(pair.a), sub=number(pair.mean_a, digits)),
        Entry(setting.label(pair.b), sub=number(pair.mean_b, digits)),
        Entry(
            number(pair.difference, digits, sign=True),
            sub=interval_text(pair.low, pair.high, digits),
            mark="best" if setting.resolved(pair) else "",
        ),
        Entry(probability(pair.p_holm), sub=probability(pair.p)),
        Entry(f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}", sub=f"of {pair.n:,}"),
        Entry(number(pair.needed, 0)),
    ]


def _forest(setting: Setting, pairs: Sequence[Pair], measure: str) -> str:
    digits = describe(measure).digits
    common = {pair.b for pair in pairs}
    alone = setting.label(common.pop()) if len(common) == 1 else ""
    rows = [
        Interval(
            setting.label(pair.a)
            if alone
            else f"{setting.label(pair.a)} − {setting.label(pair.b)}",
            pair.difference,
            pair.low,
            pair.high,
            setting.resolved(pair),
            digits,
        )
        for pair in pairs
    ]
    axis = f"{measure}: difference from {alone}" if alone else f"difference in {measure}"
    return forest(rows, axis=axis, key="forest")
