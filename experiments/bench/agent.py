"""`python -m soundingline.experiments.bench.agent`: what the tool-calling agent itself takes.

Time: our process's own processor time a turn (client, transcript, ledger, search session, record
written), with many questions in flight against a server that answers at once in a process of its
own; the median over windows of turns. Leaks: tasks, threads, descriptors and memory over many
questions. Arguments: `--questions` (default 1000), `--turns` (20), `--flight` (64).
"""

from __future__ import annotations

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

from soundingline.agents.chat import ChatAgent
from soundingline.experiments.bench.agent_server import ANSWER, reply
from soundingline.experiments.bench.harness import Arguments, Section, Table, report, run
from soundingline.experiments.rollouts import Progress, Rollout, RolloutRunner
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document, Ranking, SearchRequest, SearchResult, Topic
from soundingline.toolkit.llm.ledger import Ledger, open_ledger
from soundingline.toolkit.llm.messages import ChatModel, SamplingParams, Turn
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.search.session import SearchTool

_PARTS = 10


class Holdings(NamedTuple):
    """What the process holds at one moment."""

    questions: int
    memory_mb: float
    threads: int
    descriptors: int
    tasks: int


class TimedModel:
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
        self, messages: Any, tools: Any = (), settings: SamplingParams | None = None
    ) -> Turn:
        """The next turn, made of the same reply."""
        await asyncio.sleep(0)
        completion = reply({"messages": messages, "model": self.name}, self._turns)
        return self._client._turn(completion, messages)

    async def close(self) -> None:
        """Nothing is open."""


def session() -> SearchTool:
    """A search tool over a few documents: ranking is the engine's time and not measured here."""
    return RankedBrowsing().open(_Backend(), _STORE)


_DOCUMENTS = [
    Document(
        f"d{number}",
        f"Mill {number}",
        f"The mill {number} stands on the river. " + "It was built of oak and slate. " * 40,
    )
    for number in range(20)
]
_STORE = SqliteStore.in_memory(_DOCUMENTS)
_RANKING = Ranking([document.docid for document in _DOCUMENTS], [1.0] * len(_DOCUMENTS))


class _Backend:
    """Gives every query the same ranking."""

    def search(self, request: SearchRequest) -> SearchResult:
        return SearchResult(_RANKING)


async def answer(
    model: ChatModel, folder: RunFolder, ledger: Ledger, questions: int, flight: int
) -> list[Holdings]:
    """Answer the questions in ten parts, with what the process holds after each."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(flight, "question")
    loop.set_default_executor(pool)
    tally = Progress(ledger, {}, lambda line: None)
    agent = ChatAgent(model=model, ledger=ledger)
    answering = RolloutRunner([agent], lambda _: session(), folder, tally, flight)
    askings = [Rollout(Topic(f"q{number}", "Who built the mill?")) for number in range(questions)]
    samples = [holdings(0)]
    for part in range(_PARTS):
        await answering.answer(askings[part::_PARTS])
        samples.append(holdings(tally.trajectories))
    await model.close()
    pool.shutdown()
    samples.append(holdings(tally.trajectories))
    return samples


def holdings(questions: int) -> Holdings:
    """What this process holds now; called inside the loop, whose own task is not counted."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Holdings(
        questions,
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        threading.active_count(),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        len(asyncio.all_tasks()) - 1,
    )


@contextmanager
def server(turns: int, *answer: str) -> Iterator[str]:
    """The address of a server in a process of its own; see `agent_server.reply`."""
    command = [
        sys.executable,
        "-m",
        "soundingline.experiments.bench.agent_server",
        str(turns),
        *answer,
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("the server has no pipes")
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def run_rollouts(
    model: ChatModel, questions: int, flight: int
) -> tuple[TimedModel, list[Holdings]]:
    """All questions through the model, into a run folder that is thrown away."""
    timed = TimedModel(model)
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        with folder.writing({"fingerprints": {}}), open_ledger(folder.ledger_path) as ledger:
            samples = asyncio.run(answer(timed, folder, ledger, questions, flight))
        ended = [trajectory.answer.exact for trajectory in folder.trajectories()]
    if ended != ["Torvald Brekke"] * questions or ended[0] not in ANSWER:
        raise RuntimeError("some questions did not end with the server's answer")
    return timed, samples


def main(arguments: Sequence[str]) -> None:
    """Measure and print both tables."""
    parser = Arguments("agent", questions=(1000, 1), turns=(20, 1), flight=(64, 1))
    options = parser.read(arguments)
    rows = []
    with server(options.turns) as address:
        over_http = OpenAIChat(model="none", base_url=address, concurrency=options.flight)
        cases = (("none (in process)", InProcess(options.turns)), ("HTTP", over_http))
        for name, model in cases:
            timed, samples = run_rollouts(model, options.questions, options.flight)
            values = timed.milliseconds(options.flight)
            tenths = statistics.quantiles(values, n=10)
            times = statistics.median(values), tenths[0], tenths[-1]
            rows.append([name, str(len(timed.stamps)), *(f"{time:.2f}" for time in times)])
    own_time = Table(("server", "turns", "ms a turn (median)", "10 %", "90 %"), rows)
    names = [name.replace("_", " ") for name in Holdings._fields]
    held = Table(names, [[f"{value:.0f}" for value in sample] for sample in samples])
    parts: list[str | Table] = ["Our own time:", own_time, "Held, over HTTP:", held]
    section = Section(
        "agent",
        "Tool-calling agent",
        parser.command(options),
        parts,
        packages=("openai", "httpx2"),
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
