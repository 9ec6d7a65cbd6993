"""The search tool, replay of recorded calls, evidence, start-up, and the fictional world."""

import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from data import agent_queries, collection_path, corpus_file, our_index, store_of
from harness import ROOT, Table, benchmark, interleaved, load, median_range, milliseconds
from support.benchmarks import SmallBenchmark

from soundingline.agents.keyword.clues import WORD, is_content, stem
from soundingline.experiments.replay import Replaying
from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.evidence import LexicalLocator
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.corpus import Passages
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import evaluate_run
from soundingline.toolkit.evaluation.replay import without_answer
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.trajectory import Trajectory

SEARCHES, READS, QUESTIONS = 25, 5, 830


@benchmark("Search tool", documents=(100_000, 2000), seed=(7, 7))
def tool(options):
    """A search call ranks 1,000 documents and shows five excerpts; a read call shows 200 lines of a
    document."""
    corpus = corpus_file(options.documents, options.seed)
    index, store = our_index(corpus, keep_texts=True), store_of(corpus, options.documents)
    backend = PipelineBackend(index.bm25(k1=0.9, b=0.4, depth=1000))
    interface, docids = RankedBrowsing(), {}

    def search(query):
        # Each call has a session of its own, whose cache holds no ranking of the query yet.
        result = interface.open(backend, store).call("search", {"reason": "", "query": query})
        docids.update(dict.fromkeys(result.call.shown))

    reader, rows = interface.open(backend, store), []
    for name, texts in agent_queries(options.documents, options.seed).items():
        rows.append([name, median_range(milliseconds({"": search}, texts)[""], 2), "10"])

    def read(docid):
        reader.call("read_document", {"reason": "", "docid": docid})

    times = milliseconds({"": read}, list(docids))[""]
    rows.append(["read_document", median_range(times, 2), "2"])
    yield f"{len(index):,} documents, one thread; medians of five rounds. {load()}"
    yield Table(["call", "ms", "at most"], rows)


@benchmark("Replay", documents=(100_000, 2000), questions=(100, 20), threads=(2, 2), seed=(7, 7))
def replay(options):
    """Recorded questions of 25 searches and five reads through another BM25, and evaluation."""
    corpus = corpus_file(options.documents, options.seed)
    index, store = our_index(corpus, keep_texts=True), store_of(corpus, options.documents)
    queries = agent_queries(options.documents, options.seed)["search, 8 words"]
    with tempfile.TemporaryDirectory() as directory:
        folder = RunFolder(Path(directory) / "run")
        topics = _record(folder, index, store, queries, options.questions)
        evidence = {topic.qid: frozenset(["fw0000001"]) for topic in topics}
        judged = {"evidence": {qid: dict.fromkeys(ids, 1) for qid, ids in evidence.items()}}
        backend = PipelineBackend(index.bm25(k1=25, b=1, depth=1000))
        replaying = Replaying(backend, store, RankedBrowsing(), evidence)
        began, cpu = time.perf_counter(), time.process_time()
        replaying.replay(folder, options.threads)
        for side in (replaying.recorded, replaying.replayed):
            evaluate_run(side.rows, SmallBenchmark(topics, judged))
        wall, used = time.perf_counter() - began, time.process_time() - cpu
    a_search = 1000 * used / (options.questions * SEARCHES)
    yield f"{len(index):,} documents, {options.threads} threads. {load()}"
    row = [options.questions, f"{wall:.1f}", f"{a_search:.2f}"]
    row += [f"{wall / options.questions * QUESTIONS:.0f}", "120"]
    head = ["questions", "s", "processor ms a search", f"s for {QUESTIONS} questions", "at most"]
    yield Table(head, [row])


def _record(folder, index, store, queries, count):
    backend, interface = PipelineBackend(index.bm25(k1=0.9, b=0.4, depth=1000)), RankedBrowsing()
    chance, topics = random.Random(3), [Topic(f"q{number:04}", "") for number in range(count)]
    with folder.writing({"fingerprints": {}}):
        for topic in topics:
            session = interface.open(backend, store)
            for query in chance.choices(queries, k=SEARCHES):
                words = query.split()
                chance.shuffle(words)
                session.call("search", {"reason": "", "query": " ".join(words)})
            for docid in session.exposures.tiers["previewed"][:READS]:
                session.call("read_document", {"reason": "", "docid": docid})
            tiers = session.exposures.tiers
            row = Trajectory(topic.qid, "", "completed", tiers=tiers)
            folder.write(without_answer(row, session.calls))
    return topics


@benchmark("Evidence location", documents=(1000, 200), runs=(9, 3))
def evidence(options):
    """The best passages of documents for five requirements, without a model."""
    world = FictionalWorld(documents=2 * options.documents, questions="sets")
    units = (unit for document in world.documents() for unit in Passages().units(document))
    texts = [text for checklist in world.checklists.values() for text in checklist]
    docids = [document.docid for document in world.documents(stop=options.documents)]
    with tempfile.TemporaryDirectory() as folder:
        locator = LexicalLocator(LexicalIndex.build(units, Path(folder) / "index"))
        seconds = []
        for turn in range(options.runs):
            began = time.perf_counter()
            locator.locate(docids, texts[5 * turn : 5 * turn + 5])
            seconds.append(time.perf_counter() - began)
    yield f"{len(docids):,} documents, {len(locator.index):,} passages. {load()}"
    yield Table(["s", "at most"], [[median_range(seconds, 3), "2"]])


# The arguments of Python, and the largest ratio to the first.
STARTS = {
    'python -c "import pyterrier, hydra"': (("-c", "import pyterrier, hydra"), ""),
    "soundingline run --help": (("-m", "soundingline.experiments", "run", "--help"), "1.5"),
    'python -c "import soundingline.pipelines"': (("-c", "import soundingline.pipelines"), "0.3"),
    'python -c "from soundingline.experiments import Experiment"': (
        ("-c", "from soundingline.experiments import Experiment"),
        "1.5",
    ),
}


@benchmark("Start-up", packages=("pyterrier", "hydra-core", "pandas"), rounds=(7, 5))
def startup(options):
    """How long a command takes to start, against importing PyTerrier and Hydra."""
    systems = {name: partial(_start, words) for name, (words, _) in STARTS.items()}
    seconds, processor = interleaved(systems, [[()]] * options.rounds, [()])
    first = next(iter(seconds.values()))
    rows = [
        [
            f"`{name}`",
            median_range(taken, 2),
            f"{statistics.median(processor[name]):.2f}",
            median_range([own / base for own, base in zip(taken, first, strict=True)], 2),
            STARTS[name][1],
        ]
        for name, taken in seconds.items()
    ]
    yield f"Medians of {options.rounds} interleaved starts. {load()}"
    yield Table(["command", "s", "processor s", "times the first", "at most"], rows)


def _start(arguments, _):
    before = os.times()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


LENGTHS = ((0, 200), (200, 2000), (2000, 4000), (4000, 8000), (8000, 10**6))
ARTICLE = 500  # words; the paragraphs of wikimix are shorter, and its articles longer but for five
RARE = 0.02  # a term in more of the documents is common, and occurs for other reasons too
MOST = 4  # terms of an answer that is a name, a number or a phrase, and no sentence


class Terms(NamedTuple):
    """A term of a question or of its answer, in a document that answers the question."""

    asked: bool
    words: int
    frequency: int
    rare: bool


def content(text):
    return {stem(word) for word in WORD.findall(text) if is_content(word)}


class Measured:
    """The statistics of a collection. `sample`: of the documents without judgements, every
    `sample`-th counts."""

    def __init__(self, source, sample=1):
        gold = source.qrels.get("gold") or source.qrels["evidence"]
        relevant = {docid for grades in gold.values() for docid in grades}
        frequencies, titles, words = {}, {}, {}
        for number, document in enumerate(source.documents()):
            if number % sample and document.docid not in relevant:
                continue
            frequencies[document.docid] = Counter(
                map(stem, WORD.findall(f"{document.title} {document.text}"))
            )
            titles[document.docid] = content(document.title)
            words[document.docid] = len(document.text.split())
        df = Counter(term for counts in frequencies.values() for term in counts)
        self.lengths = np.array([count for count in words.values() if count >= ARTICLE])
        self.terms, self.rivals = [], []
        articles = [docid for docid, count in words.items() if count >= ARTICLE]
        for topic in source.topics:
            asked = content(topic.text)
            answer = content(source.answers[topic.qid][0]) - asked
            for docid in gold.get(topic.qid, {}):
                counts, title = frequencies[docid], titles[docid]
                rows = [(True, asked - title)]
                if len(answer) <= MOST:
                    rows.append((False, answer - title))
                for kind, terms in rows:
                    for term in sorted(terms):
                        rare = df[term] <= RARE * len(words)
                        self.terms.append(Terms(kind, words[docid], counts[term], rare))
                found = sum(term in counts for term in asked - title)
                if words[docid] >= ARTICLE and len(asked - title) > 1:
                    others = [
                        sum(term in frequencies[other] for term in asked - title) >= found
                        for other in articles
                        if other != docid
                    ]
                    self.rivals.append(np.mean(others))

    def repetition(self):
        """Scale, exponent and deviation of the frequency of the rare terms of answers."""
        found = [
            (math.log(term.words), math.log(term.frequency))
            for term in self.terms
            if not term.asked and term.rare and term.frequency and term.words
        ]
        lengths, counts = np.array(found).T
        exponent, intercept = np.polyfit(lengths, counts, 1)
        rest = counts - intercept - exponent * lengths
        return math.exp(intercept), exponent, float(rest.std())

    def shared(self):
        """The share of the words of a question, without those of the title, that the article that
        answers it has."""
        asked = [term.frequency > 0 for term in self.terms if term.asked and term.words >= ARTICLE]
        return float(np.mean(asked))

    def frequencies(self, low, high):
        """25th, 50th and 75th percentile of the frequency of rare terms of answers in documents of
        `low` to `high` words."""
        counts = [
            term.frequency
            for term in self.terms
            if not term.asked and term.rare and term.frequency and low <= term.words < high
        ]
        quartiles = np.percentile(counts, [25, 50, 75]) if len(counts) > 4 else []
        return " / ".join(f"{value:.0f}" for value in quartiles) or "—"


@benchmark("The fictional world and a real collection", sample=(10, 40))
def world(options):
    """The measures of wikimix from which `benchmark=fictional_wikimix` takes its parameters, and
    the same measures of that world."""
    settings = yaml.safe_load((ROOT / "conf/benchmark/fictional_wikimix.yaml").read_text())
    del settings["defaults"]
    real = Measured(BeirBenchmark(collection_path("wikimix"), split=None))
    made = Measured(FictionalWorld(**settings), max(1, options.sample))
    yield (
        f"Articles are documents of {ARTICLE} words or more. Rare terms are in at most {RARE:.0%} "
        "of the documents. Terms of a title do not count."
    )
    rows = [
        ["words of an article, median", *(f"{np.median(m.lengths):,.0f}" for m in (real, made))],
        ["90th percentile", *(f"{np.percentile(m.lengths, 90):,.0f}" for m in (real, made))],
        [
            "repetition: scale, exponent, deviation",
            *(", ".join(f"{value:.2f}" for value in m.repetition()) for m in (real, made)),
        ],
        ["words of a question that its article has", *(f"{m.shared():.2f}" for m in (real, made))],
        [
            "other articles that have as many of them",
            *(f"{np.mean(m.rivals):.3f}" for m in (real, made)),
        ],
    ]
    rows += [
        [f"frequency in {low:,} to {high:,} words, quartiles", m[0], m[1]]
        for low, high in LENGTHS
        for m in [(real.frequencies(low, high), made.frequencies(low, high))]
    ]
    yield Table(["measure", "wikimix", "fictional_wikimix"], rows)
