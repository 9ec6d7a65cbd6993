"""Encoding a corpus with a model: batches by length, progress, and going on after a kill."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from operator import length_hint
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from soundingline.pipelines.index_folder import Checked
from soundingline.pipelines.learned import shards
from soundingline.pipelines.learned.shards import Head, Shards
from soundingline.pipelines.models import Placement, in_batches, readable
from soundingline.toolkit.console import progress_bar
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int

# With the largest rows there are (128 float32 a token), a shard's values stay below 1 GB.
_SHARD_CHARACTERS = 1 << 22
# A shard is what a kill loses. The first ones are small, until it is known how fast the model is;
# then half a minute is aimed at, so that none takes more than a minute. Tokens tell what a text
# costs; its characters do not, because a model leaves out the end of a long one.
_FIRST_TOKENS, _GROWTH, _SHARD_SECONDS = 1 << 9, 4, 30.0


class TextEncoder(Protocol):
    """A model that turns the texts of units into arrays.

    Equal fingerprints give equal arrays, but for rounding that depends on the batch: the model's
    content, prefix, pooling, `max_length`, precision. Batch size and device are not part of it.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def device(self) -> Any: ...

    @property
    def batch_tokens(self) -> int:
        """The most that a batch holds, padding included."""
        ...

    def tokenized(self, texts: Sequence[str]) -> tuple[list[Any], list[int]]:
        """What `encode_tokenized` takes for each text, and how many tokens of it the model reads,
        special ones included; at most its limit."""
        ...

    def encode_tokenized(self, items: Sequence[Any]) -> list[NDArray[Any]]:
        """One array a text of one batch, in the order given; of one type, which is how they are
        stored:

        - (dimensions,) of a single-vector model;
        - (tokens, dimensions) of a multi-vector model;
        - (terms,) of `SPARSE` for a learned sparse model, by ascending term.
        """
        ...


class PlacedEncoder(Placement, ABC):
    """What our encoders share: a device and a precision, batches, and texts as they are."""

    @abstractmethod
    def tokenized(self, texts: Sequence[str]) -> tuple[list[Any], list[int]]:
        """See `TextEncoder`."""

    @abstractmethod
    def encode_tokenized(self, items: Sequence[Any]) -> list[NDArray[Any]]:
        """See `TextEncoder`."""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens that the model reads of each text, special ones included."""
        return self.tokenized(texts)[1]

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The array of each text, in batches of like length."""
        if not texts:
            return []
        items, lengths = self.tokenized(texts)
        return in_batches(self.encode_tokenized, items, lengths, self.batch_tokens)


SPARSE = np.dtype([("term", "<i4"), ("weight", "<f4")])
"""A term's number in the model's vocabulary, and its weight."""


def encode_corpus(
    units: Iterable[Unit],
    encoder: TextEncoder,
    folder: Path,
    *,
    corpus_fingerprint: str,
    shard_units: int = 2048,
    total: int | None = None,
    description: str = "encoding",
) -> Shards:
    """Encode the `contents` of all units into `folder`, in their order.

    A shard is at most `shard_units` units, fewer where texts are long, and takes no more than a
    minute. What a killed process has finished in the same folder is kept: a shard is computed
    unless one of equal ids and texts is there.
    `InputError` for a folder of another encoder or corpus, and for values that are not finite. What
    the encoder refuses when it is loaded, it refuses before there is a folder.

    `total`, the number of units if they do not tell it, and `description` are for the progress
    bar. One process a folder: the caller holds a lock.
    """
    check_int("shard_units", shard_units)
    encoder.tokenized([""])
    shards.prepare(folder, encoder.fingerprint, corpus_fingerprint, shard_units)
    heads: list[Head] = []
    reused = 0
    with progress_bar() as progress:
        work = _Work(encoder, folder, progress, description, total or length_hint(units) or None)
        queue = _Queue(units)
        while queue.more():
            head = shards.head(folder, len(heads))
            if head is None:
                heads += work.encode(len(heads), queue.next(shard_units, _SHARD_CHARACTERS))
                continue
            # Perhaps cut by the speed of another machine.
            part = queue.units(head.units)
            if head.digest == _digest(part):
                reused += 1
                work.skip(len(part))
            else:
                head = work.encode_again(len(heads), part)
            heads.append(head)
    shards.finish(folder, heads)
    return Shards(folder, reused=reused)


@contextmanager
def encoded(
    units: Iterable[Unit],
    encoder: TextEncoder,
    path: Path,
    *,
    corpus_fingerprint: str,
    shard_units: int = 2048,
) -> Iterator[Shards]:
    """The units encoded for an index at `path`, in `<path>.encoding`, which survives a kill and is
    removed when the block ends well. `InputError` for a repeated unit id and an empty corpus."""
    checked = Checked(units)
    folder = work_folder(path)
    encoding = encode_corpus(
        checked,
        encoder,
        folder,
        corpus_fingerprint=corpus_fingerprint,
        shard_units=shard_units,
        total=length_hint(units),
        description=f"encoding with {encoder.name}",
    )
    checked.finish()
    yield encoding
    encoding.remove()


def work_folder(path: Path) -> Path:
    """Where the units of an index at `path` are encoded."""
    return path.with_name(f"{path.name}.encoding")


class _Work:
    """Computes shards, and shows how far it is and how fast."""

    def __init__(
        self,
        encoder: TextEncoder,
        folder: Path,
        progress: Progress,
        description: str,
        total: int | None,
    ) -> None:
        self._encoder, self._folder, self._progress = encoder, folder, progress
        self._task = progress.add_task(description, total=total, note="")
        self._encoded, self._seconds = 0, 0.0
        self._tokens = _FIRST_TOKENS  # that the next shard may have

    def skip(self, units: int) -> None:
        self._progress.advance(self._task, units)

    def encode(self, number: int, units: Sequence[Unit]) -> Iterator[Head]:
        """The shards of the units, from `number` on, as many as the encoder's speed wants."""
        texts = _Texts.of(units, self._encoder)
        while texts.units:
            part, texts = texts.split(self._tokens)
            start = time.perf_counter()
            head = self._encode(number, part)
            seconds = max(time.perf_counter() - start, 1e-9)
            in_time = int(sum(part.lengths) / seconds * _SHARD_SECONDS)
            if in_time:  # a shard without tokens tells nothing
                self._tokens = min(in_time, _GROWTH * self._tokens)
            yield head
            number += 1

    def encode_again(self, number: int, units: Sequence[Unit]) -> Head:
        """One shard of just these units."""
        return self._encode(number, _Texts.of(units, self._encoder))

    def _encode(self, number: int, texts: _Texts) -> Head:
        tokens = self._encoder.batch_tokens
        arrays = in_batches(self._batch, texts.items, texts.lengths, tokens)
        ids = [unit.unit_id for unit in texts.units]
        for name, array in zip(ids, arrays, strict=True):
            _check(name, array, self._encoder.name)
        # The only vector of a unit is one row.
        single = arrays[0].ndim == 1 and arrays[0].dtype != SPARSE
        rows = [array[None] for array in arrays] if single else arrays
        empty = sum(not unit.contents.strip() for unit in texts.units)
        return shards.write(self._folder, number, _digest(texts.units), ids, rows, empty)

    def _batch(self, items: list[Any]) -> list[NDArray[Any]]:
        start = time.perf_counter()
        arrays = self._encoder.encode_tokenized(items)
        self._show(len(items), time.perf_counter() - start)
        return arrays

    def _show(self, units: int, seconds: float) -> None:
        self._encoded += units
        self._seconds += seconds
        note = f"{self._encoded / max(self._seconds, 1e-9):,.0f} units/s"
        self._progress.update(self._task, advance=units, note=note)


class _Texts(NamedTuple):
    """Units, what the encoder takes for each, and how many tokens that is."""

    units: Sequence[Unit]
    items: Sequence[Any]
    lengths: Sequence[int]

    @classmethod
    def of(cls, units: Sequence[Unit], encoder: TextEncoder) -> _Texts:
        return cls(units, *encoder.tokenized([readable(unit.contents) for unit in units]))

    def split(self, tokens: int) -> tuple[_Texts, _Texts]:
        """The first units, up to the one that brings them to `tokens` tokens, and the others."""
        end = bisect_left(list(accumulate(self.lengths)), tokens) + 1
        return self._part(slice(end)), self._part(slice(end, None))

    def _part(self, rows: slice) -> _Texts:
        return _Texts(self.units[rows], self.items[rows], self.lengths[rows])


class _Queue:
    """Units in their order, some at a time."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units = iter(units)
        self._first: list[Unit] = []

    def more(self) -> bool:
        """Whether a unit is left."""
        self._first = self._first or list(islice(self._units, 1))
        return bool(self._first)

    def units(self, count: int) -> list[Unit]:
        """The next `count` units, or as many as there are."""
        first, self._first = self._first, []
        return [*first, *islice(self._units, count - len(first))]

    def next(self, most: int, characters: int) -> list[Unit]:
        """The next units: at most `most`, and no more once they have so many characters."""
        part: list[Unit] = []
        held = 0
        while len(part) < most and held < characters and self.more():
            part += self.units(1)
            held += _characters(part[-1:])
        return part


def _characters(units: Iterable[Unit]) -> int:
    return sum(len(unit.title) + len(unit.text) for unit in units)


def _digest(units: Sequence[Unit]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for unit in units:
        for part in unit:
            coded = part.encode("utf-8", "surrogatepass")
            # Lengths keep ("ab", "c") and ("a", "bc") apart.
            digest.update(len(coded).to_bytes(8, "little") + coded)
    return digest.hexdigest()


def _check(unit_id: str, array: NDArray[Any], encoder: str) -> None:
    values = array["weight"] if array.dtype == SPARSE else array
    if not np.isfinite(values).all():
        raise InputError(
            f"{encoder} encodes unit '{unit_id}' to values that are not finite",
            do="set dtype=float32",
        )
