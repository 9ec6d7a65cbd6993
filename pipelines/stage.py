"""The protocol between a run and the stages of its pipeline.

A stage is an ordinary PyTerrier transformer whose constructor takes plain arguments and is cheap.
What only a run can give (index, texts, caches, a language model) reaches it through `bind`; what a
run wants to know of it are `fingerprint` and `counts`; what it holds open ends with `close`. A
transformer without this protocol works as a stage too: nothing is handed to it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyterrier as pt

from soundingline.pipelines.arguments import ByArguments
from soundingline.pipelines.engines.engine import Engine
from soundingline.toolkit.benchmarks.links import LinkGraph
from soundingline.toolkit.data import Qrels, Unit
from soundingline.toolkit.errors import InputError

Texts = Callable[[Sequence[str]], list[Unit]]
Bound = TypeVar("Bound", bound="Stage")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Collection:
    """One corpus, cut into units and indexed, and what the stages of one run share.

    - `fingerprint`: of the corpus and its units. Two collections are equal where it is.
    - `index`: the opened index of the run's engine.
    - `engine`: the run's engine, which also indexes documents with phrases; None: it is not known.
    - `open_index`: opens another engine's index of the same units, which it builds where it is
      missing.
    - `texts`: unit ids to `Unit`s, in the order given; `KeyError` for an unknown id.
    - `whole_documents`: whether a unit is a whole document, which may be longer than any model
      reads.
    - `caches`: the folder where stages keep results between runs; None: nowhere.
    - `qrels`: the benchmark's, by tier, qid and docid, for `oracle` alone; None: not given.
    - `questions`: the texts of the benchmark's questions by qid, for stages that go by the question
      behind an agent's query; None: not known.
    - `links`: gives the links between the corpus's documents; None: there are none.
    - `model`: a `BlockingModel` for stages that ask a language model; None: there is none.
    """

    fingerprint: str
    index: Any = field(default=None, compare=False)
    open_index: Callable[[Engine], Any] | None = field(default=None, compare=False)
    texts: Texts | None = field(default=None, compare=False)
    whole_documents: bool = field(default=False, compare=False)
    caches: Path | None = field(default=None, compare=False)
    model: Any = field(default=None, compare=False)
    links: Callable[[], LinkGraph] | None = field(default=None, compare=False)
    questions: Mapping[str, str] | None = field(default=None, compare=False)
    qrels: Mapping[str, Qrels] | None = field(default=None, compare=False)
    engine: Engine | None = field(default=None, compare=False)

    def __reduce__(self) -> Any:
        # In another process a bound stage works on what it has opened; connections, models and
        # stores do not travel.
        nothing = (None, None, None)
        return Collection, (self.fingerprint, *nothing, self.whole_documents, self.caches)

    def with_model(self, model: Any) -> Collection:
        """The same collection for a stage that asks `model`."""
        return replace(self, model=model)


class Stage(ByArguments, pt.Transformer):
    """A transformer that a run can bind to its collection.

    Two are equal where arguments (`ByArguments`) and collection are. A subclass overrides what it
    needs of `bind`, `check`, `fingerprint`, `counts` and `close`.
    """

    asks_model: ClassVar[bool] = False
    """Whether it cannot work without a language model in its collection."""

    asks_logprobs: ClassVar[bool] = False
    """Whether that model must give log-probabilities."""

    asks_completions: ClassVar[bool] = False
    """Whether that model must continue a text without a chat template."""

    collection: Collection | None = None

    def bind(self: Bound, collection: Collection) -> Bound:
        """A copy that works on `collection`. The stage itself never changes, so that threads may
        bind it side by side; models and counts that are expensive or shared stay shared."""
        bound = copy.copy(self)
        bound.collection = collection
        return bound

    def enriched(self, collection: Collection) -> Collection:
        """The collection that all stages rank in, where this one changes it."""
        return collection

    def check(self, engine: Engine) -> None:
        """`InputError` for settings that cannot work, before anything is built: a checkpoint that
        cannot be had, or a ranking that the run's `engine` does not offer. Loads no weights."""
        _ = self.fingerprint

    @property
    def fingerprint(self) -> str:
        """Hash of what the arguments only name, such as a checkpoint's content or a prompt's text;
        empty where the arguments tell everything. `InputError` where that cannot be read."""
        return ""

    @property
    def counts(self) -> Mapping[str, float]:
        """What the stage and its bound copies have counted so far, and `seconds` in its model."""
        return {}

    def close(self) -> None:
        """End connections and processes; the next ranking opens them again."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.collection == getattr(other, "collection", None)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.collection))

    def _part(self, kind: Callable[..., Part], **others: Any) -> Part:
        """A `kind` of those of this stage's arguments that its constructor takes too, and
        `others`. They must be attributes already."""
        own = inspect.signature(type(self).__init__).parameters
        names = [name for name in inspect.signature(kind).parameters if name in own]
        return kind(**{**{name: getattr(self, name) for name in names}, **others})


def bound(stage: pt.Transformer, collection: Collection) -> pt.Transformer:
    """`stage` bound to `collection`; as it is where it knows no `bind`."""
    return stage.bind(collection) if isinstance(stage, Stage) else stage


def not_bound(stage: Stage, do: str) -> InputError:
    """The error of a stage that ranks before it was given what it works on."""
    return InputError(f"{type(stage).__name__} is not bound to a collection", do=do)
