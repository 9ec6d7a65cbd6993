"""Dense retrieval: one vector a unit, searched exactly.

Vectors are kept in the format of `pyterrier_dr.FlexIndex`, so that `FlexIndex(folder)` opens them
elsewhere. The search is ours (`vector_search`): the library's retrievers leave to chance which of
equal scores are kept at the depth and in which order they stand, and sort every batch of documents
for every query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.learned.dense_encoder import DenseEncoder
from soundingline.pipelines.learned.shards import Shard, Shards
from soundingline.pipelines.learned.vector_index import VectorEngine
from soundingline.pipelines.learned.vector_search import DocumentVectors
from soundingline.pipelines.lexical.storage import Docnos
from soundingline.pipelines.retrieve import OwnIndexRetriever
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import write_json
from soundingline.toolkit.optional import check_optional, import_optional

_INDEX = "flex"
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class DenseEngine(VectorEngine):
    """Encodes units into a `pyterrier_dr.FlexIndex`, in the folder `flex`, and opens it."""

    encoder: DenseEncoder
    name = "dense"
    packages = ("torch", "transformers", "pyterrier_dr")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optional("pyterrier_dr")

    def write(self, shards: Shards, folder: Path) -> Mapping[str, Any]:
        """See `VectorEngine`."""
        counts = {"units": len(shards), "empty": shards.counts["empty"]}
        return {"dimensions": write_flex(folder / _INDEX, shards), "counts": counts}

    def check(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """See `VectorEngine`."""
        units, dimensions = manifest["counts"]["units"], manifest["dimensions"]
        docnos, vectors = read_flex(folder / _INDEX)
        if vectors.shape != (units, dimensions) or len(docnos) != units:
            raise ValueError(
                f"{_INDEX} has {len(docnos)} unit ids and vectors of the shape "
                f"{list(vectors.shape)}, and not {units} of {dimensions} dimensions"
            )

    def load(self, folder: Path) -> tuple[Docnos, DocumentVectors]:
        """See `VectorEngine`."""
        docnos, vectors = read_flex(folder / _INDEX)
        return Docnos(docnos), DocumentVectors(vectors)


class DenseRetriever(OwnIndexRetriever):
    """Dense retrieval, one vector a unit (Karpukhin et al., EMNLP 2020), over an index of its own,
    exactly. Columns as in `BM25`, without `query_toks`; at most `depth` units a query.

    `document_max_length` takes the place of `max_length` where the unit is the whole document;
    `compute` is the `search` of `VectorEngine`; the other arguments, and what is refused
    (`InputError`), are those of `DenseEncoder`.
    """

    def __init__(
        self,
        model: str,
        *,
        base: str | None = None,
        revision: str | None = None,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        pooling: str | None = None,
        append_eos: bool = False,
        normalise: bool = True,
        max_length: int | None = None,
        document_max_length: int | None = None,
        query_max_length: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        depth: int = 1000,
        compute: str = "numpy",
    ) -> None:
        check_int("depth", depth)
        self.model, self.base, self.revision = model, base, revision
        self.query_prefix, self.document_prefix = query_prefix, document_prefix
        self.pooling, self.append_eos, self.normalise = pooling, append_eos, normalise
        self.max_length, self.document_max_length = max_length, document_max_length
        self.query_max_length, self.depth, self.compute = query_max_length, depth, compute
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        self.engine()

    def engine(self, *, whole_documents: bool = False) -> DenseEngine:
        """What builds and opens the index; checks the arguments."""
        longest = self.document_max_length if whole_documents else None
        encoder = self._part(DenseEncoder, max_length=longest or self.max_length)
        return DenseEngine(encoder, self.compute)


def write_flex(folder: Path, shards: Iterable[Shard]) -> int:
    """Write the vectors of an encoded corpus as a FlexIndex; their dimensions.

    As `FlexIndex.index` does, but for ids that it cannot write: where 256 units in a row have ids
    that are one text and a number, as the passages of a long document are, npids takes a percent
    sign in the text for a placeholder.
    """
    folder.mkdir(parents=True)
    units = dimensions = 0
    with (folder / "vecs.f4").open("wb") as vectors, _id_file(folder / "docnos.npids") as ids:
        for shard in shards:
            rows = np.ascontiguousarray(shard.values, np.float32)
            dimensions = rows.shape[1]
            vectors.write(rows.data)
            for unit_id in shard.unit_ids:
                ids.add(unit_id)
            units += len(shard.unit_ids)
    meta = {"type": "dense_index", "format": "flex", "vec_size": dimensions, "doc_count": units}
    write_json(folder / "pt_meta.json", meta)
    return dimensions


@contextmanager
def _id_file(path: Path) -> Iterator[Any]:
    """A builder of npids whose ids are written when the block ends, for both directions."""
    builders, codecs = import_optional("npids.builder"), import_optional("npids.codecs")
    builder = builders.FwdLookupBuilder(path)
    for name in ("intsequence", "intsequencepad", "intstored"):
        builder.formats[name] = _without_percent(codecs.fwd[name])()
    builder.seeded_formats = builder.formats.copy()
    try:
        yield builder
        builder.close()
        builders.InvLookupBuilder.build(path)
    except UnicodeEncodeError as error:
        raise InputError(
            f"unit id {error.object!r} cannot be written as UTF-8", do="rename it"
        ) from error


def _without_percent(codec: type[Any]) -> type[Any]:
    """A codec of npids for numbered ids, which leaves ids with a percent sign to others."""

    def seed(self: Any, unit_id: str) -> bool:
        return "%" not in unit_id and codec.seed(self, unit_id)

    return type(codec.__name__, (codec,), {"seed": seed})


def read_flex(folder: Path) -> tuple[NDArray[Any], Vectors]:
    """Unit ids (array of str objects), and the vectors [units, dimensions], mapped from disk."""
    # As FlexIndex.payload does, without importing the library, which loads transformers.
    meta = json.loads((folder / "pt_meta.json").read_text("utf-8"))
    shape = (meta["doc_count"], meta["vec_size"])
    vectors = np.memmap(folder / "vecs.f4", np.float32, mode="r", shape=shape)
    docnos = import_optional("npids").Lookup(folder / "docnos.npids")
    return np.array(list(docnos), dtype=object), np.asarray(vectors)
