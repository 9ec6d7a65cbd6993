"""The runs of a report: their labels and colours, results, settings and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.comparison import (
    PairedComparison,
    Systems,
    by_benchmark,
    systems_of,
)
from soundingline.toolkit.evaluation.evaluation import OF_QUESTIONS, EvaluatedRun
from soundingline.toolkit.evaluation.statistics import equal_ties, variance_components
from soundingline.toolkit.report.measures import (
    LOWER,
    NEITHER,
    describe,
    interval_text,
    is_usage,
    number,
    ordered,
)
from soundingline.toolkit.report.page import COLOURS, Column, RunStyle, Section, Table, TableEntry
from soundingline.toolkit.trajectory import STATUSES


@dataclass(frozen=True)
class ReportData:
    """Evaluated runs, their paired comparisons, and how a report shows them.

    Attributes:
        styles: the runs with their labels and colours.
        comparisons: paired comparisons between these runs.
        main: the main measure; empty if the runs have no measure.
        baseline: the name of the run that the others are compared with.
        measures: the measures of the first table.
        alpha: the level of significance.
        traces: name of a run -> relative address of its traces.
        systems: the runs by system and benchmark, if there are several benchmarks.
    """

    styles: Sequence[RunStyle]
    comparisons: Sequence[PairedComparison]
    main: str
    baseline: str
    measures: Sequence[str]
    alpha: float
    traces: Mapping[str, str] = field(default_factory=dict)
    systems: Systems | None = None

    @property
    def runs(self) -> list[EvaluatedRun]:
        return [style.run for style in self.styles]

    @property
    def too_many_colours(self) -> bool:
        """Whether there are more runs than colours."""
        return len(self.styles) > len(COLOURS)

    @property
    def highlighted(self) -> list[RunStyle]:
        """The runs with a colour of their own."""
        return [style for style in self.styles if style.colour is not None]

    def label(self, name: str) -> str:
        return next((style.label for style in self.styles if style.run.name == name), name)

    def significant(self, comparison: PairedComparison) -> bool:
        return comparison.p_holm <= self.alpha

    def comparison(self, measure: str, first: str, second: str) -> PairedComparison | None:
        """The comparison of two runs with `first` as `a`; None if they were not compared."""
        for row in self.comparisons:
            if row.measure == measure and {row.a, row.b} == {first, second}:
                return row.seen_from(first)
        return None

    def comparisons_on(self, measure: str) -> list[PairedComparison]:
        """The comparisons that the report shows: first those with the baseline, which is `b`, then
        the others, with the larger mean as `a`. With too many runs, only the former."""
        rows = [row for row in self.comparisons if row.measure == measure]
        with_baseline = [
            row.seen_from(row.b if row.a == self.baseline else row.a)
            for row in rows
            if self.baseline in (row.a, row.b)
        ]
        others = [
            row.seen_from(row.a if row.difference >= 0 else row.b)
            for row in rows
            if self.baseline not in (row.a, row.b)
        ]
        if self.too_many_colours and with_baseline:
            return with_baseline
        return with_baseline + others

    def ranked(self, measure: str) -> list[EvaluatedRun]:
        """The runs that have a measure, best first; runs with equal means keep their order."""
        return _ranked(self.runs, measure)

    def marks(self, measure: str) -> dict[str, str]:
        """Mark the best runs of each benchmark.

        Returns:
            Name of a run -> `best` for a run that is significantly better than every other one of
            its benchmark; where there is none, `tie` for the run with the best mean and for those
            that do not differ significantly from it.
        """
        marks: dict[str, str] = {}
        for group in by_benchmark(self.runs):
            ranked = _ranked(group, measure)
            values = equal_ties([run.metrics[measure] for run in ranked])
            if describe(measure).better == NEITHER or len(set(values)) < 2:
                continue
            top = ranked[0].name
            rows = [self.comparison(measure, top, run.name) for run in ranked[1:]]
            if all(row is not None and self.significant(row) for row in rows):
                marks[top] = "best"
                continue
            equal = [run.name for run, v in zip(ranked, values, strict=True) if v == values[0]]
            tied = [row.b for row in rows if row is not None and not self.significant(row)]
            marks |= dict.fromkeys([*equal, *tied], "tie")
        return marks


def _ranked(runs: Sequence[EvaluatedRun], measure: str) -> list[EvaluatedRun]:
    having = [run for run in runs if measure in run.metrics]
    sign = 1 if describe(measure).better == LOWER else -1
    values = equal_ties([run.metrics[measure] for run in having])
    return [having[place] for place in np.argsort(sign * values, kind="stable")]


def report_data(
    runs: Sequence[EvaluatedRun],
    comparisons: Sequence[PairedComparison] = (),
    *,
    main: str | None = None,
    baseline: str | None = None,
    measures: Sequence[str] = (),
    alpha: float = 0.05,
    traces: Mapping[str, str] | None = None,
    by: Sequence[str] = (),
) -> ReportData:
    """Check the arguments of `render`, and choose what they leave open.

    Raises:
        InputError: for no runs, runs of one name, and an unknown measure or baseline.
    """
    names = [run.name for run in runs]
    if not runs:
        raise InputError("a report of no runs", valid="one run or more", do="evaluate a run first")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"more than one run is named {', '.join(repeated)}", do="give each run its own name"
        )
    if baseline is not None and baseline not in names:
        raise InputError(
            f"baseline {baseline!r}", valid=", ".join(names), do="name one of the runs"
        )
    known = ordered(name for run in runs for name in run.metrics)
    for name in [*([main] if main else []), *measures]:
        if name not in known:
            raise InputError(f"measure {name!r}", valid=", ".join(known) or "none", do="name one")
    tested = {row.measure for row in comparisons}
    chosen = main or next((n for n in known if n in tested), next(iter(known), ""))
    first = baseline or names[0]
    rest = [name for name in known if name != chosen]
    return ReportData(
        styles=_styles(runs, chosen, first),
        comparisons=[row for row in comparisons if row.a in names and row.b in names],
        main=chosen,
        baseline=first,
        measures=list(measures) or [*([chosen] if chosen else []), *rest][:8],
        alpha=alpha,
        traces=traces or {},
        systems=systems_of(runs, by),
    )


def _styles(runs: Sequence[EvaluatedRun], main: str, baseline: str) -> list[RunStyle]:
    """Label the runs by the factors that vary, or by their names where these do not suffice, and
    colour the baseline and the best runs."""
    varied = varied_factors(runs)
    labels = [
        " · ".join(str(run.factors[name]) for name in varied if name in run.factors) or "—"
        for run in runs
    ]
    if not varied or len(set(labels)) < len(labels):
        labels = [run.name for run in runs]
    without = [run for run in runs if main not in run.metrics]
    best = [run.name for run in (*_ranked(runs, main), *without) if run.name != baseline]
    coloured = {baseline, *best[: len(COLOURS) - 1]}
    colours = {name: i for i, name in enumerate(r.name for r in runs if r.name in coloured)}
    return [
        RunStyle(run, label, colours.get(run.name)) for run, label in zip(runs, labels, strict=True)
    ]


def varied_factors(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Factors whose values differ between runs, in the order of their first appearance."""
    names = dict.fromkeys(name for run in runs for name in run.factors)
    return [n for n in names if len({run.factors.get(n, "") for run in runs}) > 1]


def factor_value(run: EvaluatedRun, name: str) -> str:
    """The value of a factor: of a setting that the run did not change, the value in its
    configuration; a dash for a setting of a stage that the run does not have."""
    if name in run.factors:
        return str(run.factors[name])
    group, *keys = name.split(".")
    if not keys or run.factors.get(group, "none") == "none":
        return "—"
    value: Any = run.manifest.get("config", {}).get(group)
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "—" if value is None else str(value)


def question_count(run: EvaluatedRun) -> int:
    """The number of questions of a run."""
    if "questions" in run.counts:
        return run.counts["questions"]
    return len({qid for values in run.per_question.values() for qid in values})


def recorded_count(run: EvaluatedRun) -> int:
    """The number of questions of which a run has a trajectory."""
    return min(run.counts.get("recorded", question_count(run)), question_count(run))


def denominator(run: EvaluatedRun, count: str) -> int:
    """What a count of a run is out of: its questions, or all repeats of them."""
    return question_count(run) * (1 if count in OF_QUESTIONS else run.counts.get("repeats", 1))


def mean_interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of a mean over questions.

    Args:
        values: one value for each question.
        level: the level of confidence.

    Returns:
        Wilson's score interval (Wilson, 1927) if every value is 0 or 1, else Student's t interval,
        cut to 0 and 1 if all values are between them. None for fewer than two values and for
        values that are not finite.

    >>> low, high = mean_interval([1.0] * 81 + [0.0] * 182)
    >>> round(low, 4), round(high, 4)
    (0.2553, 0.3662)
    """
    array = np.asarray(list(values), dtype=float)
    if len(array) < 2 or not np.isfinite(array).all():
        return None
    from scipy import stats  # here, because commands that print no report start faster without it

    if np.isin(array, (0.0, 1.0)).all():
        interval = stats.binomtest(int(array.sum()), len(array)).proportion_ci(level, "wilson")
        return float(interval.low), float(interval.high)
    half = float(stats.t.ppf(0.5 + level / 2, len(array) - 1) * stats.sem(array))
    low, high = float(array.mean()) - half, float(array.mean()) + half
    if array.min() >= 0 and array.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


def run_interval(run: EvaluatedRun, measure: str) -> tuple[float, float] | None:
    """Confidence interval of a metric of a run; None unless the metric is the mean of the values of
    its questions."""
    values = list(run.per_question.get(measure, {}).values())
    if not values or measure not in run.metrics:
        return None
    if not np.isclose(np.mean(values), run.metrics[measure], rtol=1e-3, atol=1e-4):
        return None
    return mean_interval(values)


# The table of results.


def results_section(data: ReportData) -> Section:
    """Factors, main measures with intervals, and counts of failed and unjudged questions."""
    known = ordered(name for run in data.runs for name in run.metrics)
    rest = [name for name in known if name not in data.measures]
    tables = [results_table(data, data.measures, counts=True)]
    if rest:
        tables.append(results_table(data, rest, folded="All other measures"))
    note = (
        "Measures of quality are means over all questions with judgements; a failed question "
        "counts as 0. Calls, tokens and seconds are means over the questions that were run. Means "
        "of the dollars and tokens of language models are over the n questions for which they are "
        "known. Brackets: 95% confidence interval of the mean (Wilson for yes/no measures, "
        "Student’s t otherwise)."
    )
    if {"no_call", "reminded"} & set(count_names(data)):
        note += (
            " no_call: answers without any tool call. reminded: questions whose first answer did "
            "not have the requested format, so that the model was reminded of it once."
        )
    if any(data.marks(measure) for measure in data.measures):
        note += (
            " Bold: the best run, significantly different from every other one in a paired test. "
            "≈: the run with the best mean, or a run that does not differ significantly from it "
            "or was not compared with it."
        )
    if data.traces:
        note += " The name of a run links to its traces: every question, call by call."
    return Section("results", "Results", note=note, tables=tables)


def results_table(
    data: ReportData, measures: Sequence[str], *, counts: bool = False, folded: str = ""
) -> Table:
    """One row for each run.

    Args:
        data: the runs.
        measures: the columns of numbers.
        counts: whether to add the columns of `count_names`, after the first measure.
        folded: see `Table`.
    """
    factors, names = varied_factors(data.runs), count_names(data) if counts else []
    marks = {measure: data.marks(measure) for measure in measures}
    texts, first = [Column(title, numeric=False) for title in ("name", *factors)], measures[:1]
    columns = [*texts, *map(Column, [*first, *names, *measures[1:]])]
    rows = []
    for style in data.styles:
        run = style.run
        numbers = [measured(run, measure, marks[measure].get(run.name, "")) for measure in measures]
        counted = [
            TableEntry(f"{run.counts[name]:,}", sub=f"of {denominator(run, name):,}")
            if name in run.counts
            else TableEntry("—")
            for name in names
        ]
        # The first column stays in view where a table is wider than the page.
        name = TableEntry(run.name, style=style, link=data.traces.get(run.name, ""))
        values = [TableEntry(factor_value(run, factor)) for factor in factors]
        rows.append([name, *values, *numbers[:1], *counted, *numbers[1:]])
    return Table(columns, rows, folded=folded)


def measured(run: EvaluatedRun, measure: str, mark: str) -> TableEntry:
    """The value of a measure with its interval, and with the number of questions behind it where
    that is not the number of all questions."""
    digits = describe(measure).digits
    interval = run_interval(run, measure)
    sub = interval_text(*interval, digits) if interval else ""
    count = len(run.per_question.get(measure, {}))
    text = number(run.metrics.get(measure), digits)
    if count and is_usage(measure) and count < recorded_count(run):
        text += f" (n={count:,})"  # in the text, because the terminal prints no interval
    elif sub and count != question_count(run):
        sub += f" n={count:,}"
    return TableEntry(text, sub=sub, mark=mark)


def count_names(data: ReportData) -> list[str]:
    """Counts of questions that the table of results shows: `failed` always, others if not 0."""
    names = ("missing", "unjudged", "no_call", "reminded")
    return ["failed", *(n for n in names if any(run.counts.get(n) for run in data.runs))]


# How questions ended.


def exits_section(data: ReportData) -> Section | None:
    """How the questions of each run ended; None if no run has an agent."""
    present = [s for s in STATUSES if any(run.counts.get(s) for run in data.runs)]
    if not any(s in run.counts for s in STATUSES[:-1] for run in data.runs):
        return None
    extra = [n for n in ("missing", "no_format") if any(r.counts.get(n) for r in data.runs)]
    names = [*dict.fromkeys([*present, "failed", *extra]), "answered", "unjudged"]
    columns = [Column("run", numeric=False), Column("questions")]
    columns += [Column(name.replace("_", " ")) for name in names]
    rows = []
    for style in data.styles:
        run = style.run
        row = [
            TableEntry(style.label, style=style),
            TableEntry(f"{denominator(run, 'recorded'):,}"),
        ]
        for name in names:
            total, count = (
                denominator(run, name),
                run.counts.get(name, 0 if name in STATUSES else None),
            )
            share = number(100 * count / total, 0) + "%" if count and total else ""
            row.append(TableEntry("—" if count is None else f"{count:,}", sub=share))
        rows.append(row)
    lead = "How the questions ended. Failed questions count in every denominator."
    if "no_format" in extra:
        lead += (
            " No format: the answer did not have the requested format even after the reminder; it "
            "is not counted as answered."
        )
    reasons = "The reasons for statuses that have several."
    refusals = (
        "Tool calls, calls that repeat an earlier one of the question, refused calls, and the "
        "error codes of the refusals."
    )
    tables = [
        Table(columns, rows),
        *_by_code(data, "ended_", (), note=reasons),
        *_by_code(data, "refused_", ("calls", "repeated", "refused"), note=refusals),
    ]
    return Section("exits", "Exit statuses and failures", lead=lead, tables=tables)


def _by_code(data: ReportData, prefix: str, totals: Sequence[str], note: str) -> list[Table]:
    """A table of the counts `totals` and of those whose names begin with `prefix`. No table if
    there are no such counts and all totals but the first are 0."""
    codes = {name for run in data.runs for name in run.counts if name.startswith(prefix)}
    if not codes and not any(run.counts.get(name) for run in data.runs for name in totals[1:]):
        return []
    names = [*totals, *sorted(codes)]
    titles = [name.removeprefix(prefix).replace("_", " ") for name in names]
    rows = []
    for style in data.styles:
        counts = style.run.counts
        absent = "0" if "calls" in counts else "—"
        entries = [TableEntry(f"{counts[n]:,}" if n in counts else absent) for n in names]
        rows.append([TableEntry(style.label, style=style), *entries])
    return [Table([Column("run", numeric=False), *map(Column, titles)], rows, note=note)]


def repeats_section(data: ReportData) -> Section | None:
    """Variance within and between questions; None if each question was run once."""
    measures = list(dict.fromkeys([*([data.main] if data.main else []), *data.measures]))
    rows = []
    for style in data.styles:
        for measure in measures:
            found = variance_components(style.run.repeats.get(measure, {}))
            if found is None:
                continue
            digits = describe(measure).digits
            texts = [
                measure,
                number(found.repeats, 0 if found.repeats.is_integer() else 1),
                number(found.within, digits),
                number(found.between, digits),
                "—" if found.share is None else number(100 * found.share, 0) + "%",
            ]
            rows.append([TableEntry(style.label, style=style), *map(TableEntry, texts)])
    if not any(run.repeats for run in data.runs):
        return None
    columns = [Column("run", numeric=False), Column("measure", numeric=False), Column("repeats")]
    columns += [Column("within", "sd"), Column("between", "sd"), Column("share within")]
    return Section(
        "repeats",
        "Repeats of a question",
        lead="Each question was run several times, and its value is the mean of its repeats. "
        "Intervals and tests are over questions. Within: standard deviation between the repeats of "
        "one question, which a single run cannot show. Between: standard deviation between "
        "questions.",
        note="Variance components of a one-way random-effects model; the share within is 1 minus "
        "the intraclass correlation ICC(1).",
        tables=[Table(columns, rows)],
    )


# Settings, versions and definitions.


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys and printable values; lists are joined by commas.

    >>> flat({"a": {"b": 1, "c": ["x", "y"]}})
    {'a.b': '1', 'a.c': 'x, y'}
    """
    if isinstance(value, Mapping):
        rows: dict[str, str] = {}
        for key, inner in value.items():
            rows |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
        return rows
    if isinstance(value, (list, tuple)) and not any(isinstance(v, Mapping) for v in value):
        return {prefix: ", ".join(str(v) for v in value)}
    return {prefix: "" if value is None else str(value)}


def setup_section(data: ReportData) -> Section | None:
    """The settings of the runs: those that differ and those that are the same."""
    configs = [flat(run.manifest.get("config", {})) for run in data.runs]
    factors = [{k: str(v) for k, v in run.factors.items()} for run in data.runs]
    if not any(configs) and not any(factors):
        return None
    varied = [
        f"{name} ({', '.join(dict.fromkeys(row.get(name, '—') for row in factors))})"
        for name in _varying(factors)
    ]
    return Section(
        "setup",
        "Setup",
        lead=f"Varied: {'; '.join(varied)}." if varied else "The runs have the same factors.",
        tables=[
            *_constant(factors),
            *_differing(data, configs, folded="Settings that differ between runs"),
            *_constant(configs, folded="Settings that all runs share"),
        ],
    )


def stages_section(data: ReportData) -> Section | None:
    """What the stages of each pipeline counted, without counts of 0; None if nothing was."""
    rows = []
    for style in data.styles:
        for stage, numbers in style.run.manifest.get("stages", {}).items():
            counts = ", ".join(f"{name} {number:,}" for name, number in numbers.items() if number)
            entries = (TableEntry(text or "—") for text in (stage, counts))
            rows.append([TableEntry(style.label, style=style), *entries])
    if not rows:
        return None
    return Section(
        "stages",
        "Counts of the pipeline stages",
        lead="Sums over all starts of each run. Seconds are those in the model of the stage. "
        "Scores and rewrites that were read from a cache (cache_hits) took no time.",
        tables=[Table([Column(t, numeric=False) for t in ("run", "stage", "counts")], rows)],
    )


def provenance_section(data: ReportData) -> Section | None:
    """Everything else in the manifests: fingerprints, versions, dates."""
    elsewhere = ("config", "stages", "benchmark", "costs", "factors", "format")
    rows = [
        flat({key: value for key, value in run.manifest.items() if key not in elsewhere})
        for run in data.runs
    ]
    tables = [*_constant(rows), *_differing(data, rows, folded="By run")]
    lead = "From the manifests of the runs. Fingerprints are hashes of content."
    title = "Fingerprints and versions"
    return Section("provenance", title, lead=lead, tables=tables) if tables else None


def _varying(rows: Sequence[Mapping[str, str]]) -> list[str]:
    names = dict.fromkeys(key for row in rows for key in row)
    return [name for name in names if len({row.get(name) for row in rows}) > 1]


def _constant(rows: Sequence[Mapping[str, str]], *, folded: str = "") -> list[Table]:
    """A table of the settings that all runs share; none if there are none."""
    shared = [name for name in rows[0] if len({row.get(name) for row in rows}) == 1]
    entries = [[TableEntry(name), TableEntry(rows[0][name] or "—")] for name in shared]
    columns = [Column("setting", numeric=False), Column("value", numeric=False)]
    return [Table(columns, entries, folded=folded)] if entries else []


def _differing(
    data: ReportData, rows: Sequence[Mapping[str, str]], *, folded: str = ""
) -> list[Table]:
    """A table of the settings that differ, with a row for each run; none if there are none."""
    names = _varying(rows)
    entries = [
        [TableEntry(style.label, style=style), *(TableEntry(row.get(n) or "—") for n in names)]
        for style, row in zip(data.styles, rows, strict=True)
    ]
    columns = [Column("run", numeric=False), *(Column(name, numeric=False) for name in names)]
    return [Table(columns, entries, folded=folded)] if names else []


def glossary_section(data: ReportData) -> Section:
    """The definition of every measure of the report."""
    names = ordered(
        [n for run in data.runs for n in run.metrics]
        + [n for run in data.runs for n in run.per_question]
    )
    rows = [
        [TableEntry(each.name), TableEntry(each.definition), TableEntry(each.source or "—")]
        for each in map(describe, names)
        if each.definition
    ]
    columns = [Column(title, numeric=False) for title in ("measure", "definition", "source")]
    return Section(
        "glossary",
        "Definitions of the measures",
        lead="Judgements are of documents: where passages are retrieved, each document counts "
        "once, at the rank of its best passage. Ranking measures of an agent’s run are of one "
        "ranking: the documents cited, then opened, then previewed, then surfaced.",
        tables=[Table(columns, rows)],
    )
