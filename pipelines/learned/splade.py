"""Learned sparse retrieval: SPLADE (Formal et al., SIGIR 2021) and SPARTA (Zhao, Lu and Lee, NAACL
2021) give terms of a vocabulary weights for a text, which an inverted index of impacts ranks.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soundingline.pipelines.checkpoint import BODY, Checkpoint, CheckpointKind, own_length
from soundingline.pipelines.device import TokenizedTexts, pack_linear_layers, pad_rows
from soundingline.pipelines.engines.engine import RankedList, ranked_lists
from soundingline.pipelines.index_folder import field_text, read_manifest
from soundingline.pipelines.learned.encoding import SPARSE, Block, Blocks
from soundingline.pipelines.learned.retriever import (
    Encoder,
    LearnedEngine,
    continue_in_float32,
    retriever_of,
    tokenized,
)
from soundingline.pipelines.lexical.bm25 import BLOCK, first_at
from soundingline.pipelines.lexical.build import MB, TermNumbers, index_folder
from soundingline.pipelines.lexical.index import InvertedIndex, Sums
from soundingline.pipelines.lexical.invert import DocumentPostings, invert
from soundingline.pipelines.lexical.storage import (
    TERMS,
    UNITS,
    StringWriter,
    map_bytes,
)
from soundingline.pipelines.retrieve import Retriever
from soundingline.pipelines.stage import LRUCache, shared
from soundingline.toolkit.errors import InputError, check_int, check_number, check_weights
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.jit import compiled
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

_QUERIES = 4096  # whose weights are in memory
KIND = "impacts"
ARTIFACT = "soundingline_impacts"
_LARGEST_SCALE = 100_000  # beyond, float32 would round more than the scale does
_FINEST = 100.0  # up to this scale nearly every impact fits into 16 bits
_AT_ONCE = 4096  # documents
WeightedDocuments: TypeAlias = "pd.DataFrame | Iterable[Mapping[str, Any]] | Iterable[Block]"

# An inverted index of impacts, which learned sparse models give terms instead of frequencies.
#
#     score(d) = sum over terms t of  weight of t in the query * impact of t in d


class ImpactIndex(InvertedIndex):
    """An inverted index with the impacts of terms, for ranking by the sum of query weight times
    impact. An artifact of PyTerrier's, as `InvertedIndex`. It ranks by the column `query_toks`,
    which an encoder adds: `encoder >> index.retriever()`.

    `ImpactIndex.build` makes one of documents with weights, an encoder's engine one of texts, and
    `ImpactIndex(path)` opens it. `vocabulary` has the terms by number, in any order.

    Args:
        path: the folder of the index.
        corpus_fingerprint: of the corpus that it must be of; None for any.

    Raises:
        InputError: if there is no index, if it is damaged, of another format version or of another
            corpus.

    Example:
        >>> documents = [{"docno": "d1", "toks": {"mill": 1.5}}, {"docno": "d2", "toks": {}}]
        >>> impacts = ImpactIndex.build(documents, "my-impacts", scale=None)
        >>> impacts.search({"mill": 2.0})
        (array([0], dtype=int32), array([3.], dtype=float32))
    """

    ARTIFACT_FORMAT = ARTIFACT
    query_columns: ClassVar[tuple[str, ...]] = ("query_toks",)
    _values = np.float32

    def __init__(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> None:
        path = Path(path)
        super().__init__(path, read_manifest(path, KIND, corpus_fingerprint))
        self.scale: float | None = self.manifest["scale"]
        self._numbers = {term: number for number, term in enumerate(self.vocabulary)}

    @classmethod
    def build(
        cls,
        documents: WeightedDocuments,
        path: str | Path,
        *,
        vocabulary: Sequence[str] | None = None,
        overwrite: bool = False,
        scale: float | None = 100.0,
        corpus_fingerprint: str = "",
        memory_mb: int = 1024,
    ) -> ImpactIndex:
        """Index documents with weights, in their order, and open the result.

        Args:
            documents: a frame with the columns `docno` and `toks` (term -> weight), or an iterable
                of dicts with these keys, which is read once; their ids and terms are in memory
                meanwhile. With a `vocabulary`: blocks of (term number, weight) rows, which are read
                several times.
            path: the folder, which appears when it is complete.
            vocabulary: the terms of blocks, by number.
            overwrite: whether the index replaces an older index of impacts at `path`.
            scale: an impact is round(weight x `scale`), and gone where that is 0; None for the
                weight itself in float32.
            corpus_fingerprint: identifies the documents; `open` compares it.
            memory_mb: bounds the memory of the build besides one block.

        Raises:
            InputError: for a `path` that holds anything (but see `overwrite`), documents of another
                form, a weight below 0 or not finite, no document, a repeated `docno`, a full disk.
        """
        check_scale(scale)
        exact, count = scale is None or scale > _FINEST, 0
        with index_folder(Path(path), KIND, ARTIFACT, overwrite=overwrite) as (folder, manifest):
            work = folder / "work"
            work.mkdir()
            blocks: Any = documents
            if vocabulary is None:
                blocks, vocabulary = spooled(documents, work)
            with closing(StringWriter(folder / TERMS)) as terms:
                terms.extend(map(str.encode, vocabulary))
            with closing(StringWriter(folder / UNITS)) as units:
                for block in blocks:
                    units.extend(map(str.encode, block.unit_ids))
                    count += len(block.unit_ids)
            read = partial(_read_impacts, blocks, scale)
            postings, kind = invert(
                read, len(vocabulary), folder, memory_mb * MB, "<f4" if exact else None
            )
            shutil.rmtree(work)
            manifest |= {
                "corpus_fingerprint": corpus_fingerprint,
                "scale": scale,
                "type": kind,
                "counts": {"documents": count, "postings": postings, "terms": len(vocabulary)},
            }
        return cls(path, corpus_fingerprint=corpus_fingerprint)

    def find(self, term: str) -> int:
        """The number of a term, its position in `vocabulary`; -1 if it is not there."""
        return self._numbers.get(term, -1)

    def search(
        self, query: Mapping[str, float], depth: int = 1000
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Numbers of the documents with a score above 0, `depth` at most, and their scores:
        highest first, equal scores in the order of the documents.

        `query`: weights by term, as they are (never scaled); unknown terms count nothing. Scores
        are float32 sums by ascending term number: exact for whole numbers below 2^24.
        """
        check_int("depth", depth)
        return self._buffers.best(*self._sums(query), depth)

    def retriever(self, depth: int = 1000) -> Retriever:
        """A PyTerrier transformer over this index. It takes the weights of `query_toks` as they
        are, whatever the scale of the index."""
        return Retriever(depth=depth, index=self)

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """See `OpenedIndex`; a query is a dict of weights."""
        return ranked_lists(self.docnos, [self.search(query, depth) for query in queries])

    def score(
        self, queries: Sequence[Any], numbers: Sequence[NDArray[np.int32]], model: Any
    ) -> Sequence[NDArray[Any]]:
        """For each query, the scores that `search` gives the documents of these numbers, at
        whatever depth; 0 for one without a term of the query."""
        return [
            self._buffers.of(of_query, *self._sums(query))
            for query, of_query in zip(queries, numbers, strict=True)
        ]

    def _sums(self, query: Mapping[str, float]) -> Sums:
        """The known terms of weight above 0, ascending, and what adds their impacts to the sums."""
        check_weights(query)
        known = sorted(
            (self._numbers[term], weight)
            for term, weight in query.items()
            if term in self._numbers and weight > 0
        )
        pairs = np.array(known, dtype=[("term", np.int64), ("weight", np.float32)])
        terms, weights = pairs["term"].copy(), pairs["weight"].copy()
        return terms, partial(_add_impacts, *self._postings, terms, weights)


def _read_impacts(blocks: Iterable[Block], scale: float | None) -> Iterator[DocumentPostings]:
    """The impacts above 0 of every document."""
    first = 0
    for block in blocks:
        impacts = scaled(block.values["weight"], scale)
        positive = impacts > 0
        before = np.concatenate([[0], np.cumsum(positive)])[block.offsets]
        yield DocumentPostings(
            first, np.diff(before), block.values["term"][positive], impacts[positive]
        )
        first += len(block.unit_ids)


def spooled(documents: WeightedDocuments, folder: Path) -> tuple[list[Block], list[str]]:
    """Documents with weights as blocks, whose rows are mapped from a file in `folder`, and their
    terms by number. `InputError` as of `ImpactIndex.build`."""
    numbers, parts = TermNumbers(), []
    rows = weighted_rows(documents)
    with (folder / "rows").open("wb") as stream:
        while batch := list(islice(rows, _AT_ONCE)):
            ends = np.cumsum([0, *(len(weights) for _, weights in batch)])
            values = np.empty(ends[-1], SPARSE)
            values["term"] = [numbers[term] for _, weights in batch for term in weights]
            values["weight"] = [each for _, weights in batch for each in weights.values()]
            stream.write(values.tobytes())
            parts.append(([docno for docno, _ in batch], ends))
    if not parts:
        raise InputError("there is no document to index", do="check where they come from")
    stored, start, blocks = np.frombuffer(map_bytes(folder / "rows"), SPARSE), 0, []
    for ids, ends in parts:
        blocks.append(Block(ids, stored[start : start + ends[-1]], ends))
        start += ends[-1]
    return blocks, numbers.take_unwritten()


def weighted_rows(documents: WeightedDocuments) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The docno and the weights of each document."""
    rows = documents.to_dict("records") if isinstance(documents, pd.DataFrame) else documents
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or not isinstance(row.get("toks"), Mapping):
            raise InputError(
                f"a document came as {row!r:.200}",
                valid="a mapping with docno, and toks as a dict of terms to weights",
            )
        check_weights(row["toks"])
        docno = field_text(number, "docno", row.get("docno"))
        if not docno or docno in seen:
            raise InputError(f"document {number} has the docno {docno!r}", valid="unique ids")
        seen.add(docno)
        yield docno, row["toks"]


def check_scale(scale: float | None) -> None:
    """`InputError` for a scale that impacts cannot have."""
    if scale is not None:
        do = "set scale=null for exact weights"
        check_number("scale", scale, le=_LARGEST_SCALE, gt=0, do=do)


def scaled(weights: NDArray[np.float32], scale: float | None) -> NDArray[Any]:
    """round(weight x scale) as int32, in float64 so that no product is rounded twice; the weights
    themselves without a scale."""
    if scale is None:
        return weights
    return np.rint(weights.astype(np.float64) * scale).astype(np.int32)


@compiled
def _add_impacts(
    offsets: NDArray[np.int64],
    documents: NDArray[np.uint32],
    impacts: NDArray[Any],
    terms: NDArray[np.int64],
    weights: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    first = offsets[terms].astype(np.uint64)
    for limit in range(BLOCK, len(sums) + BLOCK, BLOCK):
        for row in range(len(terms)):
            weight = weights[row]
            last = first_at(documents, first[row], np.uint64(offsets[terms[row] + 1]), limit)
            for i in range(first[row], last):
                sums[documents[i]] += weight * np.float32(impacts[i])
            first[row] = last


@dataclass(kw_only=True, eq=False, repr=False)
class ImpactEngine(LearnedEngine):
    """Builds and opens an `ImpactIndex` of the weights that an encoder gives terms.

    As a text, a query has weights that are scaled and rounded as the impacts of its index are.

    Args:
        scale: Impacts are round(weight x scale), 100 as published for SPLADE; None keeps exact
            float32.

    Example:
        >>> engine = ImpactEngine(Splade("naver/splade-v3"))
        >>> engine.build(units, path, corpus_fingerprint="mine")  # doctest: +SKIP
        >>> pipe = engine.encoder >> engine.open(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    encoder: SparseEncoder = field(kw_only=False)
    scale: float | None = 100

    index_kind = KIND

    def __post_init__(self) -> None:
        check_scale(self.scale)

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint_with(scale=self.scale)

    def write_index(self, blocks: Blocks, path: Path, corpus_fingerprint: str) -> None:
        settings: dict[str, Any] = {"scale": self.scale, "corpus_fingerprint": corpus_fingerprint}
        ImpactIndex.build(
            blocks, path, vocabulary=self.encoder.vocabulary, overwrite=True, **settings
        )

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> ImpactIndex:
        """See `LearnedEngine`. `InputError` also for queries of another vocabulary."""
        index = ImpactIndex(path, corpus_fingerprint=corpus_fingerprint)
        self.encoder.check_queries_of(index.vocabulary)
        return index

    def queries(self, texts: Sequence[str], index: ImpactIndex) -> list[dict[str, float]]:
        encoded = self.encoder.encode_queries(texts)
        values = [scaled(np.array([*each.values()], np.float32), index.scale) for each in encoded]
        pairs = zip(encoded, values, strict=True)
        return [dict(zip(terms, of_terms.tolist(), strict=True)) for terms, of_terms in pairs]


@dataclass(kw_only=True, eq=False, repr=False)
class SparseEncoder(Encoder):
    """Base of the models that give the terms of a text weights. Columns, arguments and errors as in
    `Encoder`."""

    query_column: ClassVar[str] = "query_toks"
    document_column: ClassVar[str] = "toks"
    checkpoint_kind: ClassVar[CheckpointKind]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = LRUCache(_QUERIES)

    def fingerprint_with(self, **of_index: Any) -> str:
        checkpoint = self._checkpoint.fingerprint
        settings = (self.placement.precision, self._limit, of_index.get("scale"), *self.weighting)
        return fingerprint(self.kind, checkpoint, *settings)

    @property
    def weighting(self) -> tuple[Any, ...]:
        """The arguments of a subclass that change weights."""
        return ()

    @property
    @shared
    def _checkpoint(self) -> Checkpoint:
        checkpoint = Checkpoint(self.checkpoint_kind, self.model, self.revision)
        return checkpoint.checked(max_length=self.max_length)

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The tokenizer, for which the names of special tokens in a text are text."""

    @abstractmethod
    def query_weights(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """The weights by term of each query."""

    @property
    @shared
    def vocabulary(self) -> list[str]:
        """The terms, by number."""
        count = self._checkpoint.stored_config.vocab_size
        numbers = list(range(len(self.tokenizer)))
        tokens: list[str] = self.tokenizer.convert_ids_to_tokens(numbers)
        return [*tokens, *(f"#{number}" for number in range(len(tokens), count))][:count]

    def check_queries_of(self, vocabulary: Iterable[str]) -> None:
        """`InputError` if the queries have another vocabulary than an index."""

    def read_batch(self, tensors: tuple[Tensor, ...]) -> list[NDArray[Any]]:
        return sparse_rows(tensors[0])

    def encode_queries(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Weights by term of each query. The newest queries are encoded once."""
        return self._weights.get(texts, self.query_weights)

    def encode_documents(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Weights by term of each text."""
        return self._by_term(self.encode(texts))

    def _by_term(self, arrays: Sequence[NDArray[Any]]) -> list[dict[str, float]]:
        if not arrays:
            return []
        terms = self.vocabulary
        return [{terms[term]: weight for term, weight in array.tolist()} for array in arrays]

    @property
    @shared
    def _limit(self) -> int:
        if self.max_length is not None:
            return self.max_length
        # Read without importing transformers.
        length = self._checkpoint.stored_json("tokenizer_config.json").get("model_max_length")
        return own_length(self._checkpoint.stored_config, length)


def sparse_rows(weights: Any) -> list[NDArray[Any]]:
    """The terms whose weight is not 0 in each row of a tensor [texts, terms], ascending: arrays of
    `SPARSE`."""
    # Not-a-number is not 0 either, and reaches the check of the encoding.
    rows, terms = weights.nonzero(as_tuple=True)
    pairs = np.empty(len(rows), SPARSE)
    pairs["weight"] = weights[rows, terms].float().cpu().numpy()
    pairs["term"] = terms.cpu().numpy()
    counts = np.bincount(rows.cpu().numpy(), minlength=len(weights))
    return np.split(pairs, np.cumsum(counts)[:-1])


def _has_head(checkpoint: Checkpoint, name: str) -> bool:
    return any(each.endswith(name) for each in checkpoint.architectures)


def _is_sparse(checkpoint: Checkpoint) -> bool:
    return "sparse" in str(checkpoint.stored_json("modules.json")).lower()


# SPLADE: a masked language model gives terms of its vocabulary weights, with max pooling as in
# SPLADE v2 and v3.
#
#     weight of term v = max over tokens i of  ln(1 + relu(logit of v at i))


@dataclass(kw_only=True, eq=False, repr=False)
class Splade(SparseEncoder):
    """Gives the terms of the model's vocabulary weights for a text (SPLADE; Formal et al., SIGIR
    2021). Columns, further arguments and errors as in `Encoder`.

    Args:
        query_model: A checkpoint for the queries alone, of the same vocabulary. The default is
            `model`. `revision` is that of `model`.

    Example:
        >>> splade = Splade("naver/splade-v3")
        >>> ImpactEngine(splade, scale=100).build(units, path)  # doctest: +SKIP
        >>> pipe = splade >> ImpactIndex(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    model: str = field(default="naver/splade-v3", kw_only=False)
    query_model: str | None = None

    kind = "splade"
    checkpoint_kind = CheckpointKind(
        "SparseEncoder",
        # The library would give another checkpoint a random layer and say so in its log only.
        lambda checkpoint: _has_head(checkpoint, "ForMaskedLM") or _is_sparse(checkpoint),
        "gives terms no weights",
        "a masked language model with its head, or a sparse encoder of sentence-transformers",
        library="sentence_transformers",
    )

    @property
    def weighting(self) -> tuple[Any, ...]:
        # What follows the network once computed in bfloat16 too.
        return ("float32",) if self.placement.precision == "bfloat16" else ()

    @property
    @shared
    def _of_queries(self) -> Splade:
        """The model of the queries."""
        if self.query_model is None:
            return self
        return replace(self, model=self.query_model, query_model=None, revision=None)

    def check_queries_of(self, vocabulary: Iterable[str]) -> None:
        if self.query_model and self._of_queries.vocabulary != list(vocabulary):
            raise InputError(
                f"query_model='{self.query_model}' has another vocabulary than '{self.model}'",
                do="choose a query model that was trained together with it",
            )

    @property
    def tokenizer(self) -> Any:
        """Loads the model."""
        return self._network.tokenizer

    def tokens_of(self, texts: Sequence[str], role: str) -> TokenizedTexts:
        return tokenized(self._network, texts, role, self.placement.device)

    def encode_batch(self, features: Mapping[str, Any], role: str) -> tuple[Tensor, ...]:
        """The weights of a batch: float32 [texts, terms]."""
        most = self._network.max_active_dims
        limit = {} if most is None else {"max_active_dims": most}
        weights = self._network(features, task=role, **limit)["sentence_embedding"]
        select = import_optional("sentence_transformers.util").select_max_active_dims
        return (select(weights, most),)

    def query_weights(self, texts: Sequence[str]) -> list[dict[str, float]]:
        if self.query_model:
            return self._of_queries.encode_queries(texts)
        return self._by_term(self.encode(texts, "query"))

    @property
    @shared
    def _network(self) -> Any:
        model = self._checkpoint.load(self.placement)
        pack_linear_layers(model[0])
        if len(model) > 1 and getattr(model[1], "pooling_strategy", None) == "max":
            model[0].register_forward_hook(_largest_logits)
        else:
            continue_in_float32(model)
        model.max_seq_length = self._limit
        # The name of a special token in a text is text.
        model.tokenizer.split_special_tokens = True
        return model


def _largest_logits(network: Any, inputs: Any, features: Mapping[str, Any]) -> Mapping[str, Any]:
    """A hook that leaves the largest logit of each term, in float32: ln(1 + relu(x)) grows with x,
    so that max pooling needs one logarithm a term and not one for each of its tokens."""
    logits, mask = features["token_embeddings"], features["attention_mask"]
    logits.masked_fill_(mask.logical_not()[..., None], -1.0)
    largest = logits.amax(dim=1, keepdim=True).float()
    return {**features, "token_embeddings": largest, "attention_mask": mask.new_ones(len(mask), 1)}


splade_retriever = retriever_of(ImpactEngine, Splade)


# SPARTA (Zhao, Lu and Lee, NAACL 2021, arXiv 2009.13013): the static embeddings of the vocabulary
# are matched with the contextual states of a document's tokens.
#
#     weight of term v = ln(1 + relu(max over tokens i of  embedding of v . state of token i))
#
# The score of a document is the sum of the weights of the query's tokens.


@dataclass(kw_only=True, eq=False, repr=False)
class Sparta(SparseEncoder):
    """Gives the terms of the vocabulary weights for a text, and counts the tokens of a query
    (SPARTA; Zhao et al., NAACL 2021). Columns, further arguments and errors as in `Encoder`.

    The facts are those of BEIR's `beir.retrieval.models.SPARTA`: no bias; special tokens have no
    weight; a token counts as often as the query has it. Unlike there, padding of a batch is not a
    token of the document.

    Args:
        terms: The largest number of terms that a document keeps, 2000 as published.

    Example:
        >>> sparta = Sparta(terms=1000)
        >>> ImpactEngine(sparta, scale=None).build(units, path)  # doctest: +SKIP
        >>> pipe = sparta >> ImpactIndex(path).retriever() >> MaxP()  # doctest: +SKIP
    """

    model: str = field(default="BeIR/sparta-msmarco-distilbert-base-v1", kw_only=False)
    terms: int = 2000

    kind = "sparta"
    # A checkpoint with a head was trained for another task.
    checkpoint_kind = BODY._replace(
        fits=lambda checkpoint: _has_head(checkpoint, "Model"),
        otherwise="is not an encoder without a head",
        valid="a checkpoint that was trained for SPARTA",
    )

    def __post_init__(self) -> None:
        check_int("terms", self.terms)
        super().__post_init__()

    @property
    def weighting(self) -> tuple[Any, ...]:
        return (self.terms,)

    @property
    @shared
    def tokenizer(self) -> Any:
        tokenizer = self._checkpoint.tokenizer()
        tokenizer.split_special_tokens = True
        return tokenizer

    def query_weights(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """The weight of a token is how often the query has it; no model is needed."""
        with self._tokenizing:
            coded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        terms = self.vocabulary
        return [
            {terms[token]: float(count) for token, count in Counter(tokens).items()}
            for tokens in coded["input_ids"]
        ]

    def tokens_of(self, texts: Sequence[str], role: str) -> TokenizedTexts:
        coded = self.tokenizer(texts, truncation=True, max_length=self._limit)["input_ids"]
        features = pad_rows(coded, self.tokenizer.pad_token_id, self.placement.device.type)
        return TokenizedTexts(features, list(map(len, coded)))

    def encode_batch(self, features: Mapping[str, Any], role: str) -> tuple[Tensor, ...]:
        """The weights of a batch of documents: float32 [texts, terms]."""
        torch = import_optional("torch")
        states = self._network(**features).last_hidden_state
        # One text at a time: [tokens, vocabulary] is the largest array.
        weights = torch.stack(
            [
                (text[mask.bool()] @ self._embeddings.T).amax(dim=0)
                for text, mask in zip(states, features["attention_mask"], strict=True)
            ]
        )
        weights = weights.float().relu().log1p()
        if self.terms < weights.shape[1]:
            best, terms = weights.topk(self.terms, dim=1)
            weights = torch.zeros_like(weights).scatter_(1, terms, best)
        return (weights,)

    @property
    @shared
    def _network(self) -> Any:
        network = self._checkpoint.load(self.placement)
        pack_linear_layers(network)
        return network

    @property
    @shared
    def _embeddings(self) -> Any:
        """[vocabulary, dimensions]; those of special tokens are 0."""
        embeddings = self._network.get_input_embeddings().weight.detach().clone()
        embeddings[self.tokenizer.all_special_ids] = 0
        return embeddings


sparta_retriever = retriever_of(ImpactEngine, Sparta)
