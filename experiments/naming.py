"""What a cell is called, a function of its own configuration and of nothing else, and what must be
equal for its run to go on.

So a sweep can be widened, moved to a cluster, or run twice, and finds the cells that it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.build import declares
from soundingline.experiments.config import Settings, choice_of, key_of, without_runtime_keys
from soundingline.experiments.pipeline import (
    LIBRARIANS,
    STAGES,
    BoundPipeline,
    active,
    asking_groups,
    asks_agents_model,
    writes_obfuscated,
)
from soundingline.pipelines.stage import Stage
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.manifest import SEALED

SINGLE_RUN = "a single run"
SWEEP_CELLS = "the cells of a sweep (-m)"
REPLAYS = "replays of a run"
CELLS = ".cells"  # in a sweep's folder: what became of each cell
RECORDED = "recorded"  # in a folder of replays: the cell of the run itself


def check_kind(folder: Path, kind: str) -> None:
    """`InputError` where `folder` holds results of another kind than `kind`."""
    found = _kind_of(folder)
    if found not in ("", kind):
        raise InputError(f"{folder} holds {found}, not {kind}", do="choose another name=")


def _kind_of(folder: Path) -> str:
    """`SINGLE_RUN`, `SWEEP_CELLS` or `REPLAYS`; empty where the folder holds no results yet."""
    if (folder / "manifest.json").exists():
        return SINGLE_RUN
    if (folder / RECORDED / "manifest.json").exists():
        return REPLAYS
    if (folder / CELLS).exists() or any(folder.glob("*/manifest.json")):
        return SWEEP_CELLS
    return ""


# Groups whose settings decide what a ranking is, and what a trajectory is. The model counts in a
# ranking where a stage asks it.
_PIPELINE = ("benchmark", "unit", "engine", *STAGES)
RANKING = (*_PIPELINE, "llm")
AGENT = (*_PIPELINE, "tool", *LIBRARIANS, "agent", "llm", "budget")
# Models of their own, and who asks them.
STAGE_MODELS = {
    "rewriter_llm": ("rewriter",),
    "enrichment_llm": ("enrichment",),
    "reranker_llm": ("reranker",),
    "librarian_llm": LIBRARIANS,
}
_SHOWN_ALWAYS = ("unit", "retriever")
_USUAL = {
    "benchmark": "fictional",
    "engine": "lexical",
    "tool": "ranked_browsing",
    "scorer": "overlap",
    "agent": "keyword",
}
_NO_OPTION = ("None", "null")
# Settings that name files; their content has a fingerprint of its own.
_PLACES = (
    *(("benchmark", key) for key in ("path", "questions", "corpus", "topics", "qrels")),
    ("benchmark", "gold_qrels"),
    ("scorer", "path"),
    ("tool", "tokenizer"),
    ("unit", "tokenizer"),
)
_LONGEST = 120  # characters of a label, so that a name fits every file system


def cell_name(settings: Settings, groups: Sequence[str] = AGENT) -> str:
    """`<label>-<hash>`: the options and single values that are not the default, and a hash of all
    that can change a trajectory."""
    digest = fingerprint(identity_of(settings, groups))[:8]
    return f"{cell_label(settings, groups)}-{digest}"


def run_folder(settings: Settings, name: str) -> RunFolder:
    """`runs/<name>`, or `runs/<name=>/<name>` in a sweep, where `name` is the cell's own.
    `InputError` where `runs/<name>` holds a sweep and this is a single run, or the reverse."""
    root, run_name = Path(settings.config.paths.runs), settings.config.name
    folder = RunFolder.named(root, str(run_name) if settings.multirun else run_name or name)
    check_kind(folder.path, SWEEP_CELLS if settings.multirun else SINGLE_RUN)
    return RunFolder.named(folder.path, name) if settings.multirun else folder


def cell_label(settings: Settings, groups: Sequence[str] = AGENT) -> str:
    """What a person reads: unit and retriever, other options that are not the default, and single
    values as `key=value`, absolute paths by their last part."""
    options = [_option(settings, group) for group in active_groups(settings, groups)]
    parts = [option for option in options if option]
    different = changed(settings, groups).items()
    # Those of the benchmark come last: they are often the same in a whole sweep.
    values = sorted(different, key=lambda item: (item[0].startswith("benchmark."), item[0]))
    parts += [f"{key}={_last_part(value)}" for key, value in values]
    label = re.sub(r"[^\w=,.+-]", "_", "-".join(parts))
    return label[:_LONGEST].rstrip("-.")


def identity_of(settings: Settings, groups: Sequence[str] = AGENT) -> dict[str, Any]:
    """The settings that can change a trajectory, by group. Nothing of a stage that is not there,
    nor of a language model that nobody asks; of a path its last part, because a collection or a
    tokenizer that moves is the same (its content has a fingerprint of its own)."""
    values = {
        group: _lasting(_plain(settings.config[group]), group)
        for group in active_groups(settings, groups)
        if settings.config[group] is not None
    }
    for group, key in _PLACES:
        if isinstance(path := values.get(group, {}).get(key), str):
            values[group][key] = PurePath(path).name
        elif key == "tokenizer" and group in values:
            values[group].pop(key, None)  # As in runs from before there was this setting.
    if values.get("benchmark", {}).get("sets") is False:
        del values["benchmark"]["sets"]  # Likewise.
    # Likewise; without them an agent is as it was.
    _drop(values.get("agent", {}), {"remind": False, "first_call": None})
    for group in values:
        server = values[group].get("server") if group.endswith("llm") else None
        if isinstance(server, dict) and isinstance(server.get("gguf"), str):
            server["gguf"] = PurePath(server["gguf"]).name
    values.get("retriever", {}).pop("source", None)  # of a tuning, whose choice stands beside it
    return values


def _drop(option: dict[str, Any], idle: Mapping[str, Any]) -> None:
    for key, value in idle.items():
        if key in option and option[key] == value:
            del option[key]


def changed(settings: Settings, groups: Sequence[str] = AGENT) -> dict[str, Any]:
    """Single values that are not those of the chosen options, by key; without secrets."""
    if not settings.changes_values:
        return {}
    values = dict(_flat(identity_of(settings, groups)))
    try:
        usual = dict(_flat(identity_of(settings.chosen_only, groups)))
    except (InputError, HydraException, OmegaConfBaseException):
        # An option may need the value that the command line gives it: all that were given count.
        overridden = set(map(key_of, settings.overrides))
        usual = {key: value for key, value in values.items() if key not in overridden}
    different = {key: value for key, value in values.items() if usual.get(key) != value}
    return {key: redact(value, key) for key, value in different.items()}


def factors(settings: Settings, groups: Sequence[str] = AGENT) -> dict[str, str]:
    """A cell's coordinates in a sweep: the option of each group, and each changed value."""
    chosen: dict[str, str] = {}
    here = active_groups(settings, groups)
    for group in (*groups, *STAGE_MODELS):
        option = settings.choices.get(choice_of(group), "None")
        if group in here and option not in _NO_OPTION:
            chosen[group] = option.replace("/", "-")
        elif group in STAGES:
            chosen[group] = "none"
    values = {key: str(value) for key, value in changed(settings, groups).items()}
    return {**chosen, **values}


def fingerprints(
    settings: Settings, built: BoundPipeline, groups: Sequence[str] = AGENT
) -> dict[str, str]:
    """What must be equal for a run to be resumed: benchmark, indexes, each group's settings, and
    the models of stages."""
    values = identity_of(settings, [group for group in groups if group != "benchmark"])
    return {
        "benchmark": built.benchmark.fingerprint,
        **form_of(settings.config, built.benchmark),
        "index": built.prepared.fingerprint,
        **built.prepared.others,
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
    """For a run's fingerprints: the form of its texts, where the benchmark is obfuscated. A run
    holds all of its texts in one form: with the setting changed it is another run."""
    if not benchmark.obfuscated:
        return {}
    return {SEALED: "yes" if writes_obfuscated(config, benchmark) else "no"}


def active_groups(settings: Settings, groups: Sequence[str]) -> list[str]:
    """Those of `groups` that have a part in this cell, and the language models of their own that
    stages among them ask."""
    config = settings.config
    idle = {group for group in (*STAGES, *LIBRARIANS) if not active(config, group)}
    has_model = any(config[group] for group in ("llm", *STAGE_MODELS))
    asking = set(asking_groups(config)) & set(groups) if has_model else set()
    agent_asks = "agent" in groups and declares(config.agent, "accepts_llm")
    llm = config.llm and (agent_asks or asks_agents_model(config, asking))
    idle |= set() if llm else {"llm"}
    # An agent that can do without a model keeps to its budget without one as well.
    idle |= set() if agent_asks or asking else {"budget"}
    models = [group for group, parts in STAGE_MODELS.items() if asking & set(parts)]
    return [group for group in groups if group not in idle] + models


def _option(settings: Settings, group: str) -> str:
    option = settings.choices.get(choice_of(group), "None").replace("/", "-")
    usual = {**_USUAL, "budget": settings.choices.get("agent")}
    idle = option in (*_NO_OPTION, "none") or option == usual.get(group)
    return "" if idle and group not in _SHOWN_ALWAYS else option


def _last_part(value: Any) -> Any:
    """The name at the end of an absolute path; any other value as it is."""
    is_path = isinstance(value, str) and value.startswith(("/", "~"))
    return PurePath(value).name if is_path else value


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config


def _lasting(value: Any, group: str) -> Any:
    # A renewed key of a language model is the same model.
    return without_runtime_keys(redact(value) if group.endswith("llm") else value, group)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, value
