"""The runs of a report: their labels and colours, results, settings and versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, TypeVar

import numpy as np

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.evaluation.comparison import (
    PairedComparison,
    Systems,
    baselines_of,
    bound_of,
    bounds_among,
    by_benchmark,
    factor_labels,
    shown_factors,
    systems_of,
    varied_factors,
)
from soundingline.toolkit.evaluation.evaluation import OF_QUESTIONS, EvaluatedRun
from soundingline.toolkit.evaluation.statistics import (
    agreement,
    equal_ties,
    judged_components,
    variance_components,
)
from soundingline.toolkit.report.measures import (
    LOWER,
    NEITHER,
    decimals,
    headline_first,
    interval_text,
    is_usage,
    look_up_measure,
    main_measure,
    number,
    of_turn,
    percent,
    value_text,
)
from soundingline.toolkit.report.page import (
    COLOURS,
    DASH,
    RUN,
    Column,
    RunStyle,
    Section,
    Table,
    TableEntry,
    columns,
    section,
    sentences,
    texts,
)
from soundingline.toolkit.runs.run_folder import question_of
from soundingline.toolkit.trajectory import STATUSES, mapping

T = TypeVar("T")
_BY_STEP = ("step_", "label_")  # measures that `agents.steps_section` shows
ALPHA = 0.05  # the level of significance, that of the 95% intervals
BASELINE = "baseline"  # the label of the run that others are compared with


@dataclass(kw_only=True)
class ReportData:
    """Evaluated runs, their paired comparisons, and how a report shows them. What is left open is
    chosen when it is made.

    Args:
        runs: the runs.
        comparisons: results of `soundingline.toolkit.evaluation.compare`; those of other runs are
            left out. A difference is significant if its p value after Holm's correction is at
            most `ALPHA`.
        baseline: the name of the run that the others are compared with. Default: the first.
        traces: name of a run -> address of its traces, relative to the report.
        side_by_side: address of the page with the questions of two runs; empty: there is none.
        by: the factors that define a system in the tables of systems by benchmarks. Default: all
            settings but those of the benchmark.
        primary: the measure of the hypothesis, which becomes the main one; the others are
            exploratory. Empty: there is none. `declared`: the runs declare it themselves.
        margin, family: those that the comparisons were made with.

    `main` is the measure of the summary: the primary one, else the first tested one in the order of
    `soundingline.toolkit.report.measures.HEADLINE`; empty if the runs have no measure. `measures`
    are the columns of the first table. `systems` are the runs by system and benchmark, if there are
    several benchmarks. `baselines` are the names of the baseline and, on other benchmarks, of the
    runs that take its place, and `against_baseline` is whether runs were compared with it.

    Raises:
        InputError: for no runs, runs of one name, and an unknown baseline.

    Example:
        >>> data = ReportData([EvaluatedRun(name="bm25", metrics={"AP": 0.25, "R@1000": 0.75})])
        >>> (data.main, data.baseline, data.measures)
        ('AP', 'bm25', ['AP', 'R@1000'])
    """

    runs: Sequence[EvaluatedRun] = field(kw_only=False)
    comparisons: Sequence[PairedComparison] = field(default=(), kw_only=False)
    baseline: str = ""
    traces: Mapping[str, str] = field(default_factory=dict)
    side_by_side: str = ""
    by: Sequence[str] = ()
    primary: str = ""
    declared: bool = False
    margin: float | None = None
    family: str = "measure"

    def __post_init__(self) -> None:
        names = [run.name for run in self.runs]
        if not names:
            raise InputError(
                "a report of no runs", valid="one run or more", do="evaluate a run first"
            )
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(
                f"more than one run is named {', '.join(repeated)}", do="give each run its own name"
            )
        self.systems: Systems | None = systems_of(self.runs, self.by)
        self.runs = [replace(run, factors=shown_factors(run.factors)) for run in self.runs]
        if self.baseline and self.baseline not in names:
            raise InputError(f"baseline {self.baseline!r}", valid=", ".join(names), do="name one")
        measures = headline_first(name for run in self.runs for name in run.metrics)
        self.primary = self.primary if self.primary in measures else ""
        tested = {row.measure for row in self.comparisons}
        self.main = self.primary or main_measure(measures, tested)
        compared = [name for row in self.comparisons for name in (row.a, row.b)]
        self.against_baseline = self.baseline in compared
        self.baseline = self.baseline or names[0]
        self.baselines = baselines_of(self.runs, self.baseline, self.systems)
        self.comparisons = [row for row in self.comparisons if {row.a, row.b} <= set(names)]
        usual = [name for name in measures if not name.startswith(_BY_STEP)]
        self.measures = sorted(usual, key=lambda name: name != self.main)[:_COLUMNS]
        self.styles: Sequence[RunStyle] = _styles(self)

    @cached_property
    def bounds(self) -> set[str]:
        """The names of the runs that measure a bound (`comparison.bound_of`)."""
        return bounds_among(self.runs, self.baseline if self.against_baseline else None)

    @property
    def too_many_colours(self) -> bool:
        """Whether there are more runs than colours."""
        return len(self.styles) > len(COLOURS)

    @property
    def highlighted(self) -> list[RunStyle]:
        """The runs with a colour of their own."""
        return [style for style in self.styles if style.colour is not None]

    def style(self, name: str) -> RunStyle:
        return next(style for style in self.styles if style.run.name == name)

    def significant(self, comparison: PairedComparison) -> bool:
        return comparison.p_holm <= ALPHA

    def comparison(self, measure: str, first: str, second: str) -> PairedComparison | None:
        """The comparison of two runs with `first` as `a`; None if they were not compared."""
        for row in self.comparisons:
            if row.measure == measure and {row.a, row.b} == {first, second}:
                return row.seen_from(first)
        return None

    def comparisons_on(self, measure: str) -> list[PairedComparison]:
        """The comparisons that the report shows: first those with the baseline, which is `b`, then
        the others, with the larger mean as `a`. With too many runs, only the former."""
        with_baseline, others = [], []
        for row in self.comparisons:
            if row.measure != measure:
                continue
            if row.a in self.baselines or row.b in self.baselines:
                with_baseline.append(row.seen_from(row.b if row.a in self.baselines else row.a))
            else:
                others.append(row.seen_from(row.a if row.difference >= 0 else row.b))
        return with_baseline if self.too_many_colours and with_baseline else with_baseline + others

    def marks(self, measure: str) -> dict[str, str]:
        """Mark runs by name: `higher` or `lower` for a run that differs significantly from the
        baseline, if runs were compared with it alone. Else `best` for a run that is significantly
        better than every other one of its benchmark; where there is none, `tie` for the run with
        the best mean and for those that do not differ significantly from it."""
        marks: dict[str, str] = {}
        for group in by_benchmark(self.runs):
            baseline = next((run.name for run in group if run.name in self.baselines), None)
            if self.against_baseline and baseline is not None:
                for run in group:
                    row = self.comparison(measure, run.name, baseline)
                    if row is not None and self.significant(row):
                        marks[run.name] = "higher" if row.difference > 0 else "lower"
                continue
            order = runs_by_measure(group, measure)
            values = equal_ties([run.metrics[measure] for run in order])
            if look_up_measure(measure).better == NEITHER or len(set(values)) < 2:
                continue
            top = order[0].name
            rows = [self.comparison(measure, top, run.name) for run in order[1:]]
            if all(row is not None and self.significant(row) for row in rows):
                marks[top] = "best"
                continue
            equal = [run.name for run, v in zip(order, values, strict=True) if v == values[0]]
            tied = [row.b for row in rows if row is not None and not self.significant(row)]
            marks |= dict.fromkeys([*equal, *tied], "tie")
        return marks


def sorted_by_measure(
    items: Iterable[T], measure: str, value_of: Callable[[T], float | None]
) -> list[T]:
    """The items with a value of a measure, best first; equal ones keep their order."""
    known = [(item, value) for item in items if (value := value_of(item)) is not None]
    sign = 1 if look_up_measure(measure).better == LOWER else -1
    order = np.argsort(sign * equal_ties([value for _, value in known]), kind="stable")
    return [known[place][0] for place in order]


def runs_by_measure(runs: Sequence[EvaluatedRun], measure: str) -> list[EvaluatedRun]:
    return sorted_by_measure(runs, measure, lambda run: run.metrics.get(measure))


def _styles(data: ReportData) -> list[RunStyle]:
    """Colour the baseline and the best runs. Label the runs by what they change against the
    baselines that they were compared with, with the benchmark in front if there are several; else
    by the factors that vary, or by their names where these do not distinguish them."""
    runs, names = data.runs, [run.name for run in data.runs]
    best = [run.name for run in runs_by_measure(runs, data.main)]
    coloured = list(dict.fromkeys([data.baseline, *best, *names]))[: len(COLOURS)]
    colours = {name: place for place, name in enumerate(n for n in names if n in coloured)}
    labels = dict(zip(names, factor_labels(runs), strict=True))
    benchmarks = {
        run.name: benchmark
        for system in (data.systems.systems if data.systems else ())
        for benchmark, run in system.runs.items()
    }
    baselines = data.baselines if data.against_baseline else ()
    by_name: dict[str, RunStyle] = {}
    for group in by_benchmark(runs):
        baseline = next((run for run in group if run.name in baselines), None)
        changes = [_changes(run, baseline) if baseline else "" for run in group]
        for run, within, change in zip(group, factor_labels(group), changes, strict=True):
            by_name[run.name] = RunStyle(
                run,
                labels[run.name],
                colours.get(run.name),
                benchmarks.get(run.name, ""),
                within,
                change if change and changes.count(change) == 1 else within,
            )
    styles = [by_name[name] for name in names]
    short = [
        f"{style.benchmark} · ".removeprefix(" · ")
        + (BASELINE if style.run.name in baselines else style.change)
        for style in styles
    ]
    if baselines and labelled_by_factors(styles) and len(set(short)) == len(short):
        styles = [replace(s, label=label) for s, label in zip(styles, short, strict=True)]
    return styles


def measure_entry(
    value: float | None,
    measure: str,
    low: float | None = None,
    high: float | None = None,
    *,
    sign: bool = False,
    mark: str = "",
) -> TableEntry:
    """A value, or a difference, of a measure with its digits and the interval from `low` to
    `high`."""
    sub = "" if low is None or high is None else interval_text(low, high, measure)
    return TableEntry(value, value_text(value, measure, sign=sign), sub, mark)


def _changes(run: EvaluatedRun, baseline: EvaluatedRun) -> str:
    """What a run changes against a baseline, such as `retriever=bm25_default`."""
    names = dict.fromkeys([*run.factors, *baseline.factors])
    values = {name: (factor_value(run, name), factor_value(baseline, name)) for name in names}
    changes = [f"{name}={level}" for name, (level, base) in values.items() if level != base]
    bound, base_bound = (bound_of(mapping(r.manifest.get("config"))) for r in (run, baseline))
    if bound != base_bound and len(changes) > 1:
        return bound
    # A setting of a stage that is missing in the run says no more than the stage.
    stages = [change for change in changes if not change.endswith("=—")]
    return ", ".join(stages or changes)


def labelled_by_factors(styles: Sequence[RunStyle]) -> bool:
    """Whether the labels of the runs are the values of their varied factors."""
    return all(style.label != style.run.name for style in styles)


def factor_value(run: EvaluatedRun, name: str) -> str:
    """The value of a factor: of a setting that the run did not change, the value in its
    configuration; a dash for a setting of a stage that the run does not have."""
    if name in run.factors:
        return str(run.factors[name])
    group, *keys = name.split(".")
    if not keys or run.factors.get(group, "none") == "none":
        return DASH
    value = run.setting(group, *keys)
    return DASH if value is None else str(value)


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
    """Confidence interval of a mean over questions: Wilson's score interval (Wilson, 1927) if every
    value is 0 or 1, else Student's t interval, cut to 0 and 1 if all values are between them. None
    for fewer than two values and for values that are not finite.

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
    """Confidence interval of a metric that is the mean of its questions; else None."""
    values = list(run.per_question.get(measure, {}).values())
    if not values or measure not in run.metrics:
        return None
    is_mean = np.isclose(np.mean(values), run.metrics[measure], rtol=1e-3, atol=1e-4)
    return mean_interval(values) if is_mean else None


# The table of results.

_LONG_LIST = 20  # values of a setting, of which only the number is shown
_COLUMNS = 7  # of measures with intervals that a page of 1,400 pixels has room for


def results_section(data: ReportData) -> Section:
    """Factors, main measures with intervals, and counts of failed and unjudged questions."""
    measures = headline_first(name for run in data.runs for name in run.metrics)
    hidden = [name for name in measures if name.startswith(_BY_STEP) or of_turn(name)]
    rest = [name for name in measures if name not in (*data.measures, *hidden)]
    tables = [results_table(data, data.measures, counts=count_names(data))]
    for first in range(0, len(rest), _COLUMNS):
        names = rest[first : first + _COLUMNS]
        tables.append(results_table(data, names, folded=f"Further measures: {', '.join(names)}"))
    wording = sentences("results")
    notes = [wording["note"]]
    by_judge: dict[str, list[str]] = {}
    for style in data.styles:
        if style.run.judge:
            by_judge.setdefault(style.run.judge, []).append(style.label)
    if by_judge:
        listed = "; ".join(f"{judge} ({', '.join(labels)})" for judge, labels in by_judge.items())
        judges = wording["one_judge" if len(by_judge) == 1 else "several_judges"]
        notes.append(judges.format(judge=next(iter(by_judge)), each=listed))
    if {"no_call", "reminded"} & set(count_names(data)):
        notes.append(wording["counts"])
    if marks := {mark for measure in data.measures for mark in data.marks(measure).values()}:
        notes.append(wording["baseline" if marks & {"higher", "lower"} else "best"])
    if data.traces:
        notes.append(wording["traces"])
    return section("results", note=" ".join(notes), tables=tables)


def results_table(
    data: ReportData, measures: Sequence[str], *, counts: Sequence[str] = (), folded: str = ""
) -> Table:
    """One row for each run: its factors and measures, with the counts after the first."""
    labelled = labelled_by_factors(data.styles) and not data.against_baseline

    def name(style: RunStyle) -> TableEntry:
        return replace(style.entry, link=data.traces.get(style.run.name, ""))

    title = " · ".join(varied_factors(data.runs)) if labelled else "run"
    shown = [result_column(data, measure) for measure in measures]
    shown[1:1] = map(count_column, counts)
    return Table([Column(title, name, numeric=False), *shown], data.styles, folded=folded)


def count_column(count: str) -> Column:
    """The column of a count of questions, out of all."""

    def source(style: RunStyle) -> TableEntry | None:
        if count not in style.run.counts:
            return None
        return TableEntry(style.run.counts[count], sub=f"of {denominator(style.run, count):,}")

    return Column(count, source, decimals(0))


def result_column(data: ReportData, measure: str) -> Column:
    """The column of a measure with its marks, and with the questions where these are not all."""
    marks = data.marks(measure)

    def source(style: RunStyle) -> TableEntry:
        run, entry = style.run, measured(style.run, measure)
        count = len(run.per_question.get(measure, {}))
        if count and is_usage(measure) and count < recorded_count(run):
            # In the text, because the terminal prints no interval.
            return replace(entry, text=f"{entry.text} (n={count:,})")
        if entry.sub and count != question_count(run):
            return replace(entry, sub=f"{entry.sub} n={count:,}")
        return entry

    return Column(measure, source, mark=lambda style: marks.get(style.run.name, ""))


def measured(run: EvaluatedRun, measure: str, *, interval: bool = True) -> TableEntry:
    """The value of a measure of a run, with its confidence interval."""
    ends = (run_interval(run, measure) if interval else None) or (None, None)
    return measure_entry(run.metrics.get(measure), measure, *ends)


def run_measure(style: RunStyle, measure: str) -> TableEntry:
    return measured(style.run, measure)


def count_names(data: ReportData) -> list[str]:
    """Counts of questions that the table of results shows: `failed` always, others if not 0."""
    names = ("missing", "unjudged", "no_call", "reminded")
    return ["failed", *(n for n in names if any(run.counts.get(n) for run in data.runs))]


def exits_section(data: ReportData) -> Section | None:
    """How the questions of each run ended; None if no run has an agent."""
    if not any(s in run.counts for s in STATUSES[:-1] for run in data.runs):
        return None
    present = {name for run in data.runs for name, count in run.counts.items() if count}
    statuses = [status for status in STATUSES if status in present or status == "failed"]
    marks = [name for name in ("missing", "no_format") if name in present]
    names = [*statuses, *marks, "answered", "unjudged"]

    def ended(style: RunStyle, name: str) -> TableEntry:
        count = style.run.counts.get(name, 0 if name in STATUSES else None)
        total = denominator(style.run, name)
        return TableEntry(count, sub=percent(count / total) if count and total else "")

    questions = Column("questions", lambda s: denominator(s.run, "recorded"), decimals(0))
    wording = sentences("exits")
    lead = f"{wording['lead']} {wording['no_format']}" if "no_format" in marks else wording["lead"]
    tables = [
        Table([RUN, questions, *columns(ended, names, decimals(0))], data.styles),
        *_by_code(data, "ended_", (), note=wording["reasons"]),
        *_by_code(data, "refused_", ("calls", "repeated", "refused"), note=wording["refusals"]),
    ]
    return section("exits", lead=lead, tables=tables)


def _by_code(data: ReportData, prefix: str, totals: Sequence[str], note: str) -> list[Table]:
    """A table of the counts `totals` and of those whose names begin with `prefix`. No table if
    there are no such counts and all totals but the first are 0."""
    names = {name for run in data.runs for name in run.counts if name.startswith(prefix)}
    if not names and not any(run.counts.get(name) for run in data.runs for name in totals[1:]):
        return []
    codes = {name.removeprefix(prefix): name for name in [*totals, *sorted(names)]}

    def count(style: RunStyle, code: str) -> int | None:
        return style.run.counts.get(codes[code], 0 if "calls" in style.run.counts else None)

    return [Table([RUN, *columns(count, codes, decimals(0))], data.styles, note=note)]


def repeats_section(data: ReportData) -> Section | None:
    """Variance within and between questions; None if each question was run once."""
    if not any(run.repeats for run in data.runs):
        return None
    components = {style.run.name: judged_components(_by_judge(style.run)) for style in data.styles}
    several = any(components.values())
    rows = []
    for style, measure in product(data.styles, dict.fromkeys([data.main, *data.measures])):
        by_judge = components[style.run.name] if measure == "accuracy" else None
        variance = by_judge[0] if by_judge else None
        variance = variance or variance_components(style.run.repeats.get(measure, {}))
        if variance is not None:
            deviations = {"questions": variance.between, "runs": variance.within}
            deviations |= {"judges": by_judge[1]} if by_judge else {}
            rows.append(
                {
                    **{"run": style.entry, "measure": measure, "repeats": variance.repeats},
                    **{name: measure_entry(sd, measure) for name, sd in deviations.items()},
                    "share of runs": variance.share,
                }
            )
    repeats = Column("repeats", form=lambda n: number(n, 0 if n.is_integer() else 1))
    sds = [Column(name, note="sd") for name in ("questions", "runs", "judges")[: 2 + several]]
    share = Column("share of runs", form=percent)
    return section(
        "repeats",
        also=["judges"] if several else [],
        tables=[Table([*texts("run", "measure"), repeats, *sds, share], rows)],
    )


def _by_judge(run: EvaluatedRun) -> dict[str, list[list[float]]]:
    """Question -> repeat -> the verdict of each model that judged it, of the answers that all of
    them judged; empty for fewer than two models."""
    models = [judge["verdicts"] for judge in run.judges.values() if judge["model"]]
    values: dict[str, list[list[float]]] = {}
    for answer in sorted(set.intersection(*map(set, models))) if len(models) > 1 else ():
        verdicts = [float(judged[answer]) for judged in models]
        values.setdefault(question_of(answer), []).append(verdicts)
    return values


def judges_section(data: ReportData) -> Section:
    """Accuracy under each judge of the runs that have several, and how far the judges agree."""
    accuracies, agreements = [], []
    for style in (style for style in data.styles if len(style.run.judges) > 1):
        run, names = style.run, _judge_names(style.run)
        verdicts = {name: judge["verdicts"] for name, judge in run.judges.items()}
        questions = {answer: question_of(answer) for answer in set().union(*verdicts.values())}
        total = run.denominators.get("accuracy", 0) * run.counts.get("repeats", 1)
        for name, of_judge in verdicts.items():
            right = sum(of_judge.values())
            share = TableEntry(right / total if total else None, sub=f"{right:,} of {total:,}")
            accuracies.append({"run": style.entry, "judge": names[name], "accuracy": share})
        for first, second in combinations(verdicts, 2):
            if verdicts[first].keys() & verdicts[second].keys():
                row = agreement(verdicts[first], verdicts[second], questions)
                low, high = number(row.low, 3), number(row.high, 3)
                interval = f"[{low}, {high}]" if row.low is not None else ""
                agreements.append(
                    {
                        "run": style.entry,
                        "judges": f"{names[first]} / {names[second]}",
                        "answers": row.n,
                        "agreement": row.raw,
                        "kappa": TableEntry(row.kappa, sub=interval),
                        "right for one alone": f"{len(row.only_a):,} / {len(row.only_b):,}",
                    }
                )
    shown = [
        *texts("run", "judges"),
        Column("answers", form=decimals(0)),
        Column("agreement", form=percent),
        Column("kappa", form=decimals(3), note="95% interval"),
        Column("right for one alone"),
    ]
    return section(
        "judges",
        tables=[
            Table([*texts("run", "judge"), Column("accuracy", form=decimals(3))], accuracies),
            Table(shown, agreements),
        ],
    )


def _judge_names(run: EvaluatedRun) -> dict[str, str]:
    """What a report calls the judges of a run: their models, with a hash of the settings where one
    model has judged with several."""
    names = {name: judge["model"] or ExactAnswerJudge.label for name, judge in run.judges.items()}
    labels = list(names.values())
    return {
        name: label if labels.count(label) == 1 else f"{label} ({name.rpartition('-')[2]})"
        for name, label in names.items()
    }


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
    if isinstance(value, (list, tuple)):
        if len(value) > _LONG_LIST:
            return {prefix: f"{len(value):,} values"}
        return {prefix: ", ".join(map(_entry, value))}
    return {prefix: "" if value is None else str(value)}


def _entry(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({' '.join(f'{name}={item}' for name, item in flat(value).items())})"
    return str(value)


def settings_table(rows: Mapping[str, str], *, folded: str = "") -> Table:
    """A table of settings and their values."""
    items = [{"setting": name, "value": value or None} for name, value in rows.items()]
    return Table(texts("setting", "value"), items, folded=folded)


def setup_section(data: ReportData) -> Section:
    """The settings of the runs: those that differ and those that are the same."""
    configs = [flat(run.manifest.get("config", {})) for run in data.runs]
    factors = [{k: str(v) for k, v in run.factors.items()} for run in data.runs]
    varied = [
        f"{name} ({', '.join(dict.fromkeys(row.get(name, '—') for row in factors))})"
        for name in _varying(factors)
    ]
    return section(
        "setup",
        lead=f"Varied: {'; '.join(varied)}." if varied else "The runs have the same factors.",
        tables=[
            _constant(factors),
            _differing(data, configs, folded="Settings that differ between runs"),
            _constant(configs, folded="Settings that all runs share"),
        ],
    )


def stages_section(data: ReportData) -> Section:
    """What the stages of each pipeline counted, without counts of 0."""
    rows = []
    for style in data.styles:
        for stage, numbers in style.run.manifest.get("stages", {}).items():
            counts = ", ".join(f"{name} {number:,}" for name, number in numbers.items() if number)
            rows.append({"run": style.entry, "stage": stage or None, "counts": counts or None})
    return section("stages", tables=[Table(texts("run", "stage", "counts"), rows)])


def provenance_section(data: ReportData) -> Section:
    """Everything else in the manifests: fingerprints, versions, dates."""
    elsewhere = ("config", "stages", "benchmark", "costs", "factors", "format", "periods")
    rows = [
        {"run": run.name, "under way": _periods(run)}
        | flat({key: value for key, value in run.manifest.items() if key not in elsewhere})
        for run in data.runs
    ]
    tables = [_constant(rows), _differing(data, rows, folded="By run")]
    lead = "From the manifests of the runs. Fingerprints are hashes of content."
    title = "Fingerprints and versions"
    return section("provenance", title=title, lead=lead, tables=tables)


def _periods(run: EvaluatedRun) -> str:
    """When the run was under way."""
    periods = run.manifest.get("periods", [])
    return "; ".join(
        f"{period['started']} to {period.get('ended', 'unknown')}" for period in periods
    )


def _varying(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The settings whose values differ, in the order of their first appearance."""
    names = dict.fromkeys(key for row in rows for key in row)
    return [name for name in names if len({row.get(name) for row in rows}) > 1]


def _constant(rows: Sequence[Mapping[str, str]], *, folded: str = "") -> Table:
    """The settings that all runs share."""
    varying = _varying(rows)
    shared = {name: value for name, value in rows[0].items() if name not in varying}
    return settings_table(shared, folded=folded)


def _differing(data: ReportData, rows: Sequence[Mapping[str, str]], *, folded: str) -> Table:
    """The settings that differ, with a row for each run if there are any."""
    values = {style.run.name: row for style, row in zip(data.styles, rows, strict=True)}

    def setting_column(name: str) -> Column:
        return Column(name, lambda style: values[style.run.name].get(name) or None, numeric=False)

    shown = [setting_column(name) for name in _varying(rows)]
    return Table([RUN, *shown], data.styles if shown else (), folded=folded)


def glossary_section(data: ReportData) -> Section:
    """The definition of every measure of the report."""
    names = [n for run in data.runs for n in run.metrics]
    names += [n for run in data.runs for n in run.per_question]
    rows = [
        {"measure": each.name, "definition": each.definition, "source": each.source or None}
        for each in map(look_up_measure, headline_first(names))
        if each.definition and not of_turn(each.name)
    ]
    return section("glossary", tables=[Table(texts("measure", "definition", "source"), rows)])
