"""ColBERT (Khattab and Zaharia, SIGIR 2020): a vector for every token, and MaxSim.

The retriever stores the vectors of all tokens: a passage of 200 tokens takes 51 kB in float16, and
8 kB in a compressed index. The re-ranker encodes documents when it scores them.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import escape
from itertools import pairwise
from operator import length_hint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from soundingline.pipelines.learned.encoding import Blocks, load_array, work_folder
from soundingline.pipelines.learned.retriever import continue_in_float32
from soundingline.pipelines.learned.vectors import (
    DocumentVectors,
    Search,
    TopK,
    VectorRetriever,
    check_rows,
    maxsim,
    ordered,
)
from soundingline.pipelines.lexical.storage import check_offsets
from soundingline.pipelines.models import (
    checkpoint_fingerprint,
    cut,
    gigabytes,
    readable,
    stored_config,
    stored_file,
    within_memory,
)
from soundingline.pipelines.stage import shared_property
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.jit import compiled_for_sums, cores
from soundingline.toolkit.optional import check_optional, import_optional

_STORAGES = {"float16": np.float16, "float32": np.float32}
_SAMPLE = 1024  # units whose tokens are counted to estimate those of all
_UNBOUNDED = 1 << 20
# What only a multi-vector checkpoint's config_sentence_transformers.json has: PyLate's from before
# there was a `model_type`.
_KINDS = ("MultiVectorEncoder", "ColBERT")
_KEYS = ("query_prefix", "document_prefix", "query_length", "skiplist_words")


@dataclass(kw_only=True, eq=False, repr=False)
class ColBERT(VectorRetriever):
    """Ranks units by MaxSim (Khattab and Zaharia, SIGIR 2020).

    It reads checkpoints of sentence-transformers, PyLate and Stanford (`colbert-ir/colbertv2.0`),
    and keeps their markers, expansion of queries by masks, left-out tokens and normalisation.
    Columns, further arguments and errors as in `VectorRetriever`.

    Args:
        storage: The type of the stored vectors: `float16` (half the space; scores differ in the
            fourth digit) or `float32`.
        compression: `none` keeps every vector and searches exactly; `ivf_pq` compresses them to
            about a seventh of float16 and searches approximately (see `CompressedSearch`), which
            needs the extra `faiss`.
        probes: Clusters that `ivf_pq` visits for each token of a query. More of them find more of
            the exact ranking and take longer. They do not change the index.

    ColBERTv2's own lengths are 180 for documents and 32 for queries. A query that is expanded has
    `query_max_length` tokens.

    Example:
        >>> colbert = ColBERT("colbert-ir/colbertv2.0", storage="float16")
        >>> colbert.build(units, path, corpus_fingerprint="mine")  # doctest: +SKIP
        >>> pipe = colbert.open(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    storage: str = "float16"
    compression: str = "none"
    probes: int = 32

    name = "colbert"
    many_vectors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage not in _STORAGES:
            raise InputError(f"storage={self.storage!r}", valid=", ".join(_STORAGES))
        if self.compression not in ("none", "ivf_pq"):
            raise InputError(f"compression={self.compression!r}", valid="none, ivf_pq")
        check_int("probes", self.probes)
        if self._compressed and self.compute != "numpy":
            raise InputError(
                f"compression=ivf_pq with compute={self.compute}", valid="compute=numpy"
            )

    @shared_property
    def fingerprint(self) -> str:
        """`InputError` also for a missing FAISS."""
        if self._compressed:
            check_optional("faiss")
        _check_kind(self.model, self.revision)
        content = checkpoint_fingerprint(self.model, self.revision)
        return fingerprint("colbert", content, self.settings)

    @property
    def settings(self) -> Mapping[str, Any]:
        settings = {
            "max_length": self.max_length,
            "query_max_length": self.query_max_length,
            "storage": self.storage,
            "dtype": self.placement.precision,
        }
        return {**settings, "compression": self.compression} if self._compressed else settings

    @property
    def _compressed(self) -> bool:
        return self.compression == "ivf_pq"

    def write_vectors(self, blocks: Blocks, folder: Path) -> int:
        write = write_compressed if self._compressed else super().write_vectors
        return write(blocks, folder)

    def check_vectors(self, folder: Path, units: int, rows: int, dimensions: int) -> None:
        if is_compressed(folder):
            check_compressed(folder, units, rows, dimensions)
        else:
            super().check_vectors(folder, units, rows, dimensions)

    def read_vectors(self, folder: Path) -> DocumentVectors:
        return read_compressed(folder) if self._compressed else super().read_vectors(folder)

    def searching(self, folder: Path, documents: DocumentVectors) -> Search:
        if self._compressed:
            return CompressedSearch(folder, documents, self.probes)
        return super().searching(folder, documents)

    @property
    def limit(self) -> int:
        """Tokens of a document that are read. Loads the model."""
        return int(self._network[0].document_length or self._network.max_seq_length or _UNBOUNDED)

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
        tokens = sum(self.read(sample)[1]) / len(sample) * total
        (vectors,) = self.encode([""])
        token_bytes = vectors.shape[1] * vectors.itemsize
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        # What a killed build has left is counted among what is needed, so it counts as free.
        work = work_folder(path)
        left = sum(
            file.stat().st_size
            for part in work.parent.glob(f"{escape(work.name)}*")  # of every shard
            for file in part.rglob("*")
            if file.is_file()
        )
        free = shutil.disk_usage(folder).free + left
        copies = 1.2 if self._compressed else 2
        if copies * tokens * token_bytes > free:
            raise InputError(
                f"the vectors of {total} units, about {tokens / total:.0f} tokens each and "
                f"{vectors.shape[1]} x {self.storage} a token, take "
                f"{gigabytes(int(tokens * token_bytes))} and {copies:g} times that while the index "
                f"is made, and the disk of '{folder}' has {gigabytes(free)} free",
                do="re-rank with it instead (reranker=colbert), set compression=ivf_pq or "
                "storage=float16, choose shorter units, or another disk",
            )

    def read(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
        """See `LearnedRetriever`; markers are counted."""
        texts = [readable(text) for text in texts]
        return texts, [min(length, self.limit) for length in self.lengths(texts)]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each document, also beyond those that are read."""
        if not texts:
            return []
        with self._computing:
            prompt = self._network.prompts.get("document") or ""
            prompted = [prompt + readable(text) for text in texts]
            return list(map(len, self._network.tokenizer(prompted, verbose=False)["input_ids"]))

    def windows(self, text: str) -> list[str]:
        """A document cut between words into pieces that the model reads to their end."""
        text = readable(text)
        room = self.limit - self.lengths([""])[0]
        with self._computing:
            coded = self._network.tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        begins = [begin for begin, _ in coded["offset_mapping"]]
        return [piece.strip() for piece in cut(text, begins, max(1, room))]

    def encode_batch(self, items: Sequence[str]) -> list[NDArray[Any]]:
        """The vectors of each document of a batch, [tokens, dimensions] in the type of `storage`; a
        document of which every token is left out has one vector of zeros."""
        vectors = self._run("encode_document", items)
        filled = (rows if len(rows) else np.zeros((1, rows.shape[1])) for rows in vectors)
        return [rows.astype(_STORAGES[self.storage]) for rows in filled]

    def encode_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """The vectors of each query: float32 [tokens, dimensions]."""
        # Queries are short and mostly expanded to one length: batches by number.
        body = self._network[0]
        length = (body.query_expansion or {}).get("length", body.query_length) or self.limit
        size = max(1, self.placement.batch_tokens // length)
        parts = (texts[start : start + size] for start in range(0, len(texts), size))
        return [rows for part in parts for rows in self._run("encode_query", part)]

    def _run(self, method: str, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        with self._computing, within_memory(self.placement.device, f"a batch of '{self.model}'"):
            vectors = getattr(self._network, method)(
                [readable(text) for text in texts],
                batch_size=len(texts),
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        return [np.asarray(rows, dtype=np.float32) for rows in vectors]

    @shared_property
    def _network(self) -> Any:
        _check_kind(self.model, self.revision)
        model = self.load_from_library("MultiVectorEncoder")
        continue_in_float32(model)
        body = model[0]
        if self.max_length is not None:
            body.document_length = min(self.max_length, model.max_seq_length or self.max_length)
        if self.query_max_length is not None:
            if body.query_expansion:
                body.query_length = None
                body.query_expansion = {**body.query_expansion, "length": self.query_max_length}
            else:
                body.query_length = self.query_max_length
        return model


def _check_kind(model: str, revision: str | None) -> None:
    """`InputError` for another kind of checkpoint: the library would give it a random projection
    and say so in its log only."""
    path = stored_file(model, "config_sentence_transformers.json", revision)
    config = stored_config(model, revision)
    if "HF_ColBERT" in (getattr(config, "architectures", None) or []):
        return
    content = json.loads(path.read_text("utf-8")) if path else {}
    if content.get("model_type") not in _KINDS and not any(key in content for key in _KEYS):
        raise InputError(
            f"'{model}' is no multi-vector checkpoint",
            valid="one that sentence-transformers, PyLate or ColBERT has saved, such as "
            "colbert-ir/colbertv2.0",
            do="choose such a model, or retriever=dense",
        )


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
_POSTINGS, _BOUNDS, _OFFSETS = "postings.npy", "bounds.npy", "offsets.npy"
_SUB = 4  # dimensions of a byte
_PER_LIST = 40  # vectors that train a centroid
_ROUNDS = 10  # of k-means
_MOST_LISTS = 1 << 16  # numbers of 16 bits
_GRAPH = 1 << 13  # centroids above which a graph finds the nearest one
_LEAST = 4096  # documents that are scored by decoded vectors
_ROWS = 1 << 17  # vectors that are decoded or encoded at once


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
    train on, and for dimensions that are no multiple of 4."""
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
        for first in range(0, len(block.values), _ROWS):
            part = block.values[first : first + _ROWS].astype(np.float32)
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
    step = max(1, _ROWS * 8 * total // max(1, len(lists)))
    for first in range(0, total, step):
        part = offsets[first : first + step + 1]
        documents = np.repeat(np.arange(first, first + len(part) - 1), np.diff(part))
        keys = np.unique(lists[part[0] : part[-1]].astype(np.int64) * total + documents)
        yield keys // total, keys % total


def read_compressed(folder: Path) -> DocumentVectors:
    """The vectors that `write_compressed` wrote; `InputError` if FAISS is not installed."""
    vectors: Any = CompressedVectors(folder)
    return DocumentVectors(vectors, load_array(folder / _OFFSETS))


def check_compressed(folder: Path, units: int, rows: int, dimensions: int) -> None:
    """`ValueError` for files that do not fit together."""
    offsets, bounds = load_array(folder / _OFFSETS), load_array(folder / _BOUNDS)
    postings = load_array(folder / _POSTINGS, mapped=True)
    check_rows(offsets, units, rows)
    check_offsets(bounds, len(postings), _BOUNDS)
    vectors = CompressedVectors(folder)
    if vectors.shape != (rows, dimensions) or len(vectors.lists) != rows:
        raise ValueError(f"{_CODES} or {_LISTS} does not hold {rows} vectors")
    if len(bounds) != vectors.codec.nlist + 1 or int(vectors.lists.max()) >= vectors.codec.nlist:
        raise ValueError(f"{_CODEC} has {vectors.codec.nlist} lists, which do not fit the files")
    if len(postings) and not 0 <= int(postings.min()) <= int(postings.max()) < units:
        raise ValueError(f"{_POSTINGS} names documents that are not there")


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

    def __call__(self, queries: Sequence[NDArray[Any]], depth: int) -> list[TopK]:
        """The best documents of each query [tokens, dimensions], `depth` at most."""
        return [self._search(query.astype(np.float32, copy=False), depth) for query in queries]

    def _search(self, query: NDArray[np.float32], depth: int) -> TopK:
        similar = self._centroids @ query.T
        candidates = self._candidates(similar)
        rescored = max(4 * depth, _LEAST)
        if len(candidates) > rescored:
            scores = self._approximate(similar, candidates)
            candidates = np.sort(candidates[np.argpartition(-scores, rescored)[:rescored]])
        (scores,) = maxsim([query], self._documents, candidates)
        return ordered(candidates, scores, depth)

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
            _score(similar, self._lists, offsets, candidates[own], scores[own])

        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(score, pairwise(bounds.tolist())))
        return scores


@compiled_for_sums
def _score(
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
