"""Main effects and interactions of a full factorial sweep, as a section of the report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from operator import itemgetter

from soundingline.toolkit.evaluation.comparison import varied_factors
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.statistics import factorial_effects, holm
from soundingline.toolkit.report.measures import probability
from soundingline.toolkit.report.page import Column, Section, Table, section, texts
from soundingline.toolkit.report.results import ALPHA, ReportData, factor_value, measure_entry

_MEASURES = ("accuracy", "nDCG@10")  # the first that all runs have
_FEWEST = 10  # questions that all runs share


def effects_section(data: ReportData) -> Section | None:
    """The effects of the factors on the primary measure, by default accuracy, or nDCG@10 where no
    agent answered. None unless the runs are a full factorial design over two or more factors, on
    one benchmark, that share ten questions or more."""
    runs, factors = data.runs, _design(data.runs)
    measures = dict.fromkeys(filter(None, (data.primary, *_MEASURES)))
    measure = next((m for m in measures if all(m in run.per_question for run in runs)), "")
    if not measure or data.systems is not None or not factors:
        return None
    shared = set.intersection(*(set(run.per_question[measure]) for run in runs))
    distinct = {run.per_question[measure][qid] for run in runs for qid in shared}
    if len(shared) < _FEWEST or len(distinct) < 2:
        return None
    cells = [
        ({name: factor_value(run, name) for name in factors}, run.per_question[measure])
        for run in runs
    ]
    effects = factorial_effects(cells)
    baseline = data.style(data.baseline).run
    hidden = {  # of a factor with two levels, that of the baseline
        (name, factor_value(baseline, name)) for name, values in factors.items() if len(values) == 2
    }
    shown = [
        each for each in effects if hidden.isdisjoint(zip(each.factors, each.levels, strict=True))
    ]
    rows = [
        {
            "effect": " × ".join(map(": ".join, zip(effect.factors, effect.levels, strict=True))),
            "estimate": measure_entry(
                effect.estimate,
                measure,
                effect.low,
                effect.high,
                sign=True,
                mark="best" if adjusted <= ALPHA else "",
            ),
            "p": effect.p,
            "p (Holm)": adjusted,
        }
        for effect, adjusted in zip(shown, holm([each.p for each in shown]), strict=True)
    ]
    columns = [
        *texts("effect"),
        Column("estimate", note="95% interval"),
        Column("p", form=probability),
        Column("p (Holm)", form=probability),
    ]
    words = {"measure": measure, "runs": len(runs), "questions": f"{len(shared):,}"}
    return section(
        "effects",
        {**words, "alpha": f"{ALPHA:g}", "effects": len(shown)},
        tables=[Table(columns, rows)],
    )


def one_factor_contrasts(runs: Sequence[EvaluatedRun]) -> list[tuple[str, str, str]]:
    """The pairs of runs that differ in one factor, in a full factorial design over two or more.

    Returns:
        (factor, later run, earlier run) by names, the pairs of a factor together; empty for another
        design.
    """
    factors = _design(runs)
    pairs = []
    for earlier, later in combinations(runs, 2):
        levels = {name: factor_value(later, name) for name in factors}
        differing = [name for name in factors if levels[name] != factor_value(earlier, name)]
        if len(differing) == 1:
            rest = [factors[n].index(level) for n, level in levels.items() if n not in differing]
            place = list(factors).index(differing[0]), rest
            pairs.append((place, (differing[0], later.name, earlier.name)))
    return [pair for _, pair in sorted(pairs, key=itemgetter(0))]


def _design(runs: Sequence[EvaluatedRun]) -> dict[str, list[str]]:
    """The levels of each factor, if the runs are one for each combination of the levels of two or
    more factors; else empty. Settings that the option of their group determines are not factors,
    such as the depth of a re-ranker that some runs do not have."""
    names = varied_factors(runs)
    levels = {name: list(dict.fromkeys(factor_value(run, name) for run in runs)) for name in names}
    factors = {}
    for name, values in levels.items():
        group = name.partition(".")[0]
        pairs = {(factor_value(run, group), factor_value(run, name)) for run in runs}
        determined = group != name and group in levels and len(pairs) == len(levels[group])
        if len(values) > 1 and not determined:
            factors[name] = values
    cells = {tuple(factor_value(run, name) for name in factors) for run in runs}
    full = len(cells) == len(runs) == prod(map(len, factors.values()))
    return factors if full and len(factors) > 1 else {}
