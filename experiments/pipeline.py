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
from soundingline.pipelines.compose import WithoutDocuments, compose
from soundingline.pipelines.engines.engine import Engine, word_frequency
from soundingline.pipelines.rerank.reranker import RerankTop
from soundingline.pipelines.stage import (
    Collection,
    Stage,
    bound,
    check_fingerprint,
    computes_on_gpu,
)
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console
from soundingline.toolkit.corpus import Passages
from soundingline.toolkit.corpus.segmentation import Segmenter
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import mark_obfuscated, read_json, write_json
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import Ledger, recorded_usage
from soundingline.toolkit.llm.local_servers import Servers
from soundingline.toolkit.locks import file_lock
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.manifest import SEALED
from soundingline.toolkit.search import Literature, Operators
from soundingline.toolkit.search.scoring import RequirementScorer, ScorerResources
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import STAGES

if TYPE_CHECKING:
    from soundingline.agents.base import Budget
    from soundingline.pipelines.learned.dense import Dense

_SHOWN = ("calls", "input_tokens", "output_tokens", "dollars")
_Runs = dict[str, dict[str, float]]
_PHRASES_OF_RUNS = "phrases-{}.json"
_DO = "move it away; only what the corpus has cost is then unknown"
LIBRARIANS = ("scorer", "list_reranker")  # what librarians work with in addition to it
RERANKERS = ("reranker", "list_reranker")
OF_RERANK_TOP = ("depth", "texts")
Transformers = Mapping[str, pt.Transformer]


@dataclass(frozen=True)
class BoundPipeline:
    """Benchmark, segmenter, opened index and the pipeline over it; whether what a run of it writes
    is obfuscated."""

    benchmark: Benchmark
    segmenter: Segmenter
    collection: IndexedCollection
    pipeline: pt.Transformer
    stages: Stages
    parts: Transformers
    obfuscated: bool


def build_pipeline(
    config: DictConfig,
    budget: Budget,
    benchmark: Benchmark | None = None,
    *,
    searched: bool = True,
) -> BoundPipeline:
    """Build what ranks, over `benchmark` (None: the configuration's). Settings are checked before
    any index is built, and prices of language models against the caps of `budget`. Where nothing
    searches the pipeline, it has no stages, and no index is opened before it is asked for."""
    engine = make(config.engine)
    segmenter = make(config.unit)
    stages = make_stages(config, budget, (*STAGES, *LIBRARIANS))
    stages.validate(engine)
    benchmark = benchmark or make(config.benchmark)
    indexes = Path(config.paths.indexes)
    collection = prepare(benchmark, segmenter, engine, indexes, indexed=searched)
    for note in notes(benchmark, collection):
        Console(stderr=True).print(note, soft_wrap=True)
    obfuscated = writes_obfuscated(config, benchmark)
    parts: Transformers = {}
    if searched:
        parts = stages.bind(collection, segmenter, caches_folder(config, obfuscated), benchmark)
        removal = WithoutDocuments(benchmark.removed) if benchmark.remove_evidence else None
        pipeline = compose(**parts, removal=removal, aggregate=segmenter.aggregate)
    else:
        models = {group: pair for group, pair in stages.models.items() if group in LIBRARIANS}
        stages, pipeline = replace(stages, transformers={}, models=models), NotSearched()
    return BoundPipeline(benchmark, segmenter, collection, pipeline, stages, parts, obfuscated)


class NotSearched(pt.Transformer):
    """The pipeline of an agent that declares that it calls no tool."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        raise InputError(
            "the pipeline is called, and the agent declares calls_tools = False",
            do="leave that out of its class",
        )


# Gives the pipeline when it is needed, so that what cannot work is refused before.
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
        for part in filter(None, (self.scorer, self.locator)):
            check_fingerprint(part)
        if isinstance(self.list_reranker, Stage):
            self.list_reranker.validate(engine)
        compose(**self.transformers, aggregate=False)

    def bind(
        self,
        indexed: IndexedCollection,
        segmenter: Segmenter,
        caches: Path | None,
        benchmark: Benchmark | None = None,
    ) -> Transformers:
        """The stages, each bound to the collection; the benchmark's judgements
        are for the oracle, its questions for an enrichment that goes by them."""
        collection = self.collection(indexed, segmenter, caches)
        if benchmark is not None:
            questions = {topic.qid: topic.text for topic in benchmark.topics}
            collection = replace(
                collection,
                qrels=benchmark.qrels,
                questions=questions,
                exclude_own=benchmark.exclude_own,
            )
        enrichment = self.transformers.get("enrichment")
        if isinstance(enrichment, Stage):
            # Every stage ranks in the enriched index, where the corpus is enriched.
            collection = enrichment.enriched(collection)
        return {
            group: bound(transformer, collection.with_model(self.model_of(group)))
            for group, transformer in self.transformers.items()
        }

    def collection(
        self, indexed: IndexedCollection, segmenter: Segmenter, caches: Path | None
    ) -> Collection:
        """The collection as stages see it; the model is that of the enrichment."""
        return Collection(
            indexed.fingerprint,
            index=indexed.index,
            open_index=indexed.indexed,
            texts=indexed.store.texts,
            whole_documents=segmenter.whole_documents,
            caches=caches,
            model=self.model_of("enrichment"),
            links=indexed.links,
            engine=indexed.engine,
        )

    @contextmanager
    def asking(
        self, ledger: Ledger, folder: Path, servers: Servers | None = None, run: str = ""
    ) -> Iterator[dict[str, str]]:
        """The stages' language models run as long as the block, and their requests are entered in
        `ledger`, as those of the run with the id `run`; stages are closed at its end. Servers of
        ours write their logs to `folder`, and are shared with those of `servers`. Yields the
        versions of the servers by stage."""
        with ExitStack() as stack:
            if servers is None:
                servers = stack.enter_context(Servers())
            versions = {}
            for group, (blocking, llm) in self.models.items():
                log = folder / f"{group}-server.log"
                model = stack.enter_context(llm.running(log, servers))
                stack.enter_context(blocking.started(model, ledger, run))
                versions[group] = model.server_version()
            for transformer in (*self.transformers.values(), self.list_reranker):
                if isinstance(transformer, Stage):
                    stack.callback(transformer.close)
            if self.scorer is not None:
                stack.callback(self.scorer.close)
            yield versions

    def model_of(self, group: str) -> BlockingModel | None:
        """The language model of a group; None if it asks none."""
        return self.models[group][0] if group in self.models else None


def active(config: DictConfig, group: str) -> bool:
    """Whether the group has an option other than `none`."""
    option = config[group]
    return option is not None and "_target_" in option


def asking_groups(config: DictConfig) -> list[str]:
    """The groups whose part, a stage or what librarians work with, asks a language model."""
    return [
        group
        for group in (*STAGES, *LIBRARIANS)
        if active(config, group) and declares(option_of(config, group), "needs_llm")
    ]


def role_of(group: str) -> str:
    """The role of a group's language model; a retriever that asks one is an agent itself."""
    return "librarian" if group in LIBRARIANS else "agent" if group == "retriever" else group


def asks_agents_model(config: DictConfig, asking: Iterable[str]) -> bool:
    """Whether one of the groups that are `asking` a language model has none of its own, so that it
    shares the agent's (`stage_model`)."""
    if config.llm is None:
        return False
    roles = set(map(role_of, asking))
    return not all(config.get(f"{role}_llm") for role in roles)


def make_stages(config: DictConfig, budget: Budget, groups: Sequence[str] = STAGES) -> Stages:
    """Make the stages, and what librarians work with, of some groups of a configuration.
    `InputError` for bad settings, and for a part that asks a language model if none is chosen."""
    parts: dict[str, Any] = {}
    models = {}
    for group in groups:
        if active(config, group):
            part = make(option_of(config, group))
            if getattr(part, "needs_llm", False):
                models[group] = _model_of(part, config, budget, group)
            parts[group] = rerank_top(part, config[group]) if group in RERANKERS else part
    if parts.keys() - {"retriever"}:
        keep_bound(config.paths.caches, config.paths.caches_gb)
    librarians = {group: parts.pop(group) for group in LIBRARIANS if group in parts}
    locator = evidence_encoder(config) if librarians else None
    return Stages(parts, models, locator=locator, **librarians)


def option_of(config: DictConfig, group: str) -> DictConfig:
    """The option of a group with the arguments of its class alone: without the locator of a scorer,
    and without those arguments of a re-ranker that `RerankTop` has (see `rerank_top`)."""
    option: DictConfig = copy.deepcopy(config[group])
    # A scorer of requirements may have a re-ranker, of which it needs the scores of pairs.
    reranker: Any = option.get("scorer") if group == "scorer" else option
    with open_dict(option):
        if group == "scorer":
            option.pop("locator", None)
        if group in (*RERANKERS, "scorer") and isinstance(reranker, DictConfig):
            for name in OF_RERANK_TOP:
                reranker.pop(name, None)
    return option


def rerank_top(scorer: pt.Transformer, option: DictConfig) -> RerankTop:
    """The stage of a re-ranker's option: `depth` and `texts` are arguments of `RerankTop`, and all
    others those of the `scorer`, which was made of them."""
    top: DictConfig = copy.deepcopy(option)
    with open_dict(top):
        for name in set(top) - set(OF_RERANK_TOP):
            del top[name]
        top["_target_"] = f"{RerankTop.__module__}.{RerankTop.__name__}"
        top["_partial_"] = True
    stage: RerankTop = make(top)(scorer)
    return stage


def evidence_encoder(config: DictConfig) -> Dense | None:
    """The encoder that locates evidence, `scorer.locator`; None for BM25."""
    option = config.scorer.get("locator") if active(config, "scorer") else None
    if option is None:
        return None
    # Here, because starting would wait for numba.
    from soundingline.pipelines.learned.dense import Dense
    from soundingline.pipelines.learned.retriever import LearnedRetriever

    locator = make(option)
    encoder = locator.engine.encoder if isinstance(locator, LearnedRetriever) else None
    if not isinstance(encoder, Dense):
        raise InputError(
            f"scorer.locator={type(locator).__name__} encodes no passages",
            valid="a dense retriever such as minilm, or null for BM25",
            do="choose one: retriever@scorer.locator=minilm",
        )
    return encoder


def _model_of(
    part: Any, config: DictConfig, budget: Budget, group: str
) -> tuple[BlockingModel, LanguageModel]:
    """The language model of a stage or of what librarians work with, and what serves it.
    `InputError` if it cannot do what the part needs."""
    role = role_of(group)
    llm = stage_model(config, role, budget)
    if isinstance(part, Stage) and part.needs_logprobs and not llm.gives_logprobs:
        raise InputError(
            f"the {group} reads log-probabilities, and the API of {llm.name} gives none",
            valid="a model with chat completions, such as vllm/... or openai_compatible",
            do=f"choose one for it (llm@{role}_llm=...), or set {group}.score=generated",
        )
    if isinstance(part, Stage) and part.needs_completions and not llm.continues_text:
        raise InputError(
            f"the {group} continues a text, and the API of {llm.name} answers messages",
            valid="a model with text completions (OpenAICompletions), such as rank1",
            do=f"choose one for it: llm@{role}_llm=rank1",
        )
    return blocking_model(llm, role), llm


def blocking_model(llm: LanguageModel, role: str) -> BlockingModel:
    """A language model for code without coroutines, which is not yet running."""
    return BlockingModel(
        llm.name,
        settings=llm.settings,
        price=llm.price,
        role=role,
        weights_fingerprint=llm.weights_fingerprint,
    )


def stage_counts(
    transformers: Mapping[str, Any], before: Mapping[str, Mapping[str, float]] | None = None
) -> dict[str, dict[str, float]]:
    """What bound stages have counted, by group, and the seconds that their models took, also as
    `gpu_seconds` where these are on a GPU; stages without counts are left out. `before` are counts
    of the same stages that are not told again."""
    counts: dict[str, dict[str, float]] = {}
    for group, stage in transformers.items():
        if not isinstance(getattr(stage, "counts", None), Mapping):
            continue
        past = (before or {}).get(group, {})
        counts[group] = {name: number - past.get(name, 0) for name, number in stage.counts.items()}
        if "seconds" in counts[group] and computes_on_gpu(stage):
            counts[group]["gpu_seconds"] = counts[group]["seconds"]
    return {group: numbers for group, numbers in counts.items() if numbers}


def chosen_parameters(transformers: Mapping[str, Any]) -> dict[str, Any]:
    """What bound stages chose by judgements, by group; stages that chose nothing are left out."""
    stages = {group: part for group, part in transformers.items() if isinstance(part, Stage)}
    chosen = {group: stage.chosen_parameters for group, stage in stages.items()}
    return {group: values for group, values in chosen.items() if values}


def note_phrases(folder: Path, phrases: str, run: RunFolder) -> None:
    """Record what a run has paid for phrases in the collection's `folder` of indexes, for every
    index with these phrases. A run that is resumed is counted once, with all of its starts."""
    path = folder / _PHRASES_OF_RUNS.format(phrases)
    total = recorded_usage(run.ledger_path)
    if total:
        with file_lock(folder / ".phrases.lock"):  # two runs may end at once
            runs = read_json(path, _Runs, do=_DO) if path.exists() else {}
            runs[str(run.path.absolute())] = total
            write_json(path, runs)


def corpus_costs(parts: Transformers) -> dict[str, float]:
    """The cost of enriching the corpus: `seconds` of building the index, and what was paid for its
    phrases if a language model proposed them; empty for bound stages without such a corpus."""
    collection = getattr(parts.get("enrichment"), "collection", None)
    index = collection.index if collection else None
    if index is None:
        return {}
    # Here, so that a command starts without the kernels of our index.
    from soundingline.pipelines.enrich.enrichment import SECONDS, phrases_folder, phrases_manifest
    from soundingline.pipelines.lexical.index import LexicalIndex

    folder = phrases_folder(index) if isinstance(index, LexicalIndex) else None
    if folder is None:
        return {}
    costs = {"documents": len(index), **read_json(folder / SECONDS, dict[str, float], do=_DO)}
    path = folder.parents[1] / _PHRASES_OF_RUNS.format(phrases_manifest(folder)["phrases"])
    if path.exists():
        runs = list(read_json(path, _Runs, do=_DO).values())
        for name in _SHOWN:
            if all(name in run for run in runs):
                costs[name] = sum(run[name] for run in runs)
    return costs


def with_literature_tools(
    search_tool: SearchTool, built: BoundPipeline, config: DictConfig
) -> tuple[SearchTool, dict[str, str]]:
    """A `Literature` with its operators, and their fingerprints for the manifest; any other
    tool unchanged. Evidence is located in passages of 250 tokens (`unit=passage`, whose index
    it shares), which are indexed by our engine where they are not yet: by BM25, or by the encoder
    `scorer.locator`. The scorer of requirements is the configuration's; without one there is no
    tool that scores."""
    if not isinstance(search_tool, Literature):
        return search_tool, {}
    # Here, because starting would wait for numba.
    from soundingline.pipelines.requirements.locators import DenseLocator, LexicalLocator

    stages, indexed = built.stages, built.collection
    passages = evidence_passages(built.benchmark, config)
    graph = indexed.links() if indexed.links else None
    caches = caches_folder(config, built.obfuscated)
    scorer, reranker, encoder = stages.scorer, stages.list_reranker, stages.locator
    if scorer is not None:
        blocking, llm = stages.models.get("scorer", (None, None))
        resources = ScorerResources(
            caches=caches,
            model=blocking,
            gives_logprobs=llm is None or llm.gives_logprobs,
            **index_statistics(built),
        )
        scorer = scorer.bind(resources)
    if reranker is not None:
        collection = stages.collection(indexed, built.segmenter, caches)
        reranker = bound(reranker, collection.with_model(stages.model_of("list_reranker")))
    if encoder is not None:
        # The retriever's encoder if it is the same, so that it is loaded once.
        retriever = stages.transformers.get("retriever")
        for dense in (retriever, getattr(retriever, "retriever", None)):
            if isinstance(dense, type(encoder)) and dense.fingerprint == encoder.fingerprint:
                encoder = dense
                break
    texts = passages.store.texts
    locator = (
        DenseLocator(passages.index, encoder, texts) if encoder else LexicalLocator(passages.index)
    )
    operators = Operators(
        links=graph,
        locator=locator,
        scorer=scorer,
        passages=passages.store,
        resolver=indexed.resolver() if indexed.resolver else None,
        order=ListOrder(reranker) if reranker is not None else None,
    )
    prints = {
        "evidence": passages.fingerprint,
        "locator.content": encoder.fingerprint if encoder else "",
        "links": graph.fingerprint if graph else "",
        "scorer.content": scorer.fingerprint if scorer else "",
        "list_reranker.content": getattr(reranker, "fingerprint", ""),
    }
    search_tool = replace(search_tool, operators=operators)
    return search_tool, {name: text for name, text in prints.items() if text}


def evidence_passages(benchmark: Benchmark, config: DictConfig) -> IndexedCollection:
    """The passages that evidence is located in, with their index; built where they are missing."""
    from soundingline.pipelines.lexical.index import LexicalEngine

    return prepare(benchmark, Passages(), LexicalEngine(), Path(config.paths.indexes))


def parts_of(search_tool: SearchTool, built: BoundPipeline) -> dict[str, Any]:
    """What counts in a run: the stages of its pipeline, and the scorer and the re-ranker of lists
    of the search tool."""
    if not isinstance(search_tool, Literature):
        return dict(built.parts)
    operators = search_tool.operators
    others = {"scorer": operators.scorer, "list_reranker": getattr(operators.order, "stage", None)}
    return {**built.parts, **{name: part for name, part in others.items() if part is not None}}


def index_statistics(built: BoundPipeline) -> dict[str, Any]:
    """What the index tells of its collection."""
    index = built.collection.index
    return {"document_frequency": word_frequency(index), "documents": len(index)}
