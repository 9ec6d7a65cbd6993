"""The engines that ours is measured against, over the tokens of our own index where possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import cycle
from pathlib import Path

import numpy as np
from data import Units
from scipy.sparse import csc_matrix

from soundingline.pipelines.engines.anserini import find_jar, find_java
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, dump_json

BATCH = 10_000  # PISA's default of 100,000 documents makes one batch, hence one thread


def rival(name):
    """The package of another engine, imported when it is measured."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"the package {name} is not installed ({error})",
            do="pip install -e '.[bench]' -c constraints.txt",
        ) from error


def frequencies(index):
    """Term frequencies, documents by terms."""
    postings = [index.postings(term) for term in index.vocabulary]
    offsets = np.cumsum([0, *(len(documents) for documents, _ in postings)])
    counts = np.concatenate([counts for _, counts in postings])
    documents = np.concatenate([documents for documents, _ in postings])
    return csc_matrix((counts, documents, offsets), shape=(len(index), len(postings)))


def bm25s_engine(index, matrix, k1, b, backend):
    """bm25s with method `lucene`. Its score matrix is filled from our postings by its own formula,
    because its indexer needs every token as a Python object."""
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


def pisa_index(rows, path):
    """PISA's index of rows `{docno, toks}`, built if it is absent."""
    if not (path / "pt_meta.json").exists():
        index = rival("pyterrier_pisa").PisaIndex(
            str(path), text_field="toks", stemmer="none", batch_size=BATCH
        )
        with quiet():
            index.toks_indexer(mode="overwrite", scale=1.0).index(rows)
    return rival("pyterrier_pisa").PisaIndex(str(path), stemmer="none", stops="none")


def same_tokens(index, matrix):
    """Rows `{docno, toks}` of our terms and frequencies."""
    rows, terms = matrix.tocsr(), np.array(list(index.vocabulary), dtype=object)
    for number in range(len(index)):
        entries = slice(rows.indptr[number], rows.indptr[number + 1])
        names = terms[rows.indices[entries]].tolist()
        counts = dict(zip(names, rows.data[entries].tolist(), strict=True))
        yield {"docno": index.docnos[number], "toks": counts}


def build_pisa(corpus, path, threads):
    """PISA's index of the raw text, with its own tokeniser and stemmer."""
    index = rival("pyterrier_pisa").PisaIndex(
        str(path), text_field="text", stemmer="porter2", threads=threads, batch_size=BATCH
    )
    rows = ({"docno": unit.unit_id, "text": unit.contents} for unit in Units(corpus))
    with quiet():
        index.indexer(mode="overwrite").index(rows)


def anserini_collection(corpus, files):
    """The corpus as Anserini reads it, in as many files as it has threads."""
    folder = corpus.parent / f"anserini-{files}-files"
    if not folder.exists():
        with atomic_folder(folder) as partial, ExitStack() as stack:
            paths = [partial / f"{number}.jsonl" for number in range(files)]
            streams = [stack.enter_context(path.open("w", encoding="utf-8")) for path in paths]
            for stream, unit in zip(cycle(streams), Units(corpus), strict=False):
                row = {"id": unit.unit_id, "contents": unit.contents}
                stream.write(dump_json(row, indent=None))
    return folder


def build_anserini(collection, path, threads):
    """Anserini's index of the raw text by its own command, without texts and vectors."""
    jar = find_jar()
    shutil.rmtree(path, ignore_errors=True)
    command = [find_java() / "bin" / "java", "-cp", jar, "io.anserini.index.IndexCollection"]
    command += ["-collection", "JsonCollection", "-input", collection, "-index", path]
    with quiet():
        subprocess.run([*map(str, command), "-threads", str(threads)], check=True)


@contextmanager
def quiet():
    """Discard warnings, and what PISA's C++ writes to the outputs of the process."""
    copies = [os.dup(1), os.dup(2)]
    try:
        with Path(os.devnull).open("w") as sink, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
            yield
    finally:
        for number, copy in enumerate(copies, start=1):
            os.dup2(copy, number)
            os.close(copy)
