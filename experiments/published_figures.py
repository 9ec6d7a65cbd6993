"""The figures of a sweep next to those that a paper published for the same cells.

An experiment, and so the manifest of each of its runs, names the paper's table by `published`, such
as `text_ranking/table3` (`soundingline.toolkit.evaluation.published_tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product
from math import isclose, nan
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from soundingline.experiments.validity import has_factors
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import EvaluatedRun, load_runs
from soundingline.toolkit.evaluation.comparison import bound_of, compare, factor_labels
from soundingline.toolkit.evaluation.published_tables import PublishedTable, read_published
from soundingline.toolkit.evaluation.statistics import RUN_SHARE, Replication, replication
from soundingline.toolkit.report.measures import look_up_measure, number
from soundingline.toolkit.report.results import recorded_count
from soundingline.toolkit.runs.run_folder import evaluated_runs

RUN_DOLLARS = "run_dollars"  # of all questions; the measure of a question is `usage_dollars`
CACHED_SHARE = "cached_share"
_DOLLARS = "usage_dollars"
# Measures of the published evaluator, which have no values by question, and ours that are equal to
# them where the judgements have one tier.
_BY_QUESTION = {"recall_published": "recall_previewed", "accuracy_published": "accuracy"}


class PublishedFigure(NamedTuple):
    """A published value and ours, and their difference with its 95 % interval (`replication`),
    where there is one."""

    measure: str
    published: float
    value: float | None
    replication: Replication | None

    @property
    def verdict(self) -> str:
        """Whether both values are consistent, if there is an interval."""
        if self.replication is None:
            return "not measured" if self.value is None else "no interval"
        return self.replication.verdict


def compare_with_published(paths: Sequence[Path]) -> None:
    """Print the figures of runs, or of the cells of sweeps, next to the published ones, and what is
    known to explain differences. Runs of others that were imported are compared with the other
    runs by question.

    Raises:
        InputError: for a folder without an evaluated run, runs without published figures, and runs
            of several experiments.
    """
    runs = load_runs([folder for path in paths for folder in _evaluated(path)])
    imported = [run for run in runs if run.manifest.get("imported")]
    ours = [run for run in runs if run not in imported]
    console = Console(soft_wrap=True)
    if ours and imported:
        console.print(_paired(ours, imported))
        return
    published = _published(runs)
    rows = [_rows_of_run(published, run) for run in runs]
    figures = [
        [figure for row in rows_of_run for figure in figures_of(run, row, published)]
        for run, rows_of_run in zip(runs, rows, strict=True)
    ]
    console.print(_figures_table(published.title, factor_labels(runs), figures))
    console.print(_noise(runs))
    for line in _context(runs, published):
        console.print(line)
    for row in published.cells:
        if ours and not any(row in rows_of_run for rows_of_run in rows):
            factors = ", ".join(f"{key}={value}" for key, value in factors_of(row).items())
            console.print(f"Not run: {factors}")
    counts = Counter(cause for run in runs for cause in causes(run, published))
    for cause, count in counts.items():
        cells = "" if count == len(runs) else f" ({count} of {len(runs)} cells)"
        console.print(f"Known cause of differences: {cause}{cells}")
    console.print(_conclusion(runs, published, list(chain(*figures)), explained=bool(counts)))


def _evaluated(path: Path) -> list[Path]:
    """The folder of a run, or those of the evaluated cells of a sweep."""
    folders = [path] if (path / "manifest.json").is_file() else evaluated_runs(path)
    if not folders:
        raise InputError(f"{path} has no evaluated run", valid="the folder of a run or of a sweep")
    return folders


def _figures_table(
    title: str, labels: Sequence[str], figures: Sequence[Sequence[PublishedFigure]]
) -> Table:
    """The figures of each run, by its label."""
    table = Table(title=title, box=SIMPLE)
    table.add_column("cell", overflow="fold")
    table.add_column("measure", no_wrap=True)
    for column in ("published", "ours", "difference", "95 % interval"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for label, figures_of_run in zip(labels, figures, strict=True):
        for position, figure in enumerate(figures_of_run):
            table.add_row("" if position else label, *_columns(figure))
        if not figures_of_run:
            table.add_row(label, "", "—", "", "", "", "not stated")
    return table


def _context(runs: Sequence[EvaluatedRun], published: PublishedTable) -> Iterator[str]:
    """The published ranges with ours, other systems of the paper, and known differences."""
    for name, (low, high) in published.ranges.items():
        values = sorted(value for run in runs if (value := _behaviour(run, name)) is not None)
        measured = f"{values[0]:.3g} to {values[-1]:.3g}" if values else "not measured"
        yield f"Published range of {name}: {low:g} to {high:g}; ours: {measured}"
    for system in published.other_systems:
        yield f"Also published: {', '.join(f'{key} {value}' for key, value in system.items())}"
    yield from (f"Known difference: {text}" for text in published.differences)


def _published(runs: Sequence[EvaluatedRun]) -> PublishedTable:
    """The published table that the runs name."""
    configs = [run.manifest.get("config", {}) for run in runs]
    names = [config.get("comparison", {}).get("published") for config in configs]
    for run, name in zip(runs, names, strict=True):
        if not isinstance(name, str) or not read_published(name).rows:
            raise InputError(
                f"the experiment of the run {run.name} has no published figures",
                do="soundingline describe experiment=NAME names the table of one that has some",
            )
        if name != names[0]:
            raise InputError(
                f"{runs[0].name} and {run.name} are of different experiments",
                do="compare the runs of one experiment at a time",
            )
    return read_published(str(names[0]))


def is_measure(column: str) -> bool:
    """Whether a column of published figures is a measure; the others are factors."""
    return column == RUN_DOLLARS or bool(look_up_measure(column).definition)


def factors_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The factors of a published row that matter."""
    return {name: v for name, v in row.items() if not is_measure(name) and v is not None}


def rows_of(
    table: PublishedTable, config: Mapping[str, Any], factors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The rows of a table that state the figures of a cell or a run with these settings and
    factors."""
    return [row for row in table.cells if has_factors(config, factors, factors_of(row))]


def _rows_of_run(table: PublishedTable, run: EvaluatedRun) -> list[dict[str, Any]]:
    """The rows of a run; none of one that measures a bound."""
    config = run.manifest.get("config") or {}
    return [] if bound_of(config) else rows_of(table, config, run.factors)


def published_accuracy(manifest: Mapping[str, Any]) -> float | None:
    """The accuracy of the paper's row that has the factors of a run, by the run's manifest; None
    without a table, without such a row, and where the row states no accuracy."""
    config = manifest["config"]
    name = config["comparison"]["published"]
    rows = rows_of(read_published(name), config, manifest["factors"]) if name else []
    return rows[0].get("accuracy") if rows else None


def figures_of(
    run: EvaluatedRun, row: Mapping[str, Any], published: PublishedTable
) -> Iterator[PublishedFigure]:
    """The published measures of a row with those of a run. `run_dollars` is the sum over the
    questions of the agent's and the stages' dollars, which has an interval where both sums are over
    the same number of questions."""
    questions = published.questions
    for name, value in row.items():
        if value is None or not is_measure(name):
            continue
        same = _DOLLARS if name == RUN_DOLLARS else _BY_QUESTION.get(name, name)
        values = run.per_question.get(same, {})
        scale = len(values) if name == RUN_DOLLARS else 1
        ours = run.metrics.get(same if name == RUN_DOLLARS else name)
        if ours is None:
            yield PublishedFigure(name, value, None, None)
            continue
        is_mean = isclose(run.metrics.get(same, nan), ours, abs_tol=1e-6)
        found, half = None, _rounding(published, name) / scale
        if run.manifest.get("imported"):  # the paper's own run
            found = Replication(*(ours - value / scale + shift for shift in (0, -half, half)))
        elif values and is_mean and (scale == 1 or questions in (None, scale)):
            attempts = run.repeats.get(same) or {qid: [one] for qid, one in values.items()}
            found = replication(
                attempts,
                value / scale,
                questions,
                sampled=asks_models(run),
                rounding=half,
            )
        scaled = Replication(*(scale * end for end in found)) if found else None
        yield PublishedFigure(name, value, ours * scale, scaled)


def asks_models(run: EvaluatedRun) -> bool:
    """Whether a language model has replied in a run, so that another run may differ."""
    in_ranking = run.manifest.get("costs", {}).get("query", {}).get("output_tokens")
    return bool(in_ranking) or any(name.startswith("usage_") for name in run.metrics)


def _behaviour(run: EvaluatedRun, name: str) -> float | None:
    """A measure of a run, or the share of the agent's input tokens from a prefix cache."""
    if name != CACHED_SHARE:
        return run.metrics.get(name)
    read = run.metrics.get("usage_agent_input_tokens")
    cached = run.metrics.get("usage_agent_cached_tokens")
    return cached / read if read and cached is not None else None


def _rounding(published: PublishedTable, measure: str) -> float:
    """Half a unit of the last digit with which a measure is published."""
    values = [row[measure] for row in published.cells if row.get(measure) is not None]
    return 0.5 * 10.0 ** -max(len(f"{value!r}".partition(".")[2]) for value in values)


def _noise(runs: Sequence[EvaluatedRun]) -> str:
    """Where the run-to-run noise of the intervals comes from."""
    if all(run.manifest.get("imported") for run in runs):
        return "The runs are the authors' own, so that only the rounding of the paper is left."
    sampled = [run for run in runs if asks_models(run)]
    repeated = sum(bool(run.repeats) for run in sampled)
    text = "Intervals have the run-to-run noise of both sides, and no sampling of shared questions."
    if not sampled:
        return f"{text} Without a language model there is none, and only the rounding is left."
    if repeated:
        text += f" The noise of {repeated} of {len(runs)} cells is that of their repeats."
    if repeated < len(sampled):
        text += (
            f" Without repeats it is taken to be {RUN_SHARE:.0%} of the variance of a question's "
            "value, which is 3.4 points at 830 questions and an accuracy of 0.5."
        )
    return text


def _paired(ours: Sequence[EvaluatedRun], imported: Sequence[EvaluatedRun]) -> Table:
    """The differences of our runs from the imported ones, paired by question."""
    table = Table(title="Differences by question", box=SIMPLE)
    for column in ("run", "imported run", "measure", "theirs", "ours", "difference"):
        table.add_column(column, overflow="fold")
    table.add_column("95 % interval", overflow="fold")
    table.add_column("verdict")
    for run, reference in product(ours, imported):
        for row in compare([run, reference], baseline=reference.name):
            difference = Replication(row.difference, row.low, row.high)
            figure = PublishedFigure(row.measure, row.mean_b, row.mean_a, difference)
            table.add_row(run.name, reference.name, *_columns(figure))
    return table


def causes(run: EvaluatedRun, published: PublishedTable) -> Iterator[str]:
    """What is known to make the figures of a run differ from the paper's."""
    config, manifest = run.manifest.get("config", {}), run.manifest
    if config.get("scale") == "laptop":
        yield "a laptop run: generated questions, and an agent without a model"
    benchmark = manifest.get("benchmark", {}).get("option")
    if published.benchmark not in (None, benchmark):
        yield f"the benchmark is {benchmark}, the paper's is {published.benchmark}"
    count, questions = recorded_count(run), published.questions
    if questions is not None and count != questions:
        yield f"{count:,} questions were run, the paper has {questions:,}"
    if published.judge not in (None, run.judge):
        yield f"the judge is {run.judge}, the paper's is {published.judge}"
    if manifest.get("imported"):
        return
    served = manifest.get("servers", {}).get("llm", "").removeprefix("vLLM ")
    vllm, paper = served or manifest.get("versions", {}).get("vllm"), published.vllm
    if paper and vllm and vllm.split(".")[:2] != paper.split("."):
        yield f"vLLM is {vllm}, the paper ran {paper}"
    elif paper and not vllm and config.get("scale") != "laptop":
        yield f"the version of vLLM is not recorded, the paper ran {paper}"
    if failed := run.counts.get("failed"):
        yield f"{failed:,} questions failed, and count as wrong"
    priced = len(run.per_question.get(_DOLLARS, {}))
    if priced < count and RUN_DOLLARS in published.columns:
        yield f"the cost is known of {priced:,} of {count:,} questions"


def _columns(figure: PublishedFigure) -> tuple[str, ...]:
    digits = 2 if figure.measure == RUN_DOLLARS else look_up_measure(figure.measure).digits
    difference, low, high = figure.replication or (None, None, None)
    return (
        figure.measure,
        number(figure.published, digits),
        number(figure.value, digits),
        number(difference, digits, sign=True),
        f"[{number(low, digits)}, {number(high, digits)}]" if figure.replication else "—",
        figure.verdict,
    )


def _conclusion(
    runs: Sequence[EvaluatedRun],
    published: PublishedTable,
    figures: Sequence[PublishedFigure],
    *,
    explained: bool,
) -> str:
    """How many published values are consistent with ours. Only runs over the paper's questions,
    without a known cause of differences, are evidence on the paper's result."""
    tested = [figure for figure in figures if figure.replication]
    same = sum(figure.verdict == "consistent" for figure in tested)
    if all(run.manifest.get("imported") for run in runs):
        return f"{same} of {len(tested)} published values are those of the released runs."
    text = f"{same} of {len(tested)} published values are consistent with ours"
    questions = published.questions
    no_evidence = f"{text}. This is not evidence on the paper's result"
    if questions is None:
        return (
            f"{no_evidence}, because the experiment does not state how many questions the paper "
            "has for each collection."
        )
    if any(recorded_count(run) < questions for run in runs):
        return f"{no_evidence}, which needs its {questions:,} questions."
    if explained:
        return f"{text}. The known causes above keep the runs from being the paper's."
    return f"{text}: these are reproduced."
