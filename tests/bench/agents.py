"""Our own time around language models that answer at once, and what a server adds to a search."""

import asyncio
import gc
import json
import multiprocessing
import random
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import psutil
from data import Units, build_ours, corpus_file
from harness import (
    Table,
    benchmark,
    in_own_process,
    load,
    median_range,
    milliseconds,
    resident_mb,
    size_mb,
)

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.chat import ChatAgent
from soundingline.agents.literature import Navigator
from soundingline.experiments import Experiment
from soundingline.experiments.build import make_interface
from soundingline.experiments.pipeline import statistics as corpus_statistics
from soundingline.experiments.pipeline import with_literature_tools
from soundingline.experiments.rollouts import Progress, Rollout, RolloutRunner
from soundingline.experiments.serve.http import http_server
from soundingline.experiments.serve.server import make_service, prepared_process
from soundingline.experiments.serve.sessions import ServerOptions
from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.chat_scorer import ChatScorer
from soundingline.pipelines.enrich.enrichment import EnrichedEngine, phrases_manifest
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases
from soundingline.pipelines.enrich.phrases import PhraseSource
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document, Hit, Ranking, SearchResult, Topic
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import Ledger, open_ledger
from soundingline.toolkit.llm.messages import Turn, Usage
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.search.scoring import ScorerResources

PARTS = 10
ANSWER = "Explanation: seen there [d1]\nExact Answer: Torvald Brekke\nConfidence: 50%"
REASONING = "The question names the mill; a description of it should name its builder. "


def reply(body, turns, answer=ANSWER):
    """The chat completion that follows the transcript in `body`: searches, then the answer."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    message = {"role": "assistant", "content": answer}
    if turn < turns:
        arguments = json.dumps({"reason": "to find it", "query": f"mill river {turn}"})
        call = {"id": f"call_{turn}", "type": "function"}
        call["function"] = {"name": "search", "arguments": arguments}
        message = {"role": "assistant", "content": None, "reasoning": REASONING * 4}
        message["tool_calls"] = [call]
    usage = {"prompt_tokens": 1000 * (turn + 1), "completion_tokens": 100}
    usage["prompt_tokens_details"] = {"cached_tokens": 1000 * turn}
    finish = "tool_calls" if turn < turns else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "c",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }


@contextmanager
def background(serve, *arguments):
    """The process in which the coroutine function `serve` runs, and what it sends first."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(serve, sender, *arguments), daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid), receiver.recv()
    finally:
        process.terminate()
        process.join()


def _run(serve, *arguments):
    with prepared_process():
        asyncio.run(serve(*arguments))


async def _chat(sender, turns, answer):
    async def connection(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length:\s*(\d+)", head, re.IGNORECASE)
                body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
                data = json.dumps(reply(body, turns, answer)).encode()
                kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                writer.write(kind + b"content-length: %d\r\n\r\n" % len(data) + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    sender.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    await server.serve_forever()


class TimedModel:
    """A model that notes the process's processor time at every turn."""

    def __init__(self, model):
        self.name, self.stamps, self._model = model.name, [], model

    def ready(self):
        pass

    async def respond(self, messages, tools=(), settings=None):
        turn = await self._model.respond(messages, tools, settings)
        self.stamps.append(time.process_time())
        return turn

    async def close(self):
        await self._model.close()


class InProcess(TimedModel):
    """The same replies without a server, so that the client's part can be told from the rest."""

    def __init__(self, turns):
        super().__init__(OpenAIChat(model="none"))
        self._turns = turns

    async def respond(self, messages, tools=(), settings=None):
        await asyncio.sleep(0)
        completion = reply({"messages": messages, "model": self.name}, self._turns)
        self.stamps.append(time.process_time())
        return self._model._turn(completion, messages)


class OneRanking:
    """Ranks the same documents for every query: the engine's time is not measured here."""

    ranking = Ranking([f"d{number}" for number in range(20)], [1.0] * 20)

    def search(self, request):
        return SearchResult(self.ranking)


@benchmark(
    "Tool-calling agent",
    packages=("openai", "httpx2"),
    questions=(1000, 100),
    turns=(20, 20),
    flight=(64, 64),
)
def agent(options):
    """Our own processor time a turn (client, transcript, ledger, search session, record), and what
    the process holds over many questions."""
    text = "stands on the river. " + "It was built of oak and slate. " * 40
    store = SqliteStore.in_memory(
        [Document(f"d{n}", f"Mill {n}", f"The mill {n} {text}") for n in range(20)]
    )
    rows = []
    with background(_chat, options.turns, ANSWER) as (_, address):
        http = OpenAIChat(model="none", base_url=address, concurrency=options.flight)
        cases = {"in process": InProcess(options.turns), "over HTTP": TimedModel(http)}
        for name, model in cases.items():
            held = _answer_all(model, store, options)
            marks = model.stamps[options.flight :: options.flight]  # the first turns import
            times = [1000 * (after - before) / options.flight for before, after in pairwise(marks)]
            low, middle, high = np.percentile(times, (10, 50, 90))
            rows.append([name, len(model.stamps), f"{middle:.2f} ({low:.2f} to {high:.2f})"])
    yield f"{options.questions} questions, {options.flight} at once. {load()}"
    yield Table(["server", "turns", "processor ms a turn (10 to 90 %)"], rows)
    yield Table(["questions", "MiB", "threads", "descriptors", "tasks"], held)


def _answer_all(model, store, options):
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        with folder.writing({"fingerprints": {}}), open_ledger(folder.ledger_path) as ledger:
            held = asyncio.run(_rollouts(model, folder, ledger, store, options))
        answers = [trajectory.answer.exact for trajectory in folder.trajectories()]
    if answers != ["Torvald Brekke"] * options.questions:
        raise RuntimeError("some questions did not end with the server's answer")
    return held


async def _rollouts(model, folder, ledger, store, options):
    pool = ThreadPoolExecutor(options.flight, "question")
    asyncio.get_running_loop().set_default_executor(pool)
    progress = Progress(ledger, {}, lambda line: None)

    def session(_):
        return RankedBrowsing().open(OneRanking(), store)

    agents = [ChatAgent(model=model, ledger=ledger)]
    runner = RolloutRunner(agents, session, folder, progress, options.flight)
    rollouts = [Rollout(Topic(f"q{n}", "Who built the mill?")) for n in range(options.questions)]
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

    def __init__(self, *, seed):
        self.seed = seed

    @property
    def fingerprint(self):
        return str(self.seed)

    def for_documents(self, units, collection):
        index, chance = collection.index, np.random.default_rng(self.seed)
        frequent = np.argsort(-index.document_frequencies)[:20_000]
        words = [index.vocabulary[int(number)] for number in frequent]
        for unit in units:
            pairs = chance.integers(0, len(words), (PHRASES, 2))
            yield unit.unit_id, [f"{words[first]} {words[second]}" for first, second in pairs]

    def for_queries(self, queries, collection):
        return [()] * len(queries)


@benchmark(
    "Enrichment",
    packages=("numba", "openai"),
    documents=(100_000, 2000),
    queries=(200, 50),
    terms=(16, 16),
    flight=(64, 64),
    seed=(1, 1),
)
def enrich(options):
    """An index of documents with ten phrases each, a weighted call against a plain query of as many
    terms, and our own time of requesting phrases."""
    corpus = corpus_file(options.documents, options.seed)
    plain, path = corpus.parent / "ours", corpus.parent / "enriched"
    if not plain.exists():
        build_ours(corpus, plain)
    built = in_own_process(_build_enriched, corpus, plain, path, options.seed)
    enriched = _enriched_engine(plain, options.seed).open(path, corpus_fingerprint="")
    counts = phrases_manifest(path / "phrases")["counts"]
    yield f"The index without phrases has {size_mb(plain):,.0f} MiB. {load()}"
    row = [f"{counts['enriched']:,}", f"{counts['phrases']:,}", f"{size_mb(path):,.0f}"]
    row += [f"{built.seconds:.1f}", f"{built.processor:.1f}", f"{built.peak_mb:.0f}"]
    yield Table(["documents", "phrases", "MiB", "s", "processor s", "peak MiB"], [row])
    yield Table(["call", "ms", "times a plain query"], _weighted_calls(enriched, options))
    head = ["documents", "processor ms a document", "MiB held"]
    yield Table(head, _requests(corpus, options.documents, options.flight))


def _enriched_engine(plain, seed):
    collection = Collection("bench", index=LexicalIndex.open(plain))
    return EnrichedEngine(LexicalEngine(), DrawnPhrases(seed=seed), None, collection)


def _build_enriched(corpus, plain, path, seed):
    _enriched_engine(plain, seed).build(Units(corpus), path, corpus_fingerprint="")


def _weighted_calls(enriched, options):
    base, chance = enriched.base, np.random.default_rng(options.seed)
    frequent = np.argsort(-base.document_frequencies)[:20_000]
    drawn = chance.choice(frequent, (options.queries, options.terms))
    half = options.terms // 2
    queries = [
        {base.vocabulary[int(n)]: 1.0 if place < half else WEIGHT for place, n in enumerate(row)}
        for row in drawn
    ]
    systems = {
        "plain query": lambda query: base.search(query, K1, B, DEPTH),
        "weighted call": lambda query: enriched.search(query, K1, B, DEPTH),
    }
    medians = milliseconds(systems, queries)
    plain = np.array(medians["plain query"])
    return [
        [name, median_range(values, 3), median_range((values / plain).tolist(), 2)]
        for name, values in medians.items()
    ]


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
                for _ in source.ask_documents(source.missing(part, collection), collection):
                    pass
                phrases = sum(len(of) for _, of in source.for_documents(part, collection))
                taken = 1000 * (time.process_time() - began) / len(part)
                if phrases != PHRASES * len(part):
                    raise RuntimeError("some documents do not have the server's phrases")
                rows.append([f"{len(part):,}", f"{taken:.2f}", f"{resident_mb():.0f}"])
    return rows


class Scores:
    """A model that gives every requirement of a prompt the same score at once."""

    name = "scores"

    def ready(self):
        pass

    async def respond(self, messages, tools=(), settings=None):
        prompt = str(messages[-1]["content"]).split("=====")[0]
        count = len(re.findall(r"^\d+\. ", prompt, re.MULTILINE))
        row = {"verdict": "unknown", "score": 0.5, "passage": "", "rationale": "None."}
        rows = [{"number": number, **row} for number in range(1, count + 1)]
        answer = {"requirements": rows, "relevant": False, "probability": 0.5}
        return Turn(json.dumps(answer), usage=Usage(input=800, output=40 * count))

    async def close(self):
        pass


@benchmark(
    "Librarians",
    packages=("pydantic",),
    questions=(200, 20),
    documents=(2000, 500),
    pool=(40, 40),
    librarians=(100, 100),
)
def librarians(options):
    """Our own time a scored document: retrieval, evidence, prompts, answers, caches and record."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.compose(
            "benchmark=fictional",
            f"benchmark.documents={options.documents}",
            "benchmark.questions=sets:50",
            "agent=navigator",
            f"paths.indexes={folder}/indexes",
        )
        rows = _navigate(experiment, Path(folder) / "caches", options)
    yield f"Rules plan, {options.librarians} librarians, {options.pool} documents a round. {load()}"
    yield Table(["documents", "processor ms a document", "ms a document", "MiB"], rows)


def _navigate(experiment, caches, options):
    config, built = experiment.settings.config, experiment.collection
    interface, _ = with_literature_tools(make_interface(config.tool), built, config)
    blocking, ledger = BlockingModel("scores", role="librarian"), Ledger()
    scorer = ChatScorer().bind(ScorerResources(caches=caches, model=blocking))
    interface = interface.bind(replace(interface.operators, scorer=scorer))
    backend = PipelineBackend(built.pipeline, built.segmenter.name)
    resources = RunResources(Budget(), ledger=ledger, **corpus_statistics(built))
    navigator = Navigator(librarians=options.librarians, pool=options.pool).bind(resources)
    topics = list(built.benchmark.topics)

    async def answer(number, slots):
        topic = topics[number % len(topics)]
        # The number makes it a question that no cache knows.
        question = Topic(f"q{number}", f"{topic.text} ({number})")
        async with slots:
            session = interface.open(backend.for_question(question.qid), built.prepared.store)
            trajectory = await navigator.run(question, session)
        assert trajectory.status == "completed", trajectory.traceback

    async def answer_all(first, last):
        slots = asyncio.Semaphore(20)
        await asyncio.gather(*(answer(number, slots) for number in range(first, last)))

    rows, size = [], max(1, options.questions // 4)
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


CALL = {"tool": "search", "arguments": {"reason": "The next clue.", "query": "mill on the river"}}


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
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        reply = await self._reader.readexactly(length)
        if b" 200 " not in lines[0]:
            raise RuntimeError(reply.decode())
        return json.loads(reply)

    async def session(self, calls):
        session = (await self.post("/open", {}))["session"]
        for _ in range(calls):
            await self.post("/call", {"session": session, **CALL})
        await self.post("/close", {"session": session})


async def _search_server(sender, backend_ms):
    text, backend = "A mill on the river. " * 60, TimedBackend(backend_ms)
    documents = (Document(f"d{n}", f"Mill {n}", text) for n in range(1, DEPTH + 1))
    store = SqliteStore.in_memory(documents)
    # Every client may be in a search at once, so that no call waits for a thread.
    options = ServerOptions(port=0, threads=64, max_calls=10**9)
    server = http_server(make_service(RankedBrowsing(), lambda qid: backend, store, options))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    sender.send(server.servers[0].sockets[0].getsockname()[1])
    await running


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
            arguments = {**CALL["arguments"], "query": f"mill {number}"}
            call = {"session": session, "tool": "search", "arguments": arguments}
            began = time.perf_counter()
            await client.post("/call", call)
            times.append(1000 * (time.perf_counter() - began) - backend_ms)
            await asyncio.sleep(chance.expovariate(1 / pause) if pause else 0)
        await client.post("/close", {"session": session})

    await asyncio.gather(*(work() for _ in range(clients)))
    return times


async def _sessions(port, clients, calls):
    async def work():
        client = await Client.connect(port)
        for _ in range(max(1, calls // 7)):
            await client.session(5)

    await asyncio.gather(*(work() for _ in range(clients)))


@benchmark(
    "Serving",
    packages=("uvicorn", "fastapi", "starlette"),
    limits="clients on other machines, or a real backend, which needs the processor as well",
    clients=(64, 64),
    seconds=(20, 5),
    pause=(500, 500),
    backend=(20, 20),
    requests=(100_000, 20_000),
)
def serve(options):
    """Latency above a backend that takes --backend ms, with and without pauses of --pause ms, and
    memory over --requests calls of sessions that are opened and closed."""
    rows = []
    with background(_search_server, options.backend) as (process, port):
        asyncio.run(_load(port, options.clients, 2, 0.1, options.backend))  # imports and compiles
        for pause in (options.pause, 0):
            began, before = time.perf_counter(), sum(process.cpu_times()[:2])
            load_of = (options.clients, options.seconds, pause / 1000, options.backend)
            times = asyncio.run(_load(port, *load_of))
            used = 1000 * (sum(process.cpu_times()[:2]) - before) / len(times)
            rate = len(times) / (time.perf_counter() - began)
            cuts = [f"{cut:.1f}" for cut in np.percentile(times, (50, 90, 99))]
            rows.append(
                [f"pause of {pause} ms", f"{len(times):,}", f"{rate:.0f}", *cuts, f"{used:.2f}"]
            )
    yield (
        f"{options.clients} clients on the same cores, milliseconds above the backend's own "
        f"{options.backend} ms; at most 10 at the 99th percentile with pauses. {load()}"
    )
    head = ["load", "replies", "replies/s", "50 %", "90 %", "99 %", "processor ms a reply"]
    yield Table(head, rows)
    with background(_search_server, 0) as (process, port):
        memory = [process.memory_info().rss / 2**20]
        for _ in range(PARTS):
            calls = options.requests // PARTS // options.clients
            asyncio.run(_sessions(port, options.clients, calls))
            memory.append(process.memory_info().rss / 2**20)
    yield Table(
        ["requests", "MiB"],
        [[f"{n * options.requests // PARTS:,}", f"{mb:.1f}"] for n, mb in enumerate(memory)],
    )
    yield f"The second half of the requests added {memory[-1] - memory[PARTS // 2]:+.1f} MiB."
