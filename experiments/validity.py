"""The threats to the validity of an experiment, before its cells run and after.

The cells of a command line are composed; those that have run are read from their manifests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig

from soundingline.experiments.config import (
    ROOT_CONFIG,
    composing,
    is_choice,
    key_of,
    merged,
    plain_values,
    register,
    search_override,
    search_path_of,
    value_of,
)
from soundingline.toolkit.console import Console
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.comparison import factor_labels
from soundingline.toolkit.evaluation.evaluation import KEYWORD_AGENT, agent_class
from soundingline.toolkit.evaluation.published_tables import published_questions
from soundingline.toolkit.evaluation.threats import ComposedCell, Threat, find_threats
from soundingline.toolkit.trajectory import mapping

# Agents that ask no language model, whatever `llm` is.
_WITHOUT_MODEL = (KEYWORD_AGENT, "OneShotAgent")
_PI_SERINI = (25.0, 1.0)  # (k1, b), chosen on all questions of BrowseComp-Plus
BASELINE = "the baseline"
_SHOWN = 2  # threats of one kind, before a line that counts more than one further one


class _Composition(NamedTuple):
    """A composed configuration: its `values`, in which references to other settings are not
    resolved, and its `choices`, the name of the chosen option by key, such as `rewriter_llm`."""

    values: dict[str, Any]
    choices: dict[str, str]

    @classmethod
    def of(cls, config: DictConfig) -> _Composition:
        """That of a configuration with Hydra's own part."""
        choices = config.hydra.runtime.choices.items()
        named = {str(k).rpartition("@")[2]: str(name) for k, name in choices if name is not None}
        return cls(plain_values(config, resolve=False), named)


def composed_cells(
    cells: Sequence[Sequence[str]], search_path: Sequence[str] = (), *, skip_refused: bool = False
) -> list[ComposedCell]:
    """The cells of a command line, each with all its overrides. `skip_refused` leaves out those
    that Hydra refuses, which end with its reason when they run."""
    refused = (HydraException,) if skip_refused else ()
    compositions: dict[frozenset[str], _Composition] = {}
    register()
    common = set.intersection(*map(set, cells)) if len(cells) > 1 else set()
    composed = []
    for words in cells:
        label = " ".join(word for word in words if word not in common) or BASELINE
        with suppress(*refused):
            composed.append(_cell(label, *_composed(words, search_path, compositions)))
    return composed


def _composed(
    words: Sequence[str],
    search_path: Sequence[str],
    compositions: dict[frozenset[str], _Composition],
) -> _Composition:
    """The composition of a cell's overrides, of which the last one of a key counts. Hydra composes
    each set of choices once, which takes 0.1 to 0.2 seconds, and is kept in `compositions`."""
    last = {key_of(word): word for word in words if "=" in word and word[0] != "~"}
    chosen = frozenset(filter(is_choice, last.values()))
    if chosen not in compositions:
        overrides = [*search_override(search_path), *sorted(chosen)]
        with composing():
            config = compose(ROOT_CONFIG, overrides=overrides, return_hydra_config=True)
        compositions[chosen] = _Composition.of(config)
    values, choices = compositions[chosen]
    for key in last.keys() - set(map(key_of, chosen)):
        value = value_of(last[key])
        for name in reversed(key.split(".")):
            value = {name: value}
        values = merged(values, value)
    return _Composition(values, choices)


def _cell(
    label: str,
    config: Mapping[str, Any],
    factors: Mapping[str, str],
    run: EvaluatedRun | None = None,
) -> ComposedCell:
    agent = agent_class(config)
    return ComposedCell(
        label,
        config,
        factors,
        sampling=bool(config.get("llm")) and agent not in _WITHOUT_MODEL,
        questions=_questions(config, factors) if run is None else run.counts.get("questions"),
        tuned_on_reported=_tuned_on_reported(config, run),
        run=run,
    )


def _questions(config: Mapping[str, Any], factors: Mapping[str, str]) -> int | None:
    benchmark = mapping(config.get("benchmark"))
    for key in ("limit", "questions"):  # the latter of a generated world
        if isinstance(benchmark.get(key), int):
            return int(benchmark[key])
    return published_questions(benchmark, factors.get("benchmark", ""))


def _tuned_on_reported(config: Mapping[str, Any], run: EvaluatedRun | None) -> bool:
    """Whether a retriever has Pi-Serini's parameters on the questions that they were chosen on, or,
    once it has run, the parameters of a tuning without folds on the questions of `tuning.select`
    too."""
    benchmark = mapping(config.get("benchmark"))
    on_their_questions = str(benchmark.get("_target_")).endswith("BrowseCompPlus")
    for retriever in _retrievers(config.get("retriever")):
        if on_their_questions and (retriever.get("k1"), retriever.get("b")) == _PI_SERINI:
            return True
        without_folds = retriever.get("source") and not retriever.get("fold_parameters")
        if run and without_folds and benchmark.get("split") in (None, "dev"):
            return True
    return False


def _retrievers(option: Any) -> Iterator[Mapping[str, Any]]:
    """A retriever's option, and those that it fuses."""
    if isinstance(option, Mapping):
        yield option
        for inner in option.values():
            yield from _retrievers(inner)


def threats_of(
    cells: Sequence[ComposedCell],
    *,
    baselines: Collection[str] | None = None,
    primary: str | None = None,
    margin: float | None = None,
    accept: Sequence[str] = (),
) -> list[Threat]:
    """The threats among cells, which are compared on each benchmark alone; each once. `baselines`
    are the names of the runs with which the others are compared. These, the primary measure, the
    margin and the accepted threats are those of the configuration where none are given."""
    groups: dict[str, list[ComposedCell]] = {}
    for cell in cells:
        name = cell.factors.get("benchmark", "") + str(cell.value("benchmark", "name"))
        groups.setdefault(name, []).append(cell)
    found: dict[Threat, None] = {}
    for group in groups.values():
        first = group[0]
        if baselines is None:
            baseline = _baseline(group, first.value("comparison", "baseline", default={}))
        else:
            baseline = next((c for c in group if c.run and c.run.name in baselines), None)
        found |= dict.fromkeys(
            find_threats(
                group,
                baseline=baseline,
                primary=primary or str(first.value("comparison", "primary") or "accuracy"),
                margin=margin or first.value("comparison", "margin"),
                accept=accept or first.value("comparison", "accept", default=()),
            )
        )
    return list(found)


def has_factors(
    config: Mapping[str, Any], factors: Mapping[str, str], expected: Mapping[str, Any]
) -> bool:
    """Whether a cell or a run with these settings and factors has the `expected` factors, such as
    those of the baseline or of a row of a published table; of a single value that its command line
    did not set, that of its option counts. A slash counts as a dash, which the factors of runs
    have."""
    return all(
        str(_factor(config, factors, name)).replace("/", "-") == str(value).replace("/", "-")
        for name, value in expected.items()
    )


def _factor(config: Mapping[str, Any], factors: Mapping[str, str], name: str) -> Any:
    node: Any = config
    for key in name.split("."):
        node = mapping(node).get(key)
    return factors.get(name, node)


def _baseline(cells: Sequence[ComposedCell], factors: Mapping[str, Any]) -> ComposedCell | None:
    """The cell with the factors of the baseline; of several, the one with the fewest overrides."""
    if not factors:
        return None
    having = [cell for cell in cells if has_factors(cell.config, cell.factors, factors)]
    return min(having, key=lambda cell: (cell.label != BASELINE, len(cell.label)), default=None)


def lines_of(threats: Sequence[Threat]) -> Iterator[str]:
    """A line for each threat that is not accepted, of one kind at most three, and a line that names
    those that are accepted."""
    by_name: dict[str, list[str]] = {}
    for threat in threats:
        if not threat.accepted:
            by_name.setdefault(threat.name, []).append(threat.text)
    for name, texts in by_name.items():
        more = len(texts) - _SHOWN
        shown = texts if more <= 1 else [*texts[:_SHOWN], f"{more} more, which the report lists"]
        yield from (f"threat to validity ({name}): {text}" for text in shown)
    if accepted := list(dict.fromkeys(threat.name for threat in threats if threat.accepted)):
        yield f"accepted threats to validity: {', '.join(accepted)}"


def announce(config: DictConfig, cells: Sequence[Sequence[str]] | None = None) -> None:
    """Print the threats of an experiment whose cells, each with all its overrides, are about to
    run; without cells those of the one that `config` is."""
    if cells is None:
        composed = [_cell(" ".join(config.hydra.overrides.task), *_Composition.of(config))]
    else:
        search_path = list(search_path_of(config.hydra))
        composed = composed_cells(cells, search_path, skip_refused=True)
    console = Console(stderr=True, soft_wrap=True)
    for line in lines_of(threats_of(composed)):
        console.print(line, highlight=False)


def threats_of_runs(
    runs: Sequence[EvaluatedRun],
    *,
    baselines: Collection[str] = (),
    primary: str | None = None,
    margin: float | None = None,
    accept: Sequence[str] = (),
) -> list[Threat]:
    """The threats among evaluated runs, by their manifests and measures; see `threats_of`."""
    cells = [
        _cell(label, config, run.factors, run)
        for label, run in zip(factor_labels(runs), runs, strict=True)
        if (config := run.manifest.get("config"))
    ]
    return threats_of(cells, baselines=baselines, primary=primary, margin=margin, accept=accept)
