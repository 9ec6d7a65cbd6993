"""From a configuration to the pipeline that ranks: benchmark, index, stages, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
from omegaconf import DictConfig

from experiments.build import check_price, declares, make, stage_model
from experiments.collection import PreparedCollection, notes, prepare
from pipelines.cache_limits import keep_bound
from pipelines.composition import compose
from pipelines.engines.base import Engine
from pipelines.rerank.stage import RerankHead
from pipelines.stage import Collection, Stage, bound
from toolkit.console import Console
from toolkit.contracts import Benchmark, Segmenter, is_sealed
from toolkit.errors import InputError
from toolkit.llm.blocking import BlockingModel, content_of
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.ledger import Ledger
from toolkit.llm.server import Servers
from toolkit.runs.manifest import SEALED
from toolkit.sealing import mark_sealed
from toolkit.search.scoring import RequirementScorer, ScorerResources

# In the order of the pipeline.
STAGES = ("rewriter", "enrichment", "retriever", "reranker")
# What librarians work with beside it.
LIBRARIANS = ("scorer", "list_reranker")
Transformers = Mapping[str, pt.Transformer]


@dataclass(frozen=True)
class PreparedPipeline:
    """Benchmark, segmenter, opened index and the pipeline over it; whether what a run of it writes
    is sealed."""

    benchmark: Benchmark
    segmenter: Segmenter
    prepared: PreparedCollection
    pipeline: pt.Transformer
    stages: Stages
    parts: Transformers
    sealed: bool = False


def ranking(
    config: DictConfig, benchmark: Benchmark | None = None, *, searched: bool = True
) -> PreparedPipeline:
    """Build what ranks, over `benchmark` (None: the configuration's). Settings are checked before
    any index is built. Where nothing searches the pipeline, it has no stages, and no index is
    opened before it is asked for."""
    engine = make(config.engine)
    segmenter = make(config.unit)
    stages = with_librarians(make_stages(config), config)
    stages.check(engine)
    benchmark = benchmark or make(config.benchmark)
    indexes = Path(config.paths.indexes)
    prepared = prepare(benchmark, segmenter, engine, indexes, indexed=searched)
    for note in notes(benchmark, prepared):
        Console(stderr=True).print(note, soft_wrap=True)
    sealed = seals(config, benchmark)
    if not searched:
        return PreparedPipeline(
            benchmark, segmenter, prepared, NotSearched(), stages.without_pipeline(), {}, sealed
        )
    caches = caches_folder(config, sealed)
    parts = stages.bind(prepared, segmenter, caches, benchmark)
    pipeline = compose(**parts, aggregate=segmenter.aggregate)
    return PreparedPipeline(benchmark, segmenter, prepared, pipeline, stages, parts, sealed)


class NotSearched(pt.Transformer):
    """The pipeline of a search tool that declares that it asks none, or of an agent that declares
    that it calls no tool."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        raise InputError(
            "the pipeline is asked, and the search tool declares asks_pipeline = False, or the "
            "agent calls_tools = False",
            do="leave that out of its class",
        )


# Gives what ranks when it is asked for, so that what cannot work is told before.
PipelineOpener = Callable[[], PreparedPipeline]


def seals(config: DictConfig, benchmark: Benchmark) -> bool:
    """Whether what is written of the benchmark's texts is to be obfuscated."""
    return bool(config.sealed) and is_sealed(benchmark)


def caches_folder(config: DictConfig, sealed: bool) -> Path | None:
    """Where stages keep results: those of sealed benchmarks have a folder of their own below
    `paths.caches`, which is marked so that what they write is sealed."""
    if config.paths.caches is None:
        return None
    folder = Path(config.paths.caches)
    if not sealed:
        return folder
    mark_sealed(folder / SEALED)
    return folder / SEALED


@dataclass(frozen=True)
class Stages:
    """A pipeline's stages by group, without those that are `none`, and not yet bound; `models` are
    the language models of stages that ask one, with what serves them. `scorer`, where there is one,
    is that of requirements (`toolkit.search.scoring`), and `list_reranker` orders a final list."""

    transformers: Transformers
    models: Mapping[str, tuple[BlockingModel, LanguageModel]] = field(default_factory=dict)
    scorer: RequirementScorer | None = None
    list_reranker: pt.Transformer | None = None

    def check(self, engine: Engine) -> None:
        """`InputError` for what cannot work, before an index is built."""
        for transformer in self.transformers.values():
            if isinstance(transformer, Stage):
                transformer.check(engine)
        if self.scorer is not None:
            _ = self.scorer.fingerprint
        if isinstance(self.list_reranker, Stage):
            self.list_reranker.check(engine)
        compose(**self.transformers, aggregate=False)

    def bind(
        self,
        prepared: PreparedCollection,
        segmenter: Segmenter,
        caches: Path | None,
        benchmark: Benchmark | None = None,
    ) -> Transformers:
        """The stages, each bound to the collection that was prepared; the benchmark's judgements
        are for the oracle, its questions for an enrichment that goes by them."""
        collection = self.collection(prepared, segmenter, caches)
        if benchmark is not None:
            questions = {topic.qid: topic.text for topic in benchmark.topics}
            collection = replace(collection, judgements=benchmark.judgements, questions=questions)
        enrichment = self.transformers.get("enrichment")
        if isinstance(enrichment, Stage):
            # Every stage ranks in the enriched index, where the corpus is enriched.
            collection = enrichment.enriched(collection)
        return {
            group: bound(transformer, collection.with_model(self._model(group)))
            for group, transformer in self.transformers.items()
        }

    def without_pipeline(self) -> Stages:
        """What works beside a pipeline alone: the scorer and the re-ranker of lists."""
        models = {group: pair for group, pair in self.models.items() if group not in STAGES}
        return replace(self, transformers={}, models=models)

    def collection(
        self, prepared: PreparedCollection, segmenter: Segmenter, caches: Path | None
    ) -> Collection:
        """What was prepared, as stages see it; the model is that of the enrichment."""
        return Collection(
            prepared.fingerprint,
            index=prepared.index,
            open_index=prepared.indexed,
            texts=prepared.store.texts,
            whole_documents=segmenter.whole_documents,
            caches=caches,
            model=self._model("enrichment"),
            links=prepared.links,
        )

    @contextmanager
    def asking(
        self, ledger: Ledger, folder: Path, servers: Servers | None = None
    ) -> Iterator[None]:
        """The stages' language models run as long as the block, and so does a re-ranker that asks a
        server of its own; all their requests are entered in `ledger`. Servers of ours write their
        logs to `folder`, and are shared with those of `servers`."""
        with ExitStack() as stack:
            if servers is None:
                servers = stack.enter_context(Servers())
            for group, (blocking, llm) in self.models.items():
                log = folder / f"{group}-server.log"
                model = stack.enter_context(llm.running(log, servers))
                stack.enter_context(blocking.started(model, ledger))
            for transformer in (*self.transformers.values(), self.list_reranker):
                if isinstance(transformer, Stage):
                    stack.enter_context(transformer.asking(ledger))
            if self.scorer is not None:
                stack.callback(self.scorer.close)
            yield

    def bound_scorer(self, caches: Path | None, **statistics: Any) -> RequirementScorer | None:
        """The scorer with what it works with; `statistics` are those of `ScorerResources`."""
        if self.scorer is None:
            return None
        blocking, llm = self.models.get("scorer", (None, None))
        gives_logprobs = llm is None or bool(getattr(llm, "gives_logprobs", True))
        return self.scorer.bind(
            ScorerResources(
                caches=caches, model=blocking, gives_logprobs=gives_logprobs, **statistics
            )
        )

    def bound_list_reranker(self, collection: Collection) -> pt.Transformer | None:
        """The re-ranker of the final list, bound to what was prepared."""
        if self.list_reranker is None:
            return None
        return bound(self.list_reranker, collection.with_model(self._model("list_reranker")))

    def _model(self, group: str) -> BlockingModel | None:
        return self.models[group][0] if group in self.models else None


def active(config: DictConfig, group: str) -> bool:
    """Whether the group has an option other than `none`."""
    option = config[group]
    return option is not None and "_target_" in option


def asking_groups(config: DictConfig) -> list[str]:
    """The groups whose part, a stage or what librarians work with, asks a language model."""
    groups = [group for group in (*STAGES, *LIBRARIANS) if active(config, group)]
    return [group for group in groups if declares(config[group], "asks_model")]


def asks_agents_model(config: DictConfig, asking: Iterable[str]) -> bool:
    """Whether one of the groups that are `asking` a language model has none of its own, so that it
    shares the agent's (`stage_model`)."""
    if config.llm is None:
        return False
    roles = {"librarian" if group in LIBRARIANS else group for group in asking}
    return not all(config.get(f"{role}_llm") for role in roles)


def make_stages(config: DictConfig, groups: Sequence[str] = STAGES) -> Stages:
    """Make the stages of a configuration, or those of some groups. `InputError` for bad settings,
    and for a stage that asks a language model where none is chosen."""
    transformers: dict[str, pt.Transformer] = {}
    models: dict[str, tuple[BlockingModel, LanguageModel]] = {}
    for group in groups:
        if not active(config, group):
            continue
        transformer = make(config[group])
        if group == "reranker" and not isinstance(transformer, Stage):
            transformer = RerankHead(transformer)
        transformers[group] = transformer
        if isinstance(transformer, Stage) and transformer.request_price is not None:
            check_price(config, group, transformer.request_price, group)
        if isinstance(transformer, Stage) and transformer.asks_model:
            llm = stage_model(config, group)
            if transformer.asks_logprobs and not llm.gives_logprobs:
                raise InputError(
                    f"the {group} reads log-probabilities, and the API of {llm.name} gives none",
                    valid="a model behind chat completions, such as vllm/... or openai_compatible",
                    do=f"choose one for it (llm@{group}_llm=...), or set {group}.score=generated",
                )
            models[group] = _blocking(llm, group), llm
    if {"rewriter", "enrichment", "reranker"} & set(transformers):
        keep_bound(config.paths.caches, config.paths.caches_gb)
    return Stages(transformers, models)


def with_librarians(stages: Stages, config: DictConfig) -> Stages:
    """The stages, and what librarians work with: the scorer of requirements and the re-ranker of
    the final list, where the configuration has them. What these ask is the librarians'."""
    parts = {group: make(config[group]) for group in LIBRARIANS if active(config, group)}
    if not parts:
        return stages
    models = dict(stages.models)
    for group, part in parts.items():
        if getattr(part, "asks_model", False):
            llm = stage_model(config, "librarian")
            models[group] = _blocking(llm, "librarian"), llm
    keep_bound(config.paths.caches, config.paths.caches_gb)
    return replace(stages, models=models, **parts)


def _blocking(llm: LanguageModel, role: str) -> BlockingModel:
    return BlockingModel(
        llm.name, settings=llm.settings, price=llm.price, role=role, content=content_of(llm)
    )


def stage_counts(
    transformers: Mapping[str, Any], before: Mapping[str, Mapping[str, float]] | None = None
) -> dict[str, dict[str, float]]:
    """What bound stages have counted, by group, and the seconds that their models took; stages
    without counts are left out. `before` are counts of the same stages that are not told again; of
    what is called `largest_*` there is only the largest ever."""
    counts: dict[str, dict[str, float]] = {}
    for group, stage in transformers.items():
        if not isinstance(getattr(stage, "counts", None), Mapping):
            continue
        known = (before or {}).get(group, {})
        counts[group] = {
            name: number if name.startswith("largest_") else number - known.get(name, 0)
            for name, number in stage.counts.items()
        }
    return {group: numbers for group, numbers in counts.items() if numbers}
