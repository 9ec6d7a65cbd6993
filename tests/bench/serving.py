"""What `soundingline serve` adds to a search, and the memory that it holds."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from contextlib import contextmanager

import numpy as np
import psutil
from harness import Table, benchmark, load

from soundingline.experiments.serve.http import http_server
from soundingline.experiments.serve.options import ServerOptions
from soundingline.experiments.serve.server import make_service, prepared_process
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document, Hit, SearchResult
from soundingline.toolkit.search import RankedBrowsing

DEPTH, PARTS = 1000, 10
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


@contextmanager
def serving(backend_ms):
    """The server's process and port."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, backend_ms), daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid), receiver.recv()
    finally:
        process.terminate()
        process.join()


def _serve(sender, backend_ms):
    text, backend = "A mill on the river. " * 60, TimedBackend(backend_ms)
    documents = (Document(f"d{n}", f"Mill {n}", text) for n in range(1, DEPTH + 1))
    store = SqliteStore.in_memory(documents)
    # Every client may be in a search at once, so that no call waits for a thread.
    options = ServerOptions(port=0, threads=64, max_calls=10**9)

    async def run():
        server = http_server(make_service(RankedBrowsing(), lambda qid: backend, store, options))
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        sender.send(server.servers[0].sockets[0].getsockname()[1])
        await running

    with prepared_process():
        asyncio.run(run())


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
    with serving(options.backend) as (process, port):
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
    with serving(0) as (process, port):
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
