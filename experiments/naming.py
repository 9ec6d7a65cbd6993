"""The identity of a cell: a hash of all settings that can change its results, and nothing else.

A run folder is recognised by this hash, whatever the label before it. So a sweep can be widened,
moved to a cluster, or written in other words, and continues the cells that it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from omegaconf import DictConfig, OmegaConf

from soundingline.experiments.build import declares, identifying_values
from soundingline.experiments.config import (
    NO_OPTION,
    Settings,
    choice_of,
    flat_values,
    is_choice,
    key_of,
)
from soundingline.experiments.pipeline import (
    LIBRARIANS,
    BoundPipeline,
    active,
    asking_groups,
    asks_agents_model,
    writes_obfuscated,
)
from soundingline.pipelines.stage import Stage
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.locks import file_lock
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.manifest import EVIDENCE, SEALED
from soundingline.toolkit.runs.run_folder import SINGLE_RUN, SWEEP_CELLS, check_kind
from soundingline.toolkit.trajectory import STAGES

# Groups whose settings decide what a ranking is, and what a trajectory is. The model counts in a
# ranking if a stage asks it.
_PIPELINE = ("benchmark", "unit", "engine", *STAGES)
RANKING = (*_PIPELINE, "llm")
AGENT = (*_PIPELINE, "tool", *LIBRARIANS, "agent", "llm", "budget")
# The groups of stages' own models, and the stages that ask them.
STAGE_MODELS = {
    "rewriter_llm": ("rewriter",),
    "enrichment_llm": ("enrichment",),
    "reranker_llm": ("reranker",),
    "librarian_llm": LIBRARIANS,
}
_SHOWN_ALWAYS = ("unit", "retriever")
_USUAL = {
    "benchmark": "wikidemo",
    "engine": "lexical",
    "tool": "ranked_browsing",
    "scorer": "overlap",
    "agent": "keyword",
}
_LABEL_LENGTH = 40  # at most, so that a line of a terminal has room for a name


def identity_of(settings: Settings, groups: Sequence[str] = AGENT) -> dict[str, Any]:
    """The settings that can change a trajectory, by group, without secrets. Stages that are absent
    and language models that nobody asks have none; of a file, only its name counts."""
    values: dict[str, Any] = {}
    for group in active_groups(settings, groups):
        option = settings.config[group]
        if option is None:
            continue
        plain = (
            OmegaConf.to_container(option, resolve=True) if OmegaConf.is_config(option) else option
        )
        # A renewed key of a language model is the same model.
        plain = redact(plain) if group.endswith("llm") else plain
        values[group] = identifying_values(plain, group)
    return values


def active_groups(settings: Settings, groups: Sequence[str]) -> list[str]:
    """Those of `groups` that have a part in this cell, and the models that stages among them
    ask."""
    config = settings.config
    idle = {group for group in (*STAGES, *LIBRARIANS) if not active(config, group)}
    has_model = any(config[group] for group in ("llm", *STAGE_MODELS))
    asking = set(asking_groups(config)) & set(groups) if has_model else set()
    agent_asks = "agent" in groups and declares(config.agent, "accepts_llm")
    if not (config.llm and (agent_asks or asks_agents_model(config, asking))):
        idle.add("llm")
    if not (agent_asks or asking):  # an agent that may use a model has its budget without one too
        idle.add("budget")
    models = [group for group, parts in STAGE_MODELS.items() if asking & set(parts)]
    return [group for group in groups if group not in idle] + models


def cell_label(settings: Settings, groups: Sequence[str] = AGENT) -> str:
    """The readable part of a name, at most 40 characters. In a sweep, it has the overrides of this
    cell that not all cells have. Without such overrides, it has unit and retriever, and as many as
    fit of the other options that are not the default and of the single values of the command line.
    Of absolute paths the last part is shown."""
    none = (*NO_OPTION, "none")
    first = [
        value if is_choice(key) and value not in none else _setting(key, value.strip("'\""))
        for key, _, value in (word.lstrip("+~").partition("=") for word in settings.overrides)
        if key.rpartition("@")[2] in settings.varied
    ]
    others: list[str] = []
    if not first:
        active = active_groups(settings, groups)
        options = {group: _shown_option(settings, group) for group in active}
        first = [options[group] for group in _SHOWN_ALWAYS if group in options]
        values = sorted(changed(settings, groups).items())
        others = [*options.values(), *(_setting(key, value) for key, value in values)]
    label = ""
    for part in filter(None, dict.fromkeys([*first, *others])):
        longer = re.sub(r"[^\w=,.+-]", "_", f"{label}-{part}").strip("-.")
        if not label or len(longer) <= _LABEL_LENGTH:
            label = longer[:_LABEL_LENGTH]
    return label


def _setting(key: str, value: Any) -> str:
    is_path = isinstance(value, str) and value.startswith(("/", "~"))
    shown = PurePath(value).name if is_path else value
    return f"{key.rpartition('.')[2]}={shown}"


def cell_name(settings: Settings, groups: Sequence[str] = AGENT) -> str:
    """`<label>-<hash>` of a cell."""
    return f"{cell_label(settings, groups)}-{fingerprint(identity_of(settings, groups))[:8]}"


def run_folder(settings: Settings, name: str) -> RunFolder:
    """The folder of a run: `runs/<name=>`; without `name=` that of the cell `name`
    (`<label>-<hash>`), and in a sweep that of the cell within `runs/<name=>`. `InputError` if
    `runs/<name=>` holds a sweep and this is a single run, or the reverse."""
    root, run_name = Path(settings.config.paths.runs), settings.config.name
    if not settings.multirun:
        folder = RunFolder.named(root, run_name) if run_name else cell_folder(root, name)
        check_kind(folder.path, SINGLE_RUN)
        return folder
    sweep = RunFolder.named(root, str(run_name)).path
    check_kind(sweep, SWEEP_CELLS)
    return cell_folder(sweep, name)


def cell_folder(root: Path, name: str) -> RunFolder:
    """The folder below `root` with the hash of `name`; `root/name` if there is none yet."""
    matching = root.glob(f"*-{name.rpartition('-')[2]}")
    present = sorted(path for path in matching if path.is_dir())
    return RunFolder(present[0]) if present else RunFolder.named(root, name)


def claim_cell(settings: Settings, folder: RunFolder) -> RunFolder:
    """Create the folder of a sweep's cell; twin cells that start at once meet in one folder."""
    if not settings.multirun:
        return folder
    root = folder.path.parent
    with file_lock(root / ".names.lock"):
        folder = cell_folder(root, folder.path.name)
        folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def changed(settings: Settings, groups: Sequence[str] = AGENT) -> dict[str, Any]:
    """The single values that the command line sets, by key; without secrets."""
    keys = {key_of(item) for item in settings.overrides if not is_choice(item)}
    values = flat_values(identity_of(settings, groups)) if keys else ()
    return {key: redact(value, key) for key, value in values if keys & set(_prefixes(key))}


def factors(settings: Settings, groups: Sequence[str] = AGENT) -> dict[str, str]:
    """A cell's coordinates in a sweep: the option of each group, and each single value that the
    command line sets."""
    chosen: dict[str, str] = {}
    here = active_groups(settings, groups)
    for group in (*groups, *STAGE_MODELS):
        option = settings.choices.get(choice_of(group), "None")
        if group in here and option not in NO_OPTION:
            chosen[group] = option.replace("/", "-")
        elif group in STAGES:
            chosen[group] = "none"
    return chosen | {key: str(value) for key, value in changed(settings, groups).items()}


def fingerprints(
    settings: Settings, built: BoundPipeline, groups: Sequence[str] = AGENT
) -> dict[str, str]:
    """What must be equal for a run to be resumed: benchmark, indexes, each group's settings, and
    the models of stages."""
    values = identity_of(settings, [group for group in groups if group != "benchmark"])
    return {
        "benchmark": built.benchmark.fingerprint,
        **form_of(settings.config, built.benchmark),
        **({EVIDENCE: "removed"} if built.benchmark.remove_evidence else {}),
        "index": built.collection.fingerprint,
        **built.collection.others,
        **{group: fingerprint(chosen) for group, chosen in values.items()},
        **{
            f"{group}.content": part.fingerprint
            for group, part in built.parts.items()
            if isinstance(part, Stage) and part.fingerprint
        },
        **{
            f"{group}_llm.content": model.weights_fingerprint
            for group, (model, _) in built.stages.models.items()
            if model.weights_fingerprint
        },
    }


def form_of(config: DictConfig, benchmark: Benchmark) -> dict[str, str]:
    """For the fingerprints of a run on an obfuscated benchmark: the form of all of its texts."""
    if not benchmark.obfuscated:
        return {}
    return {SEALED: "yes" if writes_obfuscated(config, benchmark) else "no"}


def _shown_option(settings: Settings, group: str) -> str:
    option = settings.choices.get(choice_of(group), "None").replace("/", "-")
    usual = {**_USUAL, "budget": settings.choices.get("agent")}
    idle = option in (*NO_OPTION, "none") or option == usual.get(group)
    return "" if idle and group not in _SHOWN_ALWAYS else option


def _prefixes(key: str) -> Iterator[str]:
    """The key and the keys of the mappings that hold it."""
    while key:
        yield key
        key = key.rpartition(".")[0]
