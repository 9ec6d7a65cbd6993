"""Threats to the validity of an ablation: what a reviewer would object to in its cells.

`find_threats` reads what the cells of an experiment are composed of and, once they have run, their
manifests and measures. It decides nothing: a threat is printed before the runs start and stands in
the report, and `accept` marks those that the author knows of.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.comparison import ORACLE, bound_of
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.statistics import smallest_difference

# A language model's group counts as the group of the stage that asks it.
_PARENT = {
    "rewriter_llm": "rewriter",
    "enrichment_llm": "enrichment",
    "reranker_llm": "reranker",
    "librarian_llm": "scorer",
}
CHANGED_GROUPS = (
    *("unit", "engine", "rewriter", "enrichment", "retriever", "reranker", "tool", "scorer"),
    *("list_reranker", "llm", "agent", "budget"),
    *_PARENT,
)
_LATENCY_GROUPS = ("engine", "rewriter", "retriever", "reranker", "scorer", "llm")
_CHOSEN = ("k1", "b", "fold_parameters")  # by a tuning, for each unit
_QUESTIONS = ("qids", "split", "sample", "seed", "limit")
_DATED = re.compile(r"(?<!\d)20\d\d-?[01]\d-?[0-3]\d(?!\d)")
_LOCAL = re.compile(r"^https?://(127\.|localhost|\[::1\])")
SLOWER = 1.25  # seconds a tool call of the slowest cell, as a multiple of the fastest one's
INCOMPLETE = 0.02  # difference in completion
UNJUDGED = 0.05  # difference in Judged@10
DAYS = 1.0  # between the starts of two cells
CHANGED_ANSWERS = 0.1  # the share of answers that differ between two cells, before any was run
_NAMED = 3  # cells that a line names


@dataclass(frozen=True)
class ComposedCell:
    """A cell of an experiment, as `find_threats` reads it.

    Args:
        label: what a line calls it.
        config: the composed configuration, as in the manifest of a run.
        factors: the option of each group.
        sampling: whether its agent asks a language model.
        questions: their number; None if it is not known yet.
        tuned_on_reported: whether its parameters were chosen on questions that it reports.
        run: the evaluated run; None before it has run.
    """

    label: str
    config: Mapping[str, Any]
    factors: Mapping[str, str] = field(default_factory=dict)
    sampling: bool = False
    questions: int | None = None
    tuned_on_reported: bool = False
    run: EvaluatedRun | None = None

    def value(self, *path: str, default: Any = None) -> Any:
        """The setting at a path; `default` where it, or a group above it, is absent."""
        node: Any = self.config
        for key in path:
            node = node.get(key) if isinstance(node, Mapping) else None
        return default if node is None else node

    def model(self, group: str) -> str:
        """The model of a group of language models; empty without one."""
        return str(self.value(group, "model", default=""))

    @property
    def judge(self) -> tuple[Any, str]:
        """The judge and its language model."""
        return self.value("judge"), self.model("judge_llm")

    @property
    def latency(self) -> tuple[str, ...]:
        """Classes and models of the parts that take time: cells with equal ones are equally fast
        as far as their composition tells."""
        parts = [self.value(group) or {} for group in _LATENCY_GROUPS]
        return tuple(f"{p.get('_target_')} {p.get('model')}" for p in parts)

    @property
    def seconds_a_call(self) -> float | None:
        """The mean seconds of a tool call of its run; None where they are unknown."""
        seconds, calls = self.metric("seconds"), self.metric("tool_calls")
        return seconds / calls if seconds and calls else None

    def metric(self, name: str) -> float | None:
        """A measure of its run; None before it has run, or without the measure."""
        return None if self.run is None else self.run.metrics.get(name)


class Threat(NamedTuple):
    """A threat to the validity of an experiment: its name in `THREATS`, one sentence, and whether
    the author has accepted it."""

    name: str
    text: str
    accepted: bool = False


def find_threats(
    cells: Sequence[ComposedCell],
    *,
    baseline: ComposedCell | None = None,
    primary: str = "accuracy",
    margin: float | None = None,
    accept: Sequence[str] = (),
) -> list[Threat]:
    """The threats to the validity of an experiment.

    Args:
        cells: its cells on one benchmark, before or after they have run. Those that measure a
            bound (`comparison.bound_of`) are left out, unless all do or one is the baseline.
        baseline: the cell with which the others are compared. None: each is compared with the cell
            that differs from it in the fewest groups.
        primary: the measure of the hypothesis.
        margin: the smallest difference of it that matters. None: power is not assessed.
        accept: names of threats that are marked as accepted.

    Returns:
        The threats in the order of `THREATS`, of which a name may have several.

    Raises:
        InputError: for a name in `accept` that is not that of a threat.

    Example:
        >>> llm = {"model": "m", "base_url": "http://127.0.0.1:8000/v1"}
        >>> config = {"llm": llm, "judge_llm": llm, "repeats": 3}
        >>> [threat.name for threat in find_threats([ComposedCell("a", config, sampling=True)])]
        ['judge_is_agent']
    """
    if unknown := [name for name in accept if name not in THREATS]:
        raise InputError(f"accept names {', '.join(unknown)}", valid=", ".join(THREATS))
    systems = [cell for cell in cells if cell is baseline or not bound_of(cell.config)]
    design = _Design(systems or cells, baseline, primary, margin)
    return [
        Threat(name, text, name in accept) for name in THREATS for text in THREATS[name](design)
    ]


@dataclass(frozen=True)
class _Design:
    cells: Sequence[ComposedCell]
    baseline: ComposedCell | None
    primary: str
    margin: float | None

    @property
    def measured(self) -> list[tuple[ComposedCell, EvaluatedRun]]:
        return [(cell, cell.run) for cell in self.cells if cell.run is not None]


def _spread(
    cells: Sequence[ComposedCell], value_of: Callable[[ComposedCell], float | None]
) -> tuple[float, ComposedCell, float, ComposedCell] | None:
    """The lowest and the highest value with their cells; None with fewer than two."""
    pairs = [(value, cell) for cell in cells if (value := value_of(cell)) is not None]
    if len(pairs) < 2:
        return None
    low, high = min(pairs, key=itemgetter(0)), max(pairs, key=itemgetter(0))
    return *low, *high


def _labels(cells: Sequence[ComposedCell]) -> str:
    """The first cells by name, and how many others there are."""
    shown = ", ".join(cell.label for cell in cells[:_NAMED])
    more = len(cells) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def retriever_kind(option: Any) -> str:
    """How a retriever's option matches queries, by its class and by those of the retrievers that it
    fuses: `lexical`, `learned`, `mixed` or `unknown`, as the stage itself says (`Stage.matching`),
    which cannot be made before its collection is opened."""
    target = str(option.get("_target_", "")) if isinstance(option, Mapping) else ""
    name = target.removeprefix("soundingline.pipelines.")
    if name in (target, ORACLE):
        return "unknown"
    parts = [part for part in option.values() if isinstance(part, Mapping) and "_target_" in part]
    if kinds := set(map(retriever_kind, parts)):
        return kinds.pop() if len(kinds) == 1 else "mixed"
    return "learned" if name.startswith("learned.") else "lexical"


def _prompt(design: _Design) -> Iterator[str]:
    """A prompt that fits one retriever or tool goes to cells with another."""
    kinds = {"words": "lexical", "meaning": "learned"}
    unfair = []
    for cell in design.cells:
        kind = retriever_kind(cell.value("retriever"))
        prompt, queries = cell.value("agent", "prompt"), cell.value("agent", "queries")
        fits = "lexical" if prompt in _LEXICAL_PROMPTS else kinds.get(queries)
        if cell.sampling and fits and kind not in (fits, "unknown"):
            unfair.append(cell)
    if unfair:
        kind = "learned" if unfair[0].value("agent", "queries") == "meaning" else "lexical"
        yield (
            f"the prompt says how a {kind} retriever matches queries, which is not "
            f"that of {_labels(unfair)}: use agent=neutral, or agent.queries=matched"
        )
    fixed = [c for c in design.cells if c.value("agent", "prompt") in _TOOL_PROMPTS]
    tools = {str(cell.value("tool", "_target_")) for cell in fixed}
    if len(tools) > 1:
        yield (
            f"one prompt of a paper goes to cells with {len(tools)} tools ({_labels(fixed)}): use "
            "agent=neutral, whose prompt is composed from the tools"
        )


# Prompts of papers, which say that queries are matched by words, and which name one interface.
_LEXICAL_PROMPTS = ("pi_serini",)
_TOOL_PROMPTS = ("pi_serini", "browsecomp_plus")


def _changed(a: ComposedCell, b: ComposedCell) -> set[str]:
    """The groups in which two cells differ; a language model counts as its stage."""
    names = (group for group in CHANGED_GROUPS if _settings(a, group) != _settings(b, group))
    return {_PARENT.get(group, group) for group in names}


def _settings(cell: ComposedCell, group: str) -> Any:
    """The settings of a group that can change results; a choice of a tuning counts as its
    source."""
    value = cell.value(group)
    if group == "retriever" and isinstance(value, Mapping) and value.get("source") is not None:
        return {key: v for key, v in value.items() if key not in _CHOSEN}
    return value


def _one_change(design: _Design) -> Iterator[str]:
    """A cell outside a complete factorial changes more than one group."""
    cells = design.cells
    settings = {group: [repr(_settings(cell, group)) for cell in cells] for group in CHANGED_GROUPS}
    varied = [of_cells for of_cells in settings.values() if len(set(of_cells)) > 1]
    if not varied or len(set(zip(*varied, strict=True))) == math.prod(len(set(v)) for v in varied):
        return
    for cell in cells:
        others = [design.baseline] if design.baseline else [c for c in cells if c is not cell]
        changes = min((_changed(cell, other) for other in others), key=len)
        if len(changes) > 1:
            against = "the baseline" if design.baseline else "every other cell"
            *first, last = sorted(changes)
            yield (
                f"{cell.label} differs from {against} in {', '.join(first)} and {last}: what each "
                "of them contributes is not identified"
            )


def _wall_clock(design: _Design) -> Iterator[str]:
    """Cells of unequal latency have a budget in seconds of the wall clock."""
    timed = [
        cell
        for cell in design.cells
        if cell.value("budget", "seconds") and cell.value("budget", "clock") != "virtual"
    ]
    reason = ""
    if timed and all(cell.seconds_a_call for cell in timed):
        if (spread := _spread(timed, lambda cell: cell.seconds_a_call)) is not None:
            low, fast, high, slow = spread
            if high > SLOWER * low:
                reason = (
                    f"a tool call takes {high:.2g} s in {slow.label} and {low:.2g} s in "
                    f"{fast.label}"
                )
    elif len({cell.latency for cell in timed}) > 1:
        reason = "the cells have parts of unequal latency"
    if reason:
        yield (
            f"the budget is {timed[0].value('budget', 'seconds'):g} s of the wall clock, and "
            f"{reason}, so that slow cells lose turns: set budget.turns, or budget.clock=virtual"
        )


def _tuned(design: _Design) -> Iterator[str]:
    """Parameters were chosen on questions that are reported."""
    if cells := [cell for cell in design.cells if cell.tuned_on_reported]:
        yield (
            f"the parameters of {_labels(cells)} were chosen on questions that are reported: use "
            "a cross-fitted tuning, or report the other questions alone"
        )


def _judge_is_agent(design: _Design) -> Iterator[str]:
    """The agent's model judges its own answers."""
    cells = [c for c in design.cells if c.sampling and c.model("llm") == c.model("judge_llm") != ""]
    if cells:
        yield (
            f"{cells[0].model('llm')} judges its own answers: choose another model with "
            "llm@judge_llm=..."
        )


def _one_repeat(design: _Design) -> Iterator[str]:
    """A sampled model answers each question once."""
    once = [
        cell
        for cell in design.cells
        if cell.sampling
        and cell.value("repeats", default=1) == 1
        and cell.value("llm", "settings", "temperature") != 0
    ]
    if once:
        yield (
            f"{once[0].model('llm') or 'the model'} samples its replies and each question is run "
            "once, so that differences between runs are not told from differences between cells: "
            "set repeats=3"
        )


def _cached_samples(design: _Design) -> Iterator[str]:
    """A cell read sampled replies that another run had drawn."""
    reused = [
        cell
        for cell, run in design.measured
        for counts in [(run.manifest.get("stages") or {}).values()]
        if any(of_stage.get("samples_of_other_runs") for of_stage in counts)
    ]
    if reused:
        yield (
            f"{_labels(reused)} read sampled replies of another run from the cache, so that their "
            "runs are not independent: set paths.caches to a new folder"
        )


def _power(design: _Design) -> Iterator[str]:
    """There are fewer questions than it takes to find a difference of the margin."""
    compared = len(design.cells) - 1
    counts = [cell.questions for cell in design.cells if cell.questions]
    if design.margin is None or compared < 1 or not counts or min(counts) < 2:
        return
    questions, alpha = min(counts), 0.05 / compared
    deviation, source = math.sqrt(CHANGED_ANSWERS), f"{CHANGED_ANSWERS:.0%} of the answers change"
    if observed := [d for _, run in design.measured if (d := _deviation(design, run)) is not None]:
        deviation, source = max(observed), "the answers vary as in these runs"
    smallest = smallest_difference(questions, deviation, alpha=alpha)
    if smallest > design.margin:
        yield (
            f"with {questions:,} questions and {compared} comparison{'s' * (compared != 1)}, the "
            f"smallest difference in {design.primary} that is found with probability 0.8 is "
            f"{smallest:.3f} where {source}, and the margin is {design.margin:g}: take more "
            "questions or repeats, or fewer cells"
        )


def _deviation(design: _Design, run: EvaluatedRun) -> float | None:
    """The standard deviation of a run's paired differences from the baseline, or from the first
    cell."""
    reference = (design.baseline or design.cells[0]).run
    if run is reference or reference is None:
        return None
    a, b = (one.per_question.get(design.primary, {}) for one in (run, reference))
    differences = [a[qid] - b[qid] for qid in a.keys() & b.keys()]
    return statistics.stdev(differences) if len(differences) > 1 else None


def _different_judges(design: _Design) -> Iterator[str]:
    """Cells were judged by different judges, or ran different questions."""
    judged = {run.judge for _, run in design.measured if run.judge}
    judges = judged or {repr(cell.judge) for cell in design.cells}
    if len(judges) > 1:
        names = f": {', '.join(sorted(judged))}" if judged else ""
        yield f"the cells are judged by {len(judges)} judges{names}; accuracies do not compare"
    asked = {frozenset(run.per_question.get(design.primary) or ()) for _, run in design.measured}
    chosen = {repr([cell.value("benchmark", name) for name in _QUESTIONS]) for cell in design.cells}
    if len(asked) > 1 or len(chosen) > 1:
        yield "the cells have different questions, so that differences between them are not paired"


def _drift(design: _Design) -> Iterator[str]:
    """The model may not have been the same for all cells."""
    named = {cell.model("llm"): cell for cell in design.cells if cell.sampling and _remote(cell)}
    if aliases := sorted(name for name in named if not _DATED.search(name)):
        yield (
            f"{aliases[0]} is an alias, whose model its provider may change: name a dated snapshot "
            "with llm.model=..."
        )
    versions: dict[str, set[str]] = {}
    for cell, run in design.measured:
        if version := (run.manifest.get("servers") or {}).get("llm"):
            versions.setdefault(cell.model("llm"), set()).add(str(version))
    for model, served in versions.items():
        if len(served) > 1:
            yield f"{model} was served by {len(served)} versions: {', '.join(sorted(served))}"
            break
    days = [(day, cell) for cell, run in design.measured if cell.sampling for day in _starts(run)]
    if len(days) > 1:
        first, last = min(days, key=itemgetter(0)), max(days, key=itemgetter(0))
        apart = (last[0] - first[0]).total_seconds() / 86400
        if apart > DAYS and any(map(_remote, (first[1], last[1]))):
            yield (
                f"{first[1].label} and {last[1].label} were started {apart:.0f} days apart, in "
                "which the provider may have changed the model"
            )


def _remote(cell: ComposedCell) -> bool:
    """Whether its agent's model is that of a provider: no server of ours, no address here."""
    if cell.value("llm", "server") is not None or not cell.model("llm"):
        return False
    return not _LOCAL.match(str(cell.value("llm", "base_url", default="")))


def _starts(run: EvaluatedRun) -> Iterator[datetime]:
    """When a run was started, and started again."""
    periods = run.manifest.get("periods") or ()
    for start in [run.manifest.get("created"), *(period.get("started") for period in periods)]:
        with suppress(ValueError):
            yield datetime.fromisoformat(str(start))


def _failures(design: _Design) -> Iterator[str]:
    """Unequal shares of the questions were completed."""
    if (spread := _spread(design.cells, lambda cell: cell.metric("completion"))) is None:
        return
    low, worst, high, best = spread
    if high - low <= INCOMPLETE:
        return
    text = f"{worst.label} completed {low:.1%} of the questions and {best.label} {high:.1%}"
    if (accuracy := worst.metric("accuracy")) is not None:
        text += (
            f"; the accuracy of {worst.label} lies between {accuracy:.3f} and "
            f"{min(1.0, accuracy + 1 - low):.3f}, if all others were wrong or all right"
        )
    yield text


def _unjudged(design: _Design) -> Iterator[str]:
    """Unequal shares of what was ranked have judgements."""
    spread = _spread(design.cells, lambda cell: cell.metric("Judged@10"))
    if spread is not None and spread[2] - spread[0] > UNJUDGED:
        low, worst, high, best = spread
        yield (
            f"Judged@10 is {low:.3f} in {worst.label} and {high:.3f} in {best.label}: documents "
            "without a judgement count as not relevant, which favours the latter"
        )


THREATS: Mapping[str, Callable[[_Design], Iterator[str]]] = {
    "prompt": _prompt,
    "several_changes": _one_change,
    "wall_clock": _wall_clock,
    "tuned_on_reported": _tuned,
    "judge_is_agent": _judge_is_agent,
    "one_repeat": _one_repeat,
    "cached_samples": _cached_samples,
    "power": _power,
    "unequal_judging": _different_judges,
    "model_drift": _drift,
    "unequal_completion": _failures,
    "unjudged": _unjudged,
}
