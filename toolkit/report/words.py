"""The verdict in words, and what a reader must know before believing it."""

from __future__ import annotations

import math

from toolkit.evaluation.systems import System, Systems
from toolkit.report.benchmarks import leaders
from toolkit.report.compared_pairs import ComparedPair
from toolkit.report.data import ReportData
from toolkit.report.measures import LOWER, describe, number, probability
from toolkit.report.results import counted_over, interval_text, questions, spread
from toolkit.report.tables import Span


def verdict(data: ReportData) -> list[Span]:
    """Which cell is best on the main measure, and whether the questions suffice to say so. Over
    several benchmarks: which system, by its macro average."""
    if data.systems is not None:
        return _over_benchmarks(data, data.systems)
    ranked = data.ranked(data.main)
    if not ranked:
        return [Span("No cell has a measure to be compared on.")]
    best = ranked[0]
    over = len(best.per_question.get(data.main, {})) or questions(best)
    value = number(best.metrics[data.main], describe(data.main).digits)
    over_questions = f"over {over:,} question{'s' if over != 1 else ''}"
    if len(data.styles) == 1:
        return [
            Span(data.label(best.name), True),
            Span(f" reaches {data.main} {value} {over_questions}."),
            Span(" One cell, so nothing is compared."),
        ]
    way = "lowest" if describe(data.main).better == LOWER else "highest"
    spans = [
        Span(data.label(best.name), True),
        Span(f" has the {way} {data.main} of {len(ranked)} cells: {value} {over_questions}."),
    ]
    rivals = [cell.name for cell in ranked[1:]]
    if data.baseline in rivals:
        spans += _against(data, best.name, data.baseline, "the baseline")
        rivals = [name for name in rivals if name != data.baseline or len(rivals) == 1]
    if rivals and rivals[0] != data.baseline:
        spans += _against(data, best.name, rivals[0], "the next best")
    return spans + _elsewhere(data)


def _over_benchmarks(data: ReportData, systems: Systems) -> list[Span]:
    benchmarks = systems.benchmarks_of(data.main)
    ranked = leaders(systems, data.main) if len(benchmarks) > 1 else []
    if not ranked:
        text = f"The cells are over {len(systems.benchmarks)} benchmarks, and no system has "
        return [Span(f"{text}{data.main or 'a measure'} on all of them: nothing is averaged.")]
    (best, value), digits = ranked[0], describe(data.main).digits
    way = "lowest" if describe(data.main).better == LOWER else "highest"
    spans = [
        Span(best.label, True),
        Span(
            f" has the {way} macro average of {data.main} over {len(benchmarks)} benchmarks, of "
            f"{len(ranked)} systems that have it on all: {number(value, digits)}."
        ),
    ]
    for system, other in ranked[1:2]:
        spans += [
            Span(" The next is "),
            Span(system.label, True),
            Span(f" ({number(other, digits)})"),
        ]
        spans.append(Span(f": {_resolved_on(data, benchmarks, best, system)}."))
    return spans


def _resolved_on(data: ReportData, benchmarks: list[str], one: System, other: System) -> str:
    """On how many benchmarks the difference is resolved, either way."""
    pairs = [
        data.pair(data.main, one.cells[name].name, other.cells[name].name) for name in benchmarks
    ]
    tested = [pair for pair in pairs if pair is not None]
    if not tested:
        return "the two were not tested"
    resolved = [pair for pair in tested if data.resolved(pair)]
    lower = describe(data.main).better == LOWER
    better = sum((pair.difference < 0) == lower for pair in resolved)
    return (
        f"paired, it is better on {better} of {len(tested)} benchmarks, worse on "
        f"{len(resolved) - better}, and not resolved on {len(tested) - len(resolved)}"
    )


def _elsewhere(data: ReportData) -> list[Span]:
    """Other measures on which pairs are resolved, each with its largest difference."""
    tested = dict.fromkeys(row.measure for row in data.verdicts if row.measure != data.main)
    texts = [_resolved(data, measure) for measure in tested]
    resolved = [text for text in texts if text]
    return [Span(f" Resolved on other measures: {'; '.join(resolved)}.")] if resolved else []


def _resolved(data: ReportData, measure: str) -> str:
    pairs = data.pairs(measure)
    resolved = [pair for pair in pairs if data.resolved(pair)]
    if not resolved:
        return ""
    widest = max(resolved, key=lambda pair: abs(pair.difference))
    size = number(widest.difference, describe(measure).digits, sign=True)
    return (
        f"{measure} in {len(resolved)} of {len(pairs)} pairs, most between "
        f"{data.label(widest.one)} and {data.label(widest.other)} ({size})"
    )


def _against(data: ReportData, best: str, other: str, role: str) -> list[Span]:
    pair = data.pair(data.main, best, other)
    name = Span(data.label(other), True)
    if pair is None:
        return [Span(" Against "), name, Span(f" ({role}) it was not tested.")]
    digits = describe(data.main).digits
    size = (
        f"{number(pair.difference, digits, sign=True)}, 95% interval "
        f"{interval_text(pair.low, pair.high, digits)}, p (Holm) {probability(pair.p_holm)}, "
        f"{pair.n:,} paired questions"
    )
    if data.resolved(pair):
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


def notes(data: ReportData) -> list[str]:
    """Warnings: failures, missing judgements, cells that are not comparable as they stand."""
    warnings = [
        _total(data, "failed", "Failed, and counted as wrong", "questions"),
        _total(data, "missing", "Not run yet, and counted as wrong", "questions"),
        _total(data, "unjudged", "Without judgements, and left out of recalls", "questions"),
        _total(
            data,
            "without_targets",
            "Without a document to find, and left out of precision, recall, F1 and nDCG",
            "questions",
        ),
        _without_answer(data),
        _total(
            data,
            "uncalibrated",
            "Ranked by a scorer’s probability that was not calibrated",
            "questions",
        ),
        _unscored(data),
        _unlike_questions(data),
        _unlike_benchmarks(data),
    ]
    return [note for note in warnings if note]


def _total(data: ReportData, count: str, what: str, unit: str) -> str:
    total = sum(cell.counts.get(count, 0) for cell in data.cells)
    over = sum(counted_over(cell, count) for cell in data.cells)
    together = ", all cells together" if len(data.styles) > 1 else ""
    return f"{what}: {total:,} of {over:,} {unit}{together}." if total else ""


def _without_answer(data: ReportData) -> str:
    """Where no cell has an accuracy, as on questions that ask for documents, none is left out."""
    if not any("accuracy" in cell.metrics for cell in data.cells):
        return ""
    return _total(data, "without_accepted_answer", "Left out of accuracy", "questions")


def _unscored(data: ReportData) -> str:
    total = sum(cell.counts.get("unscored_documents", 0) for cell in data.cells)
    return f"Documents that could not be scored: {total:,}." if total else ""


def _unlike_questions(data: ReportData) -> str:
    sets = [frozenset(cell.per_question.get(data.main, {})) for cell in data.cells]
    if len(set(sets)) <= 1:
        return ""
    shared = frozenset.intersection(*sets)
    return (
        f"The cells do not have the same questions on {data.main}: {len(shared):,} are shared "
        f"by all, of {spread([len(s) for s in sets])}. Means are over each cell’s own."
    )


def _unlike_benchmarks(data: ReportData) -> str:
    prints = {
        str(cell.manifest.get("fingerprints", {}).get("benchmark", "")) for cell in data.cells
    } - {""}
    if len(prints) <= 1:
        return ""
    return (
        f"The cells are over {len(prints)} different benchmark contents; means are not comparable."
    )
