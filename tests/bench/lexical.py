"""The lexical engine: search, building, the (k1, b) grid, and very many documents."""

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import data
import ir_measures
import numpy as np
import pandas as pd
import psutil
import pyterrier as pt
from data import Units, build_ours, corpus_file, our_index, term_queries
from harness import (
    COLLECTIONS,
    DATA,
    SEED,
    Table,
    benchmark,
    in_own_process,
    interleaved,
    lower_bound,
    median_range,
    ratios,
    rows_of_times,
    size_mb,
)
from ir_measures import AP, nDCG
from support.opensearch_cluster import VERSIONS, running_cluster

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.engines.anserini import AnseriniEngine
from soundingline.pipelines.engines.opensearch import OpenSearchEngine
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.console import notify
from soundingline.toolkit.corpus import Passages
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import Grid

K1, B, DEPTH = 0.9, 0.4, 1000
QUERIES = {8: 100, 60: 50}  # number of queries by their number of terms


@benchmark(
    "Lexical search",
    small={"documents": 2000},
    packages=("numba", "bm25s", "pyterrier-pisa"),
    limits="short passages, a cold disk, or other sizes, machines and collections",
)
def lexical(documents=100_000):
    """BM25 of 8 and 60 terms against bm25s and PISA over the same tokens."""
    index = our_index(corpus_file(documents))
    matrix = data.frequencies(index)
    queries = term_queries(index, matrix, QUERIES)
    engines = {"ours": partial(index.search, k1=K1, b=B, depth=DEPTH)}
    for backend in ("numba", "numpy"):
        retriever = data.bm25s_engine(index, matrix, K1, B, backend)
        engines[f"bm25s ({backend})"] = partial(_bm25s, retriever, min(DEPTH, len(index)))
    transformers = {
        "ours": index.bm25(k1=K1, b=B, depth=DEPTH),
        "ours, with RM3 feedback": index.bm25(k1=K1, b=B, depth=DEPTH).rm3(),
    }
    pisa = data.pisa_index(data.tokens(index), index.path.parent / "pisa-same-tokens")
    with data.quiet():
        transformers["PISA (maxscore)"] = pisa.bm25(
            k1=K1, b=B, num_results=DEPTH, query_algorithm="maxscore"
        )
    frames = {size: [_frame([query]) for query in queries[size]] for size in QUERIES}
    batches = {size: [_frame(queries[size])] for size in QUERIES}
    rows = []
    for level, systems, requests, share in (
        ("engine", engines, queries, None),
        ("transformer, one query a call", transformers, frames, None),
        ("transformer, all queries in one call", transformers, batches, QUERIES),
    ):
        rows += [[level, *row] for row in rows_of_times(systems, requests, share=share)]
    read = [
        6 * np.median([sum(map(index.document_frequency, query)) for query in queries[size]])
        for size in QUERIES
    ]
    rows.append(["lower bound", *lower_bound("reading the postings", read)])
    counts = index.statistics
    yield (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens, {counts.postings:,} postings "
        f"of six bytes. BM25 k1={K1}, b={B}, depth {DEPTH}, one thread; medians of five "
        "interleaved rounds (smallest to largest)."
    )
    yield Table(["level", "system", *(f"{size} terms, ms" for size in QUERIES)], rows)


def _bm25s(retriever, depth, query):
    return retriever.retrieve([list(query)], k=depth, n_threads=0, show_progress=False)


def _frame(queries):
    return pd.DataFrame(
        {"qid": str(n), "query": " ".join(query), "query_toks": dict.fromkeys(query, 1.0)}
        for n, query in enumerate(queries)
    )


@benchmark(
    "The frame around a search",
    small={"documents": 2000},
    packages=("numba", "numpy", "pandas", "pyterrier"),
    limits="other depths, more queries in a frame, or other machines",
)
def frame(documents=600_000, queries=100):
    """What PyTerrier's frame adds to a search: analysis and search of a text alone, and the
    transformer on a frame of this one query, whose document ids are read for the first time, and
    again."""
    path = DATA / f"frame-{documents}"
    shutil.rmtree(path, ignore_errors=True)
    LexicalIndex.build(Generated(documents), path, keep_texts=False)
    chance, rows = np.random.default_rng(SEED), []
    for size in QUERIES:
        drawn = [dict.fromkeys(ranks(chance, 4 * size).tolist()) for _ in range(queries)]
        texts = [" ".join(map(word, list(each)[:size])) for each in drawn]
        requests = [pd.DataFrame({"qid": ["1"], "query": [text]}) for text in texts]
        index = LexicalIndex(path)  # which has read no id
        bm25 = index.bm25(k1=K1, b=B, depth=DEPTH)
        systems = {
            "search": lambda one, index=index: index.search(
                index.analyzer.terms(one["query"].iloc[0]), K1, B, DEPTH
            ),
            "transformer": bm25.transform,
        }
        for time_of in ("first", "second"):
            rounds = [[request] for request in requests]
            seconds, results = interleaved(systems, rounds)
            alone, whole = (1000 * np.array(seconds[name]) for name in systems)
            hits = np.median([len(result) for result in results["transformer"]])
            medians = [f"{np.median(each):.2f}" for each in (alone, whole, whole - alone)]
            rows.append([f"{size} terms, {time_of} time", f"{hits:,.0f}", *medians])
    shutil.rmtree(path)
    yield (
        f"{documents:,} generated documents of 62 words, {queries} queries, one a call, one "
        f"thread, depth {DEPTH}; medians in milliseconds, differences query by query."
    )
    yield Table(["queries", "rows", "search", "transformer", "difference"], rows)


@benchmark(
    "PyTerrier's own retriever",
    small={"documents": 2000, "rounds": 2},
    packages=("numba", "pyterrier", "pyjnius"),
    limits="several threads, indexes beyond memory, or other sizes, machines and collections",
)
def terrier(documents=200_000, rounds=3):
    """BM25 against the retriever of a real Terrier (Java, and jars from Maven Central): the same
    frame of queries in, a frame of at most 1,000 documents a query out."""
    folder = DATA / f"terrier-{documents}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    drawn = {f"{size} terms": texts for size, texts in drawn_queries().items()}
    sources = {name: (*_collection(name), {}) for name in ("vaswani", "cacm", "wikidemo")}
    sources[f"{documents:,} generated"] = (Generated(documents), {}, None, drawn)
    rows = []
    try:
        for place, (name, (units, topics, judged, more)) in enumerate(sources.items()):
            systems = _terriers(units, folder / str(place))
            frames = {"its questions": topics} if judged else {
                size: pd.DataFrame({"qid": list(map(str, range(len(texts)))), "query": texts})
                for size, texts in more.items()
            }  # fmt: skip
            for what, frame in frames.items():
                # Processor time, that of Java's threads included: other load does not change it.
                seconds, results = interleaved(
                    systems, [[frame]] * rounds, [frame], clock=time.process_time
                )
                ours = [second * 1000 / len(frame) for second in seconds["ours"]]
                for system, taken in seconds.items():
                    times = [second * 1000 / len(frame) for second in taken]
                    measures = ["", ""]
                    if judged:
                        run = results[system][-1].rename(
                            columns={"qid": "query_id", "docno": "doc_id"}
                        )
                        values = ir_measures.calc_aggregate([AP, nDCG @ 10], judged, run)
                        measures = [f"{values[AP]:.4f}", f"{values[nDCG @ 10]:.4f}"]
                    compared = "" if system == "ours" else ratios(times, ours)
                    label = f"{name}, {what}"
                    rows.append([label, system, median_range(times, 2), compared, *measures])
    finally:
        shutil.rmtree(folder)
    yield (
        f"k1={K1}, b={B}; medians of {rounds} interleaved rounds, all queries in one frame, one "
        "thread."
    )
    head = ["queries", "system", "processor ms a query", "times ours", "AP", "nDCG@10"]
    yield Table(head, rows)


def _collection(name):
    """The units, the questions and the judgements of a collection."""
    collection = BeirBenchmark(data.collection_path(name))
    units = [Unit(row.docid, row.title, row.text) for row in collection.documents()]
    rows = [(topic.qid, topic.text) for topic in collection.topics]
    judged = collection.qrels.get("gold") or collection.qrels["evidence"]
    return units, pd.DataFrame(rows, columns=["qid", "query"]), judged


def _terriers(units, folder):
    """Ours; Terrier with its own stop words and stemmer; Terrier over our terms, which leaves the
    formula as the difference."""
    index = LexicalIndex.build(units, folder / "ours", keep_texts=False)
    settings = {"meta": {"docno": 40}, "overwrite": True}
    texts = ({"docno": unit.unit_id, "text": unit.contents} for unit in units)
    own = pt.terrier.IterDictIndexer(str(folder / "own"), **settings).index(texts)
    terms = pt.terrier.IterDictIndexer(str(folder / "terms"), pretokenised=True, **settings)
    ranking = {"wmodel": "BM25", "num_results": DEPTH, "controls": {"bm25.k_1": K1, "bm25.b": B}}

    def counts(row):
        return {term: float(n) for term, n in Counter(index.analyzer.terms(row["query"])).items()}

    return {
        "ours": index.bm25(k1=K1, b=B, depth=DEPTH),
        "Terrier": pt.terrier.Retriever(own, **ranking),
        "Terrier over our terms": pt.apply.query_toks(counts)
        >> pt.terrier.Retriever(terms.index(data.tokens(index)), **ranking),
    }


@benchmark(
    "Building an index",
    small={"documents": 2000, "rounds": 3},
    packages=("numba", "pyterrier-pisa", "pyserini"),
    limits="more than two cores, or other sizes, machines and collections",
)
def building(documents=10_000, rounds=5):
    """An index of raw text against PISA and, where it is installed, Anserini."""
    corpus = corpus_file(documents)
    folder, ours = corpus.parent, "ours, one process and its thread"
    builds = {
        ours: (build_ours, corpus, folder / "built"),
        "PISA, 2 threads": (data.build_pisa, corpus, folder / "pisa", 2),
    }
    try:
        data.find_jar()
        collection = data.anserini_collection(corpus, 2)
        builds["Anserini, 2 threads"] = (data.build_anserini, collection, folder / "lucene", 2)
    except InputError as error:
        notify(str(error))
    costs = {name: [] for name in builds}
    for _ in range(rounds):
        for name, (build, *arguments) in builds.items():
            costs[name].append(in_own_process(build, *arguments))
    counts = LexicalIndex(folder / "built").statistics
    frames = {name: pd.DataFrame(taken) for name, taken in costs.items()}
    rows = [
        [
            name,
            median_range(taken.seconds),
            f"{counts.tokens / taken.seconds.median() / 1e6:.2f} M",
            f"{taken.processor.median():.1f}",
            f"{taken.peak_mb.max():,.0f}",
            f"{size_mb(builds[name][2]):,.0f}",
            ratios(taken.seconds, frames[ours].seconds),
        ]
        for name, taken in frames.items()
    ]
    yield (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens, from JSONL. Medians of "
        f"{rounds} interleaved builds; ratios are taken round by round."
    )
    head = ["system", "s", "tokens/s", "processor s", "peak MiB", "index MiB"]
    yield Table([*head, "s, times ours"], rows)


GRID = Grid("0:32:1", "0:1:0.1", "pi_serini")
POINTS = [(k1, b) for k1, b in GRID.points]
TERMS, JUDGED = 60, 6


@benchmark("Tuning", small={"documents": 2000, "questions": 20, "rounds": 3, "points": 1})
def tuning(documents=100_000, questions=100, rounds=5, points=4):
    """All points of the (k1, b) grid in one pass, against one search a point (--points of them in
    each round) and Anserini, where it is installed."""
    corpus, threads = corpus_file(documents), os.cpu_count() or 1
    index, chance = our_index(corpus), np.random.default_rng(SEED)
    (queries,) = term_queries(index, data.frequencies(index), {TERMS: questions}).values()
    judged = []
    for number, terms in enumerate(queries):
        hits, _ = index.search(terms, depth=DEPTH)
        docids = index.docnos.take(chance.choice(hits, min(JUDGED, len(hits)), replace=False))
        judged.append(JudgedQuery(str(number), terms, docids.tolist()))
    drawn = chance.choice(len(GRID), (rounds, points), replace=False).tolist()
    grid, single = f"grid ({threads} threads)", f"ours, point by point ({threads} threads)"

    def whole_grid(threads):
        return lambda _: dict(GridBM25(index, POINTS).ranks(judged, threads))

    with ThreadPoolExecutor(threads) as pool:

        def searches(points):
            for k1, b in (POINTS[point] for point in points):
                search = partial(index.search, k1=k1, b=b, depth=DEPTH)
                list(pool.map(search, queries))

        systems = {grid: whole_grid(threads), "grid (1 thread)": whole_grid(1), single: searches}
        if java := _anserini(corpus, queries):
            systems["Anserini, point by point"] = java
        requests = [[points] for points in drawn]
        seconds, _ = interleaved(systems, requests, drawn[:1], keep_results=False)
    rows = []
    for name, taken in seconds.items():
        share = 1 if name.startswith("grid") else len(GRID) / points
        of_all = [share * each for each in taken]
        a_question = [1000 * each / questions for each in of_all]
        times_grid = ratios(of_all, seconds[grid])
        rows.append([name, median_range(of_all), median_range(a_question), times_grid])
    counts = index.statistics
    yield (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens; {questions} questions of "
        f"{TERMS} terms with {JUDGED} judged documents each, depth {DEPTH}, {len(GRID)} points. "
        f"Medians of {rounds} interleaved rounds. Times of single points are multiplied by "
        f"{len(GRID)} over their number."
    )
    yield Table(["system", "s, all points", "ms a question", "times the grid"], rows)


def _anserini(corpus, queries):
    """Rankings of all queries at points by Anserini, which analyses the terms once more: a few of
    them change, and then find other documents than ours."""
    engine = AnseriniEngine()
    path, texts = corpus.parent / "anserini", [" ".join(terms) for terms in queries]
    try:
        if not path.exists():
            engine.build(Units(corpus), path, corpus_fingerprint="bench")
        index = engine.open(path, corpus_fingerprint="bench")
    except InputError as error:
        notify(f"Anserini is left out: {error}")
        return None

    def rank(points):
        for k1, b in (POINTS[point] for point in points):
            index.rank(texts, index.bm25(k1, b, DEPTH), DEPTH)

    return rank


SETTINGS = ((K1, B), (25.0, 1.0))
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

    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __iter__(self):
        words = np.array([word(rank) for rank in range(VOCABULARY)], dtype=object)
        for start in range(0, self.number, AT_ONCE):
            chance = np.random.default_rng([SEED, start])
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


def drawn_queries():
    """By the number of terms, texts of distinct words that are drawn as those of the documents."""
    chance, texts = np.random.default_rng(SEED), {}
    for size, count in QUERIES.items():
        texts[size] = []
        for _ in range(count):
            distinct = list(dict.fromkeys(ranks(chance, 4 * size).tolist()))[:size]
            texts[size].append(" ".join(map(word, distinct)))
    return texts


@benchmark(
    "Many documents",
    small={"documents": 20_000},
    packages=("numba", "numpy", "pyserini"),
    limits="real text, whose words depend on each other, or other machines",
)
def scale(documents=1_000_000, anserini=1):
    """Time, memory and disk of an index of generated documents, and the time of its searches;
    Anserini's too, unless --anserini 0."""
    folder = DATA / f"scale-{documents}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        units, texts = Generated(documents), drawn_queries()
        steps = [["making the documents", *in_own_process(read, units).cells(), ""]]
        rows = []
        for name in ("ours", "anserini") if anserini else ("ours",):
            try:
                cost = in_own_process(build_many, name, units, folder / name)
            except RuntimeError as error:
                notify(f"{name} is left out: {error}")
                continue
            steps.append([f"building, {name}", *cost.cells(), f"{size_mb(folder / name):,.0f}"])
            cost = in_own_process(search_many, name, folder, texts)
            steps.append([f"searching, {name}", *cost.cells(), ""])
            rows += json.loads((folder / f"{name}.json").read_text())
        counts = LexicalIndex(folder / "ours").statistics
        yield (
            f"{counts.documents:,} documents, {counts.tokens:,} tokens, {counts.postings:,} "
            f"postings, {counts.terms:,} terms; texts are not stored. Building includes making the "
            "documents. Peaks are of all processes of a step, mapped files included."
        )
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


def read(units):
    for _ in units:
        pass


def build_many(name, units, path):
    if name == "ours":
        LexicalIndex.build(units, path, keep_texts=False)
    else:
        AnseriniEngine().build(units, path, corpus_fingerprint="bench")


def search_many(name, folder, texts):
    """Rows of opening, and of each size of a query and setting of BM25."""
    (folder / name / ".verified.json").unlink(missing_ok=True)
    open_index = LexicalIndex if name == "ours" else AnseriniEngine().open
    rows, opened = [], []  # a list, because forgetting an index unmaps its files, which takes time
    for what in ("opening for the first time", "opening again"):
        start, before = time.perf_counter(), time.process_time()
        opened.append(open_index(folder / name))
        opened[-1].document_frequency("a")
        seconds, processor = time.perf_counter() - start, time.process_time() - before
        rows.append([name, what, f"{1000 * seconds:,.1f}", "", f"{1000 * processor:,.1f}", ""])
    index = opened[-1]

    def clock():
        children = psutil.Process().children() if name != "ours" else [psutil.Process()]
        return sum(sum(child.cpu_times()[:2]) for child in children)

    for size, of_size in texts.items():
        postings = ""
        if name == "ours":
            analysed = map(index.analyzer.terms, of_size)
            counts = [sum(map(index.document_frequency, terms)) for terms in analysed]
            postings = f"{np.mean(counts):,.0f}"
        for k1, b in SETTINGS:
            model = index.bm25(k1, b, DEPTH)
            search = {"": lambda text, model=model: index.rank([text], model, DEPTH)}
            interleaved(search, [of_size])
            before = clock()
            seconds, _ = interleaved(search, [of_size], keep_results=False)
            processor = 1000 * (clock() - before) / len(of_size)
            middle, high = 1000 * np.percentile(seconds[""], [50, 95])
            what, times = f"{size} terms, k1={k1:g}, b={b:g}", [f"{middle:,.1f}", f"{high:,.1f}"]
            rows.append([name, what, *times, f"{processor:,.1f}", postings])
    (folder / f"{name}.json").write_text(json.dumps(rows))


@benchmark(
    "A search cluster",
    small={"documents": 200},
    packages=("opensearch-py", "numpy"),
    limits="nodes on machines of their own, and corpora that exceed their memory",
)
def opensearch(documents=2000, shards=3, queries=50, version=VERSIONS[0]):
    """Loading, disk and searches of `engine=opensearch` on three nodes of this machine with 512 MB
    of heap each, for passages of 250 words of a generated world, and of wikimix where it is."""
    worlds = [FictionalWorld(documents=documents, questions=queries, seed=SEED)]
    if (COLLECTIONS / "wikimix").is_dir():
        worlds.append(BeirBenchmark(COLLECTIONS / "wikimix"))
    loads, searches = [], []
    with tempfile.TemporaryDirectory() as name, running_cluster(Path(name), version) as cluster:
        for world in worlds:
            units = [unit for row in world.documents() for unit in Passages().units(row)]
            path = Path(name, f"{world.name}-index")
            before, start = processor_seconds(cluster), time.perf_counter()
            engine = OpenSearchEngine(cluster.urls, shards=shards, replicas=0, force_merge=True)
            engine.build(units, path, corpus_fingerprint=world.name)
            seconds, processor = time.perf_counter() - start, processor_seconds(cluster) - before
            index = engine.open(path)
            stored = cluster.ask("GET", f"/{index.manifest['index']}/_stats/store")
            size = stored["_all"]["primaries"]["store"]["size_in_bytes"]
            text = sum(len(unit.contents.encode()) for unit in units)
            loads.append(
                [
                    world.name,
                    f"{len(units):,}",
                    f"{text / len(units):,.0f}",
                    f"{len(units) / seconds:,.0f}",
                    f"{1e6 * processor / len(units):,.0f}",
                    f"{size / len(units):,.0f}",
                ]
            )
            texts = [topic.text for topic in world.topics[:queries]]
            for _ in range(60):  # Java compiles what it has run often
                index.rank(texts, index.bm25(K1, B, DEPTH), DEPTH)
            for depth in (10, 100, DEPTH):
                model = index.bm25(K1, B, depth)
                index.rank(texts, model, depth)
                before, taken = processor_seconds(cluster), []
                for query in texts:
                    start = time.perf_counter()
                    index.rank([query], model, depth)
                    taken.append(1000 * (time.perf_counter() - start))
                spent = 1000 * (processor_seconds(cluster) - before) / len(texts)
                median = f"{np.median(taken):.1f}"
                searches.append([world.name, depth, median, f"{spent:.1f}"])
    yield (
        f"OpenSearch {version}, {shards} shards without replicas, merged to one segment each; "
        "processor time is that of the three nodes."
    )
    head = [
        "corpus",
        "passages",
        "bytes of text",
        "loaded a second",
        "processor us",
        "bytes on disk",
    ]
    yield Table(head, loads)
    yield Table(["corpus", "hits a query", "median ms, one at a time", "processor ms"], searches)


def processor_seconds(cluster):
    """The processor time of the nodes of a cluster so far."""
    times = [psutil.Process(process.pid).cpu_times() for process in cluster.processes.values()]
    return sum(one.user + one.system for one in times)
