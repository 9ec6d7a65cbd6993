"""The engines that ours is measured against, fed with the tokens of our own index."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix

from soundingline.experiments.bench.corpus import units
from soundingline.pipelines.engines.anserini import find_jar, find_java
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, dump_json

# PISA's own default is 100,000 documents: one batch, hence one thread, and much memory.
_BATCH = 10_000


def rival(name: str) -> Any:
    """The package of another engine, imported only when it is measured; `InputError` where it is
    absent."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"the benchmark's other engines are absent ({error})",
            do="run make bench, or install the extra: pip install -e '.[bench]'",
        ) from error


def installed(*names: str) -> list[str]:
    """Those of the distributions that are there."""
    present = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            continue
        present.append(name)
    return present


def frequencies(index: LexicalIndex) -> csc_matrix:
    """Term frequencies, documents by terms."""
    postings = [index.postings(term) for term in index.vocabulary]
    offsets = np.cumsum([0, *(len(documents) for documents, _ in postings)])
    counts = np.concatenate([counts for _, counts in postings])
    documents = np.concatenate([documents for documents, _ in postings])
    return csc_matrix((counts, documents, offsets), shape=(len(index), len(postings)))


def bm25s_engine(index: LexicalIndex, matrix: csc_matrix, k1: float, b: float, backend: str) -> Any:
    """bm25s with method `lucene` over our tokens.

    Its matrix of scores is filled here from our postings with its own formula, because its indexer
    wants every token as a Python object, which a large corpus has no memory for.
    """
    engine = rival("bm25s").BM25(k1=k1, b=b, method="lucene", backend=backend)
    lengths = index.lengths.astype(np.float64)
    frequency = np.diff(matrix.indptr)
    idf = np.log(1 + (len(index) - frequency + 0.5) / (frequency + 0.5))
    norms = k1 * (1 - b + b * lengths / lengths.mean())
    shares = matrix.data / (matrix.data + norms[matrix.indices])
    engine.scores = {
        "data": (np.repeat(idf, frequency) * shares).astype(np.float32),
        "indices": matrix.indices.astype(np.int32),
        "indptr": matrix.indptr.astype(np.int32),
        "num_docs": len(index),
    }
    engine.vocab_dict = {term: number for number, term in enumerate(index.vocabulary)}
    engine.unique_token_ids_set = set(engine.vocab_dict.values())
    engine.nonoccurrence_array = None
    return engine


def pisa_same_tokens(
    index: LexicalIndex, matrix: csc_matrix, path: Path, k1: float, b: float, depth: int
) -> Any:
    """PISA's transformer over our terms and frequencies; its index is made if it is not there."""
    if not (path / "pt_meta.json").exists():
        rows = matrix.tocsr()
        terms = np.array(list(index.vocabulary), dtype=object)
        _quiet(
            rival("pyterrier_pisa")
            .PisaIndex(str(path), text_field="toks", stemmer="none", batch_size=_BATCH)
            .toks_indexer(mode="overwrite", scale=1.0),
            track(_token_rows(index, rows, terms), "PISA, same tokens", len(index)),
        )
    pisa = rival("pyterrier_pisa").PisaIndex(str(path), stemmer="none", stops="none")
    with silenced():
        return pisa.bm25(k1=k1, b=b, num_results=depth, query_algorithm="maxscore")


def _token_rows(index: LexicalIndex, rows: Any, terms: Any) -> Iterator[dict[str, Any]]:
    for number in range(len(index)):
        entries = slice(rows.indptr[number], rows.indptr[number + 1])
        names: Sequence[str] = terms[rows.indices[entries]].tolist()
        counts = dict(zip(names, rows.data[entries].tolist(), strict=True))
        yield {"docno": index.docnos[number], "toks": counts}


def build_pisa(corpus: Path, path: Path, threads: int) -> None:
    """PISA's index of the raw text, with its own tokeniser and stemmer."""
    index = rival("pyterrier_pisa").PisaIndex(
        str(path), text_field="text", stemmer="porter2", threads=threads, batch_size=_BATCH
    )
    _quiet(
        index.indexer(mode="overwrite"),
        ({"docno": u.unit_id, "text": u.contents} for u in units(corpus)),
    )


def anserini_collection(corpus: Path, files: int) -> Path:
    """The corpus as Anserini reads it, in so many files, because it gives each thread a file;
    written beside the corpus if it is not there."""
    folder = corpus.parent / f"anserini-{files}-files"
    if not folder.exists():
        with atomic_folder(folder) as partial, ExitStack() as stack:
            paths = [partial / f"{number}.jsonl" for number in range(files)]
            streams = [stack.enter_context(path.open("w", encoding="utf-8")) for path in paths]
            for stream, unit in zip(cycle(streams), units(corpus), strict=False):
                stream.write(
                    dump_json({"id": unit.unit_id, "contents": unit.contents}, indent=None)
                )
    return folder


def build_anserini(collection: Path, path: Path, threads: int) -> None:
    """Anserini's index of the raw text by its own command, without texts and vectors."""
    jar = find_jar()
    java = find_java() / "bin" / "java"
    shutil.rmtree(path, ignore_errors=True)
    indexing = [str(java), "-cp", str(jar), "io.anserini.index.IndexCollection"]
    input_ = ["-collection", "JsonCollection", "-input", str(collection)]
    with silenced():
        subprocess.run(
            [*indexing, *input_, "-index", str(path), "-threads", str(threads)], check=True
        )


def _quiet(indexer: Any, rows: Iterator[dict[str, Any]]) -> None:
    with silenced(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        indexer.index(rows)


@contextmanager
def silenced() -> Iterator[None]:
    """Drop what PISA's C++ writes to the process's own outputs."""
    copies = [os.dup(1), os.dup(2)]
    try:
        with Path(os.devnull).open("w") as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
            yield
    finally:
        for number, copy in enumerate(copies, start=1):
            os.dup2(copy, number)
            os.close(copy)
