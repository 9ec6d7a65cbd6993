"""Our own time around language models that answer at once, and what a server adds to a search."""

import asyncio
import gc
import json
import random
import re
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import psutil
from data import Units, corpus_file, our_index
from harness import (
    SEED,
    Table,
    background,
    benchmark,
    in_own_process,
    median_range,
    milliseconds,
    ratios,
    resident_mb,
    size_mb,
)
from support.agents import bound
from support.llm_server import Request, Say, chat_body, running_peer
from support.served import serving

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.literature import Navigator
from soundingline.experiments import Experiment
from soundingline.experiments.build import make_search_tool
from soundingline.experiments.pipeline import index_statistics as corpus_statistics
from soundingline.experiments.pipeline import with_literature_tools
from soundingline.experiments.rollouts import Progress, Rollout, RolloutRunner
from soundingline.experiments.serve.server import prepared_process
from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.enrich.enrichment import EnrichedEngine, phrases_manifest
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases
from soundingline.pipelines.enrich.phrases import PhraseSource
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.requirements.chat import ChatScorer
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document, Hit, Ranking, SearchResult, Topic
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import Ledger, open_ledger
from soundingline.toolkit.llm.messages import Turn, Usage
from soundingline.toolkit.llm.openai import OpenAIChat
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.search.scoring import ScorerResources

PARTS = 10
ANSWER = "Explanation: seen there [d1]\nExact Answer: Torvald Brekke\nConfidence: 50%"
REASONING = "The question names the mill; a description of it should name its builder. "


def reply(request, turns, answer):
    """What a server says to a transcript: searches, then the answer."""
    turn = sum(message["role"] == "assistant" for message in request.body["messages"])
    usage = {"input": 1000 * (turn + 1), "cached": 1000 * turn, "reasoning": 0, "output": 100}
    if turn == turns:
        return Say(answer, usage=usage)
    arguments = json.dumps({"reason": "to find it", "query": f"mill river {turn}"})
    calls = [(f"call_{turn}", "search", arguments)]
    return Say(reasoning=REASONING * 4, calls=calls, usage=usage)


def _chat(connection, turns, answer):
    with running_peer() as peer:
        peer.requests = deque(maxlen=1)  # all transcripts would fill the memory
        peer.default = partial(reply, turns=turns, answer=answer)
        connection.send(peer.openai_url)
        connection.poll(None)


class Model:
    """A model without a connection."""

    name = "none"

    def ready(self):
        pass

    async def close(self):
        pass


class TimedModel(Model):
    """A model that notes the process's processor time at every turn."""

    def __init__(self, model):
        self.stamps, self._model = [], model

    async def respond(self, messages, tools=(), settings=None):
        turn = await self._model.respond(messages, tools, settings)
        self.stamps.append(time.process_time())
        return turn

    async def close(self):
        await self._model.close()


class InProcess(Model):
    """The same replies without a server, so that the client's part can be told from the rest."""

    def __init__(self, turns):
        self._turns, self._client = turns, OpenAIChat(model="none")

    async def respond(self, messages, tools=(), settings=None):
        await asyncio.sleep(0)
        request = Request("", {}, {"messages": messages})
        completion = chat_body(reply(request, self._turns, ANSWER), "none")
        return self._client._turn(json.loads(completion), messages)


class OneRanking:
    """Ranks the same documents for every query: the engine's time is not measured here."""

    ranking = Ranking([f"d{number}" for number in range(20)], [1.0] * 20)

    def search(self, request):
        return SearchResult(self.ranking)


@benchmark("Tool-calling agent", small={"questions": 100}, packages=("httpx2",))
def agent(questions=1000, turns=20, flight=64):
    """Our own processor time a turn (client, transcript, ledger, search session, record), and what
    the process holds over many questions."""
    text = "stands on the river. " + "It was built of oak and slate. " * 40
    store = SqliteStore.in_memory(
        [Document(f"d{n}", f"Mill {n}", f"The mill {n} {text}") for n in range(20)]
    )
    rows = []
    with background(_chat, turns, ANSWER) as (_, address):
        http = OpenAIChat(model="none", base_url=address, concurrency=flight)
        for name, replies in {"in process": InProcess(turns), "over HTTP": http}.items():
            model = TimedModel(replies)
            held = _answer_all(model, store, questions, flight)
            marks = model.stamps[flight::flight]  # the first turns import
            times = [1000 * (after - before) / flight for before, after in pairwise(marks)]
            low, middle, high = np.percentile(times, (10, 50, 90))
            rows.append([name, len(model.stamps), f"{middle:.2f} ({low:.2f} to {high:.2f})"])
    yield f"{questions} questions, {flight} at once."
    yield Table(["server", "turns", "processor ms a turn (10 to 90 %)"], rows)
    yield Table(["questions", "MiB", "threads", "descriptors", "tasks"], held)


def _answer_all(model, store, questions, flight):
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        with folder.writing({"fingerprints": {}}), open_ledger(folder.ledger_path) as ledger:
            held = asyncio.run(_rollouts(model, folder, ledger, store, questions, flight))
        answers = [trajectory.answer.exact for trajectory in folder.trajectories()]
    if answers != ["Torvald Brekke"] * questions:
        raise RuntimeError("some questions did not end with the server's answer")
    return held


async def _rollouts(model, folder, ledger, store, questions, flight):
    pool = ThreadPoolExecutor(flight, "question")
    asyncio.get_running_loop().set_default_executor(pool)
    progress = Progress(ledger, {})

    def session(_):
        return RankedBrowsing().open(OneRanking(), store)

    runner = RolloutRunner([bound(model, ledger=ledger)], session, folder, progress, flight)
    rollouts = [Rollout(Topic(f"q{n}", "Who built the mill?")) for n in range(questions)]
    held = [_held(0)]
    for part in range(PARTS):
        await runner.answer(rollouts[part::PARTS])
        held.append(_held(progress.trajectories))
    await model.close()
    pool.shutdown()
    return held


def _held(questions):
    gc.collect()
    descriptors, tasks = psutil.Process().num_fds(), len(asyncio.all_tasks()) - 1
    return [questions, f"{resident_mb():.0f}", threading.active_count(), descriptors, tasks]


K1, B, DEPTH, WEIGHT, PHRASES = 1.5, 0.75, 1000, 0.5, 10
KEYWORDS = json.dumps({"keywords": [f"harbour light {number}" for number in range(PHRASES)]})


class DrawnPhrases(PhraseSource):
    """Ten pairs of frequent words of the index for each document."""

    fingerprint = "drawn"

    def for_documents(self, units, collection):
        chance, words = np.random.default_rng(SEED), frequent(collection.index)
        for unit in units:
            pairs = chance.choice(words, (PHRASES, 2)).tolist()
            yield unit.unit_id, [f"{first} {second}" for first, second in pairs]

    def for_queries(self, queries, collection):
        return [()] * len(queries)


def frequent(index):
    """The 20,000 most frequent words."""
    numbers = np.argsort(-np.diff(index._postings.offsets))[:20_000]
    return np.array([index.vocabulary[number] for number in numbers.tolist()], dtype=object)


@benchmark("Enrichment", small={"documents": 2000, "queries": 50}, packages=("numba", "httpx2"))
def enrich(documents=100_000, queries=200, terms=16, flight=64):
    """An index of documents with ten phrases each, a weighted call against a plain query of as many
    terms, and our own time of requesting phrases."""
    corpus = corpus_file(documents)
    our_index(corpus)
    plain, path = corpus.parent / "ours", corpus.parent / "enriched"
    cost = in_own_process(_build_enriched, corpus, plain, path)
    enriched = _enriched_engine(plain).open(path, corpus_fingerprint="")
    counts = phrases_manifest(path / "phrases")["counts"]
    yield f"The index without phrases has {size_mb(plain):,.0f} MiB."
    row = [f"{counts['enriched']:,}", f"{counts['phrases']:,}", f"{size_mb(path):,.0f}"]
    head = ["documents", "phrases", "MiB", "s", "processor s", "peak MiB"]
    yield Table(head, [row + cost.cells()])
    weights = [1.0] * (terms // 2) + [WEIGHT] * (terms - terms // 2)
    drawn = np.random.default_rng(SEED).choice(frequent(enriched.base), (queries, terms)).tolist()
    systems = {
        "plain query": lambda query: enriched.base.search(query, K1, B, DEPTH),
        "weighted call": lambda query: enriched.search(query, K1, B, DEPTH),
    }
    medians = milliseconds(systems, [dict(zip(row, weights, strict=True)) for row in drawn])
    rows = [
        [name, median_range(values, 3), ratios(values, medians["plain query"])]
        for name, values in medians.items()
    ]
    yield Table(["call", "ms", "times a plain query"], rows)
    head = ["documents", "processor ms a document", "MiB held"]
    yield Table(head, _requests(corpus, documents, flight))


def _enriched_engine(plain):
    collection = Collection("bench", index=LexicalIndex(plain))
    return EnrichedEngine(LexicalEngine(), DrawnPhrases(), None, collection)


def _build_enriched(corpus, plain, path):
    _enriched_engine(plain).build(Units(corpus), path, corpus_fingerprint="")


def _requests(corpus, documents, flight):
    """Phrases of all documents, requested and read back in ten parts."""
    source, size, rows = ModelPhrases(), max(1, documents // PARTS), []
    with tempfile.TemporaryDirectory() as folder, background(_chat, 0, KEYWORDS) as (_, address):
        model = OpenAIChat(model="none", base_url=address, concurrency=flight)
        blocking = BlockingModel("none", role="enrichment")
        collection = Collection("bench", caches=Path(folder) / "caches", model=blocking)
        with (
            open_ledger(Path(folder) / "ledger.jsonl") as ledger,
            blocking.started(model, ledger),
        ):
            stream = islice(Units(corpus), documents)
            while part := list(islice(stream, size)):
                began = time.process_time()
                for _ in source.ask_documents(part, collection):
                    pass
                phrases = sum(len(of) for _, of in source.for_documents(part, collection))
                taken = 1000 * (time.process_time() - began) / len(part)
                if phrases != PHRASES * len(part):
                    raise RuntimeError("some documents do not have the server's phrases")
                rows.append([f"{len(part):,}", f"{taken:.2f}", f"{resident_mb():.0f}"])
    return rows


class Scores(Model):
    """A model that gives every requirement of a prompt the same score at once."""

    async def respond(self, messages, tools=(), settings=None):
        prompt = str(messages[-1]["content"]).split("=====")[0]
        count = len(re.findall(r"^\d+\. ", prompt, re.MULTILINE))
        row = {"verdict": "unknown", "score": 0.5, "passage": "", "rationale": "None."}
        rows = [{"number": number, **row} for number in range(1, count + 1)]
        answer = {"requirements": rows, "relevant": False, "probability": 0.5}
        return Turn(json.dumps(answer), usage=Usage(input=800, output=40 * count))


@benchmark("Librarians", small={"questions": 20, "documents": 500}, packages=("pydantic",))
def librarians(questions=200, documents=2000, pool=40, librarians=100):
    """Our own time a scored document: retrieval, evidence, prompts, answers, caches and record."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.compose(
            "benchmark=fictional",
            f"benchmark.documents={documents}",
            "benchmark.questions=sets:50",
            "agent=navigator",
            f"paths.indexes={folder}/indexes",
        )
        navigator = Navigator(librarians=librarians, pool=pool)
        rows = _navigate(experiment, Path(folder) / "caches", navigator, max(1, questions // 4))
    yield f"Rules plan, {librarians} librarians, {pool} documents a round."
    yield Table(["documents", "processor ms a document", "ms a document", "MiB"], rows)


def _navigate(experiment, caches, navigator, size):
    """The costs of four times `size` questions."""
    config, built = experiment.settings.config, experiment.built
    interface, _ = with_literature_tools(make_search_tool(config.tool), built, config)
    blocking, ledger = BlockingModel("scores", role="librarian"), Ledger()
    scorer = ChatScorer().bind(ScorerResources(caches=caches, model=blocking))
    operators = replace(interface.operators, scorer=scorer)
    interface = replace(interface, operators=operators)
    backend = PipelineBackend(built.pipeline)
    resources = RunResources(Budget(), ledger=ledger, **corpus_statistics(built))
    navigator = navigator.bind(resources)
    topics = list(built.benchmark.topics)

    async def answer(number, slots):
        topic = topics[number % len(topics)]
        # The number makes it a question that no cache knows.
        question = Topic(f"q{number}", f"{topic.text} ({number})")
        async with slots:
            session = interface.open(backend.for_question(question.qid), built.collection.store)
            trajectory = await navigator.run(question, session)
        assert trajectory.status == "completed", trajectory.traceback

    async def answer_all(first, last):
        slots = asyncio.Semaphore(20)
        await asyncio.gather(*(answer(number, slots) for number in range(first, last)))

    rows = []
    with blocking.started(Scores(), ledger):
        asyncio.run(answer_all(0, 20))  # loads and compiles
        for first in range(20, 20 + 4 * size, size):
            before = scorer.counts["documents"]
            cpu, wall = time.process_time(), time.perf_counter()
            asyncio.run(answer_all(first, first + size))
            scored = scorer.counts["documents"] - before
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            gc.collect()
            times = f"{1000 * cpu / scored:.2f}", f"{1000 * wall / scored:.2f}"
            rows.append([f"{scored:,}", *times, f"{resident_mb():.0f}"])
    return rows


class TimedBackend:
    """Ranks the same thousand documents in a known time."""

    def __init__(self, milliseconds):
        self._seconds = milliseconds / 1000
        self._hits = [Hit(f"d{n}", f"d{n}", n, 1000.0 - n) for n in range(1, DEPTH + 1)]

    def search(self, request):
        time.sleep(self._seconds)
        return SearchResult(list(self._hits))


class Client:
    """An HTTP connection that stays open, with little code between us and it."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path, body):
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        reply = await self._reader.readexactly(length)
        if b" 200 " not in lines[0]:
            raise RuntimeError(reply.decode())
        return json.loads(reply)

    async def search(self, session, query):
        arguments = {"reason": "The next clue.", "query": query}
        await self.post("/call", {"session": session, "tool": "search", "arguments": arguments})


def _search_server(connection, backend_ms):
    text, backend = "A mill on the river. " * 60, TimedBackend(backend_ms)
    documents = (Document(f"d{n}", f"Mill {n}", text) for n in range(1, DEPTH + 1))
    store = SqliteStore.in_memory(documents)
    # Every client may be in a search at once, so that no call waits for a thread.
    options = {"store": store, "threads": 64, "max_calls": 10**9}
    with prepared_process(), serving(backend=lambda qid: backend, **options) as server:
        connection.send(server.port)
        connection.poll(None)


async def _load(port, clients, seconds, pause, backend_ms):
    """Milliseconds of each reply above the backend's. Each client waits `pause` seconds between its
    calls, on average, as agents do while their models think."""
    chance, times, end = random.Random(0), [], time.perf_counter() + seconds

    async def work():
        client, number = await Client.connect(port), 0
        session = (await client.post("/open", {}))["session"]
        await asyncio.sleep(chance.random() * pause)
        while time.perf_counter() < end:
            number += 1
            began = time.perf_counter()
            await client.search(session, f"mill {number}")
            times.append(1000 * (time.perf_counter() - began) - backend_ms)
            await asyncio.sleep(chance.expovariate(1 / pause) if pause else 0)
        await client.post("/close", {"session": session})

    await asyncio.gather(*(work() for _ in range(clients)))
    return times


async def _sessions(port, clients, calls):
    """Sessions of five searches, which are opened and closed."""

    async def work():
        client = await Client.connect(port)
        for _ in range(max(1, calls // 7)):
            session = (await client.post("/open", {}))["session"]
            for _ in range(5):
                await client.search(session, "mill on the river")
            await client.post("/close", {"session": session})

    await asyncio.gather(*(work() for _ in range(clients)))


@benchmark(
    "Serving",
    small={"seconds": 5, "requests": 20_000},
    packages=("uvicorn", "fastapi", "starlette"),
    limits="clients on other machines, or a real backend, which needs the processor as well",
)
def serve(clients=64, seconds=20, pause=500, backend=20, requests=100_000):
    """Latency on kept connections above a backend that takes --backend ms, of one client and of
    --clients with and without pauses of --pause ms, and memory over --requests calls of sessions
    that are opened and closed."""
    rows = []
    with background(_search_server, backend) as (process, port):
        asyncio.run(_load(port, clients, 2, 0.1, backend))  # imports and compiles
        for number, each in ((1, 0), (clients, pause), (clients, 0)):
            began, before = time.perf_counter(), sum(process.cpu_times()[:2])
            times = asyncio.run(_load(port, number, seconds, each / 1000, backend))
            used = 1000 * (sum(process.cpu_times()[:2]) - before) / len(times)
            rate = len(times) / (time.perf_counter() - began)
            cuts = [f"{cut:.1f}" for cut in np.percentile(times, (50, 90, 99))]
            row = [number, f"{each} ms", f"{len(times):,}", f"{rate:.0f}"]
            rows.append([*row, *cuts, f"{used:.2f}"])
    yield (
        f"Clients on the same cores, each on a kept connection, milliseconds above the backend's "
        f"own {backend} ms; at most 10 at the 99th percentile with pauses."
    )
    quantiles = ["50 %", "90 %", "99 %"]
    head = ["clients", "pause", "replies", "replies/s", *quantiles, "processor ms a reply"]
    yield Table(head, rows)
    with background(_search_server, 0) as (process, port):
        memory = [resident_mb(process)]
        for _ in range(PARTS):
            asyncio.run(_sessions(port, clients, requests // PARTS // clients))
            memory.append(resident_mb(process))
    yield Table(
        ["requests", "MiB"],
        [[f"{n * requests // PARTS:,}", f"{mb:.1f}"] for n, mb in enumerate(memory)],
    )
    yield f"The second half of the requests added {memory[-1] - memory[PARTS // 2]:+.1f} MiB."
