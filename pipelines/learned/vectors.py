"""Indexes of vectors, of one vector a unit or of many, and exact search in them (approximate search
in compressed ones: `soundingline.pipelines.learned.colbert`).

manifest.json      encoder, corpus, counts, versions, checksums
units.*            unit ids, in the order of the corpus
vectors.npy        [rows, dimensions], float16 or float32
offsets.npy        of a multi-vector model: int64 [units + 1], where each unit's rows begin

The best documents are those of the largest dot product, or of the largest MaxSim: the sum, over the
query's tokens, of each one's largest dot product with any token of the document (late interaction;
Khattab and Zaharia, SIGIR 2020). A dot product is the MaxSim of one vector and one vector.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from soundingline.pipelines.device import check_memory
from soundingline.pipelines.engines.engine import RankedList, ranked_lists
from soundingline.pipelines.index_folder import REBUILD, OpenedIndex, read_manifest, write_manifest
from soundingline.pipelines.learned.encoding import Blocks, load_array
from soundingline.pipelines.learned.retriever import FEWEST, LearnedRetriever
from soundingline.pipelines.lexical.storage import (
    Docnos,
    StringTable,
    StringWriter,
    check_offsets,
    check_table,
    to_bytes,
)
from soundingline.pipelines.retrieve import Retriever
from soundingline.pipelines.stage import MadeOnce, shared_property
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder
from soundingline.toolkit.jit import compiled_for_sums, cores
from soundingline.toolkit.optional import import_optional

Vectors = NDArray[Any]
Search = Callable[[Sequence[Vectors], int], "list[TopK]"]
_UNITS, _VECTORS, _OFFSETS = "units", "vectors.npy", "offsets.npy"
_PACKAGES = ("torch", "transformers", "sentence-transformers")
_PRODUCTS = 1 << 24  # float32 dot products of tokens held at once
_SCORES = 1 << 26  # float32 scores of documents held at once
_ROWS = 1 << 13  # vectors of documents that a thread scores at once
_TILE = 128  # of which the processor's cache holds so many


@dataclass(kw_only=True, eq=False, repr=False)
class VectorRetriever(LearnedRetriever):
    """Ranks units by their vectors. Arguments and errors as of `LearnedRetriever`, and

    Args:
        query_max_length: Tokens that hold a query. The default is the checkpoint's own.
        compute: `numpy` (the vectors stay on disk and in the page cache) or `torch` (on the model's
            device, in its memory). It changes speed, not the index.
    """

    query_max_length: int | None = None
    compute: str = "numpy"

    many_vectors: ClassVar[bool] = False
    """Whether a unit has a vector for each of its tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query_max_length is not None:
            check_int("query_max_length", self.query_max_length, ge=FEWEST)
        if self.compute not in ("numpy", "torch"):
            raise InputError(f"compute={self.compute!r}", valid="numpy, torch")

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The arguments that change a vector, for messages."""

    @abstractmethod
    def encode_queries(self, texts: Sequence[str]) -> Sequence[NDArray[np.float32]]:
        """Each query: [dimensions], or of a multi-vector model [tokens, dimensions]."""

    def write_index(self, blocks: Blocks, path: Path, corpus_fingerprint: str) -> None:
        with atomic_folder(path, replace=True) as folder:
            names = StringWriter(folder / _UNITS)
            for block in blocks:
                names.extend(map(to_bytes, block.unit_ids))
            names.close()
            content = {
                "encoder": self.fingerprint,
                "model": self.model,
                "settings": self.settings,
                "corpus_fingerprint": corpus_fingerprint,
                "dimensions": self.write_vectors(blocks, folder),
                "counts": {name: blocks.counts[name] for name in ("units", "rows", "empty")},
                "versions": {package: version(package) for package in _PACKAGES},
            }
            write_manifest(folder, self.name, content)

    def write_vectors(self, blocks: Blocks, folder: Path) -> int:
        """Write the vectors of an encoded corpus, one after the other; their dimensions."""
        values = next(iter(blocks)).values
        shape = blocks.counts["rows"], values.shape[1]
        vectors = open_memmap(folder / _VECTORS, "w+", values.dtype, shape)
        offsets, begin = [np.zeros(1, np.int64)], 0
        for block in blocks:
            vectors[begin : begin + len(block.values)] = block.values
            offsets.append(block.offsets[1:] + begin)
            begin += len(block.values)
        vectors.flush()
        if self.many_vectors:
            np.save(folder / _OFFSETS, np.concatenate(offsets))
        return int(values.shape[1])

    def check_vectors(self, folder: Path, units: int, rows: int, dimensions: int) -> None:
        """`ValueError` for files of vectors that do not fit together."""
        vectors = load_array(folder / _VECTORS, mapped=True)
        if vectors.shape != (rows, dimensions):
            raise ValueError(f"{_VECTORS} has the shape {list(vectors.shape)}")
        if (folder / _OFFSETS).exists():
            check_rows(load_array(folder / _OFFSETS), units, rows)
        elif rows != units:
            raise ValueError(f"there are {rows} vectors of {units} units and no {_OFFSETS}")

    def read_vectors(self, folder: Path) -> DocumentVectors:
        """All vectors, mapped from disk."""
        offsets = load_array(folder / _OFFSETS) if (folder / _OFFSETS).exists() else None
        return DocumentVectors(np.asarray(load_array(folder / _VECTORS, mapped=True)), offsets)

    def searching(self, folder: Path, documents: DocumentVectors) -> Search:
        """What ranks all documents for queries of vectors."""
        if self.compute == "torch":
            return TorchSearch(documents, self.placement.device)
        return NumpySearch(documents)

    @property
    def index_kind(self) -> str:
        return self.name

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> VectorIndex:
        path = Path(path)
        manifest = read_manifest(path, self.name, corpus_fingerprint, self._check)
        if manifest["encoder"] != self.fingerprint:
            raise InputError(
                f"the {self.name} index at '{path}' was made by another encoder or with other "
                f"settings ({manifest['model']}, {manifest['settings']})",
                valid=f"{self.model}, {dict(self.settings)}",
                do=REBUILD,
            )
        return VectorIndex(path, manifest, self)

    def _check(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        units, rows = manifest["counts"]["units"], manifest["counts"]["rows"]
        check_table(folder / _UNITS, units)
        self.check_vectors(folder, units, rows, manifest["dimensions"])


class VectorIndex(OpenedIndex):
    """An opened index with the model of its queries. `docnos`: unit ids; `documents`: their
    vectors, mapped from disk. Equal if folder, corpus and way of searching are."""

    query_columns: ClassVar[tuple[str, ...]] = ("query_vec", "query")

    def __init__(self, path: Path, manifest: Mapping[str, Any], engine: VectorRetriever) -> None:
        super().__init__(path, manifest)
        self.engine: VectorRetriever = engine
        self.docnos = Docnos(StringTable(path / _UNITS))
        self.documents = engine.read_vectors(path)
        self._shared = MadeOnce()

    def __len__(self) -> int:
        return len(self.docnos)

    def retriever(self, depth: int | None = None) -> Retriever:
        """The best `depth` units of each query (None: as many as the model that opened the index
        ranks); equal scores in the order of the index. The score of a unit does not depend on the
        other queries and units of a frame."""
        return Retriever(depth=self.engine.depth if depth is None else depth, index=self)

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """A query is a text or a vector (see `VectorRetriever.encode_queries`). `InputError` for a
        vector of another shape."""
        return ranked_lists(self.docnos, self._search(self._vectors(queries), depth))

    def score(
        self, queries: Sequence[Any], numbers: Sequence[NDArray[np.int32]], model: Any
    ) -> list[NDArray[np.float32]]:
        """For each query, the scores of the units of these numbers, computed on the CPU from their
        vectors alone."""
        pairs = zip(self._vectors(queries), numbers, strict=True)
        return [maxsim([query], self.documents, of_query)[0] for query, of_query in pairs]

    def _vectors(self, queries: Sequence[Any]) -> Sequence[Vectors]:
        if all(isinstance(query, str) for query in queries):
            queries = self.engine.encode_queries(queries)
        vectors = [np.asarray(query, dtype=np.float32) for query in queries]
        dimensions = self.documents.vectors.shape[1]
        many = self.documents.offsets is not None
        for query in vectors:
            if query.ndim != 1 + many or query.shape[-1] != dimensions:
                raise InputError(
                    f"a query vector has the shape {list(query.shape)}",
                    valid=f"[{'tokens, ' if many else ''}{dimensions}], as the index",
                    do="encode queries with the model that the index was made with",
                )
        return vectors

    @shared_property
    def _search(self) -> Any:
        # Made by the first search: a torch search takes the device's memory.
        return self.engine.searching(self.path, self.documents)

    @property
    def _identity(self) -> tuple[str, ...]:
        return *super()._identity, self.engine.compute


def check_rows(offsets: NDArray[np.int64], units: int, rows: int) -> None:
    """`ValueError` for offsets that do not give each unit a row of its own."""
    check_offsets(offsets, rows, _OFFSETS)
    if len(offsets) != units + 1 or not np.diff(offsets).all():
        raise ValueError(f"{_OFFSETS} does not give each unit a vector")


@dataclass(frozen=True)
class DocumentVectors:
    """The vectors of all documents: `vectors` [rows, dimensions] in float16 or float32, or what
    decodes rows when they are read (`soundingline.pipelines.learned.colbert`).

    `offsets`: int64 [documents + 1]; document `i` has the rows `offsets[i]:offsets[i + 1]`, one at
    least. None: one row a document.
    """

    vectors: Vectors
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.vectors) if self.offsets is None else len(self.offsets) - 1

    def bounds(self, numbers: NDArray[Any] | None) -> NDArray[np.int64]:
        """`offsets` of the documents of these numbers, or of all, one after the other."""
        count = len(self) if numbers is None else len(numbers)
        if self.offsets is None:
            return np.arange(count + 1)
        if numbers is None:
            return self.offsets
        sizes = self.offsets[numbers + 1] - self.offsets[numbers]
        return np.concatenate([[0], np.cumsum(sizes)])

    def rows(self, first: int, last: int, numbers: NDArray[Any] | None) -> Vectors:
        """The rows of the documents of `numbers[first:last]`, one after the other; of the documents
        `first` to `last - 1` without numbers."""
        if numbers is None:
            begin, end = (first, last) if self.offsets is None else self.offsets[[first, last]]
            return self.vectors[begin:end]
        part = numbers[first:last]
        if self.offsets is None:
            return self.vectors[part]
        bounds = self.bounds(part)
        skipped = np.repeat(self.offsets[part] - bounds[:-1], np.diff(bounds))
        return self.vectors[skipped + np.arange(bounds[-1])]


class TopK(NamedTuple):
    """Numbers of documents, best first, and their scores; equal scores by number."""

    numbers: NDArray[np.int64]
    scores: NDArray[np.float64]


class NumpySearch:
    """MaxSim of all documents, whose vectors may be mapped from disk. Thread-safe."""

    def __init__(self, documents: DocumentVectors) -> None:
        self._documents = documents

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[TopK]:
        """The best `depth` documents of each query: [tokens, dimensions], or [dimensions] where
        documents have one vector each."""
        parts = _parts(queries, len(self._documents))
        return [_best(row, depth) for part in parts for row in maxsim(part, self._documents)]


class TorchSearch:
    """The same rankings and scores. A device that holds all vectors, in the type in which they are
    stored, multiplies matrices in float32 to find the documents whose scores `maxsim` computes.
    `InputError` if the vectors do not fit into the device's memory."""

    def __init__(self, documents: DocumentVectors, device: Any) -> None:
        torch = import_optional("torch")
        rows, dimensions = documents.vectors.shape
        what = f"an index of {rows} vectors in {dimensions} dimensions"
        check_memory(documents.vectors.nbytes, device, what)
        self._documents = documents
        # Copied also on the CPU: torch would otherwise hold a writable view of a read-only file.
        self._vectors = torch.tensor(documents.vectors, device=device)
        norms = torch.linalg.vector_norm(self._vectors, dim=1, dtype=torch.float32)
        self._longest = float(norms.max())
        if documents.offsets is not None:
            self._lengths = torch.tensor(np.diff(documents.offsets), device=device)
        self._computing = threading.Lock()  # one set of products at a time in the device's memory

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[TopK]:
        rankings = []
        with self._computing, import_optional("torch").inference_mode():
            for part in _parts(queries, len(self._documents)):
                rankings += self._best_of(part, depth)
        return rankings

    def _best_of(self, queries: Sequence[Vectors], depth: int) -> list[TopK]:
        approximate = self._scores(queries)
        least = approximate.topk(min(depth, len(self._documents)), dim=1).values[:, -1]
        least -= least.new_tensor([self._margin(query) for query in queries])
        candidates = [row.nonzero()[:, 0].cpu().numpy() for row in approximate >= least[:, None]]

        def best(query: Vectors, numbers: NDArray[np.int64]) -> TopK:
            return ordered(numbers, maxsim([query], self._documents, numbers)[0], depth)

        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(best, queries, candidates))

    def _margin(self, query: Vectors) -> float:
        """What two scores of a document can differ by, twice: a sum of n float32 products is within
        n x 2^-24 times the lengths of the two vectors, in any order (Higham, Accuracy and Stability
        of Numerical Algorithms, 3.1)."""
        tokens = np.atleast_2d(query)
        lengths = float(np.linalg.norm(tokens, axis=1).sum()) * self._longest
        return 4 * sum(tokens.shape) * 2**-24 * lengths

    def _scores(self, queries: Sequence[Vectors]) -> Any:
        torch, offsets = import_optional("torch"), self._documents.offsets
        tokens = torch.tensor(np.vstack(queries), dtype=torch.float32, device=self._vectors.device)
        if offsets is None:
            return tokens @ self._vectors.T
        lengths = [len(query) for query in queries]
        blocks = []
        for first, last in _blocks(offsets, _PRODUCTS // max(1, len(tokens))):
            rows = self._vectors[offsets[first] : offsets[last]].float()
            largest = torch.segment_reduce(
                rows @ tokens.T, "max", lengths=self._lengths[first:last], axis=0
            )
            by_query = [part.sum(dim=1) for part in largest.split(lengths, dim=1)]
            blocks.append(torch.stack(by_query))
        return torch.cat(blocks, dim=1)


def maxsim(
    queries: Sequence[Vectors], documents: DocumentVectors, numbers: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """Scores [queries, documents] in float32, of all documents or of those of these numbers.

    A score depends on its query and its document alone: equal documents have equal scores,
    whatever else is scored. Products of matrices would round by their shapes."""
    tokens = np.vstack(queries).astype(np.float32, copy=False)
    starts = np.concatenate([[0], np.cumsum([len(np.atleast_2d(query)) for query in queries])])
    bounds = documents.bounds(numbers)
    scores = np.empty((len(queries), len(bounds) - 1), np.float32)

    def score(part: tuple[int, int]) -> None:
        first, last = part
        rows = documents.rows(first, last, numbers).astype(np.float32, copy=False)
        own = bounds[first : last + 1] - bounds[first]
        _score(tokens, starts, rows, own, scores[:, first:last])

    parts = list(_blocks(bounds, _ROWS))
    if len(parts) == 1:
        score(parts[0])
    else:
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(score, parts))
    return scores


@compiled_for_sums
def _score(
    tokens: NDArray[np.float32],
    starts: NDArray[np.int64],
    rows: NDArray[np.float32],
    bounds: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """Query `i` has the tokens `starts[i]:starts[i + 1]`, document `j` the rows
    `bounds[j]:bounds[j + 1]`. Four tokens at a time are multiplied by each row of some documents,
    which the processor's cache holds meanwhile."""
    count, dimensions = tokens.shape
    largest = np.empty((_TILE, count), np.float32)
    first, last = 0, 1
    while first < len(bounds) - 1:
        while last < len(bounds) - 1 and bounds[last + 1] - bounds[first] <= _TILE:
            last += 1
        for token in range(0, count, 4):
            # The last token is multiplied again where there are no four.
            second, third, fourth = (
                min(token + 1, count - 1),
                min(token + 2, count - 1),
                min(token + 3, count - 1),
            )
            a, b, c, d = tokens[token], tokens[second], tokens[third], tokens[fourth]
            for document in range(first, last):
                of_a = of_b = of_c = of_d = np.float32(-np.inf)
                for number in range(bounds[document], bounds[document + 1]):
                    row = rows[number]
                    with_a = with_b = with_c = with_d = np.float32(0)
                    for i in range(dimensions):
                        with_a += row[i] * a[i]
                        with_b += row[i] * b[i]
                        with_c += row[i] * c[i]
                        with_d += row[i] * d[i]
                    of_a, of_b = max(of_a, with_a), max(of_b, with_b)
                    of_c, of_d = max(of_c, with_c), max(of_d, with_d)
                own = largest[document - first]
                own[token], own[second], own[third], own[fourth] = of_a, of_b, of_c, of_d
        for document in range(first, last):
            for query in range(len(starts) - 1):
                score = np.float32(0)
                for token in range(starts[query], starts[query + 1]):
                    score += largest[document - first, token]
                scores[query, document] = score
        first, last = last, last + 1


def _best(scores: NDArray[np.float32], depth: int) -> TopK:
    """The `depth` highest scores of all documents; of equal ones at the end, the first."""
    if depth >= len(scores):
        return ordered(np.arange(len(scores)), scores, depth)
    least = np.partition(scores, -depth)[-depth]
    numbers = np.flatnonzero(scores >= least)
    return ordered(numbers, scores[numbers], depth)


def _best_of_rows(scores: Any, depth: int) -> list[TopK]:
    """`_best` of each row of a torch tensor [queries, documents], on the tensor's device."""
    least = scores.topk(min(depth, scores.shape[1]), dim=1).values[:, -1:]
    rankings = []
    for row, enough in zip(scores, scores >= least, strict=True):
        numbers = enough.nonzero()[:, 0]
        rankings.append(ordered(numbers.cpu().numpy(), row[numbers].cpu().numpy(), depth))
    return rankings


def ordered(numbers: NDArray[Any], scores: NDArray[np.float32], depth: int) -> TopK:
    """The best of some documents in ascending order of their numbers."""
    order = np.lexsort((numbers, -scores))[:depth]
    return TopK(numbers[order], scores[order].astype(np.float64))


def _parts(queries: Sequence[Vectors], documents: int) -> Iterator[Sequence[Vectors]]:
    """The queries, as many at once as their scores have room for; one at least."""
    size = max(1, _SCORES // max(1, documents))
    return (queries[start : start + size] for start in range(0, len(queries), size))


def _blocks(offsets: NDArray[np.int64], tokens: int) -> Iterator[tuple[int, int]]:
    """Consecutive documents of about `tokens` tokens together, one at least: (first, last + 1)."""
    bounds = [0]
    while bounds[-1] < len(offsets) - 1:
        limit = offsets[bounds[-1]] + tokens
        fitting = int(np.searchsorted(offsets, limit, side="right")) - 1
        bounds.append(max(bounds[-1] + 1, fitting))
    return pairwise(bounds)
