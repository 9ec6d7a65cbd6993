"""The verdict in words, and what a reader must know before believing it."""

from __future__ import annotations

import math

from toolkit.report.compared_pairs import ComparedPair
from toolkit.report.measures import LOWER, describe, number, probability
from toolkit.report.results import interval_text, questions, spread
from toolkit.report.setting import Setting
from toolkit.report.tables import Span


def verdict(setting: Setting) -> list[Span]:
    """Which cell is best on the main measure, and whether the questions suffice to say so."""
    ranked = setting.ranked(setting.main)
    if not ranked:
        return [Span("No cell has a measure to be compared on.")]
    best = ranked[0]
    over = len(best.per_question.get(setting.main, {})) or questions(best)
    value = number(best.metrics[setting.main], describe(setting.main).digits)
    asked = f"over {over:,} question{'s' if over != 1 else ''}"
    if len(setting.looks) == 1:
        return [
            Span(setting.label(best.name), True),
            Span(f" reaches {setting.main} {value} {asked}. One cell, so nothing is compared."),
        ]
    way = "lowest" if describe(setting.main).better == LOWER else "highest"
    said = [
        Span(setting.label(best.name), True),
        Span(f" has the {way} {setting.main} of {len(ranked)} cells: {value} {asked}."),
    ]
    rivals = [cell.name for cell in ranked[1:]]
    if setting.baseline in rivals:
        said += _against(setting, best.name, setting.baseline, "the baseline")
        rivals = [name for name in rivals if name != setting.baseline or len(rivals) == 1]
    if rivals and rivals[0] != setting.baseline:
        said += _against(setting, best.name, rivals[0], "the next best")
    return said + _elsewhere(setting)


def _elsewhere(setting: Setting) -> list[Span]:
    """Other measures on which pairs are resolved, each with its largest difference."""
    tested = dict.fromkeys(row.measure for row in setting.verdicts if row.measure != setting.main)
    found = [_resolved(setting, measure) for measure in tested]
    said = [text for text in found if text]
    return [Span(f" Resolved on other measures: {'; '.join(said)}.")] if said else []


def _resolved(setting: Setting, measure: str) -> str:
    pairs = setting.pairs(measure)
    resolved = [pair for pair in pairs if setting.resolved(pair)]
    if not resolved:
        return ""
    widest = max(resolved, key=lambda pair: abs(pair.difference))
    size = number(widest.difference, describe(measure).digits, sign=True)
    return (
        f"{measure} in {len(resolved)} of {len(pairs)} pairs, most between "
        f"{setting.label(widest.one)} and {setting.label(widest.other)} ({size})"
    )


def _against(setting: Setting, best: str, other: str, role: str) -> list[Span]:
    pair = setting.pair(setting.main, best, other)
    name = Span(setting.label(other), True)
    if pair is None:
        return [Span(" Against "), name, Span(f" ({role}) it was not tested.")]
    digits = describe(setting.main).digits
    size = (
        f"{number(pair.difference, digits, sign=True)}, 95% interval "
        f"{interval_text(pair.low, pair.high, digits)}, p (Holm) {probability(pair.p_holm)}, "
        f"{pair.n:,} paired questions"
    )
    if setting.resolved(pair):
        return [Span(" The difference to "), name, Span(f" ({role}) is resolved: {size}.")]
    return [
        Span(" The difference to "),
        name,
        Span(f" ({role}) is "),
        Span("not resolved", True),
        Span(f": {size}; {_needed(pair)}."),
    ]


def _needed(pair: ComparedPair) -> str:
    if pair.needed is None or not math.isfinite(pair.needed):
        return "no number of questions would resolve a difference of this size"
    return f"about {number(pair.needed, 0)} questions would be needed, before correction"


def notes(setting: Setting) -> list[str]:
    """Warnings: failures, missing judgements, cells that are not comparable as they stand."""
    found = [
        _total(setting, "failed", "Failed, and counted as wrong", "questions"),
        _total(setting, "missing", "Not run yet, and counted as wrong", "questions"),
        _total(setting, "unjudged", "Without judgements, and left out of recalls", "questions"),
        _total(setting, "without_accepted_answer", "Left out of accuracy", "questions"),
        _unlike_questions(setting),
        _unlike_benchmarks(setting),
    ]
    return [note for note in found if note]


def _total(setting: Setting, count: str, what: str, unit: str) -> str:
    total = sum(cell.counts.get(count, 0) for cell in setting.cells)
    over = sum(questions(cell) for cell in setting.cells)
    together = ", all cells together" if len(setting.looks) > 1 else ""
    return f"{what}: {total:,} of {over:,} {unit}{together}." if total else ""


def _unlike_questions(setting: Setting) -> str:
    sets = [frozenset(cell.per_question.get(setting.main, {})) for cell in setting.cells]
    if len(set(sets)) <= 1:
        return ""
    shared = frozenset.intersection(*sets)
    return (
        f"The cells do not have the same questions on {setting.main}: {len(shared):,} are shared "
        f"by all, of {spread([len(s) for s in sets])}. Means are over each cell’s own."
    )


def _unlike_benchmarks(setting: Setting) -> str:
    prints = {
        str(cell.manifest.get("fingerprints", {}).get("benchmark", "")) for cell in setting.cells
    } - {""}
    if len(prints) <= 1:
        return ""
    return (
        f"The cells are over {len(prints)} different benchmark contents; means are not comparable."
    )
