"""Datasets of `ir_datasets` by their ids: which there are, their splits, and errors in one line."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from toolkit.console import tell
from toolkit.errors import InputError

_CATALOGUE = "https://ir-datasets.com"
_SHOWN = 12  # ids or names in a message
_LONGEST = 300  # characters of an error of others
_STEP = re.compile(r"\[(starting|finished)\] |Opening .* (access|memory|MMAP)$|extracted ")


def library() -> Any:
    """The package `ir_datasets`, which makes its folder when it is imported. Of what it has to say,
    steps and bars are left out, which would run into ours; the rest is told in our form."""
    try:
        package = importlib.import_module("ir_datasets")
    except OSError as error:
        raise InputError(
            f"ir_datasets cannot make its folder: {error}",
            do="name another one with the environment variable IR_DATASETS_HOME",
        ) from error
    _quieted()
    return package


@cache
def _quieted() -> None:
    log = importlib.import_module("ir_datasets.log").easy().logger()
    log.handlers[:] = [_Teller()]
    bars = importlib.import_module("tqdm")

    class Unseen(bars.tqdm):  # type: ignore[misc, name-defined]
        """A bar that counts, because downloads go on from its count, and is not drawn."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "file": _Nowhere()})
            if str(self.desc).startswith("http"):
                size = f" ({self.total / 1e6:,.1f} MB)" if self.total else ""
                tell(f"ir_datasets downloads {self.desc}{size}")

    libraries = importlib.import_module("ir_datasets.lazy_libs")
    libraries._cache["tqdm"] = SimpleNamespace(tqdm=Unseen)


class _Nowhere(io.StringIO):
    """Where what is written is lost."""

    def write(self, text: str) -> int:
        return len(text)


class _Teller(logging.Handler):
    """Tells what is logged, but the steps of usual work."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno > logging.INFO or not _STEP.match(message):
            tell(f"ir_datasets: {message}")


def _load(dataset: str) -> Any:
    """The dataset of that id; None where there is none."""
    try:
        with reading(dataset, "description"):
            return library().load(dataset)
    except InputError as error:
        if isinstance(error.__cause__, KeyError):
            return None
        raise


def complete(dataset: str) -> Any:
    """The dataset of that id; `InputError` where there is none, and where it lacks a part."""
    source = _load(dataset)
    if source is None:
        raise InputError(
            f"ir_datasets has no dataset {dataset!r}",
            valid=_similar(dataset),
            do=f"See {_CATALOGUE}",
        )
    for kind in ("docs", "queries", "qrels"):
        if not source.has(kind):
            raise InputError(
                f"the dataset {dataset} has no {kind}",
                valid=f"one with docs, queries and qrels: {_relatives(dataset, source)}",
                do=f"See {_page(dataset)}",
            )
    return source


def with_split(dataset: str, split: str | None) -> str:
    """The id of a split of `dataset`: below it, or beside it, and of the same documents."""
    if split is None:
        return dataset
    source = _load(dataset)
    if source is None:
        return dataset  # whose message is that of `complete`
    beside = [dataset.rpartition("/")[0]] if "/" in dataset else []
    ids = [f"{prefix}/{split}" for prefix in (dataset, *beside)]
    present = [name for name in ids if _same_documents(source, _load(name))]
    if len(present) > 1:
        raise InputError(
            f"the split {split!r} of {dataset} could be {' or '.join(present)}",
            do="name one as the dataset, with split=null",
        )
    if not present:
        raise InputError(
            f"the dataset {dataset} has no split {split!r}",
            valid=f"null, or the last part of another dataset: {_relatives(dataset, source)}",
        )
    return present[0]


def _same_documents(one: Any, other: Any) -> bool:
    if other is None or not (one.has("docs") and other.has("docs")):
        return False
    return bool(one.docs_handler() == other.docs_handler())


def _relatives(dataset: str, source: Any) -> str:
    """Ids below and beside a dataset that have its documents, queries and judgements."""
    places = {dataset, dataset.rpartition("/")[0]} - {""}
    near = sorted(name for name in library().registry if name.rpartition("/")[0] in places)
    loaded = [(name, _load(name)) for name in near]
    names = [
        name
        for name, other in loaded
        if other.has("queries") and other.has("qrels") and _same_documents(source, other)
    ]
    return _listed(names) or "there are none"


def _similar(dataset: str) -> str:
    ids = sorted(library().registry)
    near = difflib.get_close_matches(dataset, ids, n=_SHOWN)
    return _listed(near or sorted({name.split("/")[0] for name in ids}))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _page(dataset: str) -> str:
    return f"{_CATALOGUE}/{dataset.split('/')[0]}.html"


@contextmanager
def reading(dataset: str, what: str) -> Iterator[None]:
    """A block in which `ir_datasets` works; what it raises becomes an `InputError`. Besides errors
    of the network, its readers raise anything for a file that is not as it should be."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise _unreadable(dataset, what, error) from error


def _unreadable(dataset: str, what: str, error: Exception) -> InputError:
    failures = _failures(error)
    addresses = " and ".join(filter(None, (address for address, _ in failures)))
    source = f" from {addresses}" if addresses else ""
    cause = failures[0][1]
    reason = getattr(next(iter(cause.args), None), "reason", cause)  # of a failed connection
    home = library().util.home_path()
    return InputError(
        f"ir_datasets could not get the {what} of {dataset}{source}: {type(cause).__name__}:"
        f" {str(reason)[:_LONGEST]}",
        do=f"{_page(dataset)} tells where the files come from. Check the network, or copy the"
        f" folder of an ir_datasets that has them to {home} (IR_DATASETS_HOME names another place)",
    )


def _failures(error: Exception) -> list[tuple[str, Exception]]:
    """Addresses of downloads and what went wrong there; ir_datasets raises a list of mirrors with
    their errors where it has tried several. Empty for the address of what is no download."""
    for part in error.args:
        if isinstance(part, list) and part:
            return [(str(getattr(mirror, "url", "")), cause) for mirror, cause in part]
    address = getattr(getattr(error, "request", None), "url", "")
    return [(str(address or ""), error)]
