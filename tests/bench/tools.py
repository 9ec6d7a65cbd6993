"""The search tool, replay of recorded calls, evidence, start-up, and the fictional world."""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from itertools import islice, product
from pathlib import Path

import numpy as np
import pandas as pd
from data import agent_queries, corpus_file, our_index, store_of
from harness import (
    DATA,
    ROOT,
    SEED,
    Table,
    benchmark,
    in_own_process,
    interleaved,
    median_range,
    ratios,
    rows_of_times,
)
from support.benchmarks import SmallBenchmark

from soundingline.agents.keyword.clues import WORD, crude_stem, is_content
from soundingline.experiments.build import make
from soundingline.experiments.cli import main
from soundingline.experiments.config import Settings
from soundingline.experiments.replay import Replaying
from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.requirements.locators import LexicalLocator
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.corpus import Passages
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import Evaluation, evaluate_run, write_evaluation
from soundingline.toolkit.evaluation.evaluation import JUDGES, average_repeats
from soundingline.toolkit.evaluation.replay import without_answer
from soundingline.toolkit.files import write_json
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.runs.run_folder import METRICS, repeat_id
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.trajectory import Trajectory

SEARCHES, READS, QUESTIONS, THREADS = 25, 5, 830, 2


@benchmark("Search tool", small={"documents": 2000})
def tool(documents=100_000):
    """A search call ranks 1,000 documents and shows five excerpts; a read call shows 200 lines of a
    document."""
    corpus = corpus_file(documents)
    index, store = our_index(corpus, keep_texts=True), store_of(corpus, documents)
    backend = PipelineBackend(index.bm25(k1=0.9, b=0.4, depth=1000))
    interface, docids = RankedBrowsing(), {}

    def search(query):
        # Each call has a session of its own, whose cache holds no ranking of the query yet.
        result = interface.open(backend, store).call("search", {"reason": "", "query": query})
        docids.update(dict.fromkeys(result.call.shown))

    reader = interface.open(backend, store)

    def read(docid):
        reader.call("read_document", {"reason": "", "docid": docid})

    rows = []
    for name, texts in agent_queries(documents).items():
        rows += [[*row, "10"] for row in rows_of_times({name: search}, {"": texts})]
    rows += [[*row, "2"] for row in rows_of_times({"read_document": read}, {"": list(docids)})]
    yield f"{len(index):,} documents, one thread; medians of five rounds."
    yield Table(["call", "ms", "at most"], rows)


@benchmark("Replay", small={"documents": 2000, "questions": 20})
def replay(documents=100_000, questions=100):
    """Recorded questions of 25 searches and five reads through another BM25, and evaluation."""
    corpus = corpus_file(documents)
    index, store = our_index(corpus, keep_texts=True), store_of(corpus, documents)
    queries = agent_queries(documents)["search, 8 words"]
    with tempfile.TemporaryDirectory() as directory:
        folder = RunFolder(Path(directory) / "run")
        topics = _record(folder, index, store, queries, questions)
        evidence = {topic.qid: frozenset(["fw0000001"]) for topic in topics}
        judged = {"evidence": {qid: dict.fromkeys(ids, 1) for qid, ids in evidence.items()}}
        backend = PipelineBackend(index.bm25(k1=25, b=1, depth=1000))
        replaying = Replaying(backend, store, RankedBrowsing(), evidence)
        began, cpu = time.perf_counter(), time.process_time()
        replaying.replay(folder, THREADS)
        for side in (replaying.recorded, replaying.replayed):
            evaluate_run(side.rows, SmallBenchmark(topics, judged))
        wall, used = time.perf_counter() - began, time.process_time() - cpu
    a_search = 1000 * used / (questions * SEARCHES)
    yield f"{len(index):,} documents, {THREADS} threads."
    row = [questions, f"{wall:.1f}", f"{a_search:.2f}"]
    row += [f"{wall / questions * QUESTIONS:.0f}", "120"]
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


@benchmark("Evidence location", small={"documents": 200, "runs": 3})
def evidence(documents=1000, runs=9):
    """The best passages of documents for five requirements, without a model."""
    world = FictionalWorld(documents=2 * documents, questions="sets")
    units = (unit for document in world.documents() for unit in Passages().units(document))
    texts = [text for checklist in world.checklists.values() for text in checklist]
    docids = [document.docid for document in islice(world.documents(), documents)]
    with tempfile.TemporaryDirectory() as folder:
        locator = LexicalLocator(LexicalIndex.build(units, Path(folder) / "index"))
        seconds = []
        for turn in range(runs):
            began = time.perf_counter()
            locator.locate(docids, texts[5 * turn : 5 * turn + 5])
            seconds.append(time.perf_counter() - began)
    yield f"{len(docids):,} documents, {len(locator.index):,} passages."
    yield Table(["s", "at most"], [[median_range(seconds, 3), "2"]])


STARTS = {
    'python -c "import pyterrier, hydra"': ["-c", "import pyterrier, hydra"],
    "soundingline run --help": ["-m", "soundingline.experiments", "run", "--help"],
    'python -c "import soundingline.pipelines"': ["-c", "import soundingline.pipelines"],
    'python -c "from soundingline.experiments import Experiment"': [
        "-c",
        "from soundingline.experiments import Experiment",
    ],
}
MOST = ("", "1.5", "0.3", "1.5")  # of the ratio to the first


@benchmark("Start-up", small={"rounds": 5}, packages=("pyterrier", "hydra-core", "pandas"))
def startup(rounds=7):
    """How long a command takes to start, against importing PyTerrier and Hydra."""
    systems = {name: partial(_start, words) for name, words in STARTS.items()}
    seconds, processor = interleaved(systems, [[()]] * rounds, [()])
    first = next(iter(seconds.values()))
    rows = []
    for (name, taken), most in zip(seconds.items(), MOST, strict=True):
        used = f"{statistics.median(processor[name]):.2f}"
        rows.append([f"`{name}`", median_range(taken, 2), used, ratios(taken, first), most])
    yield f"Medians of {rounds} interleaved starts."
    yield Table(["command", "s", "processor s", "times the first", "at most"], rows)


def _start(arguments, _):
    before = os.times()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


LEVELS = {"unit": 3, "retriever": 2, "reranker": 3}  # of a factorial design
MEASURES = ("nDCG@10", "AP", "P@30", "R@100", "R@1000", "recall_surfaced", "recall_opened")
EFFORTS = ("search_calls", "tool_calls", "tokens_exposed", "documents_exposed", "seconds")
USED = ("calls", "input_tokens", "cached_tokens", "output_tokens", "seconds", "dollars")
USAGES = [f"usage_{role}{name}" for role in ("", "agent_", "rewriter_") for name in USED]


@benchmark("Comparison", small={"questions": 100, "repeats": 2}, packages=("numpy", "scipy"))
def comparison(questions=830, repeats=3):
    """`soundingline compare` of a factorial design: 18 runs with repeats and two judges."""
    folder = DATA / f"comparison-{questions}-{repeats}"
    cells = list(product(*(range(count) for count in LEVELS.values())))
    for number, levels in enumerate(cells):
        path = folder / f"cell-{number:02}"
        if not (path / METRICS).exists():
            shutil.rmtree(path, ignore_errors=True)
            _cell(path, levels, questions, repeats)
    rows = []
    for words in ((), ("--baseline", "cell-00")):
        cost = in_own_process(_compare, folder, len(cells), words)
        rows.append([" ".join(words) or "the first run", *cost.cells()])
    yield f"{len(cells)} runs of {questions} questions, {repeats} repeats of each."
    yield Table(["compared with", "s", "processor s", "peak MB"], rows)


def _compare(folder, cells, words):
    runs = [str(folder / f"cell-{number:02}") for number in range(cells)]
    with redirect_stdout(StringIO()), suppress(SystemExit):
        main(["compare", *runs, f"paths.runs={folder / 'reports'}", "name=c", *words])
    if not (folder / "reports" / "c" / "report.html").exists():
        raise RuntimeError("compare has written no report")


def _cell(path, levels, questions, repeats):
    """A run whose accuracy rises with the levels of its factors."""
    rng = np.random.default_rng([SEED, *levels])
    factors = {name: f"{name}{level}" for name, level in zip(LEVELS, levels, strict=True)}
    qids = [str(number) for number in range(questions)]
    ease, evaluations = rng.beta(1, 1, questions) / 2 + 0.05 * sum(levels), []
    folder = RunFolder(path)
    manifest = make_manifest({"agent": {"turns": 20}}, {"benchmark": "b"}, factors)
    exposed = np.unique(np.geomspace(1, 1000, 200).astype(int))
    with folder.writing(manifest):
        for repeat in range(1, repeats + 1):
            right = dict(zip(qids, (rng.random(questions) < ease).astype(float), strict=True))
            values = {"accuracy": right}
            for measures, draw in ((MEASURES, rng.random), (EFFORTS, rng.exponential)):
                for name in measures:
                    values[name] = dict(zip(qids, draw(size=questions).tolist(), strict=True))
            for name in USAGES:
                values[name] = dict(zip(qids, rng.gamma(2, 9, questions).tolist(), strict=True))
            curve = [(float(x), float(1 - np.exp(-x / 50))) for x in exposed]
            part = Evaluation(
                counts={"questions": questions, "recorded": questions, "failed": 0},
                curves={"documents": curve, "tokens": curve},
                rankings={qid: [f"d{rank}" for rank in range(20)] for qid in qids},
            )
            evaluations.append(part.with_values(values))
            for qid in qids:
                folder.repeat(repeat).write(Trajectory(qid, "?", "completed"))
    whole = average_repeats(evaluations) if repeats > 1 else evaluations[0]
    write_evaluation(path, whole, state=folder.state())
    judges = {
        name: {
            "model": name,
            "verdicts": {
                repeat_id(qid, repeat): bool(values["accuracy"][qid]) ^ bool(rng.random() < 0.05)
                for repeat, values in enumerate((e.per_question for e in evaluations), start=1)
                for qid in qids
            },
        }
        for name in ("one", "two")
    }
    write_json(path / JUDGES, {"trajectories": folder.state(), "judges": judges})


ARTICLE = 500  # words; the paragraphs of wikidemo are shorter, and its articles longer
FRAME = 0.1  # share of the questions above which their common terms frame them and are no clues
LONGEST = 4  # terms of an answer that is a name, a number or a phrase, and no sentence


def content(text):
    return {crude_stem(word) for word in WORD.findall(text) if is_content(word)}


def clues_of(source):
    """By qid the terms of a question, and those of its answer if it is short, without those that
    frame many questions."""
    terms = {}
    for topic in source.topics:
        answer = content((source.answers.get(topic.qid) or [""])[0])
        terms[topic.qid] = (content(topic.text), answer if len(answer) <= LONGEST else set())
    counts = Counter(term for asked, _ in terms.values() for term in asked)
    frames = {term for term, count in counts.items() if count > FRAME * len(terms)}
    return {qid: (asked - frames, answer - asked) for qid, (asked, answer) in terms.items()}


def measured(source, sample=1):
    """The measures of a collection. A clue is a term of a question or of its short answer that is
    not in the title of the article about its subject: of the documents that state the answer, the
    one with most terms of the question. Of the documents without judgements every `sample`-th
    counts."""
    evidence = source.qrels["evidence"]
    gold = source.qrels.get("gold") or evidence
    judged = {docid for grades in evidence.values() for docid in grades}
    terms = clues_of(source)
    every = {term for asked, answer in terms.values() for term in asked | answer}
    counts, lengths, titles = {}, {}, {}
    for number, document in enumerate(source.documents()):
        words = len(document.text.split())
        if words >= ARTICLE and (number % sample == 0 or document.docid in judged):
            stems = map(crude_stem, WORD.findall(f"{document.title} {document.text}"))
            counts[document.docid] = Counter(term for term in stems if term in every)
            lengths[document.docid] = words
            titles[document.docid] = content(document.title)
    rows, rivals = [], []
    for qid, (asked, answer) in terms.items():
        held = {name: sum(term in counts[name] for term in asked) for name in counts}
        known = [name for name in gold.get(qid, {}) if name in counts]
        if not known:
            continue
        own = max(known, key=held.__getitem__)
        others = [name for name in counts if name not in evidence[qid]]
        for term in sorted((asked | answer) - titles[own]):
            found = np.array([counts[other][term] for other in others])
            elsewhere = found[found > 0].mean() if found.any() else np.nan
            share = (found > 0).mean()
            rows.append((term in asked, lengths[own], counts[own][term], share, elsewhere))
        rivals.append(np.mean([held[other] >= held[own] for other in others]))
    frame = pd.DataFrame(rows, columns=["asked", "words", "frequency", "share", "elsewhere"])
    clues = frame[frame.frequency > 0]
    x, y = np.log(clues.words), np.log(clues.frequency)
    exponent, intercept = np.polyfit(x, y, 1)
    deviation = (y - intercept - exponent * x).std(ddof=0)
    median, high = np.percentile(list(lengths.values()), [50, 90])
    asked = frame[frame.asked]
    answered = gold if gold is not evidence else {}
    return {
        "articles, questions about one": f"{len(counts):,}, {len(rivals):,}",
        "words of an article: median, 90th percentile, mean": (
            f"{median:,.0f}, {high:,.0f}, {np.mean(list(lengths.values())):,.0f}"
        ),
        "documents of a question with evidence, with the answer": (
            f"{_mean_size(evidence)}, {_mean_size(answered)}"
        ),
        "words of a question": f"{np.mean([len(each.text.split()) for each in source.topics]):.1f}",
        "clues that their article has": f"{len(clues):,} of {len(frame):,}",
        "times in its article: quartiles, mean": (
            f"{_quartiles(clues.frequency)}, {clues.frequency.mean():.2f}"
        ),
        "times by the article's words: scale, exponent, deviation": (
            f"{np.exp(intercept):.2f}, {exponent:.2f}, {deviation:.2f}"
        ),
        "other articles that have a clue: mean share": f"{clues.share.mean():.3f}",
        "times in one that has it: mean": f"{clues.elsewhere.mean():.2f}",
        "words of a question that its article has": f"{(asked.frequency > 0).mean():.2f}",
        "other articles that have as many of them": f"{np.mean(rivals):.3f}",
    }


def _mean_size(tier):
    return f"{np.mean([len(grades) for grades in tier.values()]):.1f}" if tier else "-"


def _quartiles(values):
    return " / ".join(f"{value:.0f}" for value in np.percentile(values, [25, 50, 75]))


@benchmark("The fictional world and a real collection", small={"sample": 40})
def world(collection="wikidemo", made="fictional_long", sample=1):
    """How often the clues of questions are repeated in the articles about their subject and in
    others, in the long articles of a collection (an option of `benchmark`, such as browsecomp_plus)
    and in a generated world, whose parameters follow from it."""
    measures = []
    for name in (collection, made):
        split = [] if name == made else ["benchmark.split=null"]
        settings = Settings.compose([f"benchmark={name}", *split])
        measures.append(measured(make(settings.config.benchmark), max(1, sample)))
    yield (
        f"Articles are documents of {ARTICLE} words or more. A clue is a term of a question or of "
        "its short answer that is not in the title of its article."
    )
    rows = [[name, *(each[name] for each in measures)] for name in measures[0]]
    yield Table(["measure", collection, made], rows)
