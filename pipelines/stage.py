"""The stages of a pipeline, what a run gives them, and the notes that they make of a search.

A stage is a PyTerrier transformer whose constructor takes plain arguments and is cheap. What only a
run has (index, texts, caches, a language model) reaches it through `bind`; a run reads its
`fingerprint` and `counts`, and ends with `close` what it holds open. A transformer that is not
a `Stage` works in a pipeline too and is bound to nothing.
"""

from __future__ import annotations

import copy
import inspect
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray
from typing_extensions import Self

from soundingline.pipelines.engines.engine import check_support
from soundingline.toolkit.data import Qrels, Unit
from soundingline.toolkit.errors import InputError, check_argument_names, did_you_mean
from soundingline.toolkit.json_text import has_surrogates, replace_surrogates
from soundingline.toolkit.optional import PackageMissing

if TYPE_CHECKING:
    from soundingline.pipelines.engines.engine import Engine
    from soundingline.toolkit.corpus.links import LinkGraph


Texts = Callable[[Sequence[str]], list[Unit]]

_notes: ContextVar[dict[str, Any] | None] = ContextVar("notes of a search", default=None)


@dataclass(frozen=True)
class Collection:
    """One corpus, cut into units and indexed, and what the stages of one run share. Two are equal
    if their fingerprints are. A pickled one has fingerprint, `whole_documents` and `caches` alone.

    Args:
        fingerprint: a hash of the corpus and its units.
        index: the opened index of the run's engine.
        open_index: a function that opens another engine's index of the same units, and builds it if
            it is missing.
        texts: a function from unit ids to `Unit`s in the same order; `KeyError` for an unknown id.
        whole_documents: whether a unit is a whole document.
        caches: the folder in which stages cache results between runs; None: nowhere.
        model: a `BlockingModel` for stages that need a language model; None: there is none.
        links: a function that returns the links between the documents; None: there are none.
        questions: the texts of the benchmark's questions by qid.
        qrels: the benchmark's judgements by tier, qid and docid, for `OracleRetriever` and
            `CrossFittedBM25` alone.
        exclude_own: whether a question's own document is left out when its ranking is measured.
        engine: the run's engine, which also indexes documents with phrases.

    Example:
        >>> collection = Collection("mine", index=index, texts=index.texts)
        >>> BM25(k1=25, b=1.0).bind(collection).search("mill")["docno"].tolist()
        ['d1%p0', 'd1%p1']
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
    exclude_own: bool = field(default=False, compare=False)
    engine: Engine | None = field(default=None, compare=False)

    def __reduce__(self) -> Any:
        # In another process a bound stage works on what it has opened; connections, models and
        # stores do not travel.
        nothing = (None, None, None)
        return Collection, (self.fingerprint, *nothing, self.whole_documents, self.caches)

    def with_model(self, model: Any) -> Collection:
        """The same collection with another language model."""
        return replace(self, model=model)


class ByArguments:
    """An object whose constructor arguments are attributes of the same names. `repr` is code that
    makes such an object again, if those of the arguments are code; `str`, by which `pt.Experiment`
    names systems and files, has the arguments that are not the defaults, without folders. Two
    objects are equal only if they are the same: `pt.GridSearch` keys its parameters by stage.

    Raises:
        TypeError: for an argument that the constructor does not have, with the nearest that it has.
    """

    schematic: Any = {"help_url": ""}  # noqa: RUF012
    """Of PyTerrier's drawings, which look for the address of a page on the network if none is
    given."""

    # PyTerrier's own hash is that of `repr`, which a new value of an argument changes.
    __hash__ = object.__hash__

    def __new__(cls, *_: Any, **arguments: Any) -> Any:
        check_argument_names(cls, arguments)
        return super().__new__(cls)

    def __repr__(self) -> str:
        return _call(type(self), self._arguments(), as_code)

    def __str__(self) -> str:
        parameters = inspect.signature(type(self)).parameters
        chosen = {
            name: value
            for name, value in self._arguments().items()
            if as_code(value) != as_code(parameters[name].default)
        }
        return _call(type(self), chosen, _label)

    def set_parameter(self, name: str, value: Any) -> None:
        """Change one argument, as `pt.GridSearch` and `pt.GridScan` do. Counts begin at 0 again,
        and a model is loaded again.

        Raises:
            InputError: for a value that the constructor refuses, and for a name that is not one of
                its arguments. Nothing is changed then.
        """
        arguments = self._arguments()
        kinds = {each.kind for each in inspect.signature(type(self)).parameters.values()}
        if name not in arguments or inspect.Parameter.VAR_KEYWORD in kinds:
            raise InputError(
                f"{type(self).__name__} has no argument {name!r} that can be set",
                valid=", ".join(arguments),
                do=did_you_mean(name, arguments),
            )
        stage: Any = self  # PyTerrier calls this for transformers alone
        changed = pt.inspect.transformer_apply_attributes(stage, **{name: value})
        vars(self).update(vars(changed))

    def _arguments(self) -> dict[str, Any]:
        parameters = inspect.signature(type(self)).parameters.values()
        # As in PyTerrier, names that begin with `_` are not those of arguments.
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        names = [each.name for each in named if not each.name.startswith("_")]
        return {name: getattr(self, name, None) for name in names}

    def attributes(self) -> list[Any]:
        """The arguments for `pt.inspect`, which would otherwise read `_tokenizer` for `tokenizer`
        and so load a model."""
        parameters = inspect.signature(type(self)).parameters
        return [
            pt.inspect.TransformerAttribute(
                name, value, parameters[name].default, parameters[name].kind
            )
            for name, value in self._arguments().items()
        ]


class Stage(ByArguments, pt.Transformer):
    """A transformer that a run can bind to its collection.

    A subclass is a dataclass, or has a constructor that stores its arguments as attributes; it
    overrides what it needs of the methods below. Stages among its arguments are bound and checked
    with it.

    Example:
        >>> class Lowercase(Stage):
        ...     def transform(self, inp):
        ...         return inp.assign(query=inp["query"].str.lower())
        >>> (Lowercase() >> index.bm25()).search("MILL")["docno"].tolist()
        ['d1%p0', 'd1%p1']
    """

    needs_llm: bool = False
    """Whether it cannot work without a language model in its collection."""

    needs_logprobs: bool = False
    """Whether that model must give log-probabilities."""

    needs_completions: ClassVar[bool] = False
    """Whether that model must continue a text without a chat template."""

    extra: ClassVar[str] = ""
    """The extra that installs the packages of its model; empty if it needs none."""

    collection: Collection | None = None

    def bind(self, collection: Collection) -> Self:
        """A copy that works on `collection`. The copies share models and counts."""
        bound_copy = copy.copy(self)
        bound_copy.collection = collection
        for name, value in self._arguments().items():
            if isinstance(value, pt.Transformer):
                setattr(bound_copy, name, bound(value, collection))
            elif isinstance(value, tuple):
                setattr(bound_copy, name, tuple(bound(part, collection) for part in value))
        return bound_copy

    def enriched(self, collection: Collection) -> Collection:
        """The collection in which all stages rank, if this stage changes it."""
        return collection

    def validate(self, engine: Engine) -> None:
        """Raise `InputError` for settings that cannot work, before anything is built: a checkpoint
        that cannot be loaded, or an `engine` that does not support what the stage needs. Loads no
        weights."""
        check_fingerprint(self)
        check_support(self.needs, type(self).__name__, engine.supports, f"engine={engine.name}")
        for part in self.parts().values():
            if isinstance(part, Stage):
                part.validate(engine)

    @property
    def fingerprint(self) -> str:
        """A hash of what the arguments only name, such as the content of a checkpoint or the text
        of a prompt; empty if the arguments say everything. `InputError` if that cannot be read."""
        return ""

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts of the stage and its bound copies, and `seconds` in its model."""
        return {}

    @property
    def chosen_parameters(self) -> Mapping[str, Any]:
        """What the stage chose by judgements, as plain values for the manifest of a run; of stages
        among its arguments, by the name of the argument. Empty if nothing was chosen."""
        parts = {name: part for name, part in self.parts().items() if isinstance(part, Stage)}
        chosen = {name: part.chosen_parameters for name, part in parts.items()}
        return {name: values for name, values in chosen.items() if values}

    def close(self) -> None:
        """End connections and processes; the next ranking opens them again."""

    @property
    def needs(self) -> frozenset[str]:
        """What the engine must support (`Engine.supports`)."""
        return frozenset()

    @property
    def supports(self) -> frozenset[str]:
        """What a retriever can do for an enrichment: search `weighted queries`, if all retrievers
        among its arguments do, and `enriched documents`, if one does."""
        weighted, documents = frozenset({"weighted queries"}), frozenset({"enriched documents"})
        both = weighted | documents
        parts = [getattr(part, "supports", both) for part in self.parts().values()] or [both]
        return (weighted & frozenset.intersection(*parts)) | (documents & frozenset.union(*parts))

    @property
    def matching(self) -> str:
        """How a retriever matches queries: `lexical` (by words), `learned` (by a model's
        representations), `mixed` or `unknown`. By default as the transformers among its arguments
        do."""
        kinds = set(map(matching_of, self.parts().values())) or {"unknown"}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def parts(self) -> dict[str, pt.Transformer]:
        """The arguments that are transformers; those of `*retrievers` are `retrievers_1` etc."""
        values = self._arguments()
        for name, several in list(values.items()):
            if isinstance(several, tuple):
                values.update((f"{name}_{n}", value) for n, value in enumerate(several, start=1))
        return {n: value for n, value in values.items() if isinstance(value, pt.Transformer)}


def matching_of(transformer: pt.Transformer | None) -> str:
    """How a transformer matches queries (`Stage.matching`); `unknown` if it does not say."""
    return transformer.matching if isinstance(transformer, Stage) else "unknown"


def as_code(value: Any) -> str:
    """`repr`, with a path as `Path('...')`, a method as an attribute of its object, and the stages
    of a pipeline by their own `repr`."""
    if isinstance(value, pt.Compose):
        return f"({' >> '.join(map(as_code, value))})"
    if isinstance(value, PurePath):
        return f"Path({str(value)!r})"
    if inspect.ismethod(value):
        return f"{value.__self__!r}.{value.__name__}"
    return repr(value)


def _call(kind: type, arguments: Mapping[str, Any], code: Callable[[Any], str]) -> str:
    """The call of a constructor: its leading arguments by place, the others by name."""
    parameters = inspect.signature(kind).parameters
    shown: list[str] = []
    for name, value in arguments.items():
        parameter = parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            shown += map(code, value)
            continue
        required = parameter.default is parameter.empty
        leading = required and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        shown.append(code(value) if leading else f"{name}={code(value)}")
    return f"{kind.__name__}({', '.join(shown)})"


def _label(value: Any) -> str:
    """A short form of `as_code`: paths and names of models without folders."""
    if isinstance(value, (ByArguments, pt.Compose)):
        return str(value)
    return re.sub(r"(?<=['\"])[^'\"]*/", "", as_code(value)).replace('"', "'")


def check_fingerprint(part: Any) -> None:
    """`InputError` if the content that the arguments of a part name cannot be read, or if the
    fingerprint that the part has is not a text."""
    if not isinstance(value := part.fingerprint, str):
        raise InputError(f"{part} has the fingerprint {value!r}", valid="a text")


def computes_on_gpu(stage: Any) -> bool:
    """Whether the model of a stage is on a GPU; false for a stage without one."""
    placement = getattr(stage, "placement", None)
    return placement is not None and placement.device.type == "cuda"


def bound(stage: Any, collection: Collection) -> Any:
    """`stage` bound to `collection`; a transformer that is not a `Stage` as it is."""
    return stage.bind(collection) if isinstance(stage, Stage) else stage


def _column_has_surrogates(frame: pd.DataFrame, name: str) -> bool:
    column = frame.get(name)
    if column is None or column.dtype != object:  # Arrow's strings have none
        return False
    return has_surrogates("".join(each for each in column.tolist() if isinstance(each, str)))


def as_pyterrier(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame as PyTerrier's data model has it, which every stage reads: qids are text, and each
    row of a query has its first query that is not missing (PyTerrier's operators leave other rows
    without one), and the same of all columns of the query. Lone surrogates in queries become
    U+FFFD; `InputError` for a docno with one. The frame itself is not changed."""
    if _column_has_surrogates(frame, "docno"):
        raise InputError("a docno has a lone surrogate", valid="ids that UTF-8 can hold")
    if _column_has_surrogates(frame, "query"):
        queries = [replace_surrogates(x) if isinstance(x, str) else x for x in frame["query"]]
        frame = frame.assign(query=pd.Series(queries, frame.index, dtype=object))
    if "qid" not in frame.columns:
        return frame
    if pd.api.types.infer_dtype(frame["qid"], skipna=False) == "integer":
        qids = pd.Series(list(map(str, frame["qid"])), frame.index, dtype=object)
        frame = frame.assign(qid=qids)
    columns = [name for name in topic_columns(frame) if frame[name].hasnans]
    if not columns:
        return frame
    first = frame.groupby("qid", sort=False, dropna=False)[columns].transform("first")
    return frame.assign(**{name: first[name] for name in columns})


def best_first(
    frame: pd.DataFrame, *, by_score: bool = False
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of a ranking in their order, by position, and the number of the query of each. The
    queries are in the order of their first rows, and the rows of a query are by `rank` (unless
    `by_score`), or else by falling `score`, or as they are without both. Equal rows keep their
    order, and what is not a number is last."""
    queries = pd.factorize(frame["qid"])[0]
    keys = np.zeros(len(frame))
    if "rank" in frame.columns and not by_score:
        keys = frame["rank"].to_numpy(dtype=float)
    elif "score" in frame.columns:
        keys = -frame["score"].to_numpy(dtype=float)
    order = np.lexsort((keys, queries))
    return order, queries[order]


def places_in(groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """The place of each row in its group, from 0; `groups` are ascending numbers."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def topic_columns(frame: pd.DataFrame) -> list[str]:
    """The columns of the queries, without `qid`, in their order: those that PyTerrier's rewriters
    keep, and `reasoning`."""
    kept = {*pt.model.query_columns(frame, qid=False), "reasoning"}
    return [name for name in frame.columns if name in kept]


def not_bound(stage: Stage, do: str) -> InputError:
    """The error of a stage that ranks without what it works on."""
    return InputError(f"{type(stage).__name__} is not bound to a collection", do=do)


# A ranking frame cannot hold the notes of a search: a search that finds nothing has no rows, and
# many retrievers drop columns that they do not know.


@contextmanager
def search_notes() -> Iterator[Mapping[str, Any]]:
    """Collect the notes of the stages that run in this block, in this thread. Blocks may be nested:
    a note belongs to the innermost."""
    notes: dict[str, Any] = {}
    outer = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(outer)


def add_note(name: str, value: Any) -> None:
    """Add a JSON value to the notes of the search. A second one of the same name is `<name>_2`, and
    so on. Outside a search nothing is noted."""
    notes = _notes.get()
    if notes is None:
        return
    names = (name if number == 1 else f"{name}_{number}" for number in range(1, len(notes) + 2))
    notes[next(free for free in names if free not in notes)] = value


# Counts and values that several threads and the bound copies of a stage share, and pickled ones do
# not.

Value = TypeVar("Value")


class Counts:
    """Named counts, 0 at first: `counts.add(hits=2)`, read as a dict by `counts()`. Thread-safe."""

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._counts = Counter(dict.fromkeys(names, 0))

    def __reduce__(self) -> Any:
        return Counts, tuple(self._counts)

    def add(self, **numbers: int) -> None:
        """Add to several counts in one step, so that no reader sees a part of it."""
        with self._lock:
            for name, number in numbers.items():
                self._counts[name] += number

    def __call__(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class LazyValues:
    """Values that a stage and all its bound copies share, such as a loaded model. Each is made when
    it is first read. Thread-safe; making one value may read another."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[Any, Any] = {}

    def __reduce__(self) -> Any:
        return LazyValues, ()

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """The value of `key`, which `make()` makes if there is none yet."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            value: Value = self._values[key]
            return value


def shared(make: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """A method without arguments that is computed once for a stage and all its bound copies, which
    have the same `LazyValues` as `_shared`. If an optional package is missing, the error names the
    stage's `extra`."""

    def make_for(stage: Any) -> Value:
        try:
            return make(stage)
        except PackageMissing as error:
            raise PackageMissing(error.package, getattr(stage, "extra", "")) from error

    @wraps(make)
    def read(stage: Any) -> Value:
        values: LazyValues = stage._shared
        return values.get(make, lambda: make_for(stage))

    return read


class LRUCache:
    """The values of the `most` keys that were read last. Thread-safe; a copy in another process is
    empty."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Any, Any] = OrderedDict()

    def __reduce__(self) -> Any:
        return LRUCache, (self._most,)

    def get(self, keys: Sequence[Any], make: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
        """The value of each key. `make` gives those of the keys that are missing, each once."""
        with self._lock:
            known = {key: self._values[key] for key in keys if key in self._values}
        if missing := [key for key in dict.fromkeys(keys) if key not in known]:
            known |= zip(missing, make(missing), strict=True)
        with self._lock:
            for key in keys:
                self._values[key] = known[key]
                self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return [known[key] for key in keys]
