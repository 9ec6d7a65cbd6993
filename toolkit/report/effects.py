"""Main effects and interactions of a full factorial sweep, as a section of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

from soundingline.toolkit.evaluation.comparison import varied_factors
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.statistics import holm
from soundingline.toolkit.report.measures import interval_text, probability, value_text
from soundingline.toolkit.report.page import Column, Entries, Section, Table, TableEntry, texts
from soundingline.toolkit.report.results import ReportData, factor_value

_MEASURES = ("accuracy", "nDCG@10")  # the first that all runs have
_FEWEST = 10  # questions that all runs share


def effects_section(data: ReportData) -> Section | None:
    """The effects of the factors on accuracy, or on nDCG@10 where no agent answered. None unless
    the runs are a full factorial design over two or more factors, on one benchmark, that share ten
    questions or more."""
    runs, factors = data.runs, _factors(data.runs)
    measure = next((m for m in _MEASURES if all(m in run.per_question for run in runs)), "")
    if not measure or data.systems is not None or not _is_full(runs, factors):
        return None
    shared = set.intersection(*(set(run.per_question[measure]) for run in runs))
    values = {run.per_question[measure][qid] for run in runs for qid in shared}
    if len(shared) < _FEWEST or len(values) < 2:
        return None
    from numpy.linalg import LinAlgError

    from soundingline.toolkit.evaluation.effects import factorial_effects

    cells = [
        ({name: factor_value(run, name) for name in factors}, run.per_question[measure])
        for run in runs
    ]
    try:
        effects = factorial_effects(cells, measure)
    except LinAlgError:  # the values do not determine the variances of the model
        return None
    hidden = _hidden_levels(data, factors)
    shown = [
        each
        for each in effects
        if not any(pair in hidden for pair in zip(each.factors, each.levels, strict=True))
    ]
    rows: list[Entries] = []
    for effect, adjusted in zip(shown, holm([each.p for each in shown]), strict=True):
        pairs = zip(effect.factors, effect.levels, strict=True)
        rows.append(
            [
                " × ".join(f"{name}: {level}" for name, level in pairs),
                TableEntry(
                    value_text(effect.estimate, measure, sign=True),
                    sub=interval_text(effect.low, effect.high, measure),
                    mark="best" if adjusted <= data.alpha else "",
                ),
                probability(effect.p),
                probability(adjusted),
            ]
        )
    columns = [
        *texts("effect"),
        Column("estimate", "95% interval"),
        Column("p"),
        Column("p (Holm)"),
    ]
    return Section(
        "effects",
        "Main effects and interactions",
        lead=f"Effects on {measure} in a full factorial design of {len(runs)} runs over "
        f"{len(shared):,} questions, estimated by a linear mixed model with a random intercept for "
        "each question.",
        note="A main effect is the mean of a level minus the mean over all levels of its factor. "
        "An interaction (×) is what two levels have together beyond the sum of their main effects. "
        "Of a factor with two levels one is shown: the other has the opposite effect. Bold: "
        f"significant, with a p value of at most {data.alpha:g} after Holm’s correction over the "
        f"{len(shown)} effects shown.",
        tables=[Table(columns, rows)],
    )


def one_factor_contrasts(runs: Sequence[EvaluatedRun]) -> list[tuple[str, str, str]]:
    """The pairs of runs that differ in one factor, in a full factorial design over two or more.

    Returns:
        (factor, later run, earlier run) by names, the pairs of a factor together; empty for another
        design.
    """
    factors = _factors(runs)
    if not _is_full(runs, factors):
        return []
    differing = [
        ([name for name in factors if factor_value(a, name) != factor_value(b, name)], a, b)
        for b, a in combinations(runs, 2)
    ]
    pairs = [(names[0], a.name, b.name) for names, a, b in differing if len(names) == 1]
    by_name = {run.name: run for run in runs}

    def place(pair: tuple[str, str, str]) -> tuple[int, list[int]]:
        rest = [name for name in factors if name != pair[0]]
        levels = [factors[name].index(factor_value(by_name[pair[1]], name)) for name in rest]
        return list(factors).index(pair[0]), levels

    return sorted(pairs, key=place)


def _factors(runs: Sequence[EvaluatedRun]) -> dict[str, list[str]]:
    """The levels of each factor that varies, without settings that the option of their group
    determines, such as the depth of a re-ranker that some runs do not have."""
    names = varied_factors(runs)
    levels = {name: list(dict.fromkeys(factor_value(run, name) for run in runs)) for name in names}
    return {
        name: values
        for name, values in levels.items()
        if len(values) > 1 and not _is_determined(runs, name, levels)
    }


def _is_determined(
    runs: Sequence[EvaluatedRun], name: str, levels: Mapping[str, Sequence[str]]
) -> bool:
    group = name.partition(".")[0]
    pairs = {(factor_value(run, group), factor_value(run, name)) for run in runs}
    return group != name and group in levels and len(pairs) == len(levels[group])


def _is_full(runs: Sequence[EvaluatedRun], factors: Mapping[str, Sequence[str]]) -> bool:
    """Whether the runs are one for each combination of the levels of two or more factors."""
    cells = {tuple(factor_value(run, name) for name in factors) for run in runs}
    return len(factors) > 1 and len(cells) == len(runs) == prod(map(len, factors.values()))


def _hidden_levels(data: ReportData, factors: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
    """The level of the baseline of each factor with two levels."""
    baseline = next(run for run in data.runs if run.name == data.baseline)
    return {
        (name, factor_value(baseline, name)) for name, levels in factors.items() if len(levels) == 2
    }
