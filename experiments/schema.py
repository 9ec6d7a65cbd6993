"""The root of the configuration as a dataclass, so that a mistyped group or key is refused.

Hydra 1.3 silently adds an unknown group to an untyped root. Groups stay `Any`: a leaf's schema is
the signature of its `_target_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

# Settings that say where, how fast and for how much money, at any depth of an option: a run may be
# resumed with others. A setting of these names in an agent, a tool or a unit is one like others.
_SPEED = frozenset(
    {
        *("device", "compute", "batch_tokens", "max_wait_ms", "concurrency"),
        *("threads", "processes", "memory_mb"),
    }
)
_SERVICE = frozenset(
    {"base_url", "key_env", "price", "attempts", "longest_wait", "timeout", "concurrency"}
)
_SERVER = frozenset(
    {
        *("launcher", "environment", "start_seconds", "parallel", "gpu_layers", "threads"),
        *("tensor_parallel", "data_parallel", "gpu_memory", "max_sequences", "prefix_caching"),
        "prompt_token_details",
    }
)
_FREE = {
    "benchmark": frozenset({"origin"}),
    "unit": frozenset[str](),
    "engine": _SPEED | {"heap", "jar", "java_home"},
    "tool": frozenset[str](),
    "agent": frozenset[str](),
    "budget": frozenset({"run_dollars"}),
}


@dataclass
class Paths:
    data: str = MISSING
    indexes: str = MISSING
    runs: str = MISSING
    caches: str | None = MISSING
    caches_gb: float | None = 10.0


@dataclass
class Tuning:
    objective: str = "nDCG@10"
    select: str | None = "dev"
    report: str = "test"
    method: str = "kfold"
    folds: int = 5
    seed: int = 0
    depth: int = 1000
    cutoffs: list[int] = field(default_factory=list)
    references: list[Any] = field(default_factory=list)
    test: str = "t"
    alpha: float = 0.05
    threads: int | None = None


@dataclass
class Root:
    benchmark: Any = MISSING
    unit: Any = MISSING
    engine: Any = MISSING
    rewriter: Any = MISSING
    rewriter_llm: Any = None
    enrichment: Any = MISSING
    enrichment_llm: Any = None
    retriever: Any = MISSING
    reranker: Any = MISSING
    reranker_llm: Any = None
    tool: Any = MISSING
    scorer: Any = None
    librarian_llm: Any = None
    list_reranker: Any = None
    llm: Any = None
    budget: Any = MISSING
    agent: Any = MISSING
    judge: Any = MISSING
    judge_llm: Any = None
    grid: Any = MISSING
    paths: Paths = field(default_factory=Paths)
    name: str | None = None
    sealed: bool = True
    traces: bool = True
    baseline: dict[str, str] = field(default_factory=dict)
    measures: list[str] = field(default_factory=list)
    concurrency: int = 1
    repeats: int = 1
    preflight: int = 5
    confirm: bool = False
    tuning: Tuning = field(default_factory=Tuning)


def without_free(option: Any, group: str) -> Any:
    """The plain values of a group's option without the settings that may differ between the starts
    of one run."""
    free = _SPEED | _SERVICE | _SERVER if group.endswith("llm") else _SPEED | _SERVICE
    return _without(option, _FREE.get(group, free))


def _without(value: Any, keys: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(inner, keys) for key, inner in value.items() if key not in keys}
    return value
