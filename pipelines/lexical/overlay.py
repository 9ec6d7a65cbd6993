"""Extra postings beside an index: phrases that enrich its documents.

An overlay adds occurrences of terms to documents of one index, its base, which stays as it is.
Several overlays can stand beside one base. A folder holds

    manifest.json            written last: format, base, counts, where the phrases come from
    terms.bytes/.offsets     the terms of the phrases, sorted by UTF-8
    offsets.bin              int64 [terms + 1]   where each term's postings begin
    documents.bin            uint32 [postings]   document numbers, ascending within a term
    frequencies.bin          int32 [postings]    occurrences in the document's phrases
    base_frequencies.bin     int32 [postings]    occurrences in the document itself
    lengths.bin              int32 [documents]   tokens of the document's phrases, n-grams aside

The base's own frequency stands beside the added one, because BM25 saturates their sum: a search
scores the base as always, and an overlay's posting then adds what the sum is worth beyond that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.index_folder import REBUILD, is_index, read_manifest, write_manifest
from pipelines.lexical.analyzer import is_ngram
from pipelines.lexical.extra_postings import OverlayArrays
from pipelines.lexical.storage import TERMS, array_path, load_array
from pipelines.lexical.strings import StringTable, StringWriter, to_bytes
from toolkit.errors import InputError
from toolkit.files import folder_made_whole

if TYPE_CHECKING:
    from pipelines.lexical.index import LexicalIndex

KIND = "overlay"
_PHRASES_KEPT = 1 << 18


_TYPES = dict(zip(OverlayArrays._fields, ("<i8", "<u4", "<i4", "<i4"), strict=True))


class Overlay:
    """An opened overlay. Make one with `Overlay.build`, open one with `Overlay.open`."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        self.arrays = OverlayArrays(
            **{name: load_array(path, name, kind) for name, kind in _TYPES.items()}
        )
        self.lengths: NDArray[np.int32] = load_array(path, "lengths", "<i4")
        self.vocabulary = StringTable(path / TERMS)

    @classmethod
    def build(
        cls,
        base: LexicalIndex,
        phrases: Iterable[tuple[str, Sequence[str]]],
        path: str | Path,
        *,
        provenance: Mapping[str, Any] | None = None,
        finish: Callable[[Path], None] | None = None,
    ) -> Overlay:
        """Add `phrases` (unit id, its phrases) to documents of `base` and open the result.

        Every phrase is analysed by itself, so that n-grams never span two phrases, and each
        occurrence of a term in a document's phrases counts. Unit ids that `base` lacks are left
        out; `manifest["counts"]["unknown"]` says how many. A unit id that comes twice has the
        phrases of both. `provenance` (JSON) goes into the manifest; `finish` writes further files
        into the folder, before it appears. Memory: 8 bytes an occurrence of a term, and 24 a
        posting.
        """
        path = Path(path)
        if path.exists() and not is_index(path, KIND):
            raise InputError(
                f"'{path}' exists and is not an overlay; it would be replaced",
                do="name another folder, or remove this one",
            )
        occurrences = _Occurrences(base)
        for unit_id, of_unit in phrases:
            occurrences.add(unit_id, of_unit)
        with folder_made_whole(path) as folder:
            counts = occurrences.write(folder)
            if finish is not None:
                finish(folder)
            content = {"base": _identity(base), "counts": counts, "provenance": provenance or {}}
            write_manifest(folder, KIND, content)
        return cls.open(path, base)

    @classmethod
    def open(cls, path: str | Path, base: LexicalIndex) -> Overlay:
        """Map an overlay. `InputError` where there is none, it is not whole, or of another base."""
        path = Path(path)
        manifest = read_manifest(path, KIND, None)
        if manifest["base"] != _identity(base):
            raise InputError(
                f"the overlay at '{path}' enriches another index",
                valid=f"an overlay of {base!r}, with its analyzer and corpus",
                do=REBUILD,
            )
        return cls(path, manifest)

    def term(self, term: str) -> int:
        """The number of a term; -1 where no phrase has it."""
        return self.vocabulary.find(term)

    def new_documents(self, number: int) -> int:
        """How many documents have the term in a phrase and not in their text."""
        first, last = self.arrays.offsets[number : number + 2].tolist()
        return int((self.arrays.base_frequencies[first:last] == 0).sum())


class _Occurrences:
    """Terms of phrases by document, gathered in memory."""

    def __init__(self, base: LexicalIndex) -> None:
        self._base = base
        self._numbers: dict[str, int] = {}
        self._terms_of: dict[str, tuple[list[int], int]] = {}
        self._documents, self._terms = array("q"), array("q")
        self._lengths = np.zeros(len(base), np.int32)
        self._counts = {"enriched": 0, "phrases": 0, "unknown": 0}

    def add(self, unit_id: str, phrases: Sequence[str]) -> None:
        document = int(self._base.docnos.numbers([unit_id])[0])
        if document < 0:
            self._counts["unknown"] += 1
            return
        self._counts["enriched"] += bool(phrases)
        self._counts["phrases"] += len(phrases)
        for phrase in phrases:
            numbers, tokens = self._analysed(phrase)
            self._terms.extend(numbers)
            self._documents.extend([document] * len(numbers))
            self._lengths[document] += tokens

    def _analysed(self, phrase: str) -> tuple[list[int], int]:
        """The numbers of a phrase's terms, and how many of them are single words."""
        known = self._terms_of.get(phrase)
        if known is None:
            terms = self._base.analyzer.terms(phrase)
            numbers = [self._numbers.setdefault(term, len(self._numbers)) for term in terms]
            known = numbers, len(terms) - sum(map(is_ngram, terms))
            if len(self._terms_of) >= _PHRASES_KEPT:
                self._terms_of.clear()
            self._terms_of[phrase] = known
        return known

    def write(self, folder: Path) -> dict[str, int]:
        terms = sorted(self._numbers, key=to_bytes)
        rank = np.empty(len(terms), np.int64)
        rank[[self._numbers[term] for term in terms]] = np.arange(len(terms))
        numbers = rank[np.frombuffer(self._terms, np.int64)] if self._terms else rank[:0]
        documents = np.frombuffer(self._documents, np.int64) if self._terms else rank[:0]
        keys, frequencies = np.unique(numbers << 32 | documents, return_counts=True)
        owners, holders = keys >> 32, (keys & 0xFFFFFFFF).astype(np.int64)
        offsets = np.searchsorted(owners, np.arange(len(terms) + 1)).astype("<i8")
        values = {
            "offsets": offsets,
            "documents": holders.astype("<u4"),
            "frequencies": frequencies.astype("<i4"),
            "base_frequencies": self._base_frequencies(terms, offsets, holders),
            "lengths": self._lengths.astype("<i4"),
        }
        for name, content in values.items():
            array_path(folder, name).write_bytes(content.tobytes())
        writer = StringWriter(folder / TERMS)
        writer.extend(map(to_bytes, terms))
        writer.close()
        tokens = int(self._lengths.sum(dtype=np.int64))
        return {**self._counts, "terms": len(terms), "postings": len(keys), "tokens": tokens}

    def _base_frequencies(
        self, terms: Sequence[str], offsets: NDArray[Any], holders: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """How often each posting's document has the term itself."""
        out = np.zeros(len(holders), "<i4")
        for number, term in enumerate(terms):
            documents, frequencies = self._base.postings(term)
            if not len(documents):
                continue
            own = slice(int(offsets[number]), int(offsets[number + 1]))
            position = np.searchsorted(documents, holders[own])
            position[position == len(documents)] = 0
            out[own] = np.where(documents[position] == holders[own], frequencies[position], 0)
        return out


def _identity(base: LexicalIndex) -> dict[str, Any]:
    """What must be equal for an overlay to belong to an index: its documents and its terms."""
    manifest = base.manifest
    return {
        "corpus_fingerprint": manifest["corpus_fingerprint"],
        "analyzer_fingerprint": manifest["analyzer_fingerprint"],
        "counts": dict(manifest["counts"]),
    }
