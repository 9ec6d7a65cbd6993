"""Corpora, queries and other engines of the benchmarks. Corpora are made in `bench-data/` when they
are first needed; other engines rank the tokens of our own index where possible."""

import json
import os
import random
import shutil
import subprocess
import warnings
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import numpy as np
from harness import COLLECTIONS, DATA, SEED
from scipy.sparse import csc_matrix

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.engines.anserini import find_jar, find_java
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.console import track
from soundingline.toolkit.corpus import Passages, SqliteStore
from soundingline.toolkit.data import Document, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, dump_json
from soundingline.toolkit.optional import import_optional

BATCH = 10_000  # PISA's default of 100,000 documents makes one batch, hence one thread


def corpus_file(documents):
    """`corpus.jsonl` of a fictional world, so that every engine reads the same bytes."""
    world = FictionalWorld(documents=documents, questions=1, seed=SEED)
    path = DATA / f"fictional-{documents}-{world.corpus_fingerprint}" / "corpus.jsonl"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as stream:
        for document in track(world.documents(), "writing the corpus", documents):
            row = {"docno": document.docid, "title": document.title, "text": document.text}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    partial.rename(path)
    return path


class Units:
    """The units of a corpus file, one a document, which can be read repeatedly."""

    def __init__(self, corpus):
        self.corpus = corpus

    def __iter__(self):
        with self.corpus.open(encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                yield Unit(row["docno"], row["title"], row["text"])


def build_ours(corpus, path, keep_texts=False):
    LexicalIndex.build(Units(corpus), path, memory_mb=1024, keep_texts=keep_texts)


def our_index(corpus, keep_texts=False):
    """The lexical index of a corpus file, built if it is absent."""
    path = corpus.parent / ("with-texts" if keep_texts else "ours")
    if not path.exists():
        build_ours(corpus, path, keep_texts)
    return LexicalIndex(path)


def store_of(corpus, documents):
    """The document store of a corpus file, built if it is absent."""
    path = corpus.parent / "documents"
    if not path.exists():
        stored = (Document(unit.unit_id, unit.title, unit.text) for unit in Units(corpus))
        reading = track(stored, "storing", documents)
        SqliteStore.build(path, reading, corpus_fingerprint="bench").close()
    return SqliteStore(path)


def term_queries(index, matrix, sizes):
    """For each size, queries of distinct terms, each drawn from one document in proportion to its
    frequencies. `matrix`: frequencies, documents by terms; `sizes`: number of queries by size."""
    chance, rows = np.random.default_rng(SEED), matrix.tocsr()
    long_enough = np.flatnonzero(np.diff(rows.indptr) >= max(sizes))
    if not len(long_enough):
        raise InputError("no document has enough terms for a query", do="use more documents")
    queries = {}
    for size, count in sizes.items():
        queries[size] = []
        for number in chance.choice(long_enough, count):
            document = rows[number]
            terms = heavier_first(chance, document.indices, document.data, size)
            queries[size].append([index.vocabulary[term] for term in terms.tolist()])
    return queries


def heavier_first(chance, items, weights, size):
    """Some of the items, none twice, with probabilities in proportion to their weights."""
    share = weights / weights.sum(dtype=np.float64)
    return chance.choice(items, size, replace=False, p=share)


def length_one(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def agent_queries(documents):
    """Queries as agents issue them: eight words of a question, and the whole question."""
    world = FictionalWorld(documents=documents, questions=60, seed=SEED)
    chance, texts = random.Random(SEED), [topic.text for topic in world.topics]
    words = [text.split() for text in texts]
    short = [" ".join(chance.sample(of, min(8, len(of)))) for of in words]
    return {"search, 8 words": short, "search, whole question": texts}


def real_texts(name, documents):
    """The contents of `documents` documents, spread over a collection."""
    texts = [
        Unit(document.docid, document.title, document.text).contents
        for document in BeirBenchmark(collection_path(name)).documents()
    ]
    return texts[:: max(1, len(texts) // documents)][:documents]


def rerank_requests(pairs, collection="wikimix", candidates=50):
    """Pairs of real queries and passages, as (query, texts), and the folder of a tokenizer of T5's
    kind and vocabulary size that was trained on the passages."""
    benchmark, segmenter = BeirBenchmark(collection_path(collection)), Passages(250)
    documents = benchmark.documents()
    texts = [unit.contents for document in documents for unit in segmenter.units(document)]
    topics = benchmark.topics[: -(-pairs // candidates)]
    chosen = texts[:: max(1, len(texts) // pairs)][:pairs]
    requests = [
        (topic.text, chosen[candidates * place : candidates * (place + 1)])
        for place, topic in enumerate(topics)
    ]
    folder = DATA / f"tokenizer-{collection}"
    if not folder.exists():
        with atomic_folder(folder) as partial:
            _tokenizer(texts).save_pretrained(partial)
    return requests, folder


def collection_path(name):
    path = COLLECTIONS / name
    if not path.is_dir():
        raise InputError(
            f"there is no collection {path}",
            do="set SOUNDINGLINE_DATA to the folder that contains it; docs/data.md says where"
            " each collection comes from",
        )
    return path


def _tokenizer(texts):
    tokenizers = import_optional("tokenizers")
    trained = tokenizers.Tokenizer(tokenizers.models.Unigram())
    metaspace = tokenizers.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), metaspace]
    )
    words = ("Query", "Document", "Relevant", "true", "false")
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=32_000 - 3 - len(words), unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    vocabulary = dict(json.loads(trained.to_str())["model"]["vocab"])
    pieces = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0}
    pieces |= {piece: score for piece, score in vocabulary.items() if piece not in pieces}
    pieces |= {f"▁{word}": max(vocabulary.values()) - 5.0 for word in words}
    return import_optional("transformers").T5Tokenizer(vocab=list(pieces.items()), extra_ids=0)


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
    import bm25s

    engine = bm25s.BM25(k1=k1, b=b, method="lucene", backend=backend)
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


def tokens(index):
    """The documents of a lexical index as rows `{docno, toks}` (index term -> frequency)."""
    names = np.array([*index.vocabulary], dtype=object)
    for part in np.array_split(np.arange(len(index)), 1 + len(index) // 10_000):
        for number, (terms, frequencies) in zip(part, index.vectors(part), strict=True):
            toks = dict(zip(names[terms].tolist(), frequencies.tolist(), strict=True))
            yield {"docno": index.docnos[number], "toks": toks}


def pisa_index(rows, path):
    """PISA's index of rows `{docno, toks}`, built if it is absent."""
    from pyterrier_pisa import PisaIndex

    if not (path / "pt_meta.json").exists():
        index = PisaIndex(str(path), text_field="toks", stemmer="none", batch_size=BATCH)
        with quiet():
            index.toks_indexer(mode="overwrite", scale=1.0).index(rows)
    return PisaIndex(str(path), stemmer="none", stops="none")


def build_pisa(corpus, path, threads):
    """PISA's index of the raw text, with its own tokeniser and stemmer."""
    from pyterrier_pisa import PisaIndex

    settings = {"stemmer": "porter2", "threads": threads, "batch_size": BATCH}
    index = PisaIndex(str(path), text_field="text", **settings)
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
