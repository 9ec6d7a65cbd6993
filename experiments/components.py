"""What a run works with, made of its configuration once, and passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from soundingline.agents.base import Agent, Budget
from soundingline.agents.keyword import SimulatedReader
from soundingline.experiments.build import language_model, make, make_search_tool
from soundingline.experiments.collection import texts_in
from soundingline.experiments.config import Settings
from soundingline.experiments.evaluate import RunJudge, make_judge
from soundingline.experiments.naming import fingerprints
from soundingline.experiments.pipeline import (
    BoundPipeline,
    PipelineOpener,
    Stages,
    build_pipeline,
    parts_of,
    with_literature_tools,
)
from soundingline.experiments.rollouts import check_agent, repeat_agents, simulated_reader
from soundingline.experiments.sweep import obfuscate_cells
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.stage import matching_of
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.blocking import weights_fingerprint
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.search import Literature
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.tokens import load_tokenizer


@dataclass(frozen=True)
class Components:
    """One agent for each repeat of the questions, its language model and budget, the pipeline, the
    search tool, what counts in both (`parts`), and the judge of the answers."""

    agents: Sequence[Agent]
    llm: LanguageModel | None
    budget: Budget
    built: BoundPipeline
    search_tool: SearchTool
    backend: PipelineBackend
    parts: Mapping[str, Any]
    judge: RunJudge
    simulated_reader: SimulatedReader | None = None

    def session(self, qid: str) -> SearchTool:
        """The search tool for one question."""
        backend, store = self.backend.for_question(qid), self.built.collection.store
        matching = matching_of(self.built.parts.get("retriever"))
        return self.search_tool.open(backend, store, matching=matching)


def check_removal(benchmark: Benchmark, search_tool: SearchTool) -> None:
    """`InputError` for `benchmark.remove_evidence` with a tool that finds documents by other means
    than the pipeline's rankings."""
    if benchmark.remove_evidence and isinstance(search_tool, Literature):
        raise InputError(
            f"benchmark.remove_evidence=true, and {type(search_tool).__name__} finds documents "
            "without the pipeline",
            valid="a tool that shows rankings alone, such as tool=ranked_browsing or tool=top_k",
            do="choose one, or set benchmark.remove_evidence=false",
        )


def make_components(
    settings: Settings, opened: PipelineOpener | None = None
) -> tuple[Components, dict[str, str]]:
    """What answers the questions of a run, and its fingerprints. `InputError` for parts that do not
    fit together, after which nothing was written. `opened` gives the pipeline if it has been opened
    already."""
    config = settings.config
    budget: Budget = make(config.budget)
    judge = make_judge(config, budget)
    agents, search_tool = repeat_agents(config, budget), make_search_tool(config.tool)
    llm = language_model(config, "llm") if agents[0].accepts_llm else None
    if llm is not None:
        budget = replace(budget, context_window=llm.context_window)
    agent = check_agent(agents[0], llm, budget)
    built = _pipeline(settings, budget, opened, searched=agent.calls_tools)
    check_removal(built.benchmark, search_tool)
    reader = simulated_reader(agent, built.benchmark, partial(texts_in, built.collection.store))
    of_tool: dict[str, str] = {}
    if agent.calls_tools:
        search_tool, of_tool = with_literature_tools(search_tool, built, config)
    else:
        built = replace(built, stages=Stages({}))
    backend = PipelineBackend(built.pipeline, built.segmenter.name)
    parts = parts_of(search_tool, built)
    this = Components(agents, llm, budget, built, search_tool, backend, parts, judge, reader)
    return this, _fingerprints(this, agent, settings, of_tool)


def _fingerprints(
    this: Components, agent: Agent, settings: Settings, of_tool: Mapping[str, str]
) -> dict[str, str]:
    """The fingerprints of all that must be equal when the run is resumed, with those of the tool's
    operators. `InputError` for a tool that cannot make a session, or none for this agent."""
    session = this.session("")
    agent.check_tool(session)
    prints = {**fingerprints(settings, this.built), **agent.fingerprints, **of_tool}
    if this.search_tool.tokenizer is not None:
        prints["tool.tokenizer"] = load_tokenizer(this.search_tool.tokenizer).fingerprint
    if weights := weights_fingerprint(this.llm):
        prints["llm.content"] = weights
    return {**prints, **agent.tool_fingerprints(session)}


def _pipeline(
    settings: Settings, budget: Budget, opened: PipelineOpener | None, *, searched: bool
) -> BoundPipeline:
    """The pipeline that was opened, or that of the configuration."""
    if opened and searched:
        built = opened()
    else:
        built = build_pipeline(settings.config, budget, searched=searched)
    if built.obfuscated:
        obfuscate_cells(settings)
    return built
