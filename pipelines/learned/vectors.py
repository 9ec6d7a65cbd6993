"""Indexes of vectors, of one vector a unit or of many, with exact search, and compressed ones with
approximate search.

manifest.json      encoder, corpus, counts, versions, checksums
units.*            unit ids, in the order of the corpus
vectors.npy        [rows, dimensions], float16 or float32
offsets.npy        of a multi-vector model: int64 [units + 1], where each unit's rows begin

The best documents are those of the largest dot product, or of the largest MaxSim: the sum, over the
query's tokens, of each one's largest dot product with any token of the document (late interaction;
Khattab and Zaharia, SIGIR 2020). A dot product is the MaxSim of one vector and one vector.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from importlib.metadata import version
from itertools import pairwise
from operator import length_hint
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from soundingline.pipelines.device import (
    choose_device,
    free_bytes,
    free_disk,
    gigabytes,
    within_memory,
)
from soundingline.pipelines.engines.engine import RankedList, ranked_lists
from soundingline.pipelines.index_folder import (
    REBUILD,
    IndexArtifact,
    OpenedIndex,
    is_index,
    read_manifest,
    write_manifest,
    write_metadata,
)
from soundingline.pipelines.learned.encoding import Blocks, load_array, work_folder
from soundingline.pipelines.learned.retriever import FEWEST, Encoder, LearnedEngine
from soundingline.pipelines.lexical.storage import (
    Docnos,
    StringTable,
    StringWriter,
)
from soundingline.pipelines.retrieve import Retriever
from soundingline.pipelines.stage import LazyValues, shared
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder
from soundingline.toolkit.jit import compiled_for_sums, cores
from soundingline.toolkit.optional import check_optional, import_optional

Vectors = NDArray[Any]
_UNITS, _VECTORS, _OFFSETS = "units", "vectors.npy", "offsets.npy"
_PACKAGES = ("torch", "transformers", "sentence-transformers")
_KINDS = ("dense", "colbert")
_SAMPLE = 1024  # units whose tokens are counted to estimate those of all
_SCORES = 1 << 26  # float32 scores held at once; on a device four times as many, with products
_BLOCK_ROWS = 1 << 18  # vectors that a device multiplies at once
_LARGEST_HALF = 1 << 15
_ROWS = 1 << 13  # vectors of documents that a thread scores at once
_TILE = 128  # of which the processor's cache holds so many


@dataclass(kw_only=True, eq=False, repr=False)
class VectorEncoder(Encoder):
    """An encoder whose documents are vectors. Arguments and errors as of `Encoder`, and

    Args:
        query_max_length: Tokens that hold a query. The default is the checkpoint's own.
    """

    query_max_length: int | None = None

    many_vectors: ClassVar[bool] = False
    """Whether a text has a vector for each of its tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query_max_length is not None:
            check_int("query_max_length", self.query_max_length, ge=FEWEST)

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """The arguments that change a vector, for messages."""


@dataclass(kw_only=True, eq=False, repr=False)
class VectorEngine(LearnedEngine):
    """Builds and opens a `VectorIndex` of what an encoder encodes; its device searches it too.

    Example:
        >>> engine = VectorEngine(Dense("intfloat/e5-base-v2"))
        >>> engine.build(units, path, corpus_fingerprint="mine")  # doctest: +SKIP
        >>> pipe = engine.encoder >> engine.open(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    encoder: VectorEncoder = field(kw_only=False)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The arguments that change the index, for messages."""
        return self.encoder.settings

    def write_index(self, blocks: Blocks, path: Path, corpus_fingerprint: str) -> None:
        with atomic_folder(path, replace=True) as folder:
            names = StringWriter(folder / _UNITS)
            for block in blocks:
                names.extend(map(str.encode, block.unit_ids))
            names.close()
            write_metadata(folder, VectorIndex.ARTIFACT_TYPE, VectorIndex.ARTIFACT_FORMAT)
            content = {
                "encoder": self.fingerprint,
                "model": self.encoder.model,
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
        if self.encoder.many_vectors:
            np.save(folder / _OFFSETS, np.concatenate(offsets))
        return int(values.shape[1])

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> VectorIndex:
        device = self.encoder.device
        index = VectorIndex(path, corpus_fingerprint=corpus_fingerprint, device=device)
        if index.manifest["encoder"] != self.fingerprint:
            made = index.manifest
            raise InputError(
                f"the {self.name} index at '{path}' was made by another encoder or with other "
                f"settings ({made['model']}, {made['settings']})",
                valid=f"{self.encoder.model}, {dict(self.settings)}",
                do=REBUILD,
            )
        return index


@dataclass(kw_only=True, eq=False, repr=False)
class MultiVectorEngine(VectorEngine):
    """Builds and opens a `VectorIndex` of an encoder that gives each token a vector.

    Args:
        compression: `none` keeps every vector and searches exactly; `ivf_pq` compresses them to
            about a seventh of float16 and searches approximately (see `CompressedSearch`), which
            needs the extra `faiss`.
        probes: See `VectorIndex`. They do not change the index.

    Example:
        >>> engine = MultiVectorEngine(ColBERT("colbert-ir/colbertv2.0"), compression="ivf_pq")
        >>> engine.build(units, path)  # doctest: +SKIP
        >>> pipe = engine.encoder >> engine.open(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    compression: str = "none"
    probes: int = 32

    def __post_init__(self) -> None:
        if self.compression not in ("none", "ivf_pq"):
            raise InputError(f"compression={self.compression!r}", valid="none, ivf_pq")
        check_int("probes", self.probes)

    @property
    def _changed(self) -> dict[str, str]:
        """The arguments that change the index, where they are not those of exact vectors."""
        return {} if self.compression == "none" else {"compression": self.compression}

    @property
    def fingerprint(self) -> str:
        """`InputError` also for a missing FAISS."""
        if self._changed:
            check_optional("faiss")
        return self.encoder.fingerprint_with(**self._changed)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {**super().settings, **self._changed}

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> VectorIndex:
        index = super().open(path, corpus_fingerprint=corpus_fingerprint)
        index.probes = self.probes
        return index

    def write_vectors(self, blocks: Blocks, folder: Path) -> int:
        write = write_compressed if self._changed else super().write_vectors
        return write(blocks, folder)

    def check_disk(self, units: Iterable[Unit], path: Path) -> None:
        """`InputError` with the sizes if the disk of `path` would not hold the tokens' vectors
        twice (the encoding, and the index that is made of it; a compressed one counts a fifth),
        estimated from the tokens of every n-th unit. Units that can be read only once are not
        checked."""
        if iter(units) is units:
            return
        total = length_hint(units) or sum(1 for _ in units)
        step = max(1, total // _SAMPLE)
        sample = [unit.contents for number, unit in enumerate(units) if number % step == 0]
        if not sample:
            return
        tokens = sum(self.encoder.tokenize(sample).lengths) / len(sample) * total
        (vectors,) = self.encoder.encode([""])
        token_bytes = vectors.shape[1] * vectors.itemsize
        free = _free_bytes(path)
        copies = 1.2 if self._changed else 2
        if copies * tokens * token_bytes > free:
            raise InputError(
                f"the vectors of {total} units, about {tokens / total:.0f} tokens each and "
                f"{vectors.shape[1]} x {vectors.dtype} a token, take "
                f"{gigabytes(int(tokens * token_bytes))} and {copies:g} times that while the index "
                f"is made, and the disk of '{path.parent}' has {gigabytes(free)} free",
                do="re-rank with it instead (reranker=colbert), set compression=ivf_pq or "
                "storage=float16, choose shorter units, or another disk",
            )


def _free_bytes(path: Path) -> int:
    """The free bytes of the disk of an index at `path`. What a killed build has left is counted
    among what is needed, so it counts as free."""
    work = work_folder(path)
    left = sum(
        file.stat().st_size
        for part in work.parent.glob(f"{escape(work.name)}*")  # of every shard
        for file in part.rglob("*")
        if file.is_file()
    )
    return free_disk(path) + left


class VectorIndex(OpenedIndex, IndexArtifact):
    """An index of vectors, one or many a unit. `docnos`: unit ids; `documents`: their vectors,
    mapped from disk. Equal if folder and corpus are.

    It ranks by the column `query_vec`, which an encoder adds: `encoder >> index.retriever()`.

    Args:
        path: The folder of the index.
        corpus_fingerprint: Of the corpus that it must be of; None for any.
        device: Where exact search computes, as `soundingline.pipelines.device.choose_device` says.
            On `cpu` the vectors stay on disk and in the page cache.
        probes: Clusters of a compressed index that are visited for each token of a query. More of
            them find more of the exact ranking and take longer.

    Raises:
        InputError: If there is no index, if it is damaged, or of another corpus.
    """

    ARTIFACT_TYPE, ARTIFACT_FORMAT = "dense_index", "soundingline"
    path: Path
    query_columns: ClassVar[tuple[str, ...]] = ("query_vec",)

    def __init__(
        self,
        path: str | Path,
        *,
        corpus_fingerprint: str | None = None,
        device: str | None = "cpu",
        probes: int = 32,
    ) -> None:
        path = Path(path)
        kind = next((kind for kind in _KINDS if is_index(path, kind)), _KINDS[0])
        super().__init__(path, read_manifest(path, kind, corpus_fingerprint))
        self.device, self.probes = device, probes
        self.docnos = Docnos(StringTable(path / _UNITS))
        self.documents = _read_vectors(path)
        self._shared = LazyValues()

    def __len__(self) -> int:
        return len(self.docnos)

    @property
    def _opener(self) -> str:
        return type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        settings: Any = {"device": self.device, "probes": self.probes}
        return partial(VectorIndex, **settings), (self.path,)

    def retriever(self, depth: int = 1000) -> Retriever:
        """The best `depth` units of each query; equal scores in the order of the index. The score
        of a unit does not depend on the other queries and units of a frame."""
        return Retriever(depth=depth, index=self)

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """A query is a vector [dimensions], or [tokens, dimensions] of a multi-vector model.
        `InputError` for another shape."""
        return ranked_lists(self.docnos, self._search(self._vectors(queries), depth))

    def score(
        self, queries: Sequence[Any], numbers: Sequence[NDArray[np.int32]], model: Any
    ) -> list[NDArray[np.float32]]:
        """For each query, the scores of the units of these numbers, computed on the CPU from their
        vectors alone."""
        pairs = zip(self._vectors(queries), numbers, strict=True)
        return [maxsim([query], self.documents, of_query)[0] for query, of_query in pairs]

    def _vectors(self, queries: Sequence[Any]) -> Sequence[Vectors]:
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

    @property
    @shared
    def _search(self) -> Any:
        # Made by the first search: a torch search takes the device's memory.
        if is_compressed(self.path):
            return CompressedSearch(self.path, self.documents, self.probes)
        # Only a choice imports torch.
        if self.device != "cpu" and (device := choose_device(self.device)).type != "cpu":
            return TorchSearch(self.documents, device)
        return NumpySearch(self.documents)


def _read_vectors(folder: Path) -> DocumentVectors:
    """All vectors, mapped from disk."""
    if is_compressed(folder):
        return read_compressed(folder)
    offsets = load_array(folder / _OFFSETS) if (folder / _OFFSETS).exists() else None
    return DocumentVectors(np.asarray(load_array(folder / _VECTORS, mapped=True)), offsets)


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


class BestDocuments(NamedTuple):
    """Numbers of documents, best first, and their scores; equal scores by number."""

    numbers: NDArray[np.int64]
    scores: NDArray[np.float64]


class NumpySearch:
    """MaxSim of all documents, whose vectors may be mapped from disk. Thread-safe."""

    def __init__(self, documents: DocumentVectors) -> None:
        self._documents = documents

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[BestDocuments]:
        """The best `depth` documents of each query: [tokens, dimensions], or [dimensions] where
        documents have one vector each."""
        parts = _parts(queries, len(self._documents))
        return [_best(row, depth) for part in parts for row in maxsim(part, self._documents)]


class TorchSearch:
    """The same rankings and scores. A device multiplies matrices to find the documents whose scores
    `maxsim` computes, in the type in which vectors are stored and with sums in float32.

    Documents of similar length are a block, in which each is filled up by its last vector: another
    time the same vector changes no maximum. The device holds all blocks if they take three quarters
    of its free memory at most; otherwise each search copies them one by one.
    """

    def __init__(self, documents: DocumentVectors, device: Any) -> None:
        torch = import_optional("torch")
        self._documents, self._device = documents, device
        self._offsets = documents.bounds(None)
        self._lengths = np.diff(self._offsets)
        row_bytes = documents.vectors.shape[1] * documents.vectors.itemsize
        free = free_bytes(device)
        # A block is a part of the memory that leaves room for products.
        self._blocks = list(self._by_length(max(1, min(_BLOCK_ROWS, free // 16 // row_bytes))))
        self._numbers = [torch.from_numpy(block).to(device) for block in self._blocks]
        rows = sum(len(block) * int(self._lengths[block[-1]]) for block in self._blocks)
        holds = 4 * rows * row_bytes <= 3 * free
        self._held: list[Any] = []
        self._longest = 0.0
        for block in self._blocks:
            vectors = self._load(block)
            lengths = torch.linalg.vector_norm(vectors, dim=2, dtype=torch.float32)
            self._longest = max(self._longest, float(lengths.max()))
            if holds:
                self._held.append(vectors)
        self._computing = threading.Lock()  # one set of products at a time in the device's memory

    def _by_length(self, rows: int) -> Iterator[NDArray[np.int64]]:
        """The numbers of the documents by length, as many as have at most `rows` vectors when they
        are filled up, one at least."""
        order = np.argsort(self._lengths, kind="stable")
        while len(order):
            filled = self._lengths[order[:rows]] * np.arange(1, len(order[:rows]) + 1)
            size = max(1, int(np.searchsorted(filled, rows, side="right")))
            yield order[:size]
            order = order[size:]

    def _load(self, numbers: NDArray[np.int64]) -> Any:
        """The vectors of a block's documents: [documents, longest, dimensions]."""
        lengths = self._lengths[numbers][:, None]
        rows = self._offsets[numbers][:, None] + np.minimum(np.arange(lengths[-1, 0]), lengths - 1)
        return import_optional("torch").from_numpy(self._documents.vectors[rows]).to(self._device)

    def __call__(self, queries: Sequence[Vectors], depth: int) -> list[BestDocuments]:
        rankings = []
        longest = max((len(np.atleast_2d(query)) for query in queries), default=1)
        do = "set device=cpu, with which the vectors stay on disk"
        with (
            self._computing,
            import_optional("torch").inference_mode(),
            within_memory(self._device, f"a search of {len(self._documents)} documents", do),
        ):
            for part in _parts(queries, (len(self._documents) + _BLOCK_ROWS * longest) // 4):
                rankings += self._best_of(part, min(depth, len(self._documents)))
        return rankings

    def _best_of(self, queries: Sequence[Vectors], depth: int) -> list[BestDocuments]:
        norms = [np.linalg.norm(np.atleast_2d(query), axis=1) for query in queries]
        # Beyond, a product in half precision may be infinite.
        half = self._documents.vectors.dtype == np.float16
        half = half and max(map(np.max, norms)) * self._longest < _LARGEST_HALF
        approximate = self._scores(queries, half)
        least = approximate.topk(depth, dim=1).values[:, -1:]
        least -= least.new_tensor([[self._margin(each, half)] for each in norms])
        pairs = (approximate >= least).nonzero().cpu().numpy()  # of a query and a document
        ends = np.searchsorted(pairs[:, 0], np.arange(1, len(queries)))
        candidates = np.split(pairs[:, 1], ends)

        def best(query: Vectors, numbers: NDArray[np.int64]) -> BestDocuments:
            return select_best(numbers, maxsim([query], self._documents, numbers)[0], depth)

        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(best, queries, candidates))

    def _margin(self, norms: NDArray[np.float32], half: bool) -> float:
        """What two scores of a document can differ by, twice, for a query whose tokens have vectors
        of these lengths. A sum of n float32 products is within n x 2^-24 times the lengths of the
        two vectors, in any order (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). In
        half precision a query, a product and its parts are each rounded, within 2^-11 times these
        lengths, or within 2^-25 where they are close to 0."""
        dimensions = self._documents.vectors.shape[1]
        rounding = 2 * (len(norms) + dimensions) * 2**-24 + (3 * 2**-11 if half else 0)
        margin = 2 * rounding * float(norms.sum()) * self._longest
        small = 2**-25 * (2 + math.sqrt(dimensions) * self._longest)
        return margin + (2 * len(norms) * small if half else 0)

    def _scores(self, queries: Sequence[Vectors], half: bool) -> Any:
        """float32 [queries, documents]."""
        torch = import_optional("torch")
        dtype = torch.float16 if half else torch.float32
        rows = [torch.tensor(np.atleast_2d(query), dtype=dtype) for query in queries]
        # The vectors of zeros that fill up a query add 0.
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self._device)
        scores = torch.zeros(len(self._documents), len(queries), device=self._device)
        loaded = self._held or map(self._load, self._blocks)
        for numbers, vectors in zip(self._numbers, loaded, strict=True):
            products = vectors.flatten(0, 1).to(dtype) @ tokens.flatten(0, 1).T
            products = products.view(*vectors.shape[:2], len(queries), -1)
            scores[numbers] = products.amax(1).float().sum(2)
        return scores.T


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


def _best(scores: NDArray[np.float32], depth: int) -> BestDocuments:
    """The `depth` highest scores of all documents; of equal ones at the end, the first."""
    if depth >= len(scores):
        return select_best(np.arange(len(scores)), scores, depth)
    least = np.partition(scores, -depth)[-depth]
    numbers = np.flatnonzero(scores >= least)
    return select_best(numbers, scores[numbers], depth)


def select_best(numbers: NDArray[Any], scores: NDArray[np.float32], depth: int) -> BestDocuments:
    """The best of some documents in ascending order of their numbers."""
    order = np.lexsort((numbers, -scores))[:depth]
    return BestDocuments(numbers[order], scores[order].astype(np.float64))


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


# A compressed index of token vectors, searched in three stages as PLAID does (Santhanam et al.,
# CIKM 2022). FAISS clusters, encodes and decodes the vectors.
#
# codec.faiss   centroids and product quantiser, as FAISS writes them
# lists.npy     uint16 [rows], the centroid of each vector
# codes.npy     uint8 [rows, dimensions / 4], the quantised difference from it
# postings.npy  int32, for each centroid the documents with a vector in its list, ascending
# bounds.npy    int64 [centroids + 1], where each centroid's documents begin
# offsets.npy   int64 [documents + 1], where each document's vectors begin

FEWEST_ROWS = 1 << 13
"""Vectors of the smallest collection: a quantiser of 256 values needs 39 for each."""
_CODEC, _LISTS, _CODES = "codec.faiss", "lists.npy", "codes.npy"
_POSTINGS, _BOUNDS = "postings.npy", "bounds.npy"
_SUB = 4  # dimensions of a byte
_PER_LIST = 40  # vectors that train a centroid
_ROUNDS = 10  # of k-means
_MOST_LISTS = 1 << 16  # numbers of 16 bits
_GRAPH = 1 << 13  # centroids above which a graph finds the nearest one
_LEAST = 4096  # documents that are scored by decoded vectors
_DECODED = 1 << 17  # vectors that are decoded or encoded at once


class CompressedVectors:
    """Vectors that are decoded when they are read: `self[rows]` is float32 [rows, dimensions]."""

    dtype = np.dtype(np.float32)

    def __init__(self, folder: Path) -> None:
        self.codec = import_optional("faiss").read_index(str(folder / _CODEC))
        self.lists = np.asarray(load_array(folder / _LISTS, mapped=True))
        self._codes = np.asarray(load_array(folder / _CODES, mapped=True))
        self.shape = len(self._codes), int(self.codec.d)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        # FAISS stores list numbers little-endian, in as few bytes as hold the largest.
        size = self.codec.sa_code_size() - self.codec.code_size
        lists = self.lists[rows].astype("<u2").view(np.uint8).reshape(-1, 2)[:, :size]
        parts = lists, self._codes[rows]
        decoded: NDArray[np.float32] = self.codec.sa_decode(np.ascontiguousarray(np.hstack(parts)))
        return decoded


def write_compressed(blocks: Blocks, folder: Path) -> int:
    """Write the vectors of an encoded corpus; their dimensions. `InputError` for vectors too few to
    train on, and for dimensions that are not a multiple of 4."""
    rows = blocks.counts["rows"]
    dimensions = next(iter(blocks)).values.shape[1]
    if rows < FEWEST_ROWS or dimensions % _SUB:
        raise InputError(
            f"compression=ivf_pq for {rows} vectors of {dimensions} dimensions",
            valid=f"{FEWEST_ROWS} vectors or more, in a multiple of {_SUB} dimensions",
            do="set compression=none",
        )
    codec = _trained(blocks, rows, dimensions)
    lists = open_memmap(folder / _LISTS, "w+", np.uint16, (rows,))
    codes = open_memmap(folder / _CODES, "w+", np.uint8, (rows, dimensions // _SUB))
    offsets, begin = [np.zeros(1, np.int64)], 0
    for block in blocks:
        for first in range(0, len(block.values), _DECODED):
            part = block.values[first : first + _DECODED].astype(np.float32)
            whole = codec.sa_encode(part)
            end, head = begin + len(part), whole.shape[1] - codes.shape[1]
            codes[begin:end] = whole[:, head:]
            lists[begin:end] = whole[:, :head] @ (256 ** np.arange(head))
            begin = end
        offsets.append(block.offsets[1:] + offsets[-1][-1])
    lists.flush()
    codes.flush()
    import_optional("faiss").write_index(codec, str(folder / _CODEC))
    np.save(folder / _OFFSETS, np.concatenate(offsets))
    _write_postings(folder, lists, np.concatenate(offsets), codec.nlist)
    return dimensions


def _trained(blocks: Blocks, rows: int, dimensions: int) -> Any:
    """An index of FAISS without vectors: its centroids and its quantiser."""
    faiss = import_optional("faiss")
    most = min(4 * math.sqrt(rows), rows / _PER_LIST, _MOST_LISTS)
    lists = 1 << int(math.log2(most))
    coarse = f"IVF{lists}_HNSW32" if lists >= _GRAPH else f"IVF{lists}"
    # `np`: no polysemous codes, whose training takes longer than all the rest.
    recipe = f"{coarse},PQ{dimensions // _SUB}x8np"
    codec = faiss.index_factory(dimensions, recipe, faiss.METRIC_INNER_PRODUCT)
    codec.cp.niter = codec.pq.cp.niter = _ROUNDS
    step = max(1, rows // (_PER_LIST * max(lists, 256)))
    sample, first = [], 0  # Every row of a multiple of `step`, whatever the blocks.
    for block in blocks:
        sample.append(block.values[first::step].astype(np.float32))
        first = (first - len(block.values)) % step
    codec.train(np.concatenate(sample))
    return codec


def _write_postings(
    folder: Path, lists: NDArray[np.uint16], offsets: NDArray[np.int64], number: int
) -> None:
    """Two passes over the lists of all vectors, so that memory holds one part."""
    counts = np.zeros(number, np.int64)
    for of_list, _ in _pairs(lists, offsets):
        counts += np.bincount(of_list, minlength=number)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    postings = open_memmap(folder / _POSTINGS, "w+", np.int32, (int(bounds[-1]),))
    free = bounds[:-1].copy()
    for of_list, documents in _pairs(lists, offsets):
        first = np.searchsorted(of_list, of_list)
        postings[free[of_list] + np.arange(len(of_list)) - first] = documents
        free += np.bincount(of_list, minlength=number)
    postings.flush()
    np.save(folder / _BOUNDS, bounds)


def _pairs(
    lists: NDArray[np.uint16], offsets: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The different pairs of list and document, of many documents at once; ascending."""
    total = len(offsets) - 1
    step = max(1, _DECODED * 8 * total // max(1, len(lists)))
    for first in range(0, total, step):
        part = offsets[first : first + step + 1]
        documents = np.repeat(np.arange(first, first + len(part) - 1), np.diff(part))
        keys = np.unique(lists[part[0] : part[-1]].astype(np.int64) * total + documents)
        yield keys // total, keys % total


def read_compressed(folder: Path) -> DocumentVectors:
    """The vectors that `write_compressed` wrote; `InputError` if FAISS is not installed."""
    vectors: Any = CompressedVectors(folder)
    return DocumentVectors(vectors, load_array(folder / _OFFSETS))


def is_compressed(folder: Path) -> bool:
    """Whether an index holds vectors of `write_compressed`."""
    return (folder / _CODEC).exists()


class CompressedSearch:
    """Approximate search; thread-safe. The `probes` centroids that are nearest to each token of the
    query name the candidates. MaxSim with each vector replaced by its centroid orders them, and
    MaxSim over the decoded vectors orders the best 4 x depth, 4096 at least."""

    def __init__(self, folder: Path, documents: DocumentVectors, probes: int) -> None:
        self._documents, self._probes = documents, probes
        vectors: Any = documents.vectors
        self._lists = vectors.lists
        self._centroids = vectors.codec.quantizer.reconstruct_n(0, vectors.codec.nlist)
        self._postings = np.asarray(load_array(folder / _POSTINGS, mapped=True))
        self._bounds = load_array(folder / _BOUNDS)

    def __call__(self, queries: Sequence[NDArray[Any]], depth: int) -> list[BestDocuments]:
        """The best documents of each query [tokens, dimensions], `depth` at most."""
        return [self._search(query.astype(np.float32, copy=False), depth) for query in queries]

    def _search(self, query: NDArray[np.float32], depth: int) -> BestDocuments:
        similar = self._centroids @ query.T
        candidates = self._candidates(similar)
        rescored = max(4 * depth, _LEAST)
        if len(candidates) > rescored:
            scores = self._approximate(similar, candidates)
            candidates = np.sort(candidates[np.argpartition(-scores, rescored)[:rescored]])
        (scores,) = maxsim([query], self._documents, candidates)
        return select_best(candidates, scores, depth)

    def _candidates(self, similar: NDArray[np.float32]) -> NDArray[np.int64]:
        probes = min(self._probes, len(similar))
        nearest = np.unique(np.argpartition(-similar, probes - 1, axis=0)[:probes])
        named = np.zeros(len(self._documents), bool)
        for number in nearest.tolist():
            named[self._postings[self._bounds[number] : self._bounds[number + 1]]] = True
        return np.flatnonzero(named)

    def _approximate(
        self, similar: NDArray[np.float32], candidates: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        scores = np.empty(len(candidates), np.float32)
        offsets: Any = self._documents.offsets
        bounds = np.linspace(0, len(candidates), cores() + 1).astype(int)

        def score(part: tuple[int, int]) -> None:
            own = slice(*part)
            _score_centroids(similar, self._lists, offsets, candidates[own], scores[own])

        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(score, pairwise(bounds.tolist())))
        return scores


@compiled_for_sums
def _score_centroids(
    similar: NDArray[np.float32],
    lists: NDArray[np.uint16],
    offsets: NDArray[np.int64],
    candidates: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> None:
    """MaxSim of each candidate with its vectors replaced by their centroids."""
    tokens = similar.shape[1]
    best = np.empty(tokens, np.float32)
    for number in range(len(candidates)):
        best[:] = -np.inf
        for row in range(offsets[candidates[number]], offsets[candidates[number] + 1]):
            of_row = similar[lists[row]]
            for token in range(tokens):
                best[token] = max(best[token], of_row[token])
        scores[number] = best.sum()
