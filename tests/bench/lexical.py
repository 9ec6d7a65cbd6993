"""The lexical engine: search, building and the (k1, b) grid."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import pandas as pd
import rivals
from data import Units, build_ours, corpus_file, our_index, term_queries
from harness import (
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

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import Grid, RankTable, measure_table
from soundingline.toolkit.evaluation.retrieval import measure_rankings

K1, B, DEPTH = 0.9, 0.4, 1000
QUERIES = {8: 100, 60: 50}


@benchmark(
    "Lexical search",
    packages=("numba", "bm25s", "pyterrier-pisa"),
    limits="short passages, a cold disk, or other sizes, machines and collections",
    documents=(100_000, 2000),
    peers=(1, 1),
    seed=(7, 7),
)
def lexical(options):
    """BM25 of 8 and 60 terms against bm25s and PISA over the same tokens; --peers 0 leaves them
    out."""
    index = our_index(corpus_file(options.documents, options.seed))
    matrix = rivals.frequencies(index)
    queries = term_queries(index, matrix, QUERIES, options.seed)
    engines = {"ours": partial(index.search, k1=K1, b=B, depth=DEPTH)}
    for backend in ("numba", "numpy") if options.peers else ():
        retriever = rivals.bm25s_engine(index, matrix, K1, B, backend)
        engines[f"bm25s ({backend})"] = partial(_bm25s, retriever, min(DEPTH, len(index)))
    _check_scores(engines, [query for size in QUERIES for query in queries[size]])
    transformers = {
        "ours": index.bm25(k1=K1, b=B, depth=DEPTH),
        "ours, with RM3 feedback": index.bm25(k1=K1, b=B, depth=DEPTH).rm3(),
    }
    if options.peers:
        path = index.path.parent / "pisa-same-tokens"
        pisa = rivals.pisa_index(rivals.same_tokens(index, matrix), path)
        with rivals.quiet():
            transformers["PISA (maxscore)"] = pisa.bm25(
                k1=K1, b=B, num_results=DEPTH, query_algorithm="maxscore"
            )
    frames = {size: [_frame([query]) for query in queries[size]] for size in QUERIES}
    rows = _rows("engine", engines, queries)
    rows += _rows("transformer, one query a call", transformers, frames)
    batches = {size: [_frame(queries[size])] for size in QUERIES}
    rows += _rows("transformer, all queries in one call", transformers, batches, queries)
    speed = bandwidth()
    postings = {
        size: np.median([index.document_frequency(query).sum() for query in queries[size]])
        for size in QUERIES
    }
    floor = [f"{1000 * 6 * postings[size] / speed:.2f}" for size in QUERIES]
    rows.append(["lower bound", f"reading the postings at {speed / 1e9:.1f} GB/s", *floor])
    counts = index.statistics
    yield (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens, {counts.postings:,} postings "
        f"of six bytes. BM25 k1={K1}, b={B}, depth {DEPTH}, one thread; medians of five "
        f"interleaved rounds (smallest to largest). {load()}"
    )
    yield Table(["level", "system", *(f"{size} terms, ms" for size in QUERIES)], rows)


def _bm25s(retriever, depth, query):
    return retriever.retrieve([list(query)], k=depth, n_threads=0, show_progress=False)


def _frame(queries):
    return pd.DataFrame(
        {"qid": str(n), "query": " ".join(query), "query_toks": dict.fromkeys(query, 1.0)}
        for n, query in enumerate(queries)
    )


def _check_scores(engines, queries):
    """Ours stores a document's length with four significant bits, which changes scores by less than
    a tenth; anything more is a fault of the benchmark."""
    for query in queries:
        _, ours = engines["ours"](query)
        for name in engines:
            if name.startswith("bm25s"):
                theirs = engines[name](query).scores[0][: len(ours)]
                if not np.allclose(ours, theirs, rtol=0.1):
                    raise RuntimeError(f"{name} and our engine score {query} differently")


def _rows(level, systems, requests, queries=None):
    times = {size: milliseconds(systems, requests[size]) for size in QUERIES}
    share = {size: len(queries[size]) if queries else 1 for size in QUERIES}
    return [
        [level, name, *(median_range([t / share[s] for t in times[s][name]], 2) for s in QUERIES)]
        for name in systems
    ]


@benchmark(
    "Building an index",
    packages=("numba", "pyterrier-pisa", "pyserini"),
    limits="more than two cores, or other sizes, machines and collections",
    documents=(10_000, 2000),
    rounds=(5, 3),
    seed=(7, 7),
)
def building(options):
    """An index of raw text against PISA and, where it is installed, Anserini."""
    corpus = corpus_file(options.documents, options.seed)
    folder, ours = corpus.parent, "ours, one process and its thread"
    builds = {
        ours: (build_ours, corpus, folder / "built"),
        "PISA, 2 threads": (rivals.build_pisa, corpus, folder / "pisa", 2),
    }
    try:
        rivals.find_jar()
        collection = rivals.anserini_collection(corpus, 2)
        builds["Anserini, 2 threads"] = (rivals.build_anserini, collection, folder / "lucene", 2)
    except InputError as error:
        notify(str(error))
    costs = {name: [] for name in builds}
    for _ in range(options.rounds):
        for name, (build, *arguments) in builds.items():
            costs[name].append(in_own_process(build, *arguments))
    counts = LexicalIndex.open(folder / "built").statistics
    rows = [
        [
            name,
            median_range([cost.seconds for cost in taken]),
            f"{counts.tokens / np.median([cost.seconds for cost in taken]) / 1e6:.2f} M",
            f"{np.median([cost.processor for cost in taken]):.1f}",
            f"{max(cost.peak_mb for cost in taken):,.0f}",
            f"{size_mb(builds[name][2]):,.0f}",
            *(
                median_range([theirs / own for theirs, own in zip(of, base, strict=True)], 2)
                for of, base in _columns(taken, costs[ours])
            ),
        ]
        for name, taken in costs.items()
    ]
    yield (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens, from JSONL. Medians of "
        f"{options.rounds} interleaved builds; ratios are taken round by round. {load()}"
    )
    head = ["system", "s", "tokens/s", "processor s", "peak MiB", "index MiB"]
    yield Table([*head, "s, times ours", "processor s, times ours"], rows)


def _columns(*costs):
    """Seconds, then processor seconds, of each sequence of costs."""
    return [[[getattr(c, field) for c in of] for of in costs] for field in ("seconds", "processor")]


GRID = Grid("0:32:1", "0:1:0.1", "pi_serini")
POINTS = [(k1, b) for k1, b in GRID.points]
TERMS, JUDGED = 60, 6
MEASURES = ("nDCG@10", "AP", "R@1000")


class Question(NamedTuple):
    text: str
    terms: list
    docids: list


@benchmark(
    "Tuning",
    documents=(100_000, 2000),
    questions=(100, 20),
    rounds=(5, 3),
    points=(4, 1),
    threads=(os.cpu_count() or 1, os.cpu_count() or 1),
    seed=(7, 7),
)
def tuning(options):
    """All points of the (k1, b) grid in one pass, against one search a point (--points of them in
    each round) and Anserini, where it is installed."""
    corpus = corpus_file(options.documents, options.seed)
    index = our_index(corpus)
    chance = np.random.default_rng(options.seed)
    questions = _questions(index, corpus, options.questions, chance)
    judged = [JudgedQuery(str(n), q.terms, q.docids) for n, q in enumerate(questions)]
    drawn = chance.choice(len(GRID), (options.rounds, options.points), replace=False).tolist()
    threads = options.threads
    grid, single = f"grid ({threads} threads)", f"ours, point by point ({threads} threads)"

    def whole_grid(threads):
        return lambda _: dict(GridBM25(index, POINTS).ranks(judged, threads))

    with ThreadPoolExecutor(threads) as pool:

        def searches(points):
            rankings = []
            for k1, b in (POINTS[point] for point in points):
                search = partial(index.search, k1=k1, b=b, depth=DEPTH)
                rankings.append(list(pool.map(search, [q.terms for q in questions])))
            return rankings

        systems = {grid: whole_grid(threads), "grid (1 thread)": whole_grid(1), single: searches}
        if java := _anserini(corpus, questions):
            systems["Anserini, point by point"] = java
        seconds, results = interleaved(systems, [[points] for points in drawn], drawn[:1])
    alone = {
        point: ranking
        for points, rankings in zip(drawn, results[single], strict=True)
        for point, ranking in zip(points, rankings, strict=True)
    }
    _check_grid(index, questions, results[grid][0], alone)
    rows = []
    for name, taken in seconds.items():
        share = 1 if name.startswith("grid") else len(GRID) / options.points
        of_all = [share * each for each in taken]
        ratios = [each / ours for each, ours in zip(of_all, seconds[grid], strict=True)]
        a_question = [1000 * each / len(questions) for each in of_all]
        rows.append([name, *map(median_range, (of_all, a_question, ratios))])
    counts = index.statistics
    yield (
        f"{counts.documents:,} documents, {counts.tokens:,} tokens; {len(questions)} questions of "
        f"{TERMS} terms with {JUDGED} judged documents each, depth {DEPTH}, {len(GRID)} points. "
        f"Medians of {options.rounds} interleaved rounds. Times of single points are multiplied by "
        f"{len(GRID)} over their number. Measures of the grid and of single runs are equal, and "
        f"scores within 1e-5, at every point that was measured. {load()}"
    )
    yield Table(["system", "s, all points", "ms a question", "times the grid"], rows)


def _questions(index, corpus, count, chance):
    """Words of distinct terms, each question from one document; judged are that document and others
    among the first 1,000 of the default."""
    among = min(len(index), 100 * count)
    numbers = set(chance.choice(among, min(3 * count, among), replace=False).tolist())
    questions = []
    for number, unit in enumerate(islice(Units(corpus), max(numbers) + 1)):
        if number not in numbers or len(questions) == count:
            continue
        words, counts = {}, {}
        for word in index.analyzer.words(unit.contents):
            if (term := index.analyzer.term(word)) is not None:
                words.setdefault(term, word)
                counts[term] = counts.get(term, 0) + 1
        if len(counts) < TERMS:
            continue
        share = np.array(list(counts.values())) / sum(counts.values())
        terms = chance.choice(list(counts), TERMS, replace=False, p=share).tolist()
        hits, _ = index.search(terms, depth=DEPTH)
        others = index.docnos.take(chance.choice(hits, min(JUDGED, len(hits)), replace=False))
        docids = list(dict.fromkeys([unit.unit_id, *others.tolist()]))[:JUDGED]
        questions.append(Question(" ".join(words[term] for term in terms), terms, docids))
    if len(questions) < count:
        raise InputError(f"{len(questions)} documents are long enough", do="use more documents")
    return questions


def _check_grid(index, questions, ranks, alone):
    judged = {str(n): dict.fromkeys(q.docids, 1) for n, q in enumerate(questions)}
    docids = {qid: list(of) for qid, of in judged.items()}
    rank_table = RankTable(POINTS, docids, {qid: ranks[qid] for qid in judged})
    table = measure_table(rank_table, judged, MEASURES)
    for point, hits in alone.items():
        rankings = {str(n): index.docnos.take(found).tolist() for n, (found, _) in enumerate(hits)}
        expected = measure_rankings(rankings, judged, MEASURES)
        for measure in MEASURES:
            values = table.of(measure)[:, point].tolist()
            if dict(zip(table.qids, values, strict=True)) != expected[measure]:
                raise RuntimeError(f"{measure} differs between grid and single run at {point}")
    grid = GridBM25(index, POINTS)
    for number, question in enumerate(questions[:10]):
        scores = grid.scores(JudgedQuery("", question.terms, question.docids))
        for point, hits in alone.items():
            single = dict(zip(index.docnos.take(hits[number][0]), hits[number][1], strict=True))
            for row, docid in enumerate(question.docids):
                if docid in single and not np.isclose(scores[row, point], single[docid], rtol=1e-5):
                    raise RuntimeError(f"scores of {docid} differ at point {point}")


def _anserini(corpus, questions):
    from soundingline.pipelines.engines.anserini import AnseriniEngine

    engine = AnseriniEngine(document_vectors=False)
    path = corpus.parent / "anserini"
    texts = [question.text for question in questions]
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
