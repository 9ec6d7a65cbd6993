"""One to ten million generated documents on one machine: building, opening and searching."""

from __future__ import annotations

import json
import shutil
import time

import numpy as np
import psutil
from harness import DATA, Table, benchmark, in_own_process, size_mb

from soundingline.pipelines import LexicalIndex
from soundingline.toolkit.console import notify
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

DEPTH, SETTINGS = 1000, ((0.9, 0.4), (25.0, 1.0))
QUERIES = {8: 60, 60: 20}  # number of queries by their number of terms
AT_ONCE = 10_000  # documents
VOCABULARY, OFFSET, EXPONENT = 999_900, 50, 1.1  # of the law of Zipf and Mandelbrot
REPEATED = 0.25  # of the words, which repeat an earlier word of their document
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]


def word(rank):
    """Two or three syllables, so that no word is a stop word."""
    number, syllables = rank + len(SYLLABLES), []
    while number:
        number, last = divmod(number, len(SYLLABLES))
        syllables.append(SYLLABLES[last])
    return "".join(reversed(syllables))


def ranks(chance, size):
    """Ranks of independent words."""
    low, high = (number ** (1 - EXPONENT) for number in (OFFSET, OFFSET + VOCABULARY))
    drawn = (low - chance.random(size) * (low - high)) ** (1 / (1 - EXPONENT)) - OFFSET
    return np.minimum(drawn.astype(np.int64), VOCABULARY - 1)


class Generated:
    """Documents of 62 words on average (log-normal), made anew by each iteration and never kept."""

    def __init__(self, number, seed):
        self.number, self.seed = number, seed

    def __len__(self):
        return self.number

    def __iter__(self):
        words = np.array([word(rank) for rank in range(VOCABULARY)], dtype=object)
        for start in range(0, self.number, AT_ONCE):
            chance = np.random.default_rng([self.seed, start])
            lengths = chance.lognormal(np.log(55), 0.5, min(AT_ONCE, self.number - start))
            lengths = np.clip(lengths, 5, 500).astype(np.int64)
            ends = np.cumsum(lengths)
            drawn = ranks(chance, ends[-1])
            firsts = np.repeat(ends - lengths, lengths)
            positions = np.arange(ends[-1]) - firsts
            earlier = firsts + (chance.random(ends[-1]) * positions).astype(np.int64)
            drawn = np.where(chance.random(ends[-1]) < REPEATED, drawn[earlier], drawn)
            names, begin = words[drawn].tolist(), 0
            for number, end in enumerate(ends.tolist(), start):
                yield Unit(f"d{number:09d}", "", " ".join(names[begin:end]))
                begin = end


def queries(seed):
    """By the number of terms, texts of distinct words that are drawn as those of the documents."""
    chance, texts = np.random.default_rng(seed), {}
    for size, count in QUERIES.items():
        texts[size] = []
        for _ in range(count):
            distinct = list(dict.fromkeys(ranks(chance, 4 * size).tolist()))[:size]
            texts[size].append(" ".join(map(word, distinct)))
    return texts


@benchmark(
    "Many documents",
    packages=("numba", "numpy", "pyserini"),
    limits="real text, whose words depend on each other, or other machines",
    documents=(1_000_000, 20_000),
    anserini=(1, 1),
    seed=(7, 7),
)
def scale(options):
    """Time, memory and disk of an index of generated documents, and the time of its searches;
    Anserini's too, unless --anserini 0."""
    folder = DATA / f"scale-{options.documents}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        units, texts = Generated(options.documents, options.seed), queries(options.seed)
        costs = {"making the documents": (in_own_process(read, units), None)}
        costs["building, ours"] = built(build, units, folder / "ours")
        costs["searching, ours"] = in_own_process(ours, folder, texts), None
        rows = json.loads((folder / "ours.json").read_text())
        if options.anserini:
            try:
                costs["building, Anserini"] = built(build_anserini, units, folder / "anserini")
                costs["searching, Anserini"] = in_own_process(anserini, folder, texts), None
                rows += json.loads((folder / "anserini.json").read_text())
            except InputError as error:
                notify(f"Anserini is left out: {error}")
        counts = LexicalIndex.open(folder / "ours").statistics
        yield (
            f"{counts.documents:,} documents, {counts.tokens:,} tokens, {counts.postings:,} "
            f"postings, {counts.terms:,} terms; texts are not stored. Building includes making the "
            "documents. Peaks are of all processes of a step, mapped files included."
        )
        steps = [
            [name, f"{cost.seconds:.1f}", f"{cost.processor:.1f}", f"{cost.peak_mb:,.0f}", size]
            for name, (cost, disk) in costs.items()
            for size in [f"{disk:,.0f}" if disk else ""]
        ]
        yield Table(["step", "s", "processor s", "peak MiB", "disk MiB"], steps)
        yield (
            f"One query a call, one thread, depth {DEPTH}, text to unit ids and scores, after one "
            "round of all queries."
        )
        yield Table(
            ["system", "what", "median ms", "95th percentile", "processor ms", "postings a query"],
            rows,
        )
    finally:
        shutil.rmtree(folder)


def built(function, units, path):
    cost = in_own_process(function, units, path)
    return cost, size_mb(path)


def read(units):
    for _ in units:
        pass


def build(units, path):
    LexicalIndex.build(units, path, memory_mb=1024, keep_texts=False)


def build_anserini(units, path):
    from soundingline.pipelines.engines.anserini import AnseriniEngine

    AnseriniEngine(document_vectors=False).build(units, path, corpus_fingerprint="bench")


def ours(folder, texts):
    (folder / "ours" / ".verified.json").unlink()
    rows, opened = [], []  # a list, because forgetting an index unmaps its files, which takes time
    for name in ("opening for the first time", "opening again"):
        start, before = time.perf_counter(), time.process_time()
        opened.append(LexicalIndex.open(folder / "ours"))
        seconds, processor = time.perf_counter() - start, time.process_time() - before
        rows.append(["ours", name, f"{1000 * seconds:,.1f}", "", f"{1000 * processor:,.1f}", ""])

    index = opened[-1]

    def postings(text):
        return int(index.document_frequency(index.analyzer.terms(text)).sum())

    rows += timed("ours", index, texts, time.process_time, postings)
    best = [index.rank(texts[8][:5], index.bm25(*SETTINGS[0], DEPTH), 10)]
    (folder / "best.json").write_text(json.dumps([[*map(float, r.scores)] for r in best[0]]))
    (folder / "ours.json").write_text(json.dumps(rows))


def anserini(folder, texts):
    from soundingline.pipelines.engines.anserini import AnseriniEngine

    start = time.perf_counter()
    index = AnseriniEngine(document_vectors=False).open(folder / "anserini")
    index.document_frequency("a")
    rows = [["Anserini", "opening", f"{1000 * (time.perf_counter() - start):,.1f}", "", "", ""]]
    best = index.rank(texts[8][:5], index.bm25(*SETTINGS[0], DEPTH), 10)
    for own, theirs in zip(json.loads((folder / "best.json").read_text()), best, strict=True):
        if not np.allclose(own, theirs.scores, rtol=1e-3):
            raise RuntimeError("Anserini and our engine score the same query differently")
    (worker,) = psutil.Process().children()

    def clock():
        times = worker.cpu_times()
        return times.user + times.system

    rows += timed("Anserini", index, texts, clock, lambda _: None)
    (folder / "anserini.json").write_text(json.dumps(rows))


def timed(name, index, texts, clock, postings):
    """A row for each size of a query and setting of BM25."""
    rows = []
    for size, of_size in texts.items():
        counts = [postings(text) for text in of_size]
        shown = "" if None in counts else f"{np.mean(counts):,.0f}"
        for k1, b in SETTINGS:
            model = index.bm25(k1, b, DEPTH)
            for text in of_size:
                index.rank([text], model, DEPTH)
            seconds, before = [], clock()
            for text in of_size:
                start = time.perf_counter()
                index.rank([text], model, DEPTH)
                seconds.append(1000 * (time.perf_counter() - start))
            processor = 1000 * (clock() - before) / len(of_size)
            what = f"{size} terms, k1={k1:g}, b={b:g}"
            quantiles = [f"{value:,.1f}" for value in np.percentile(seconds, [50, 95])]
            rows.append([name, what, *quantiles, f"{processor:,.1f}", shown])
    return rows
