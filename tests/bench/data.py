"""Corpora and queries of the benchmarks, made in `bench-data/` when they are first needed."""

from __future__ import annotations

import json
import random

import numpy as np
import pandas as pd
from harness import COLLECTIONS, DATA

from soundingline.pipelines import LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.console import track
from soundingline.toolkit.corpus import Passages, SqliteStore
from soundingline.toolkit.data import Document, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder
from soundingline.toolkit.optional import import_optional


def corpus_file(documents, seed=7):
    """`corpus.jsonl` of a fictional world, so that every engine reads the same bytes."""
    world = FictionalWorld(documents=documents, questions=1, seed=seed)
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
    return LexicalIndex.open(path)


def store_of(corpus, documents):
    """The document store of a corpus file, built if it is absent."""
    path = corpus.parent / "documents"
    if not path.exists():
        stored = (Document(unit.unit_id, unit.title, unit.text) for unit in Units(corpus))
        reading = track(stored, "storing", documents)
        SqliteStore.build(path, reading, corpus_fingerprint="bench").close()
    return SqliteStore(path)


def term_queries(index, matrix, sizes, seed):
    """For each size, queries of distinct terms, each drawn from one document in proportion to its
    frequencies. `matrix`: frequencies, documents by terms; `sizes`: number of queries by size."""
    chance, rows = np.random.default_rng(seed), matrix.tocsr()
    long_enough = np.flatnonzero(np.diff(rows.indptr) >= max(sizes))
    if not len(long_enough):
        raise InputError("no document has enough terms for a query", do="use more documents")
    queries = {}
    for size, count in sizes.items():
        queries[size] = []
        for number in chance.choice(long_enough, count):
            entries = slice(rows.indptr[number], rows.indptr[number + 1])
            share = rows.data[entries] / rows.data[entries].sum()
            terms = chance.choice(rows.indices[entries], size, replace=False, p=share)
            queries[size].append([index.vocabulary[int(term)] for term in terms])
    return queries


def agent_queries(documents, seed, questions=60):
    """Queries as agents issue them: eight words of a question, and the whole question."""
    world = FictionalWorld(documents=documents, questions=questions, seed=seed)
    texts = [topic.text for topic in world.topics]
    chance = random.Random(seed)
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
    """`pairs` pairs of real queries and BM25's passages, as (query, texts), best text first, and
    the folder of a tokenizer of T5's kind and vocabulary size that was trained on the passages."""
    folder = DATA / f"rerank-{collection}-{pairs}"
    if not folder.exists():
        _make_requests(folder, collection_path(collection), pairs, candidates)
    lines = (folder / "requests.jsonl").read_text("utf-8").splitlines()
    return [tuple(json.loads(line)) for line in lines], folder / "tokenizer"


def collection_path(name):
    path = COLLECTIONS / name
    if not path.is_dir():
        raise InputError(
            f"there is no collection {path}",
            do="set SOUNDINGLINE_DATA to the folder that contains it; docs/data.md says where"
            " each collection comes from",
        )
    return path


def _make_requests(folder, collection, pairs, candidates):
    benchmark, segmenter = BeirBenchmark(collection), Passages(250)
    units = {u.unit_id: u for document in benchmark.documents() for u in segmenter.units(document)}
    queries = -(-pairs // candidates)
    # The questions of a collection follow one another, so that they are sampled evenly.
    topics = benchmark.topics[:: max(1, len(benchmark.topics) // queries)][:queries]
    with atomic_folder(folder) as partial:
        index = LexicalIndex.build(units.values(), partial / "index")
        frame = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in topics])
        requests, left = [], pairs
        for _, rows in index.bm25(depth=candidates).transform(frame).groupby("qid", sort=False):
            texts = [units[docno].contents for docno in rows["docno"][:left]]
            requests.append(json.dumps([rows["query"].iloc[0], texts]))
            left -= len(texts)
        if left:
            raise InputError(f"{collection} gives {pairs - left} pairs", do="use fewer --pairs")
        (partial / "requests.jsonl").write_text("\n".join(requests), "utf-8")
        _tokenizer(units.values()).save_pretrained(partial / "tokenizer")


def _tokenizer(units):
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
    trained.train_from_iterator((unit.contents for unit in units), trainer)
    vocabulary = dict(json.loads(trained.to_str())["model"]["vocab"])
    pieces = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0}
    pieces |= {piece: score for piece, score in vocabulary.items() if piece not in pieces}
    pieces |= {f"▁{word}": max(vocabulary.values()) - 5.0 for word in words}
    return import_optional("transformers").T5Tokenizer(vocab=list(pieces.items()), extra_ids=0)
