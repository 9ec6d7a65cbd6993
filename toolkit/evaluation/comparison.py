"""Comparison of evaluated runs: paired tests on one benchmark, and systems over several
benchmarks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, starmap
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from soundingline.toolkit.errors import InputError, check_call, did_you_mean
from soundingline.toolkit.evaluation.evaluation import (
    KEYWORD_AGENT,
    EvaluatedRun,
    agent_class,
    html_table,
    stand_ins,
)
from soundingline.toolkit.evaluation.statistics import Paired, holm, paired_test
from soundingline.toolkit.runs.manifest import EVIDENCE, SEALED
from soundingline.toolkit.trajectory import mapping

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("measure", "all")
TESTED = ("accuracy", "answer_shown", "F1@20", "nDCG@20", "recall_opened", "nDCG@10", "AP")
_BENCHMARK = "benchmark"
ORACLE = "fusion.OracleRetriever"  # which ranks judged documents, whatever the query is
_WORDLESS = re.compile(r"[-+.\de]+|True|False|None")


class PairedComparison(NamedTuple):
    """A paired comparison of the runs `a` and `b` on one measure. `p_holm` and
    `p_equivalence_holm` are the p values after Holm's correction over the comparison's family; the
    latter is None without a margin. The other fields are those of `statistics.Paired`.

    Example:
        >>> values = {"a": {"q1": 1.0, "q2": 1.0}, "b": {"q1": 0.0, "q2": 0.5}}
        >>> runs = [EvaluatedRun(name=n, per_question={"AP": row}) for n, row in values.items()]
        >>> (row,) = compare(runs, ["AP"])
        >>> (row.a, row.b, row.difference, row.seen_from("a").difference)
        ('b', 'a', -0.75, 0.75)
    """

    measure: str
    a: str
    b: str
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    n: int
    questions_needed: int | None
    wins: int
    losses: int
    ties: int
    p_equivalence: float | None = None
    p_equivalence_holm: float | None = None

    def conclusion(self, alpha: float = 0.05) -> str:
        """`different` if the difference is significant at the level `alpha`; else `equivalent` if
        it is significantly smaller than the margin; else `undecided`. Empty without a margin."""
        if self.p_equivalence_holm is None:
            return ""
        if self.p_holm <= alpha:
            return "different"
        return "equivalent" if self.p_equivalence_holm <= alpha else "undecided"

    def seen_from(self, name: str) -> PairedComparison:
        """The same comparison with the run `name` (one of its two) as `a`."""
        if name == self.a:
            return self
        return self._replace(
            a=self.b,
            b=self.a,
            mean_a=self.mean_b,
            mean_b=self.mean_a,
            difference=-self.difference,
            low=-self.high,
            high=-self.low,
            wins=self.losses,
            losses=self.wins,
        )


class Comparisons(list[PairedComparison]):
    """Paired comparisons in their order. A notebook shows them as a table."""

    note = ""

    def to_frame(self) -> pd.DataFrame:
        """A row for each comparison, with the fields of `PairedComparison` as columns."""
        import pandas as pd

        return pd.DataFrame(self, columns=PairedComparison._fields)

    def _repr_html_(self) -> str:
        title = "difference = mean_a - mean_b, with its 95 % interval from low to high"
        return html_table(self.to_frame(), title, self.note, index=False)


@check_call
def compare(
    runs: Sequence[EvaluatedRun],
    measures: Sequence[str] | None = None,
    baseline: str | None = None,
    *,
    test: str = "randomisation",
    family: str = "measure",
    margin: float | None = None,
    resamples: int = 9999,
    seed: int = 0,
) -> Comparisons:
    """Compare runs over the same questions: paired differences, intervals, Holm's correction.

    A measure of effort is compared over the `n` questions for which both runs know it.

    Args:
        runs: runs over one benchmark content, with different names.
        measures: the measures to compare; None for those of `TESTED` that all runs have.
        baseline: the name of the run that every other run is compared with; None for all pairs, the
            later run against the earlier one.
        family: what Holm's correction runs over: the comparisons on one `measure` (as in
            `pt.Experiment`), or `all`. Comparisons with bounds (`bound_of`) are a family of their
            own.
        margin: the smallest difference on the first of the measures that matters; a difference
            that is significantly smaller is `equivalent` (`PairedComparison.conclusion`). None:
            equivalence is not tested, nor is it for bounds.
        test, resamples, seed: see `statistics.paired_test`. Each comparison starts from
            the same seed, so that another run does not change the others' intervals.

    Returns:
        The comparisons, by measure, then by pair. An example is in `PairedComparison`.

    Raises:
        InputError: for runs over different benchmarks or questions, unknown or equal names, a
            measure that is missing from a run, and one that two runs share on fewer than two
            questions.
    """
    if family not in FAMILIES:
        raise InputError(f"the family is {family!r}", valid=", ".join(FAMILIES))
    pairs = _pairs(runs, baseline)
    for a, b in pairs:
        if _content(a) != _content(b):
            raise InputError(
                f"the runs {a.name} and {b.name} are of different benchmarks ({_content(a)} and "
                f"{_content(b)})",
                valid="runs over one benchmark with one content",
                do="run both again over the same benchmark",
            )
    if measures is None:
        measures = [name for name in TESTED if all(name in run.per_question for run in runs)]
    bounds = bounds_among(runs, baseline)
    rows: list[tuple[str, str, str, Paired]] = []
    families: dict[tuple[str, bool], list[int]] = {}
    for measure in measures:
        for a, b in pairs:
            of_bound = not bounds.isdisjoint((a.name, b.name))
            row = paired_test(
                *_shared_values(a, b, measure),
                test=test,
                resamples=resamples,
                seed=seed,
                margin=margin if measure == measures[0] and not of_bound else None,
            )
            key = (measure if family == "measure" else "", of_bound)
            families.setdefault(key, []).append(len(rows))
            rows.append((measure, a.name, b.name, row))
    adjusted: dict[int, float] = {}
    for numbers in families.values():
        p_values = holm([rows[number][3].p for number in numbers])
        adjusted |= dict(zip(numbers, p_values, strict=True))
    equivalence = {
        number: row.p_equivalence
        for number, (*_, row) in enumerate(rows)
        if row.p_equivalence is not None
    }
    smaller = dict(zip(equivalence, holm(list(equivalence.values())), strict=True))
    compared = Comparisons(
        PairedComparison(
            measure=measure,
            a=a,
            b=b,
            p_holm=adjusted[number],
            p_equivalence_holm=smaller.get(number),
            **vars(row),
        )
        for number, (measure, a, b, row) in enumerate(rows)
    )
    compared.note = stand_ins(runs)
    return compared


def bound_of(config: Mapping[str, Any]) -> str:
    """The bound of the accuracy of a search agent that a run with this configuration measures:
    `closed book`, `retrieve-then-read`, `oracle's ranking`, `evidence given` (the oracle's ranking
    of evidence alone), or `evidence removed`; empty for any other run."""
    agent, retriever = (mapping(config.get(group)) for group in ("agent", "retriever"))
    name = agent_class(config)
    searches = agent.get("max_searches") if name == KEYWORD_AGENT else None
    if name == "ClosedBookAgent" or searches == 0:
        return "closed book"
    if mapping(config.get(_BENCHMARK)).get("remove_evidence"):
        return "evidence removed"
    if str(retriever.get("_target_")).endswith(ORACLE):
        ranks_rest = retriever.get("base") and retriever.get("rest", True)
        return "oracle's ranking" if ranks_rest or not agent else "evidence given"
    return "retrieve-then-read" if name == "RagAgent" or searches == 1 else ""


def bounds_among(runs: Sequence[EvaluatedRun], baseline: str | None = None) -> set[str]:
    """The names of the runs that measure a bound, and another one than the baseline, if there is
    one. Empty where fewer than two other runs are left to compare."""
    kinds = {run.name: bound_of(mapping(run.manifest.get("config"))) for run in runs}
    bounds = {name for name, kind in kinds.items() if kind and kind != kinds.get(baseline or "")}
    return bounds if len(kinds) - len(bounds) > 1 else set()


def _pairs(
    runs: Sequence[EvaluatedRun], baseline: str | None
) -> list[tuple[EvaluatedRun, EvaluatedRun]]:
    by_name = {run.name: run for run in runs}
    if len(by_name) < len(runs):
        raise InputError("two of the runs to compare have one name", do="name each run once")
    if baseline is None:
        return [(later, earlier) for earlier, later in combinations(runs, 2)]
    if baseline not in by_name:
        raise InputError(
            f"the baseline is {baseline!r}",
            valid=", ".join(by_name),
            do=did_you_mean(baseline, by_name),
        )
    return [(run, by_name[baseline]) for run in runs if run.name != baseline]


def _shared_values(
    a: EvaluatedRun, b: EvaluatedRun, measure: str
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The values of both runs on the questions for which both have one."""
    for run in (a, b):
        if measure not in run.per_question:
            raise InputError(
                f"the run {run.name} has no measure {measure!r} by question",
                valid=", ".join(run.per_question) or "none",
                do=did_you_mean(measure, run.per_question)
                or "evaluate it again with that measure; money and tokens are left out where they "
                "are known of no question",
            )
    first, second = a.per_question[measure], b.per_question[measure]
    if first.keys() == second.keys():
        return first, second
    # The runs must have the same questions; each leaves out only the effort that it does not know.
    of_a, of_b = (set().union(*run.per_question.values()) for run in (a, b))
    if of_a != of_b:
        raise InputError(
            f"the runs {a.name} ({len(of_a)} questions) and {b.name} ({len(of_b)} questions) "
            f"share {len(of_a & of_b)} on {measure}",
            valid="runs over the same questions",
            do="run or evaluate both over the same split and limit",
        )
    shared = [qid for qid in first if qid in second]
    if len(shared) < 2:
        raise InputError(
            f"{measure} is known of {len(first)} questions of the run {a.name}, of "
            f"{len(second)} of {b.name}, and of {len(shared)} of both",
            valid="two questions or more",
            do="leave that measure out, or run both with known prices and usage",
        )
    return {qid: first[qid] for qid in shared}, {qid: second[qid] for qid in shared}


@dataclass(frozen=True)
class System:
    """One configuration on several benchmarks, by their labels."""

    label: str
    runs: Mapping[str, EvaluatedRun]

    def value(self, measure: str, benchmark: str) -> float | None:
        """The value of a measure on a benchmark; None if there is no run or no such measure."""
        run = self.runs.get(benchmark)
        return None if run is None else run.metrics.get(measure)


@dataclass(frozen=True)
class Systems:
    """Systems and benchmarks, both in order of first appearance. `different` is the number of
    benchmarks of which the others differ in nothing but the size of the corpus."""

    benchmarks: Sequence[str]
    systems: Sequence[System]
    different: int

    @property
    def has_shares(self) -> bool:
        """Whether a benchmark has corpora of several sizes, over which nothing is averaged."""
        return self.different < len(self.benchmarks)

    def benchmarks_of(self, measure: str) -> list[str]:
        """The benchmarks on which any system has the measure."""
        return [
            benchmark
            for benchmark in self.benchmarks
            if any(system.value(measure, benchmark) is not None for system in self.systems)
        ]

    def macro_average(self, system: System, measure: str) -> float | None:
        """The mean over the benchmarks with this measure, each with the same weight; None if the
        system was not measured on one, because a mean over other benchmarks cannot be compared, and
        with `has_shares`."""
        if self.has_shares:
            return None
        values = [system.value(measure, benchmark) for benchmark in self.benchmarks_of(measure)]
        present = [value for value in values if value is not None]
        return sum(present) / len(present) if present and len(present) == len(values) else None

    def of(self, name: str) -> System | None:
        """The system of the run with this name; None if there is no such run."""
        names = ((system, {run.name for run in system.runs.values()}) for system in self.systems)
        return next((system for system, of_runs in names if name in of_runs), None)


def by_benchmark(runs: Sequence[EvaluatedRun]) -> list[list[EvaluatedRun]]:
    """The runs of each benchmark content, in order of first appearance."""
    groups: dict[str, list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault(_content(run), []).append(run)
    return list(groups.values())


def systems_of(runs: Sequence[EvaluatedRun], by: Sequence[str] = ()) -> Systems | None:
    """Group runs over several benchmarks into systems; None if all are over one benchmark content.

    Runs belong to one system if all their settings but the benchmark's are equal, by the
    fingerprints in the manifests. A configuration with two runs on one benchmark makes two systems.
    `by` names factors that distinguish systems instead, for settings that differ with the benchmark
    on purpose, such as the task of a prompt.

    Raises:
        InputError: for a factor that no run has, and if runs on one benchmark that differ otherwise
            have the same factors.
    """
    groups = by_benchmark(runs)
    if len(groups) < 2:
        return None
    if by:
        _check_factors(groups, by)
    labels = _benchmark_labels([group[0] for group in groups])
    rows: dict[tuple[Any, int], dict[str, EvaluatedRun]] = {}
    for label, group in zip(labels, groups, strict=True):
        for run in group:
            key, occurrence = _settings(run, by), 0
            while label in rows.get((key, occurrence), {}):
                occurrence += 1
            rows.setdefault((key, occurrence), {})[label] = run
    firsts = [next(iter(row.values())) for row in rows.values()]
    varied = by or [name for name in varied_factors(firsts) if not _of_benchmark(name)]
    names = factor_labels(firsts, varied)
    systems = [System(name, row) for name, row in zip(names, rows.values(), strict=True)]
    return Systems(labels, systems, _different([group[0] for group in groups]))


def _different(runs: Sequence[EvaluatedRun]) -> int:
    """The number of benchmarks of runs on different contents, where those that differ in nothing
    but the share of the corpus are one."""
    configs = [dict(run.manifest.get("config", {}).get(_BENCHMARK) or {}) for run in runs]
    settings = [(config.pop("corpus_share", None), repr(config)) for config in configs]
    return len({rest for _, rest in settings}) + len(settings) - len(set(settings))


def baselines_of(runs: Sequence[EvaluatedRun], baseline: str, systems: Systems | None) -> list[str]:
    """The names of the runs that the others of their benchmark are compared with.

    On the benchmark of the run `baseline` it is that run. On another benchmark it is the run of the
    same system, else the first run with the same factors except for those of the benchmark; a
    benchmark that has neither has no baseline.
    """
    system = systems.of(baseline) if systems else None
    same = {run.name for run in system.runs.values()} if system else set()
    factors = next(_own_factors(run) for run in runs if run.name == baseline)
    chosen = []
    for group in by_benchmark(runs):
        names = [run.name for run in group]
        alike = [run.name for run in group if _own_factors(run) == factors]
        candidates = [*({baseline} & {*names}), *(n for n in names if n in same), *alike]
        chosen += candidates[:1]
    return chosen


def _check_factors(groups: Sequence[Sequence[EvaluatedRun]], by: Sequence[str]) -> None:
    """`InputError` if the factors do not distinguish the runs on one benchmark."""
    factors = {name for group in groups for run in group for name in run.factors}
    varied = {name for group in groups for name in varied_factors(group)}
    if unknown := ", ".join(sorted(set(by) - factors)):
        valid = ", ".join(sorted(varied or factors))
        raise InputError(f"no run has the factor {unknown}", valid=valid)
    for group in groups:
        first: dict[Any, EvaluatedRun] = {}
        for run in group:
            earlier = first.setdefault(_settings(run, by), run)
            if _settings(run, ()) != _settings(earlier, ()):
                raise InputError(
                    f"{earlier.name} and {run.name} have the same {', '.join(by)} and differ "
                    "otherwise",
                    valid="factors that distinguish the runs on one benchmark",
                    do=f"add {' or '.join(sorted(varied - set(by)))}",
                )


def _content(run: EvaluatedRun) -> str:
    return str(run.manifest.get("fingerprints", {}).get(_BENCHMARK))


def _settings(run: EvaluatedRun, by: Sequence[str]) -> Any:
    """What the runs of one system have in common."""
    factors = _own_factors(run)
    if by:
        return tuple(factors.get(name, "") for name in by)
    groups = run.manifest.get("config", {})
    prints = {
        name: value
        for name, value in run.manifest.get("fingerprints", {}).items()
        # Other fingerprints are of content, which differs with the corpus.
        if (name in groups and name not in (_BENCHMARK, SEALED))
        or name.startswith("prompt")
        or name == EVIDENCE
    }
    return tuple(sorted((prints or factors or {"run": run.name}).items()))


def _own_factors(run: EvaluatedRun) -> dict[str, str]:
    """The factors of a run except for those of its benchmark."""
    return {name: value for name, value in run.factors.items() if not _of_benchmark(name)}


def _of_benchmark(factor: str) -> bool:
    removed = f"{_BENCHMARK}.remove_evidence"  # changes what is searched, not what is asked
    return factor == _BENCHMARK or (factor.startswith(f"{_BENCHMARK}.") and factor != removed)


def shown_factors(factors: Mapping[str, str]) -> dict[str, str]:
    """The factors that a label shows: a benchmark's own name replaces its option, and a path or a
    dataset that ends in this name says nothing more.

    >>> shown_factors({"benchmark": "beir", "unit": "maxp", "benchmark.name": "vaswani",
    ...                "benchmark.path": "data/vaswani"})
    {'benchmark': 'vaswani', 'unit': 'maxp'}
    """
    shown = dict(factors)
    name = shown.pop(f"{_BENCHMARK}.name", None)
    if name is None:
        return shown
    for key in ("path", "dataset"):
        value = shown.get(f"{_BENCHMARK}.{key}")
        if value is not None and PurePath(value).name == name:
            del shown[f"{_BENCHMARK}.{key}"]
    return {**shown, _BENCHMARK: name}


def varied_factors(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Factors whose values differ between runs, in the order of their first appearance."""
    names = dict.fromkeys(name for run in runs for name in run.factors)
    return [name for name in names if len({run.factors.get(name, "") for run in runs}) > 1]


def factor_labels(runs: Sequence[EvaluatedRun], factors: Sequence[str] | None = None) -> list[str]:
    """The values of the factors of each run, by default of those that vary, numbers and truth
    values with the name of their setting (`get_document=True`), and `none` with that of its factor
    where nothing else is said (`reranker=none`); the runs' names if these are not distinct, or if
    nothing varies."""
    named = varied_factors(runs) if factors is None else factors
    labels = []
    for run in runs:
        pairs = [(name, str(run.factors[name])) for name in named if name in run.factors]
        absent = all(value == "none" for _, value in pairs)
        labels.append(" · ".join(map("=".join, pairs) if absent else starmap(_named, pairs)) or "—")
    unclear = len(set(labels)) < len(labels) or not (named or factors is not None)
    return [run.name for run in runs] if unclear else labels


def _benchmark_labels(runs: Sequence[EvaluatedRun]) -> list[str]:
    """The benchmarks' names, and for equal names the settings that differ."""
    names = [
        str(
            (run.manifest.get("config", {}).get(_BENCHMARK) or {}).get("name")
            or run.factors.get(_BENCHMARK)
            or _content(run)[:12]
        )
        for run in runs
    ]
    labels = []
    for run, name in zip(runs, names, strict=True):
        namesakes = [run for run, its_name in zip(runs, names, strict=True) if its_name == name]
        varied = [factor for factor in varied_factors(namesakes) if _of_benchmark(factor)]
        settings = [str(run.factors[factor]) for factor in varied if factor in run.factors]
        more = [setting for setting in settings if PurePath(setting).name != name]
        labels.append(" ".join([name, *more]))
    return [
        label if labels.count(label) == 1 else f"{label} ({_content(run)[:12]})"
        for label, run in zip(labels, runs, strict=True)
    ]


def _named(factor: str, value: str) -> str:
    setting = factor.rpartition(".")[2] if "." in factor and _WORDLESS.fullmatch(value) else ""
    return f"{setting}={value}" if setting else value
