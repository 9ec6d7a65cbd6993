"""Late interaction: the compressed index of ColBERT against exact MaxSim and other libraries."""

import shutil
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from data import length_one
from harness import DATA, SEED, Table, benchmark, in_own_process, interleaved, size_mb
from numpy.lib.format import open_memmap

from soundingline.pipelines.learned.encoding import Block
from soundingline.pipelines.learned.vectors import (
    CompressedSearch,
    DocumentVectors,
    NumpySearch,
    read_compressed,
    write_compressed,
)
from soundingline.toolkit.files import atomic_folder

TYPES, TOPICS, OWN, BLOCK = 1 << 14, 2000, 100, 200
TARGET = 2_770_000, 180  # passages of the text-ranking study's corpus, and tokens of each
DEPTH, COMPARED = 1000, (10, 100, 1000)


class Drawn:
    """Passages of 60 to 180 tokens, stored in float16, as blocks of an encoding.

    A token's vector is the sum of a part that all share, its type (one of 2^14; frequencies follow
    Zipf's law), its topic (each passage has two of 2,000, each topic prefers 100 types) and noise.
    A query has 32 noisy copies of tokens of a passage (cosine 0.86 on average).
    """

    def __init__(self, folder, passages, dimensions):
        path = folder / f"late-{passages}-{dimensions}"
        if not path.exists():
            with atomic_folder(path) as unfinished:
                self._draw(unfinished, passages, dimensions)
        self.path, self.offsets = path, np.load(path / "offsets.npy")
        self.vectors = np.asarray(np.load(path / "vectors.npy", mmap_mode="r"))
        self.counts = {"rows": len(self.vectors)}
        self.settings = folder, passages, dimensions

    def _draw(self, path, passages, dimensions):
        chance = np.random.default_rng(SEED)
        types = length_one(chance.standard_normal((TYPES, dimensions), np.float32))
        topics = length_one(chance.standard_normal((TOPICS, dimensions), np.float32))
        popular = np.cumsum(1 / (np.arange(TYPES) + 5.0))
        own = np.searchsorted(popular, chance.random((TOPICS, OWN)) * popular[-1])
        lengths = chance.integers(60, 181, passages)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        shape = int(offsets[-1]), dimensions
        vectors = open_memmap(path / "vectors.npy", "w+", np.float16, shape)
        for first in range(0, passages, BLOCK):
            part = offsets[first : first + BLOCK + 1]
            passage = np.repeat(np.arange(len(part) - 1), np.diff(part))
            size = len(passage)
            pairs = (chance.random((len(part) - 1, 2)) ** 2 * TOPICS).astype(int)
            topic = pairs[passage, (chance.random(size) < 0.3).astype(int)]
            preferred = own[topic, (chance.random(size) ** 2 * OWN).astype(int)]
            common = np.searchsorted(popular, chance.random(size) * popular[-1])
            kind = np.where(chance.random(size) < 0.7, preferred, common)
            noise = length_one(chance.standard_normal((size, dimensions), np.float32))
            rows = 0.3 * types[0] + 0.75 * types[kind] + 0.4 * topics[topic] + 0.4 * noise
            vectors[part[0] : part[-1]] = length_one(rows)
        vectors.flush()
        np.save(path / "offsets.npy", offsets)

    def __iter__(self):
        for first in range(0, len(self.offsets) - 1, 2000):
            part = self.offsets[first : first + 2001]
            yield Block([], self.vectors[part[0] : part[-1]], part - part[0])

    def queries(self, number):
        chance, made = np.random.default_rng((SEED, 1)), []
        for passage in chance.integers(0, len(self.offsets) - 1, number):
            rows = chance.integers(self.offsets[passage], self.offsets[passage + 1], 32)
            noise = length_one(chance.standard_normal((32, self.vectors.shape[1]), np.float32))
            made.append(length_one(0.85 * self.vectors[rows] + 0.5 * noise).astype(np.float32))
        return made


@benchmark(
    "Late interaction",
    small={"passages": 600, "queries": 5},
    packages=("faiss-cpu", "lancedb", "numpy"),
    limits="the vectors of a trained model, whose neighbours may be easier or harder to tell apart",
)
def late(passages=10_000, queries=10, dimensions=128, rivals=1):
    """Overlap of the best passages with those of exact MaxSim, space, building and search."""
    drawn = Drawn(DATA, passages, dimensions)
    path = drawn.path / "ivf_pq"
    costs = {"exact, float16": [drawn.vectors.nbytes, "", ""]}
    costs["ivf_pq"] = _built(_build_ours, drawn, path)
    documents = read_compressed(path)
    searches = {"exact, float16": NumpySearch(DocumentVectors(drawn.vectors, drawn.offsets))}
    if passages <= 20_000:
        searches["ivf_pq, all decoded"] = NumpySearch(documents)
    for probes in (2, 8, 32):
        searches[f"ivf_pq, {probes} probes"] = CompressedSearch(path, documents, probes)
    systems = {name: partial(_numbers, search) for name, search in searches.items()}
    if rivals and find_spec("lancedb"):
        path = drawn.path / "lance"
        costs["LanceDB IVF_PQ"] = _built(_build_lance, drawn, path)
        table = import_module("lancedb").connect(path).open_table("passages")
        for probes, refine in ((8, None), (32, None), (32, 4)):
            name = f"LanceDB IVF_PQ, {probes} probes" + (f", refine {refine}" if refine else "")
            systems[name] = partial(_lance, table, probes, refine)
    texts = drawn.queries(queries)
    seconds, found = interleaved(systems, [texts], texts[:1])
    base, best = np.median(seconds["exact, float16"]), found["exact, float16"]
    rows = []
    for name, rankings in found.items():
        shares = [
            np.mean([len({*a[:k]} & {*b[:k]}) / k for a, b in zip(rankings, best, strict=True)])
            for k in (min(each, passages) for each in COMPARED)
        ]
        ratio = np.median(seconds[name]) / base
        rows.append([name, *(f"{share:.3f}" for share in shares), f"{ratio:.2f}"])
    scale = TARGET[0] * TARGET[1] / len(drawn.vectors)
    built = [
        [name, f"{size / passages:,.0f}", *spent, f"{size * scale / 1e9:,.0f}"]
        for name, (size, *spent) in costs.items()
    ]
    yield (
        f"{passages:,} generated passages, {len(drawn.vectors):,} vectors of {dimensions} "
        f"dimensions, {queries} queries of 32 tokens, depth {DEPTH}. An exact search takes "
        f"{1000 * base:,.0f} ms; times are medians as multiples of it, from one run. The last "
        f"column computes the space of {TARGET[0]:,} passages of {TARGET[1]} tokens."
    )
    head = ["search", *(f"overlap in the top {k}" for k in COMPARED), "time / exact"]
    yield Table(head, rows)
    head = ["index", "bytes a passage", "processor s", "peak MiB", "GB for the study's corpus"]
    yield Table(head, built)


def _numbers(search, query):
    return search([query], DEPTH)[0].numbers


def _built(build, drawn, path):
    """Bytes of a new index, processor seconds and memory of building it."""
    shutil.rmtree(path, ignore_errors=True)
    cost = in_own_process(build, drawn.settings, path)
    return [size_mb(path) * 2**20, f"{cost.processor:,.0f}", f"{cost.peak_mb:,.0f}"]


def _build_ours(settings, path):
    path.mkdir()
    write_compressed(Drawn(*settings), path)


def _build_lance(settings, path):
    import pyarrow as pa

    drawn, dimensions = Drawn(*settings), settings[-1]
    vector = pa.list_(pa.float32(), dimensions)
    schema = pa.schema([("number", pa.int64()), ("vector", pa.list_(vector))])

    def batches():
        begin = 0
        for block in drawn:
            flat = pa.array(block.values.astype(np.float32).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(flat, dimensions)
            lists = pa.ListArray.from_arrays(pa.array(block.offsets.astype(np.int32)), rows)
            numbers = pa.array(np.arange(begin, begin + len(lists)))
            begin += len(lists)
            yield pa.record_batch([numbers, lists], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    library = import_module("lancedb")
    table = library.connect(path).create_table("passages", reader)
    lists = 1 << int(np.log2(4 * len(drawn.vectors) ** 0.5))
    recipe = library.index.IvfPq(
        distance_type="cosine",
        num_partitions=lists,
        num_sub_vectors=dimensions // 4,
        max_iterations=10,
        sample_rate=40,
    )
    table.create_index("vector", config=recipe)


def _lance(table, probes, refine, query):
    """Without `refine` LanceDB estimates what its index does not hold; with it, it reads the
    vectors of `refine` times as many passages."""
    search = table.search(query).limit(DEPTH).nprobes(probes).select(["number", "_distance"])
    found = (search.refine_factor(refine) if refine else search).to_arrow()
    return found["number"].to_numpy()
