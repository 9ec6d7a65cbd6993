"""The stages of a pipeline, made from their options, and the language models that they ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyterrier as pt
from omegaconf import DictConfig

from experiments.build import make
from experiments.caches import keep_bound
from experiments.models import language_model
from experiments.prepare import Prepared
from pipelines.composition import compose
from pipelines.engines.base import Engine
from toolkit.contracts import Unit
from toolkit.llm.blocking import BlockingModel
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.ledger import Ledger
from toolkit.supply import supply, wants

# In the order of the pipeline.
STAGES = ("rewriter", "retriever", "reranker")


@dataclass
class Stages:
    """What is known of a pipeline before there is an index: `retriever` is still a factory.

    `models` are the language models of the stages, by group, with what serves them.
    """

    retriever: Any
    unit: str
    rewriter: pt.Transformer | None = None
    reranker: pt.Transformer | None = None
    models: dict[str, tuple[BlockingModel, LanguageModel]] = field(default_factory=dict)
    _prepared: Prepared | None = None

    def over(self, prepared: Prepared, *, aggregate: bool) -> tuple[pt.Transformer, pt.Transformer]:
        """The retriever over an index, and the whole pipeline."""
        self._prepared = prepared
        given = {
            "index": prepared.index,
            "indexed": prepared.indexed,
            "texts": self.texts,
            "unit": self.unit,
        }
        retriever = supply(self.retriever, given, what="the retriever", do="choose another one")
        pipeline = compose(
            retriever, rewriter=self.rewriter, reranker=self.reranker, aggregate=aggregate
        )
        return retriever, pipeline

    def check(self) -> None:
        """Have the retriever made over no index: what its settings and checkpoints are refused for
        is told before one is built. Loads no model of documents."""
        given = {"index": _Anything(), "indexed": _check_engine, "texts": self.texts}
        what = "the retriever"
        supply(self.retriever, {**given, "unit": self.unit}, what=what, do="choose another one")

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """Texts of units, from the store that is opened later than the stages are made."""
        if self._prepared is None:
            raise RuntimeError("texts are asked for before there is a store")
        return self._prepared.store.texts(unit_ids)

    @contextmanager
    def asking(
        self, ledger: Ledger, folder: Path, servers: dict[str, str] | None = None
    ) -> Iterator[None]:
        """The stages' language models run as long as the block; servers of ours write their logs to
        `folder`, and are shared with those of `servers`."""
        with ExitStack() as stack:
            for group, (asked, llm) in self.models.items():
                log = folder / f"{group}-server.log"
                model = stack.enter_context(llm.running(log, servers))
                stack.enter_context(asked.started(model, ledger))
            # A scorer that holds connections opens them again when it is next asked.
            stack.callback(getattr(getattr(self.reranker, "scorer", None), "close", lambda: None))
            yield


class _Anything:
    """Stands for an index that is not there yet: has every attribute, can be called, and equals
    whatever it is compared with."""

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> _Anything:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)


def _check_engine(engine: Engine) -> _Anything:
    _ = engine.fingerprint
    return _Anything()


def active(config: DictConfig, group: str) -> bool:
    """Whether the group has an option other than `none`."""
    return bool(config[group]) and "_target_" in config[group]


def make_stages(config: DictConfig, unit: str) -> Stages:
    """Make what needs no index; settings are checked before one is built."""
    stages = Stages(make(config.retriever), unit)
    chosen = [group for group in ("rewriter", "reranker") if active(config, group)]
    if chosen:
        keep_bound(config)
    for group in chosen:
        setattr(stages, group, _stage(config, group, stages))
    return stages


def _stage(config: DictConfig, group: str, stages: Stages) -> pt.Transformer:
    factory, own = make(config[group]), f"{group}_llm"
    caches = None if config.paths.caches is None else Path(config.paths.caches)
    given: dict[str, Any] = {"texts": stages.texts, "unit": stages.unit, "caches": caches}
    llm = language_model(config[own], own) or language_model(config.llm, "llm")
    if llm and wants(factory, "model"):
        asked = BlockingModel(llm.name, settings=llm.settings, price=llm.price, role=group)
        stages.models[group], given["model"] = (asked, llm), asked
    do = f"choose a language model for it: llm@{own}=... (or llm=..., which it shares)"
    stage: pt.Transformer = supply(factory, given, what=f"the {group}", do=do)
    return stage


def stage_counts(parts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What the stages have counted, by group, and the seconds that their models took; stages
    without counts are left out."""
    found: dict[str, dict[str, float]] = {}
    for group, part in parts.items():
        counts = dict(getattr(part, "counts", None) or {})
        if hasattr(part, "seconds"):
            counts["seconds"] = round(part.seconds, 3)
        if counts:
            found[group] = counts
    return found
