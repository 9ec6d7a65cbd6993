"""The report on compared runs: summary, warnings, paired differences, systems by benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from soundingline.toolkit.evaluation.comparison import PairedComparison, System, Systems
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.report import agents, results
from soundingline.toolkit.report.effects import effects_section
from soundingline.toolkit.report.measures import (
    LOWER,
    NEITHER,
    describe,
    interval_text,
    is_usage,
    number,
    ordered,
    probability,
    value_text,
)
from soundingline.toolkit.report.page import (
    Column,
    Entries,
    Figure,
    Report,
    Section,
    Table,
    TableEntry,
    TextSpan,
    page,
    texts,
)
from soundingline.toolkit.report.plots import ForestPanel, forest
from soundingline.toolkit.report.results import (
    ReportData,
    best_first,
    denominator,
    interval_of,
    question_count,
    recorded_count,
    simulation,
)


def render(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
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
    """Render the report on evaluated runs.

    Args:
        runs: the runs.
        comparisons: results of `soundingline.toolkit.evaluation.compare`; those of other runs are
            left out. A difference is significant if its p value after Holm's correction is at
            most `alpha`.
        title: the heading.
        main: the measure of the summary. Default: the first tested one in the order of
            `soundingline.toolkit.report.measures.HEADLINE`.
        baseline: the name of the run that the others are compared with. Default: the first.
        measures: the columns of the first table. Default: the first eight measures.
        alpha: the level of significance.
        unfinished: warnings about runs that have no results.
        traces: name of a run -> address of its traces, relative to the report.
        by: the factors that define a system in the tables of systems by benchmarks. Default: all
            settings but those of the benchmark.

    Returns:
        The report as HTML and as Markdown.

    Raises:
        InputError: for no runs, runs of one name, and an unknown measure or baseline.
    """
    data = results.report_data(
        runs,
        comparisons,
        main=main,
        baseline=baseline,
        measures=measures,
        alpha=alpha,
        traces=traces,
        by=by,
    )
    first = (results.results_section(data), differences_section(data))
    sections = (
        benchmarks_section(data),
        *(reversed(first) if data.against_baseline else first),
        effects_section(data),
        agents.accuracy_cost_section(data),
        agents.costs_section(data),
        agents.roles_section(data),
        results.repeats_section(data),
        agents.funnel_section(data),
        agents.curves_section(data),
        agents.calls_section(data),
        results.exits_section(data),
        results.setup_section(data),
        results.stages_section(data),
        results.provenance_section(data),
        results.glossary_section(data),
    )
    return page(
        title,
        _subtitle(data),
        summary(data),
        [*unfinished, *warnings(data)],
        [section for section in sections if section is not None],
    )


def _subtitle(data: ReportData) -> str:
    count = len(data.styles)
    parts = [f"{count} run{'s' if count != 1 else ''}"]
    if data.main:
        parts.append(f"main measure {data.main}")
    if count > 1:
        parts.append(f"baseline {data.label(data.baseline)}")
    dates = sorted({str(r.manifest["created"])[:10] for r in data.runs if "created" in r.manifest})
    if dates:
        parts.append("run on " + " to ".join(dict.fromkeys((dates[0], dates[-1]))))
    return ", ".join(parts)


# The summary.


def summary(data: ReportData) -> list[TextSpan]:
    """The best run on the main measure, and whether it is significantly better than the baseline
    and the next best run. Over several benchmarks: the best system by its macro average."""
    if data.systems is not None:
        return _summary_of_systems(data, data.systems)
    ranked = data.ranked(data.main)
    if not ranked:
        return [TextSpan("The runs have no measure to compare.")]
    best, *others = ranked
    count = len(best.per_question.get(data.main, {})) or question_count(best)
    value = value_text(best.metrics[data.main], data.main)
    value += f" over {count:,} question{'s' if count != 1 else ''}"
    name = TextSpan(data.change(best.name), True)
    if len(data.styles) == 1:
        text = f" has {data.main} {value}. There is no other run to compare with."
        return [name, TextSpan(text)]
    spans = [name, TextSpan(f" has the {_best(data)} {data.main} of {len(ranked)} runs: {value}.")]
    if data.baseline in [run.name for run in others]:
        spans += _compared(data, best.name, data.baseline, "the baseline")
    if (
        others
        and others[0].name != data.baseline
        and (not data.against_baseline or data.comparison(data.main, best.name, others[0].name))
    ):
        spans += _compared(data, best.name, others[0].name, "the next best")
    tested = dict.fromkeys(row.measure for row in data.comparisons if row.measure != data.main)
    if significant := [text for measure in tested if (text := _largest(data, measure))]:
        spans.append(
            TextSpan(f" Significant differences on other measures: {'; '.join(significant)}.")
        )
    return spans


def _best(data: ReportData) -> str:
    return "lowest" if describe(data.main).better == LOWER else "highest"


def _compared(data: ReportData, best: str, other: str, role: str) -> list[TextSpan]:
    row, name = data.comparison(data.main, best, other), TextSpan(data.change(other), True)
    if row is None:
        return [TextSpan(" It was not compared with "), name, TextSpan(f" ({role}).")]
    size = (
        f": {value_text(row.difference, data.main, sign=True)}, 95% interval "
        f"{interval_text(row.low, row.high, data.main)}, p (Holm) {probability(row.p_holm)}, "
        f"{row.n:,} paired questions"
    )
    spans = [TextSpan(" The difference from "), name, TextSpan(f" ({role}) is ")]
    if data.significant(row):
        return [*spans, TextSpan(f"significant{size}.")]
    needed = "no number of questions would suffice to detect a difference of this size"
    if row.questions_needed is not None and math.isfinite(row.questions_needed):
        needed = (
            f"about {number(row.questions_needed, 0)} questions would be needed to detect a "
            "difference of this size, before correction"
        )
    return [*spans, TextSpan("not significant", True), TextSpan(f"{size}; {needed}.")]


def _largest(data: ReportData, measure: str) -> str:
    """The number of significant differences on a measure, and the largest one."""
    rows = data.comparisons_on(measure)
    significant = [row for row in rows if data.significant(row)]
    if not significant:
        return ""
    largest = max(significant, key=lambda row: abs(row.difference))
    size = value_text(largest.difference, measure, sign=True)
    return (
        f"{measure} in {len(significant)} of {len(rows)} pairs, the largest between "
        f"{data.change(largest.a)} and {data.change(largest.b)} ({size})"
    )


def _summary_of_systems(data: ReportData, systems: Systems) -> list[TextSpan]:
    benchmarks = systems.benchmarks_of(data.main)
    ranked = leaders(systems, data.main) if len(benchmarks) > 1 else []
    if not ranked:
        text = f"The runs are over {len(systems.benchmarks)} benchmarks, and no system has "
        return [TextSpan(f"{text}{data.main or 'a measure'} on all of them: there is no average.")]
    (best, value), *others = ranked
    spans = [
        TextSpan(best.label, True),
        TextSpan(
            f" has the {_best(data)} macro average of {data.main} over {len(benchmarks)} "
            f"benchmarks, of {len(ranked)} systems with results on all of them: "
            f"{value_text(value, data.main)}."
        ),
    ]
    for other, other_value in others[:1]:
        counts = _significant_on(data, benchmarks, best, other)
        spans += [
            TextSpan(" The next is "),
            TextSpan(other.label, True),
            TextSpan(f" ({value_text(other_value, data.main)}): {counts}."),
        ]
    return spans


def _significant_on(data: ReportData, benchmarks: list[str], one: System, other: System) -> str:
    """On how many benchmarks a system is significantly better or worse than another."""
    names = [(one.runs[name].name, other.runs[name].name) for name in benchmarks]
    rows = [row for pair in names if (row := data.comparison(data.main, *pair)) is not None]
    if not rows:
        return "the two were not compared"
    significant = [row for row in rows if data.significant(row)]
    lower = describe(data.main).better == LOWER
    better = sum((row.difference < 0) == lower for row in significant)
    return (
        f"in paired tests, the first is significantly better on {better} of {len(rows)} "
        f"benchmarks and worse on {len(significant) - better}, and there is no significant "
        f"difference on {len(rows) - len(significant)}"
    )


# Warnings.

_COUNTED = {
    "failed": "Failed, and counted as wrong",
    "missing": "Not run yet, and counted as wrong",
    "unjudged": "Without judgements, and left out of recall",
    "without_targets": "Without a relevant document, and left out of precision, recall, F1 and "
    "nDCG",
    "without_accepted_answer": "Left out of accuracy, without an accepted answer",
    "uncalibrated": "Ranked by uncalibrated probabilities of a scorer",
}


def warnings(data: ReportData) -> list[str]:
    """What a reader must know before trusting the numbers: failed and unjudged questions, and runs
    that cannot be compared directly."""
    runs, lines = data.runs, []
    together = ", over all runs" if len(runs) > 1 else ""
    answers = any("accuracy" in run.metrics for run in runs)  # else questions ask for documents
    for count, text in _COUNTED.items():
        total = sum(run.counts.get(count, 0) for run in runs)
        if total and (answers or count != "without_accepted_answer"):
            over = sum(denominator(run, count) for run in runs)
            lines.append(f"{text}: {total:,} of {over:,} questions{together}.")
    if unscored := sum(run.counts.get("unscored_documents", 0) for run in runs):
        lines.append(f"Documents that could not be scored: {unscored:,}.")
    if told := simulation(runs):
        lines.append(told)
    sets = [frozenset(run.per_question.get(data.main, {})) for run in runs]
    if len(set(sets)) > 1:
        lines.append(
            f"The runs do not have the same questions on {data.main}: all runs share "
            f"{len(frozenset.intersection(*sets)):,}, and each has {_span(map(len, sets))}. Means "
            "are over each run’s own questions."
        )
    prints = {str(r.manifest.get("fingerprints", {}).get("benchmark", "")) for r in runs} - {""}
    if len(prints) > 1:
        lines.append(
            f"The runs are over {len(prints)} different benchmark contents; their means are not "
            "comparable."
        )
    return lines


def _span(counts: Iterable[int]) -> str:
    """`12`, or `3 to 12`."""
    ascending = sorted(counts)
    return " to ".join(f"{count:,}" for count in dict.fromkeys((ascending[0], ascending[-1])))


# Paired differences.


def differences_section(data: ReportData) -> Section | None:
    """Differences on the main measure, and folded those on others; None without comparisons."""
    tested = ordered(row.measure for row in data.comparisons)
    if not tested:
        return None
    first = data.main if data.main in tested else tested[0]
    rows = data.comparisons_on(first)
    lead = f"Differences on {first} between runs on the same questions."
    if data.against_baseline:
        lead = f"What each change does against the baseline, {_baseline(data)}."
    elif data.too_many_colours:
        lead += f" Only comparisons with the baseline, {data.label(data.baseline)}, are shown."
    family = sum(row.measure == first for row in data.comparisons)
    folded = f"Paired differences on {first}" if data.against_baseline else ""  # by a wide figure
    others = [
        _differences(data, data.comparisons_on(measure), folded=f"Paired differences on {measure}")
        for measure in tested
        if measure != first
    ]
    return Section(
        "differences",
        "Differences from the baseline" if data.against_baseline else "Paired differences",
        lead=lead,
        figures=[Figure(_forest(data, rows, first))],
        key="In the figure, filled dots are significant, hollow ones are not.",
        note=f"Bold: significant, with a p value of at most {data.alpha:g} after Holm’s correction "
        f"over {family:,} comparisons on this measure. Intervals are not corrected. “Questions "
        "needed” is the number of questions that would make a difference of this size significant "
        "without correction; — if no number would suffice.",
        tables=[_differences(data, rows, folded=folded), *others],
    )


def _differences(data: ReportData, rows: Sequence[PairedComparison], *, folded: str = "") -> Table:
    """One row for each comparison. If all are with the same run, only the note names that run."""
    measure, notes = rows[0].measure, []
    one_other = len({row.b for row in rows}) == 1
    if one_other:
        mean = value_text(rows[0].mean_b, measure)
        notes.append(f"Differences from {data.label(rows[0].b)}, with {measure} {mean}.")
    counts = {run.name: recorded_count(run) for run in data.runs}
    most = max(min(counts[row.a], counts[row.b]) for row in rows)
    if is_usage(measure) and min(row.n for row in rows) < most:
        notes.append(
            f"{measure} is not known for every question: each comparison, with its means, is over "
            f"the questions for which it is known in both runs, {_span(row.n for row in rows)} "
            f"of {most:,}."
        )
    entries: list[Entries] = []
    for row in rows:
        sides = [
            TableEntry(data.change(row.a), sub=value_text(row.mean_a, measure)),
            TableEntry(data.label(row.b), sub=value_text(row.mean_b, measure)),
        ]
        entries.append(
            [
                *(sides[:1] if one_other else sides),
                _difference(data, row),
                TableEntry(probability(row.p_holm), sub=probability(row.p)),
                TableEntry(f"{row.wins:,} / {row.ties:,} / {row.losses:,}", sub=f"of {row.n:,}"),
                number(row.questions_needed, 0),
            ]
        )
    columns = [
        *texts("run", *([] if one_other else ["compared with"])),
        Column("difference", "95% interval"),
        Column("p (Holm)", "raw p"),
        Column("wins / ties / losses", "of questions"),
        Column("questions needed"),
    ]
    return Table(columns, entries, note=" ".join(notes), folded=folded)


def _difference(data: ReportData, row: PairedComparison) -> TableEntry:
    return TableEntry(
        value_text(row.difference, row.measure, sign=True),
        sub=interval_text(row.low, row.high, row.measure),
        mark="best" if data.significant(row) else "",
    )


_RECALL = ("recall_surfaced", "nDCG@10")
_COSTS = {"usage_dollars": "dollars", "tokens_exposed": "tokens exposed"}


def _baseline(data: ReportData) -> str:
    """The baseline with its values of the measures of the forest plot."""
    run = next(run for run in data.runs if run.name == data.baseline)
    values = [f"{m} {value_text(run.metrics.get(m), m)}" for m in _shown_measures(data)]
    if cost := _cost(data):
        values.append(f"{_COSTS[cost]} {value_text(run.metrics.get(cost), cost)} per question")
    return f"{data.label(data.baseline)}: {', '.join(values)}"


def _shown_measures(data: ReportData) -> list[str]:
    """The measures of the forest plot of changes: accuracy, or the main measure, and recall, or
    nDCG@10 where no agent searched."""
    tested = ordered(row.measure for row in data.comparisons if data.baseline in (row.a, row.b))
    success = next((m for m in ("accuracy", data.main) if m in tested), tested[0])
    recall = [measure for measure in _RECALL if measure in tested]
    return list(dict.fromkeys([success, *recall[:1]]))


def _cost(data: ReportData) -> str:
    """The measure of costs that all runs have; empty if there is none."""
    return next((name for name in _COSTS if all(name in run.metrics for run in data.runs)), "")


def _forest(data: ReportData, rows: Sequence[PairedComparison], measure: str) -> str:
    if data.against_baseline:
        return _forest_of_changes(data)
    labels = [(data.label(row.a), data.label(row.b)) for row in rows]
    if len({row.b for row in rows}) == 1:
        axis = f"{measure}: difference from {labels[0][1]}"
        lines = [one for one, _ in labels]
    else:
        axis = f"difference in {measure}"
        lines = [f"{a}{' ' if len(a) + len(b) < 42 else chr(10)}− {b}" for a, b in labels]
    return forest(lines, [_panel(data, rows, axis)])


def _forest_of_changes(data: ReportData) -> str:
    """One row for each run but the baseline: its differences in success and recall, and its
    cost."""
    by_measure = {
        measure: {row.a: row for row in data.comparisons_on(measure) if row.b == data.baseline}
        for measure in _shown_measures(data)
    }
    names = [
        run.name
        for run in data.runs
        if all(run.name in compared for compared in by_measure.values())
    ]
    panels = [
        _panel(data, [compared[name] for name in names], f"difference in {measure}")
        for measure, compared in by_measure.items()
    ]
    cost, costs = _cost(data), {run.name: run.metrics for run in data.runs}
    column = (
        (_COSTS[cost], [value_text(costs[name][cost], cost) for name in names]) if cost else None
    )
    return forest([data.change(name) for name in names], panels, column)


def _panel(data: ReportData, rows: Sequence[PairedComparison], axis: str) -> ForestPanel:
    return ForestPanel(
        axis,
        [(row.difference, row.low, row.high) for row in rows],
        [data.significant(row) for row in rows],
        describe(rows[0].measure).digits,
    )


# Systems by benchmarks.


def benchmarks_section(data: ReportData) -> Section | None:
    """Systems by benchmarks; None if there is one benchmark, or if no measure has two."""
    systems = data.systems
    if systems is None:
        return None
    measures = dict.fromkeys((data.main, *data.measures))
    first, *others = [name for name in measures if averaged(systems, name)] or [""]
    if not first:
        return None
    return Section(
        "benchmarks",
        f"{first} by benchmark",
        lead=f"{len(systems.systems)} systems over {len(systems.benchmarks)} benchmarks. Runs with "
        "the same settings, except for those of the benchmark, are one system.",
        note="The macro average is the unweighted mean over the benchmarks. It is not tested, "
        "because a few benchmarks are not a sample. Tests are paired within each benchmark and "
        "corrected over its comparisons. Bold: the best on the benchmark, significantly different "
        "from every other one; ≈: does not differ significantly from the best, or was not compared "
        "with it.",
        tables=[
            benchmarks_table(data, systems, first),
            *_benchmark_differences(data, systems, first),
            *(
                benchmarks_table(data, systems, name, folded=f"{name} by benchmark")
                for name in others
            ),
        ],
    )


def averaged(systems: Systems, measure: str) -> bool:
    """Whether a measure of quality has results on several benchmarks."""
    return describe(measure).better != NEITHER and len(systems.benchmarks_of(measure)) > 1


def benchmarks_table(
    data: ReportData, systems: Systems, measure: str, *, folded: str = ""
) -> Table:
    """One row for each system, one column for each benchmark, and the macro average."""
    benchmarks = systems.benchmarks_of(measure)
    marks = data.marks(measure)
    rows, notes = [], []
    if without := [name for name in systems.benchmarks if name not in benchmarks]:
        notes.append(f"No system has {measure} on {', '.join(without)}.")
    for system in systems.systems:
        row: list[TableEntry | str] = [system.label]
        for name in benchmarks:
            value = system.value(measure, name)
            if value is None:
                row.append("—")
            else:
                run = system.runs[name]
                mark = marks.get(run.name, "")
                row.append(TableEntry(value_text(value, measure), interval_of(run, measure), mark))
        rows.append([*row, value_text(systems.macro_average(system, measure), measure)])
        if missing := [name for name in benchmarks if system.value(measure, name) is None]:
            notes.append(f"{system.label} has no macro average: missing on {', '.join(missing)}.")
    columns = [*texts("system"), *map(Column, (*benchmarks, "macro average"))]
    return Table(columns, rows, note=" ".join(notes), folded=folded)


def _benchmark_differences(data: ReportData, systems: Systems, measure: str) -> list[Table]:
    """A table of the differences from the baseline's system on each benchmark; none if there are no
    such comparisons."""
    baseline = systems.of(data.baseline) or systems.systems[0]
    benchmarks = systems.benchmarks_of(measure)
    rows, compared = [], False
    for system in systems.systems:
        if system is baseline:
            continue
        row: list[TableEntry | str] = [system.label]
        for name in benchmarks:
            one, other = system.runs.get(name), baseline.runs.get(name)
            found = data.comparison(measure, one.name, other.name) if one and other else None
            row.append(_difference(data, found) if found else "—")
            compared = compared or found is not None
        rows.append(row)
    note = (
        f"Difference in {measure} from {baseline.label}, with its 95% interval. Bold: significant, "
        f"with a p value of at most {data.alpha:g} after Holm’s correction."
    )
    columns = [*texts("system"), *map(Column, benchmarks)]
    return [Table(columns, rows, note=note)] if compared else []


def leaders(systems: Systems, measure: str) -> list[tuple[System, float]]:
    """Systems with their macro averages, best first; equal ones keep their order."""
    averages = [(system, systems.macro_average(system, measure)) for system in systems.systems]
    present = [(system, value) for system, value in averages if value is not None]
    return best_first(present, [value for _, value in present], measure)
