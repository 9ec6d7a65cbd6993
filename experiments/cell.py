"""One cell of a sweep: what the composed configuration asks for, as live objects."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyterrier as pt
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments.build import make, settings
from experiments.prepare import Prepared, notes, prepare
from experiments.stages import STAGES, Stages, Transformers, active, composed, make_stages
from pipelines.stage import Stage
from toolkit.console import Console
from toolkit.contracts import Benchmark, Segmenter
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.runs import RunFolder

PIPELINE = ("engine", "unit", *STAGES)
SESSION = ("tool", "agent")
MODEL = ("llm", "budget")
# Where a server is, what it costs and how much a run may take changes no trajectory, and may differ
# when a run is resumed.
FREE = {
    "llm": ("base_url", "key_env", "concurrency", "price"),
    "budget": ("run_dollars",),
}
# How a stage computes and what that costs, beside what it computes.
SPEED = (
    *("compute", "device", "batch_tokens", "gather_ms"),
    *("base_url", "key_env", "concurrency", "price"),
)
NAMED = ("unit", "engine", *STAGES, "tool", "agent")
STAGE_MODELS = ("rewriter_llm", "reranker_llm")
DEFAULTS = {"engine": "lexical", "tool": "ranked_browsing"}


@dataclass(frozen=True)
class Ranking:
    """Benchmark, segmenter, opened index and the pipeline over it."""

    benchmark: Benchmark
    segmenter: Segmenter
    prepared: Prepared
    pipeline: pt.Transformer
    stages: Stages
    parts: Transformers


def ranking(config: DictConfig) -> Ranking:
    """Build what ranks. Settings are checked before any index is built."""
    engine = make(config.engine)
    segmenter = make(config.unit)
    stages = make_stages(config)
    stages.check(engine)
    benchmark = make(config.benchmark)
    prepared = prepare(benchmark, segmenter, engine, Path(config.paths.indexes))
    for note in notes(benchmark, prepared):
        Console(stderr=True).print(note, soft_wrap=True)
    caches = None if config.paths.caches is None else Path(config.paths.caches)
    parts = stages.bind(prepared, segmenter, caches)
    pipeline = composed(parts, aggregate=segmenter.aggregate)
    return Ranking(benchmark, segmenter, prepared, pipeline, stages, parts)


def fingerprints(config: DictConfig, built: Ranking, groups: tuple[str, ...]) -> dict[str, str]:
    """What must be equal for a run to be resumed: benchmark, indexes, each group's settings, and
    the models of stages."""
    used = [group for group in groups if group not in STAGES or active(config, group)]
    return {
        "benchmark": built.benchmark.fingerprint,
        "index": built.prepared.fingerprint,
        **built.prepared.others,
        **{group: fingerprint(_lasting(config, group)) for group in used},
        **{
            f"{group}.content": part.fingerprint
            for group, part in built.parts.items()
            if isinstance(part, Stage) and part.fingerprint
        },
    }


def _lasting(config: DictConfig, group: str) -> dict[str, Any]:
    free = SPEED if group in STAGES else FREE.get(group, ())
    return {name: value for name, value in settings(config[group]).items() if name not in free}


def factors() -> dict[str, str]:
    """Option names by group, and every single value that the command line changed."""
    hydra = HydraConfig.get()
    chosen = {group: str(hydra.runtime.choices[group]) for group in ("benchmark", *NAMED)}
    if hydra.runtime.choices.get("llm") not in (None, "null"):
        chosen |= {group: str(hydra.runtime.choices[group]).replace("/", "-") for group in MODEL}
    for group in STAGE_MODELS:
        if chosen[group.removesuffix("_llm")] == "none":
            continue  # a model that nobody asks
        if (own := hydra.runtime.choices.get(f"llm@{group}")) not in (None, "null"):
            chosen[group] = str(own).replace("/", "-")
    for override in hydra.overrides.task:
        key, _, value = override.lstrip("+~").partition("=")
        # What is set for a stage that is not there changes nothing, so such cells are one cell.
        group = key.partition(".")[0]
        idle = group in STAGES and chosen[group] == "none"
        if "." in key and not key.startswith(("hydra.", "paths.")) and not idle:
            chosen[key] = value
    return chosen


def run_folder(config: DictConfig, chosen: Mapping[str, str]) -> RunFolder:
    """`runs/<name>`, or `runs/<name>/<cell>` in a sweep; the cell is named after its options."""
    root = Path(config.paths.runs)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        sweep = RunFolder.named(root, str(config.name)).path
        shared = constant(sweep)
        label = cell_label(chosen, shared)
        if any(item.startswith("benchmark=") and "," in item for item in shared):
            label = f"{chosen['benchmark']}-{label}"
        return RunFolder.named(sweep, label)
    return RunFolder.named(root, config.name or f"{chosen['benchmark']}-{cell_label(chosen)}")


def cell_label(chosen: Mapping[str, str], constant: Collection[str] = ()) -> str:
    """Options that tell cells apart: unit, retriever, agent, language model, whatever else is not
    the default (for a budget: its agent's own), and single values as `key=value` unless they are
    `constant` in the sweep."""
    usual = {**DEFAULTS, "budget": chosen["agent"]}
    named = [group for group in (*NAMED, *MODEL, *STAGE_MODELS) if group in chosen]
    parts = [chosen[group] for group in named if chosen[group] not in (usual.get(group), "none")]
    values = {f"{key}={value}" for key, value in chosen.items() if "." in key}
    return re.sub(r"[^\w=,.+-]", "_", "-".join(parts + sorted(values - set(constant))))


def constant(sweep: Path) -> list[str]:
    """Overrides of a whole sweep that hold for every cell, as Hydra's sweeper has recorded them."""
    record = sweep / "multirun.yaml"
    if not record.exists():
        return []
    # Nothing in it is resolved: the folder may be somebody else's.
    given: Any = OmegaConf.to_container(OmegaConf.load(record), resolve=False)
    for key in ("hydra", "overrides", "task"):
        given = given.get(key) if isinstance(given, dict) else None
    return [str(item) for item in given] if isinstance(given, list) else []


def plain(config: DictConfig) -> dict[str, Any]:
    """The whole resolved configuration as plain values, for the manifest."""
    values = OmegaConf.to_container(config, resolve=True)
    if not isinstance(values, dict):
        raise InputError("the configuration is not a mapping")
    return {str(key): value for key, value in values.items()}
