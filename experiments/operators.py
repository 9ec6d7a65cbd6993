"""What an interface of literature search works with beside the ranking, made of a run's parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.collection import PreparedCollection, prepare
from experiments.pipeline import PreparedPipeline, caches_folder
from pipelines.backend import ListOrder
from pipelines.engines import word_frequency
from toolkit.contracts import Benchmark, DocumentStore, ToolInterface
from toolkit.corpus import Passages
from toolkit.search import Literature, Operators


def asks_pipeline(interface: ToolInterface) -> bool:
    """Whether the sessions of an interface search the pipeline; true where it does not tell."""
    return bool(getattr(interface, "asks_pipeline", True))


def with_operators(
    interface: ToolInterface, built: PreparedPipeline, config: DictConfig
) -> tuple[ToolInterface, dict[str, str]]:
    """The interface bound to its operators, and their fingerprints for the manifest; any other
    interface as it is. Evidence is located in passages of 250 tokens (`unit=passage`, whose index
    it shares), which are indexed by our engine where they are not yet. The scorer of requirements
    is the configuration's; without one there is no tool that scores."""
    if not isinstance(interface, Literature):
        return interface, {}
    # Here, because starting would wait for numba.
    from pipelines.evidence import LexicalLocator

    passages = evidence_passages(built.benchmark, config)
    graph = built.prepared.links() if built.prepared.links else None
    caches = caches_folder(config, built.sealed)
    scorer = built.stages.bound_scorer(caches, **statistics(built))
    collection = built.stages.collection(built.prepared, built.segmenter, caches)
    reranker = built.stages.bound_list_reranker(collection)
    operators = Operators(
        links=graph,
        locator=LexicalLocator(passages.index),
        scorer=scorer,
        passages=passages.store,
        resolver=built.prepared.resolver() if built.prepared.resolver else None,
        order=ListOrder(reranker) if reranker is not None else None,
    )
    prints = {"evidence": passages.fingerprint}
    if graph:
        prints["links"] = graph.fingerprint
    if scorer:
        prints["scorer.content"] = scorer.fingerprint
    if print_ := getattr(reranker, "fingerprint", ""):
        prints["list_reranker.content"] = print_
    return interface.bind(operators), prints


def evidence_passages(benchmark: Benchmark, config: DictConfig) -> PreparedCollection:
    """The passages that evidence is located in, with their index; built where they are missing."""
    from pipelines.engines.lexical import LexicalEngine

    return prepare(benchmark, Passages(), LexicalEngine(), Path(config.paths.indexes))


def parts_of(interface: ToolInterface, built: PreparedPipeline) -> dict[str, Any]:
    """What counts in a run: the stages of its pipeline, and the scorer and the re-ranker of lists
    of its interface."""
    operators = getattr(interface, "operators", None)
    if not isinstance(operators, Operators):
        return dict(built.parts)
    others = {"scorer": operators.scorer, "list_reranker": getattr(operators.order, "stage", None)}
    return {**built.parts, **{name: part for name, part in others.items() if part is not None}}


def passages_of(interface: ToolInterface) -> DocumentStore | None:
    """The passages that an interface of literature search locates evidence in."""
    operators = getattr(interface, "operators", None)
    return operators.passages if isinstance(operators, Operators) else None


def statistics(built: PreparedPipeline) -> dict[str, Any]:
    """What the index tells of its collection."""
    index = built.prepared.index
    return {"document_frequency": word_frequency(index), "documents": len(index)}
