"""From a configuration to the pipeline that ranks: benchmark, index, stages, in their order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyterrier as pt
from omegaconf import DictConfig, open_dict

from soundingline.experiments.build import declares, make, stage_model
from soundingline.experiments.collection import IndexedCollection, notes, prepare
from soundingline.pipelines.backend import ListOrder
from soundingline.pipelines.cache import keep_bound
from soundingline.pipelines.compose import compose
from soundingline.pipelines.engines.engine import Engine, word_frequency
from soundingline.pipelines.rerank.reranker import RerankHead
from soundingline.pipelines.stage import Collection, Stage, bound
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console
from soundingline.toolkit.corpus import Passages
from soundingline.toolkit.corpus.segmentation import Segmenter
from soundingline.toolkit.data import DocumentStore
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.blocking import (
    BlockingModel,
    version_of_server,
    weights_fingerprint,
)
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.server import Servers
from soundingline.toolkit.obfuscation import mark_obfuscated
from soundingline.toolkit.runs.manifest import SEALED
from soundingline.toolkit.search import Literature, Operators
from soundingline.toolkit.search.scoring import RequirementScorer, ScorerResources
from soundingline.toolkit.search.session import SearchTool

if TYPE_CHECKING:
    from soundingline.pipelines.learned.dense import Dense

# In the order of the pipeline.
STAGES = ("rewriter", "enrichment", "retriever", "reranker")
# What librarians work with beside it.
LIBRARIANS = ("scorer", "list_reranker")
Transformers = Mapping[str, pt.Transformer]


@dataclass(frozen=True)
class BoundPipeline:
    """Benchmark, segmenter, opened index and the pipeline over it; whether what a run of it writes
    is obfuscated."""

    benchmark: Benchmark
    segmenter: Segmenter
    prepared: IndexedCollection
    pipeline: pt.Transformer
    stages: Stages
    parts: Transformers
    obfuscated: bool = False


def build_pipeline(
    config: DictConfig, benchmark: Benchmark | None = None, *, searched: bool = True
) -> BoundPipeline:
    """Build what ranks, over `benchmark` (None: the configuration's). Settings are checked before
    any index is built. Where nothing searches the pipeline, it has no stages, and no index is
    opened before it is asked for."""
    engine = make(config.engine)
    segmenter = make(config.unit)
    stages = with_librarians(make_stages(config), config)
    stages.validate(engine)
    benchmark = benchmark or make(config.benchmark)
    indexes = Path(config.paths.indexes)
    prepared = prepare(benchmark, segmenter, engine, indexes, indexed=searched)
    for note in notes(benchmark, prepared):
        Console(stderr=True).print(note, soft_wrap=True)
    obfuscated = writes_obfuscated(config, benchmark)
    if not searched:
        return BoundPipeline(
            benchmark, segmenter, prepared, NotSearched(), stages.without_pipeline(), {}, obfuscated
        )
    caches = caches_folder(config, obfuscated)
    parts = stages.bind(prepared, segmenter, caches, benchmark)
    pipeline = compose(**parts, aggregate=segmenter.aggregate)
    return BoundPipeline(benchmark, segmenter, prepared, pipeline, stages, parts, obfuscated)


class NotSearched(pt.Transformer):
    """The pipeline of a search tool that declares that it asks none, or of an agent that declares
    that it calls no tool."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        raise InputError(
            "the pipeline is asked, and the search tool declares uses_pipeline = False, or the "
            "agent calls_tools = False",
            do="leave that out of its class",
        )


# Gives what ranks when it is asked for, so that what cannot work is told before.
PipelineOpener = Callable[[], BoundPipeline]


def writes_obfuscated(config: DictConfig, benchmark: Benchmark) -> bool:
    """Whether what is written of the benchmark's texts is to be obfuscated."""
    return bool(config.sealed) and benchmark.obfuscated


def caches_folder(config: DictConfig, obfuscated: bool) -> Path | None:
    """Where stages keep results: those of obfuscated benchmarks have a folder of their own below
    `paths.caches`, which is marked so that what they write is obfuscated."""
    if config.paths.caches is None:
        return None
    folder = Path(config.paths.caches)
    if not obfuscated:
        return folder
    mark_obfuscated(folder / SEALED)
    return folder / SEALED


@dataclass(frozen=True)
class Stages:
    """A pipeline's stages by group, without those that are `none`, and not yet bound; `models` are
    the language models of stages that ask one, with what serves them. `scorer`, where there is one,
    is that of requirements (`soundingline.toolkit.search.scoring`), `locator` encodes its evidence
    (None: BM25 finds it), and `list_reranker` orders a final list."""

    transformers: Transformers
    models: Mapping[str, tuple[BlockingModel, LanguageModel]] = field(default_factory=dict)
    scorer: RequirementScorer | None = None
    locator: Dense | None = None
    list_reranker: pt.Transformer | None = None

    def validate(self, engine: Engine) -> None:
        """`InputError` for what cannot work, before an index is built."""
        for transformer in self.transformers.values():
            if isinstance(transformer, Stage):
                transformer.validate(engine)
        if self.scorer is not None:
            _ = self.scorer.fingerprint
        if self.locator is not None:
            _ = self.locator.fingerprint
        if isinstance(self.list_reranker, Stage):
            self.list_reranker.validate(engine)
        compose(**self.transformers, aggregate=False)

    def bind(
        self,
        prepared: IndexedCollection,
        segmenter: Segmenter,
        caches: Path | None,
        benchmark: Benchmark | None = None,
    ) -> Transformers:
        """The stages, each bound to the collection that was prepared; the benchmark's judgements
        are for the oracle, its questions for an enrichment that goes by them."""
        collection = self.collection(prepared, segmenter, caches)
        if benchmark is not None:
            questions = {topic.qid: topic.text for topic in benchmark.topics}
            collection = replace(collection, qrels=benchmark.qrels, questions=questions)
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
        self, prepared: IndexedCollection, segmenter: Segmenter, caches: Path | None
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
            engine=prepared.engine,
        )

    @contextmanager
    def asking(
        self, ledger: Ledger, folder: Path, servers: Servers | None = None
    ) -> Iterator[dict[str, str]]:
        """The stages' language models run as long as the block, and their requests are entered in
        `ledger`; stages are closed at its end. Servers of ours write their logs to `folder`, and
        are shared with those of `servers`. Yields the versions of the servers by stage."""
        with ExitStack() as stack:
            if servers is None:
                servers = stack.enter_context(Servers())
            versions = {}
            for group, (blocking, llm) in self.models.items():
                log = folder / f"{group}-server.log"
                model = stack.enter_context(llm.running(log, servers))
                stack.enter_context(blocking.started(model, ledger))
                versions[group] = version_of_server(model)
            for transformer in (*self.transformers.values(), self.list_reranker):
                if isinstance(transformer, Stage):
                    stack.callback(transformer.close)
            if self.scorer is not None:
                stack.callback(self.scorer.close)
            yield versions

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


def _declared(config: DictConfig, group: str) -> DictConfig:
    return librarian_option(config, group) if group in LIBRARIANS else config[group]


def active(config: DictConfig, group: str) -> bool:
    """Whether the group has an option other than `none`."""
    option = config[group]
    return option is not None and "_target_" in option


def asking_groups(config: DictConfig) -> list[str]:
    """The groups whose part, a stage or what librarians work with, asks a language model."""
    groups = [group for group in (*STAGES, *LIBRARIANS) if active(config, group)]
    return [group for group in groups if declares(_declared(config, group), "needs_llm")]


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
        if isinstance(transformer, Stage) and transformer.needs_llm:
            models[group] = _model_of(transformer, config, group, group)
    if {"rewriter", "enrichment", "reranker"} & set(transformers):
        keep_bound(config.paths.caches, config.paths.caches_gb)
    return Stages(transformers, models)


def with_librarians(stages: Stages, config: DictConfig) -> Stages:
    """The stages, and what librarians work with: the scorer of requirements and the re-ranker of
    the final list, where the configuration has them. What these ask is the librarians'."""
    groups = [group for group in LIBRARIANS if active(config, group)]
    parts = {group: make(librarian_option(config, group)) for group in groups}
    if not parts:
        return stages
    models = dict(stages.models)
    for group, part in parts.items():
        if getattr(part, "needs_llm", False):
            models[group] = _model_of(part, config, group, "librarian")
    keep_bound(config.paths.caches, config.paths.caches_gb)
    return replace(stages, models=models, locator=evidence_encoder(config), **parts)


def librarian_option(config: DictConfig, group: str) -> DictConfig:
    """The option of a group of `LIBRARIANS` without the locator, which is no argument of it."""
    option: DictConfig = copy.deepcopy(config[group])
    with open_dict(option):
        option.pop("locator", None)
    return option


def evidence_encoder(config: DictConfig) -> Dense | None:
    """The encoder that locates evidence, `scorer.locator`; None for BM25."""
    option = config.scorer.get("locator") if active(config, "scorer") else None
    if option is None:
        return None
    # Here, because starting would wait for numba.
    from soundingline.pipelines.learned.dense import Dense

    locator = make(option)
    if not isinstance(locator, Dense):
        raise InputError(
            f"scorer.locator={type(locator).__name__} encodes no passages",
            valid="a dense retriever such as minilm, or null for BM25",
            do="choose one: retriever@scorer.locator=minilm",
        )
    return locator


def _model_of(
    part: Any, config: DictConfig, group: str, role: str
) -> tuple[BlockingModel, LanguageModel]:
    """The language model of a stage or of what librarians work with, and what serves it.
    `InputError` if it cannot do what the part needs."""
    llm = stage_model(config, role)
    if isinstance(part, Stage) and part.needs_logprobs and not llm.gives_logprobs:
        raise InputError(
            f"the {group} reads log-probabilities, and the API of {llm.name} gives none",
            valid="a model behind chat completions, such as vllm/... or openai_compatible",
            do=f"choose one for it (llm@{role}_llm=...), or set {group}.score=generated",
        )
    if isinstance(part, Stage) and part.needs_completions and not llm.continues_text:
        raise InputError(
            f"the {group} continues a text, and the API of {llm.name} answers messages",
            valid="a model behind text completions (OpenAICompletions), such as rank1",
            do=f"choose one for it: llm@{role}_llm=rank1",
        )
    blocking = BlockingModel(
        llm.name,
        settings=llm.settings,
        price=llm.price,
        role=role,
        weights_fingerprint=weights_fingerprint(llm),
    )
    return blocking, llm


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


def with_literature_tools(
    interface: SearchTool, built: BoundPipeline, config: DictConfig
) -> tuple[SearchTool, dict[str, str]]:
    """A `Literature` with its operators, and their fingerprints for the manifest; any other
    interface unchanged. Evidence is located in passages of 250 tokens (`unit=passage`, whose index
    it shares), which are indexed by our engine where they are not yet: by BM25, or by the encoder
    `scorer.locator`. The scorer of requirements is the configuration's; without one there is no
    tool that scores."""
    if not isinstance(interface, Literature):
        return interface, {}
    # Here, because starting would wait for numba.
    from soundingline.pipelines.evidence import DenseLocator, LexicalLocator

    passages = evidence_passages(built.benchmark, config)
    graph = built.prepared.links() if built.prepared.links else None
    caches = caches_folder(config, built.obfuscated)
    scorer = built.stages.bound_scorer(caches, **statistics(built))
    collection = built.stages.collection(built.prepared, built.segmenter, caches)
    reranker = built.stages.bound_list_reranker(collection)
    encoder = _shared_encoder(built.stages)
    operators = Operators(
        links=graph,
        locator=(
            DenseLocator(passages.index, encoder, passages.store.texts)
            if encoder
            else LexicalLocator(passages.index)
        ),
        scorer=scorer,
        passages=passages.store,
        resolver=built.prepared.resolver() if built.prepared.resolver else None,
        order=ListOrder(reranker) if reranker is not None else None,
    )
    prints = {"evidence": passages.fingerprint}
    if encoder:
        prints["locator.content"] = encoder.fingerprint
    if graph:
        prints["links"] = graph.fingerprint
    if scorer:
        prints["scorer.content"] = scorer.fingerprint
    if print_ := getattr(reranker, "fingerprint", ""):
        prints["list_reranker.content"] = print_
    return interface.bind(operators), prints


def _shared_encoder(stages: Stages) -> Dense | None:
    """The locator's encoder: that of the retriever if it is the same, so that it is loaded once."""
    retriever, locator = stages.transformers.get("retriever"), stages.locator
    if locator is None:
        return None
    for other in (retriever, getattr(retriever, "retriever", None)):
        if isinstance(other, type(locator)) and other.fingerprint == locator.fingerprint:
            return other
    return locator


def evidence_passages(benchmark: Benchmark, config: DictConfig) -> IndexedCollection:
    """The passages that evidence is located in, with their index; built where they are missing."""
    from soundingline.pipelines.lexical.index import LexicalEngine

    return prepare(benchmark, Passages(), LexicalEngine(), Path(config.paths.indexes))


def parts_of(interface: SearchTool, built: BoundPipeline) -> dict[str, Any]:
    """What counts in a run: the stages of its pipeline, and the scorer and the re-ranker of lists
    of its interface."""
    if not isinstance(interface, Literature):
        return dict(built.parts)
    operators = interface.operators
    others = {"scorer": operators.scorer, "list_reranker": getattr(operators.order, "stage", None)}
    return {**built.parts, **{name: part for name, part in others.items() if part is not None}}


def passages_of(interface: SearchTool) -> DocumentStore | None:
    """The passages in which an interface of literature search locates evidence."""
    return interface.operators.passages if isinstance(interface, Literature) else None


def statistics(built: BoundPipeline) -> dict[str, Any]:
    """What the index tells of its collection."""
    index = built.prepared.index
    return {"document_frequency": word_frequency(index), "documents": len(index)}
