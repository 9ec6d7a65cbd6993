"""`python -m experiments.bench.agent`: what the tool-calling agent itself takes.

Time: our process's own processor time a turn (client, transcript, ledger, search session, record
written), with many questions in flight against a server that answers at once in a process of its
own; the median over windows of turns. Leaks: tasks, threads, descriptors and memory over many
questions. Arguments: `--questions` (default 1000), `--turns` (20), `--flight` (64).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from agents.chat import ChatAgent
from experiments.answering import Answering
from experiments.bench.agent_server import ANSWER, reply
from experiments.run_progress import RunProgress
from toolkit.console import Console
from toolkit.contracts import Document, SearchTool, Topic
from toolkit.llm.ledger import Ledger
from toolkit.llm.ledger_file import ledger_on_record
from toolkit.llm.openai_chat import OpenAIChat
from toolkit.llm.protocol import ChatModel, Settings, Turn
from toolkit.runs import RunFolder
from toolkit.search import DictionaryBackend, DictionaryStore, RankedBrowsing

_PARTS = 10


class Sample(NamedTuple):
    """What the process holds at one moment."""

    questions: int
    memory_mb: float
    threads: int
    descriptors: int
    tasks: int


class Watched:
    """A model that notes this process's processor time at every turn."""

    def __init__(self, model: ChatModel) -> None:
        self.name = model.name
        self.stamps = array("d")
        self._model = model

    def ready(self) -> None:
        """As the model's."""

    async def respond(self, messages: Any, tools: Any = (), settings: Any = None) -> Turn:
        """As the model's."""
        turn = await self._model.respond(messages, tools, settings)
        self.stamps.append(time.process_time())
        return turn

    async def close(self) -> None:
        """As the model's."""
        await self._model.close()

    def milliseconds(self, window: int) -> list[float]:
        """Processor milliseconds a turn, over each `window` turns; the first, which imports and
        connects, is left out."""
        marks = self.stamps[window::window]
        return [1000 * (b - a) / window for a, b in pairwise(marks)]


class InProcess:
    """The server's replies without a server: what remains is ours without the client."""

    name = "none"

    def __init__(self, turns: int) -> None:
        self._client = OpenAIChat(model="none")
        self._turns = turns

    def ready(self) -> None:
        """Nothing is needed."""

    async def respond(
        self, messages: Any, tools: Any = (), settings: Settings | None = None
    ) -> Turn:
        """The next turn, made of the same reply."""
        await asyncio.sleep(0)
        made = reply({"messages": messages, "model": self.name}, self._turns)
        return self._client._turn(made, messages)

    async def close(self) -> None:
        """Nothing is open."""


def session() -> SearchTool:
    """A search tool over a few documents: ranking is the engine's time and not measured here."""
    return RankedBrowsing().session(_BACKEND, _STORE)


_DOCUMENTS = {
    f"d{number}": Document(
        f"d{number}",
        f"Mill {number}",
        f"The mill {number} stands on the river. " + "It was built of oak and slate. " * 40,
    )
    for number in range(20)
}
_STORE = DictionaryStore(_DOCUMENTS)
_BACKEND = DictionaryBackend(dict.fromkeys(_DOCUMENTS, "mill river"))


async def answer(
    model: ChatModel, folder: RunFolder, ledger: Ledger, questions: int, flight: int
) -> list[Sample]:
    """Answer the questions in ten parts, sampling the process after each."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(flight, "question")
    loop.set_default_executor(pool)
    tally = RunProgress(ledger, {}, lambda line: None)
    agent = ChatAgent(model=model, ledger=ledger)
    answering = Answering(agent, lambda _: session(), folder, tally, flight)
    topics = [Topic(f"q{number}", "Who built the mill?") for number in range(questions)]
    samples = [sample(0)]
    for part in range(_PARTS):
        await answering.answer(topics[part::_PARTS])
        samples.append(sample(tally.trajectories))
    await model.close()
    pool.shutdown()
    samples.append(sample(tally.trajectories))
    return samples


def sample(questions: int) -> Sample:
    """What this process holds now; called inside the loop, whose own task is not counted."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        questions,
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        threading.active_count(),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        len(asyncio.all_tasks()) - 1,
    )


@contextmanager
def server(turns: int) -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "experiments.bench.agent_server", str(turns)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("the server has no pipes")
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def measured(model: ChatModel, questions: int, flight: int) -> tuple[Watched, list[Sample]]:
    """All questions through the model, into a run folder that is thrown away."""
    watched = Watched(model)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        with folder.writing({"fingerprints": {}}), ledger_on_record(folder.ledger_path) as ledger:
            samples = asyncio.run(answer(watched, folder, ledger, questions, flight))
        ended = [trajectory.answer.exact for trajectory in folder.trajectories()]
    if ended != ["Torvald Brekke"] * questions or ended[0] not in ANSWER:
        raise RuntimeError("some questions did not end with the server's answer")
    return watched, samples


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, prog="experiments.bench.agent")
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--flight", type=int, default=64)
    given = parser.parse_args(arguments)
    console = Console()
    times = Table("server", "turns", "ms a turn (median)", "10 %", "90 %", title="Our own time")
    with server(given.turns) as address:
        over_http = OpenAIChat(model="none", base_url=address, concurrency=given.flight)
        cases = (("none (in process)", InProcess(given.turns)), ("HTTP", over_http))
        for name, model in cases:
            watched, samples = measured(model, given.questions, given.flight)
            values = watched.milliseconds(given.flight)
            tenths = statistics.quantiles(values, n=10)
            row = (statistics.median(values), tenths[0], tenths[-1])
            times.add_row(name, str(len(watched.stamps)), *(f"{value:.2f}" for value in row))
    console.print(times)
    held = Table(*(name.replace("_", " ") for name in Sample._fields), title="Held, over HTTP")
    for row_ in samples:
        held.add_row(*(f"{value:.0f}" for value in row_))
    console.print(held)


if __name__ == "__main__":
    main()
