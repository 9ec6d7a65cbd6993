"""`python -m soundingline.experiments.bench.serve`: what `soundingline serve` adds to a search, and
holds.

The server runs in a process of its own, over a backend that takes a known time, so that the rest of
a reply's time is the server's (and this client's). Clients pause between calls, as agents do while
their models think, and then do not pause at all. Last, many sessions are opened, used and closed,
and the server's memory is watched. Exit code 1 where the paced 99th percentile is above 10 ms or
memory grows. Arguments: `--clients` (64), `--seconds` (20) of each load, `--pause` (500 ms, mean),
`--backend` (20 ms), `--requests` (100000). `--write` puts the tables into docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from soundingline.experiments.bench.harness import Arguments, Section, Table, report, run
from soundingline.experiments.serve.options import ServerOptions
from soundingline.experiments.serve.server import make_service, prepared_process
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document, Hit, SearchRequest, SearchResult
from soundingline.toolkit.search import RankedBrowsing

_DEPTH = 1000
_MOST_MS = 10.0
_MOST_GROWTH_MB = 8.0
_PARTS = 10
_CALL = {"tool": "search", "arguments": {"reason": "The next clue.", "query": "mill on the river"}}


class TimedBackend:
    """Ranks the same thousand documents, in a known time."""

    def __init__(self, milliseconds: float) -> None:
        self._seconds = milliseconds / 1000
        self._hits = [Hit(f"d{n}", f"d{n}", n, 1000.0 - n) for n in range(1, _DEPTH + 1)]

    def search(self, request: SearchRequest) -> SearchResult:
        """All hits."""
        time.sleep(self._seconds)
        return SearchResult(list(self._hits))


class Server(NamedTuple):
    """The server's process and port."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Memory in use."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Load(NamedTuple):
    """Milliseconds of each reply above the backend's, replies a second, and the server's processor
    milliseconds a reply."""

    name: str
    milliseconds: Sequence[float]
    rate: float
    cpu: float

    @property
    def percentiles(self) -> tuple[float, float, float]:
        """The 50th, 90th and 99th."""
        cuts = statistics.quantiles(self.milliseconds, n=100)
        return cuts[49], cuts[89], cuts[98]


class Client:
    """One HTTP connection that stays open, with as little code as can be between us and it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        """A new connection."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: Any) -> Any:
        """The JSON of a reply that must be a good one."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        reply = await self._reader.readexactly(length)
        if b" 200 " not in lines[0]:
            raise RuntimeError(reply.decode())
        return json.loads(reply)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def load(
    server: Server, name: str, clients: int, seconds: float, pause: float, backend: float
) -> Load:
    """Calls of `clients` sessions for `seconds`; each waits `pause` seconds between its calls, on
    average."""
    source = random.Random(0)
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def work() -> None:
        client = await Client.connect(server.port)
        session = (await client.post("/open", {}))["session"]
        number = 0
        await asyncio.sleep(source.random() * pause)
        while time.perf_counter() < end:
            number += 1
            call = {"session": session, **_CALL}
            call["arguments"] = {**_CALL["arguments"], "query": f"mill {number}"}  # type: ignore[dict-item]
            began = time.perf_counter()
            await client.post("/call", call)
            times.append(1000 * (time.perf_counter() - began) - backend)
            await asyncio.sleep(source.expovariate(1 / pause) if pause else 0)
        await client.post("/close", {"session": session})
        client.close()

    began, used = time.perf_counter(), server.cpu_seconds()
    await asyncio.gather(*(work() for _ in range(clients)))
    taken = time.perf_counter() - began
    cpu = 1000 * (server.cpu_seconds() - used) / len(times)
    return Load(name, times, len(times) / taken, cpu)


async def memory(server: Server, clients: int, requests: int) -> list[tuple[int, float]]:
    """The server's memory after each tenth of the requests: sessions of five calls, which are
    opened and closed."""
    samples = [(0, server.memory_mb())]

    async def work(calls: int) -> None:
        client = await Client.connect(server.port)
        for _ in range(max(1, calls // 7)):
            session = (await client.post("/open", {}))["session"]
            for _ in range(5):
                await client.post("/call", {"session": session, **_CALL})
            await client.post("/close", {"session": session})
        client.close()

    for part in range(1, _PARTS + 1):
        await asyncio.gather(*(work(requests // _PARTS // clients) for _ in range(clients)))
        samples.append((part * requests // _PARTS, server.memory_mb()))
    return samples


@contextmanager
def running(backend_ms: float) -> Iterator[Server]:
    """The server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, backend_ms), daemon=True)
    process.start()
    try:
        yield Server(process.pid or 0, receiver.recv())
    finally:
        process.terminate()
        process.join()


def _serve(sender: Connection, backend_ms: float) -> None:
    from soundingline.experiments.serve.http import http_server

    documents = (
        Document(f"d{number}", f"Mill {number}", "A mill on the river. " * 60)
        for number in range(1, _DEPTH + 1)
    )
    backend = TimedBackend(backend_ms)
    store = SqliteStore.in_memory(documents)
    # Every client may be in a search at once: what is measured is not the wait for a thread.
    options = ServerOptions(port=0, threads=64, max_calls=10**9)

    async def serve() -> None:
        server = http_server(make_service(RankedBrowsing(), lambda qid: backend, store, options))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        sender.send(server.servers[0].sockets[0].getsockname()[1])
        await serving

    with prepared_process():
        asyncio.run(serve())


def main(arguments: Sequence[str]) -> None:
    """Measure and print; exit code 1 where a bound is missed."""
    parser = Arguments(
        "serve",
        clients=(64, 1),
        seconds=(20, 1),
        pause=(500, 1),
        backend=(20, 0),
        requests=(100_000, 700),
    )
    options = parser.read(arguments)
    pauses = {f"pause of {options.pause} ms": options.pause / 1000, "no pause": 0.0}
    with running(options.backend) as server:
        # First calls import and compile.
        asyncio.run(load(server, "warm-up", options.clients, 2, 0.1, options.backend))
        loads = [
            asyncio.run(
                load(server, name, options.clients, options.seconds, pause, options.backend)
            )
            for name, pause in pauses.items()
        ]
    with running(0.0) as server:
        samples = asyncio.run(memory(server, options.clients, options.requests))
    added = Table(
        ["load", "replies", "replies/s", "50 %", "90 %", "99 %", "processor ms a reply"],
        [
            [
                result.name,
                f"{len(result.milliseconds):,}",
                f"{result.rate:.0f}",
                *(f"{milliseconds:.1f}" for milliseconds in result.percentiles),
                f"{result.cpu:.2f}",
            ]
            for result in loads
        ],
    )
    memories = Table(
        ["requests", "MiB"],
        [[f"{requests:,}", f"{megabytes:.1f}"] for requests, megabytes in samples],
    )
    growth = samples[-1][1] - samples[_PARTS // 2][1]
    parts: list[str | Table] = [
        f"Milliseconds above the backend's own {options.backend} ms, for {options.clients} clients "
        f"on the same cores. At most {_MOST_MS:g} are allowed at the 99th percentile with pauses.",
        added,
        "Memory of the server, by requests:",
        memories,
        f"Second half of the requests: {growth:+.1f} MiB.",
    ]
    limits = "clients on other machines, or a real backend, which needs the processor as well"
    section = Section(
        "serve", "Serving", parser.command(options), parts, ("uvicorn", "fastapi"), limits=limits
    )
    report(section, write=options.write)
    if loads[0].percentiles[2] > _MOST_MS or growth > _MOST_GROWTH_MB:
        sys.exit(1)


if __name__ == "__main__":
    run(main)
