"""The report on compared runs: summary, warnings, paired differences, systems by benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from soundingline.toolkit.evaluation.comparison import (
    PairedComparison,
    System,
    Systems,
    by_benchmark,
    varied_factors,
)
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun, stand_ins
from soundingline.toolkit.evaluation.threats import Threat
from soundingline.toolkit.report import agents, results
from soundingline.toolkit.report.effects import effects_section, one_factor_contrasts
from soundingline.toolkit.report.measures import (
    NEITHER,
    decimals,
    headline_first,
    is_usage,
    look_up_measure,
    number,
    probability,
    value_text,
)
from soundingline.toolkit.report.page import (
    Column,
    Figure,
    Report,
    RunStyle,
    Section,
    Table,
    TableEntry,
    TextSpan,
    page,
    section,
    sentences,
    texts,
)
from soundingline.toolkit.report.plots import ForestPanel, forest
from soundingline.toolkit.report.results import (
    ALPHA,
    ReportData,
    denominator,
    factor_value,
    measure_entry,
    measured,
    question_count,
    recorded_count,
    sorted_by_measure,
)
from soundingline.toolkit.trajectory import text_of


def render(
    data: ReportData,
    *,
    title: str = "Comparison of runs",
    unfinished: Sequence[str] = (),
    threats: Sequence[Threat] = (),
) -> Report:
    """Render the report on evaluated runs as HTML and as Markdown.

    Args:
        data: the runs and their paired comparisons.
        title: the heading.
        unfinished: warnings about runs that have no results.
        threats: the threats to the validity of the comparison.
    """
    planned = contrasts(data)
    sections = (
        differences_section(data, planned),
        benchmarks_section(data),
        results.results_section(data),
        threats_section(threats),
        effects_section(data),
        agents.accuracy_cost_section(data),
        agents.cell_costs_section(data),
        agents.costs_section(data),
        agents.corpus_size_section(data),
        agents.roles_section(data),
        results.judges_section(data),
        results.repeats_section(data),
        agents.funnel_section(data),
        agents.steps_section(data),
        agents.curves_section(data),
        agents.calls_section(data),
        agents.queries_section(data),
        results.exits_section(data),
        results.setup_section(data),
        results.stages_section(data),
        results.provenance_section(data),
        results.glossary_section(data),
    )
    return page(
        title,
        _subtitle(data),
        summary(data, planned),
        [*unfinished, *warnings(data)],
        sections,
        notice_of(data.runs),
    )


def notice_of(runs: Iterable[EvaluatedRun]) -> str:
    """Whose texts the benchmarks of the runs have."""
    notices = [text_of(run.setting("benchmark", "notice")) for run in runs]
    return " ".join(filter(None, dict.fromkeys(notices)))


def _subtitle(data: ReportData) -> str:
    count = len(data.styles)
    parts = [f"{count} run{'s' if count != 1 else ''}"]
    if data.main:
        parts.append(f"main measure {data.main}")
    if data.against_baseline or (count > 1 and data.too_many_colours):
        parts.append(f"baseline {data.style(data.baseline).within}")
    dates = sorted({str(r.manifest["created"])[:10] for r in data.runs if "created" in r.manifest})
    if dates:
        parts.append("run on " + " to ".join(dict.fromkeys((dates[0], dates[-1]))))
    return ", ".join(parts)


def threats_section(threats: Sequence[Threat]) -> Section:
    """What a reviewer would object to."""
    rows = [
        {"name": name, "threat": text, "accepted": "accepted" if accepted else ""}
        for name, text, accepted in threats
    ]
    return section("threats", tables=[Table(texts("name", "threat", "accepted"), rows)])


# Contrasts: the differences that the summary and the figure show.


@dataclass(frozen=True)
class Contrast:
    """The difference of the run `a` from the run `b`. `subject` and `reference` name the runs in a
    sentence, and `label` in the figure; a line break separates its two sides. `reference` is empty
    for a baseline."""

    a: RunStyle
    b: RunStyle
    subject: str
    reference: str
    label: str

    @property
    def benchmark(self) -> str:
        return self.a.benchmark


Tested = Sequence[tuple[Contrast, PairedComparison]]
"""Contrasts that were tested on a measure, with their comparisons."""


def contrasts(data: ReportData) -> list[Contrast]:
    """The differences from the baselines; else those of one factor in a full factorial design, else
    all. Those of bounds (`comparison.bound_of`) are left out."""
    planned: list[Contrast] = []
    for group in by_benchmark(data.runs):
        styles = {run.name: data.style(run.name) for run in group}
        if data.against_baseline:
            for baseline in styles.keys() & set(data.baselines):
                planned += [
                    Contrast(style, styles[baseline], style.change, "", style.change)
                    for name, style in styles.items()
                    if name != baseline and name not in data.bounds
                ]
        elif data.too_many_colours or not (pairs := one_factor_contrasts(group)):
            for row in data.comparisons_on(data.main):
                if row.a in styles and data.bounds.isdisjoint((row.a, row.b)):
                    a, b = styles[row.a], styles[row.b]
                    gap = " " if len(a.within) + len(b.within) < 42 else "\n"
                    label = f"{a.within}{gap}− {b.within}"
                    planned.append(Contrast(a, b, a.within, b.within, label))
        else:
            for factor, later, earlier in pairs:
                a, b = styles[later], styles[earlier]
                level, base = (factor_value(style.run, factor) for style in (a, b))
                rest = [name for name in varied_factors(group) if name != factor]
                same = {name: factor_value(a.run, name) for name in rest}
                shared = ", ".join(f"{name} {value}" for name, value in same.items())
                label = f"{level} − {base}\n" + ", ".join(f"{n}: {v}" for n, v in same.items())
                subject, reference = f"{factor} {level}", f"{base} ({shared})"
                planned.append(Contrast(a, b, subject, reference, label))
    return planned


def _tested(data: ReportData, planned: Sequence[Contrast], measure: str) -> Tested:
    rows = [(one, data.comparison(measure, one.a.run.name, one.b.run.name)) for one in planned]
    return [(one, row) for one, row in rows if row is not None]


# The summary.

_NAMED = 2  # significant differences of each measure that the summary names


def summary(data: ReportData, planned: Sequence[Contrast] | None = None) -> list[TextSpan]:
    """What is significant on the main measure and on nDCG@10, and what is not."""
    planned = contrasts(data) if planned is None else planned
    ranked = results.runs_by_measure(data.runs, data.main)
    if not ranked:
        return [TextSpan("The runs have no measure to compare.")]
    if len(data.styles) == 1:
        (run,) = ranked
        value = value_text(run.metrics[data.main], data.main)
        count = len(run.per_question.get(data.main, {})) or question_count(run)
        text = f" has {data.main} {value} over {count:,} question{'s' if count != 1 else ''}. "
        text += "There is no other run to compare with."
        return [TextSpan(data.style(run.name).label, True), TextSpan(text)]
    spans, tested = list[TextSpan](), list[PairedComparison]()
    unclear: dict[str, Tested] = {}
    for measure in dict.fromkeys([*_shown_measures(data)[:1], "nDCG@10"]):
        rows = _tested(data, planned, measure)
        significant = [(contrast, row) for contrast, row in rows if data.significant(row)]
        tested += [row for _, row in rows]
        if significant:
            spans += _significant(data, measure, significant, rows, names_baseline=not spans)
        elif rows:
            unclear[measure] = rows
    if not tested:
        text = f"{data.main} {_range(data, data.main)}. No difference between them was tested."
        return [TextSpan(text)]
    rest = _not_significant(data, unclear) + _equivalent(data, planned) + _macro_averages(data)
    rest += (
        f"Significant means p of at most {ALPHA:g} after Holm’s correction over "
        f"{_family(data, tested[0].measure)}, on {_span(row.n for row in tested)} questions."
    )
    return [*spans, TextSpan(rest)]


def _family(data: ReportData, measure: str) -> str:
    """The comparisons over which p values were corrected: those of one benchmark, `2 to 5` where
    these have different numbers."""
    groups = [{run.name for run in group} for group in by_benchmark(data.runs)]
    counts = [
        sum(
            row.a in names
            and data.bounds.isdisjoint((row.a, row.b))
            and (data.family == "all" or row.measure == measure)
            for row in data.comparisons
        )
        for names in groups
    ]
    size = _span(filter(None, counts))
    of = "all measures" if data.family == "all" else "a measure"
    where = " on each benchmark" if data.systems else ""
    return f"the {size} comparison{'s' if size != '1' else ''} of {of}{where}"


def _equivalent(data: ReportData, planned: Sequence[Contrast]) -> str:
    """How many differences of the main measure are equivalent and undecided at the margin."""
    conclusions = [row.conclusion() for _, row in _tested(data, planned, data.main) if data.margin]
    counts = [(conclusions.count(name), name) for name in ("equivalent", "undecided")]
    states = [(count, f"{'is' if count == 1 else 'are'} {name}") for count, name in counts if count]
    if not states:
        return ""
    (count, state), *rest = states
    more = "".join(f" and {number} {name}" for number, name in rest)
    return (
        f"At a margin of {value_text(data.margin, data.main)}, {count} of the {len(conclusions)} "
        f"differences in {data.main} {state}{more}. "
    )


def _significant(
    data: ReportData, measure: str, significant: Tested, rows: Tested, *, names_baseline: bool
) -> list[TextSpan]:
    """A sentence with the largest significant differences, and how many others are and are not."""
    largest = sorted(significant, key=lambda pair: -abs(pair[1].difference))[:_NAMED]
    spans: list[TextSpan] = []
    previous: tuple[str, str] | None = None
    for contrast, row in largest:
        verb, sign = ("raises", 1) if row.difference > 0 else ("lowers", -1)
        low, high = (_short(end, measure) for end in sorted((sign * row.low, sign * row.high)))
        text = f"by {_short(abs(row.difference), measure)} [{low}, {high}]{_against(contrast)}"
        if previous == (contrast.subject, verb):
            spans.append(TextSpan(f" and {text}"))
            continue
        spans += [TextSpan(" and ")] if previous else []
        spans.append(TextSpan(contrast.subject, True))
        spans.append(TextSpan(f" {verb} {'it' if previous else measure} {text}"))
        previous = (contrast.subject, verb)
    end = ""
    if data.against_baseline:
        baseline = f" {largest[0][0].b.within}" if names_baseline else ""
        mean = f" ({_short(largest[0][1].mean_b, measure)})" if data.systems is None else ""
        end += f", against the baseline{baseline}{mean}"
    more, left = len(significant) - len(largest), len(rows) - len(significant)
    of = f"of the {len(rows)} differences in {measure}"
    if more:
        end += f"; {more} more {of} {'is' if more == 1 else 'are'} significant"
        end += f", {left} {'is' if left == 1 else 'are'} not" if left else ""
    elif left:
        end += f"; {left} {of} {'is' if left == 1 else 'are'} not significant"
    return [*spans, TextSpan(f"{end}. ")]


def _not_significant(data: ReportData, measures: Mapping[str, Tested]) -> str:
    """Sentences on measures without a significant difference, with the largest one."""
    if not measures:
        return ""
    text = f"No difference in {' or '.join(measures)} is significant"
    if data.systems is None:
        text += ": " + ", and ".join(f"{name} {_range(data, name)}" for name in measures)
    measure, rows = next(iter(measures.items()))
    contrast, row = max(rows, key=lambda pair: abs(pair[1].difference))
    if not row.difference:
        return f"{text}. "
    needed = "no number of questions would make it significant"
    if row.questions_needed is not None and math.isfinite(row.questions_needed):
        count = number(row.questions_needed, 0)
        needed = f"about {count} questions would make a difference of this size significant"
    return (
        f"{text}. The largest difference in {measure} is "
        f"{number(row.difference, _digits(measure), sign=True)} "
        f"[{_short(row.low, measure)}, {_short(row.high, measure)}], of {contrast.subject}"
        f"{_against(contrast)}; {needed}. "
    )


def _against(contrast: Contrast) -> str:
    against = f" against {contrast.reference}" if contrast.reference else ""
    return against + (f" on {contrast.benchmark}" if contrast.benchmark else "")


def _range(data: ReportData, measure: str) -> str:
    """`ranges from 0.150 to 0.170 over 6 runs`, or `is 0.150 in all 6 runs`."""
    values = sorted(run.metrics[measure] for run in data.runs if measure in run.metrics)
    low, high = (_short(value, measure) for value in (values[0], values[-1]))
    if low == high:
        return f"is {low} in all {len(values)} runs"
    return f"ranges from {low} to {high} over {len(values)} runs"


def _macro_averages(data: ReportData) -> str:
    """The range of the macro averages over several benchmarks, which are not tested."""
    if data.systems is None or data.systems.has_shares:
        return ""
    benchmarks = data.systems.benchmarks_of(data.main)
    average = partial(data.systems.macro_average, measure=data.main)
    ranked = sorted_by_measure(data.systems.systems, data.main, average)
    if len(benchmarks) < 2 or not ranked:
        return f"No system has {data.main} on all benchmarks: there is no macro average. "
    best, worst = ranked[0], ranked[-1]
    most, least = (_short(average(system), data.main) for system in (best, worst))
    if most == least:
        return ""
    return (
        f"The macro average of {data.main} over {len(benchmarks)} benchmarks, which is not tested, "
        f"is {least} ({worst.label}) to {most} ({best.label}). "
    )


def _short(value: float | None, measure: str) -> str:
    """A value in a sentence, with at most three digits after the point."""
    return number(value, _digits(measure))


def _digits(measure: str) -> int:
    return min(look_up_measure(measure).digits, 3)


# Warnings.

_COUNTED = ["failed", "missing", "unjudged", "without_targets", "without_accepted_answer"]
_COUNTED += ["uncalibrated"]


def warnings(data: ReportData) -> list[str]:
    """What a reader must know before trusting the numbers."""
    runs, lines, wording = data.runs, [], sentences("warnings")
    together = ", over all runs" if len(runs) > 1 else ""
    answers = any("accuracy" in run.metrics for run in runs)  # else questions ask for documents
    for count in _COUNTED:
        numbers = {style.label: style.run.counts.get(count, 0) for style in data.styles}
        if (total := sum(numbers.values())) and (answers or count != "without_accepted_answer"):
            out_of = sum(denominator(run, count) for run in runs)
            by_run = [f"{label} {number:,}" for label, number in numbers.items() if number]
            of_runs = f" ({', '.join(by_run)})" if len({*numbers.values()}) > 1 else ""
            lines.append(f"{wording[count]}: {total:,} of {out_of:,} questions{together}{of_runs}.")
    for run in runs:
        polar, right = run.counts.get("yes_no", 0), run.counts.get("yes_no_by_chance", 0)
        if polar and "accuracy" in run.metrics:
            questions = question_count(run) - run.counts.get("without_accepted_answer", 0)
            chance = value_text(right / questions, "accuracy")
            lines.append(wording["yes_no"].format(polar, questions, right, chance))
    lines = list(dict.fromkeys(lines))  # one line for runs over the same questions
    if unscored := sum(run.counts.get("unscored_documents", 0) for run in runs):
        lines.append(f"Documents that could not be scored: {unscored:,}.")
    lines += filter(None, [stand_ins(runs)])
    for group in by_benchmark(runs):
        qids = [frozenset(run.per_question.get(data.main, {})) for run in group]
        if len(set(qids)) > 1:
            where = f" over {data.style(group[0].name).benchmark}" if data.systems else ""
            shared, sizes = len(frozenset.intersection(*qids)), _span(map(len, qids))
            lines.append(wording["questions"].format(where, data.main, shared, sizes))
    contents = {str(r.manifest.get("fingerprints", {}).get("benchmark", "")) for r in runs} - {""}
    if len(contents) > 1 and not (data.systems and data.systems.different == 1):
        lines.append(wording["contents"].format(len(contents)))
    return lines


def _span(counts: Iterable[int]) -> str:
    """`12`, or `3 to 12`."""
    ascending = sorted(counts)
    return " to ".join(f"{count:,}" for count in dict.fromkeys((ascending[0], ascending[-1])))


# Paired differences.


def differences_section(
    data: ReportData, planned: Sequence[Contrast] | None = None
) -> Section | None:
    """A forest plot, and tables of the paired differences; None without comparisons."""
    tested = headline_first(row.measure for row in data.comparisons)
    if not tested:
        return None
    planned = contrasts(data) if planned is None else planned
    first = data.main if data.main in tested else tested[0]
    every = "Paired differences"
    if data.against_baseline:
        title, lead = "Differences from the baseline", _against_baseline(data)
    elif any("\n" in contrast.label for contrast in planned) and "(" in planned[0].reference:
        title = "Differences of one factor"
        lead = "Pairs of runs that differ in one factor; the second line has the other factors."
        every = "All pairs: paired differences"
    else:
        title, lead = every, f"Differences on {first} between runs on the same questions."
        if data.too_many_colours:
            baseline = data.style(data.baseline).label
            lead += f" Only comparisons with the baseline, {baseline}, are shown."
    if data.primary:
        when = ", which was declared before the runs" if data.declared else " of this comparison"
        lead += f" {data.primary} is the primary measure{when}; the others are exploratory."
    words = {"alpha": f"{ALPHA:g}", "family": _family(data, first)}
    return section(
        "differences",
        {**words, "margin": value_text(data.margin, first)},
        also=["equivalent"] if data.margin else [],
        title=title,
        lead=lead,
        figures=_forests(data, planned),
        link=data.side_by_side,
        tables=[
            table
            for measure in (first, *(name for name in tested if name != first))
            for table in _by_kind(data, measure, every)
        ],
    )


def _by_kind(data: ReportData, measure: str, every: str) -> Iterator[Table]:
    """The table of the comparisons of systems, titled `every`, and that of those with bounds."""
    systems, bounds = list[PairedComparison](), list[PairedComparison]()
    for compared in data.comparisons_on(measure):
        (systems if data.bounds.isdisjoint((compared.a, compared.b)) else bounds).append(compared)
    exploratory = " (exploratory)" if data.primary not in ("", measure) else ""
    for kind, rows in ((every, systems), ("Bounds: paired differences", bounds)):
        if rows:
            yield _differences(data, rows, folded=f"{kind} on {measure}{exploratory}")


def _differences(data: ReportData, rows: Sequence[PairedComparison], *, folded: str) -> Table:
    """One row for each comparison. If all are with the same run, only the note names that run."""
    measure, notes, conclusion = rows[0].measure, [], PairedComparison.conclusion
    same_reference = len({row.b for row in rows}) == 1
    if same_reference:
        mean = value_text(rows[0].mean_b, measure)
        notes.append(f"Differences from {data.style(rows[0].b).within}, with {measure} {mean}.")
    counts = {run.name: recorded_count(run) for run in data.runs}
    most = max(min(counts[row.a], counts[row.b]) for row in rows)
    if is_usage(measure) and min(row.n for row in rows) < most:
        notes.append(
            f"{measure} is not known for every question: each comparison, with its means, is over "
            f"the questions for which it is known in both runs, {_span(row.n for row in rows)} "
            f"of {most:,}."
        )

    def run_entry(row: PairedComparison) -> TableEntry:
        return TableEntry(data.style(row.a).change, sub=value_text(row.mean_a, measure))

    def reference_entry(row: PairedComparison) -> TableEntry:
        return TableEntry(data.style(row.b).label, sub=value_text(row.mean_b, measure))

    def wins(row: PairedComparison) -> TableEntry:
        return TableEntry(f"{row.wins:,} / {row.ties:,} / {row.losses:,}", sub=f"of {row.n:,}")

    shown = [
        Column("run", run_entry, numeric=False),
        *([] if same_reference else [Column("compared with", reference_entry, numeric=False)]),
        difference_column(data, "difference", lambda row: row, "95% interval"),
        p_column(lambda row: row),
        *([Column("conclusion", conclusion, numeric=False)] if any(map(conclusion, rows)) else []),
        Column("wins / ties / losses", wins, note="of questions"),
        Column("questions needed", attrgetter("questions_needed"), decimals(0)),
    ]
    return Table(shown, rows, note=" ".join(notes), folded=folded)


Compared = Callable[[Any], PairedComparison | None]
"""The comparison that a row of a table shows."""


def difference_column(data: ReportData, title: str, source: Compared, note: str = "") -> Column:
    """The differences of comparisons with their intervals, those that are significant in bold."""

    def difference(item: Any) -> TableEntry | None:
        if (row := source(item)) is None:
            return None
        mark = "best" if data.significant(row) else ""
        return measure_entry(row.difference, row.measure, row.low, row.high, sign=True, mark=mark)

    return Column(title, difference, note=note)


def p_column(source: Compared) -> Column:
    """The p values of comparisons after Holm's correction, and before it."""

    def p_value(item: Any) -> TableEntry | None:
        row = source(item)
        return TableEntry(row.p_holm, sub=probability(row.p)) if row else None

    return Column("p (Holm)", p_value, probability, "raw p")


_FURTHER = ("recall_surfaced", "nDCG@10")
_COSTS = {"usage_dollars": "dollars", "tokens_exposed": "tokens exposed"}


def _against_baseline(data: ReportData) -> str:
    """The baseline with its values of the measures of the forest plot."""
    run, within = data.style(data.baseline).run, data.style(data.baseline).within
    lead = f"What each change does against the baseline, {within}"
    if data.systems is not None:
        return f"{lead}, on the same benchmark."
    values = [f"{m} {value_text(run.metrics.get(m), m)}" for m in _shown_measures(data)]
    if cost := _cost(data):
        values.append(f"{_COSTS[cost]} {value_text(run.metrics.get(cost), cost)} per question")
    return f"{lead}: {', '.join(values)}."


def _shown_measures(data: ReportData) -> list[str]:
    """The measures of the forest plot: the primary one, accuracy, or the main one, then those of
    `_FURTHER`."""
    tested = headline_first(row.measure for row in data.comparisons)
    first = (data.primary, "accuracy", data.main)
    success = next((m for m in first if m in tested), (tested or [data.main])[0])
    return list(dict.fromkeys([success, *(name for name in _FURTHER if name in tested)]))


def _cost(data: ReportData) -> str:
    """The measure of costs that all runs have; empty if there is none."""
    return next((name for name in _COSTS if all(name in run.metrics for run in data.runs)), "")


def _forests(data: ReportData, planned: Sequence[Contrast]) -> list[Figure]:
    """A figure for each benchmark, with a panel for each measure."""
    figures: list[Figure] = []
    for benchmark in dict.fromkeys(contrast.benchmark for contrast in planned):
        panels: list[ForestPanel] = []
        shown = [contrast for contrast in planned if contrast.benchmark == benchmark]
        for measure in _shown_measures(data):
            rows = _tested(data, shown, measure)
            differs = any(any((row.difference, row.low, row.high)) for _, row in rows)
            if differs and (not panels or len(rows) == len(shown)):
                shown = [contrast for contrast, _ in rows]
                panels.append(
                    ForestPanel(
                        f"difference in {measure}",
                        [(row.difference, row.low, row.high) for _, row in rows],
                        [data.significant(row) for _, row in rows],
                        look_up_measure(measure).digits,
                    )
                )
        if not panels:
            continue
        labels, column = [contrast.label for contrast in shown], None
        if data.against_baseline and (cost := _cost(data)):
            costs = [value_text(contrast.a.run.metrics[cost], cost) for contrast in shown]
            column = _COSTS[cost], costs
        wide = len(panels) > 1 or column is not None
        svg = forest(labels, panels, column, name=benchmark)
        figures.append(Figure(svg, benchmark, wide=wide))
    return figures


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
    wording = sentences("benchmarks")
    words = {"measure": first, "systems": len(systems.systems)}
    words["average"] = wording["shares" if systems.has_shares else "average"]
    words["over"] = f"{systems.different} benchmarks"
    if systems.different == 1:
        words["over"] = f"one benchmark with corpora of {len(systems.benchmarks)} sizes"
    words["by"] = "benchmark" if systems.different > 1 else "size of the corpus"
    return section(
        "benchmarks",
        words,
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
    return look_up_measure(measure).better != NEITHER and len(systems.benchmarks_of(measure)) > 1


def benchmarks_table(
    data: ReportData, systems: Systems, measure: str, *, folded: str = ""
) -> Table:
    """One row for each system, one column for each benchmark, and the macro average, if there is
    one."""
    benchmarks = systems.benchmarks_of(measure)
    marks = data.marks(measure)

    def on_benchmark(name: str) -> Column:
        def source(system: System) -> TableEntry | None:
            known = system.value(measure, name) is not None
            return measured(system.runs[name], measure) if known else None

        def mark(system: System) -> str:
            return marks.get(system.runs[name].name, "") if name in system.runs else ""

        return Column(name, source, mark=mark)

    columns = [_SYSTEM, *map(on_benchmark, benchmarks)]
    notes = []
    if without := [name for name in systems.benchmarks if name not in benchmarks]:
        notes.append(f"No system has {measure} on {', '.join(without)}.")
    if not systems.has_shares:
        average = partial(systems.macro_average, measure=measure)
        columns.append(Column("macro average", average, partial(value_text, measure=measure)))
        for system in systems.systems:
            missing = [name for name in benchmarks if system.value(measure, name) is None]
            if missing:
                names = ", ".join(missing)
                notes.append(f"{system.label} has no macro average: missing on {names}.")
    return Table(columns, systems.systems, note=" ".join(notes), folded=folded)


_SYSTEM = Column("system", attrgetter("label"), numeric=False)


def _benchmark_differences(data: ReportData, systems: Systems, measure: str) -> list[Table]:
    """A table of the differences from the baseline's system; none without comparisons."""
    baseline = systems.of(data.baseline) or systems.systems[0]

    def on_benchmark(name: str) -> Column:
        def compared(system: System) -> PairedComparison | None:
            a, b = system.runs.get(name), baseline.runs.get(name)
            return data.comparison(measure, a.name, b.name) if a and b else None

        return difference_column(data, name, compared)

    others = [system for system in systems.systems if system is not baseline]
    note = (
        f"Difference in {measure} from {baseline.label}, with its 95% interval. Bold: significant, "
        f"with a p value of at most {ALPHA:g} after Holm’s correction."
    )
    columns = map(on_benchmark, systems.benchmarks_of(measure))
    table = Table([_SYSTEM, *columns], others, note=note)
    known = any(entry.value is not None for row in table.rows for entry in row[1:])
    return [table] if known else []
