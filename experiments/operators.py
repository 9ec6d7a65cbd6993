"""What an interface of literature search works with beside the ranking, made of a run's parts."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from experiments.collection import prepare
from experiments.prepared_pipeline import PreparedPipeline
from toolkit.contracts import ToolInterface
from toolkit.corpus import Passages
from toolkit.search import Literature, Operators


def with_operators(
    interface: ToolInterface, built: PreparedPipeline, config: DictConfig
) -> tuple[ToolInterface, dict[str, str]]:
    """The interface bound to its operators, and their fingerprints for the manifest; any other
    interface as it is. Evidence is located in passages of 250 tokens (`unit=passage`, whose index
    it shares), which are indexed by our engine where they are not yet."""
    if not isinstance(interface, Literature):
        return interface, {}
    # Here, because a command's start would wait for numba.
    from pipelines.engines.lexical import LexicalEngine
    from pipelines.evidence import LexicalLocator

    root = Path(config.paths.indexes)
    passages = prepare(built.benchmark, Passages(), LexicalEngine(), root)
    graph = built.prepared.links() if built.prepared.links else None
    operators = Operators(
        links=graph,
        locator=LexicalLocator(passages.index),
        passages=passages.store,
        resolver=built.prepared.resolver() if built.prepared.resolver else None,
    )
    links = {"links": graph.fingerprint} if graph else {}
    return interface.bind(operators), {"evidence": passages.fingerprint, **links}
