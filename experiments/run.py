"""`python -m experiments.run`: an agent answers a benchmark's questions through a pipeline.

One cell, or with `-m` a sweep of cells, each in its own run folder. The same command goes on where
an interrupted one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from omegaconf import DictConfig
from rich.console import Console

from experiments.build import make
from experiments.cell import PIPELINE, SESSION, factors, fingerprints, plain, ranking, run_folder
from experiments.entry import main
from experiments.evaluate import evaluate
from pipelines.backend import PipelineBackend
from pipelines.engines import word_frequency
from toolkit.contracts import Agent, SearchTool, Topic
from toolkit.errors import InputError
from toolkit.evaluation.retrieval import parse_measures
from toolkit.progress import bar
from toolkit.runs import RunFolder, make_manifest


def run(config: DictConfig) -> None:
    """Answer what is pending, then evaluate the whole run."""
    check_concurrency(config.concurrency)
    parse_measures(list(config.measures))
    chosen = factors()
    folder = run_folder(config, chosen)
    make_agent, make_tool, judge = make(config.agent), make(config.tool), make(config.judge)
    make_agent()
    built = ranking(config)
    prints = fingerprints(config, built, (*PIPELINE, *SESSION))
    backend = PipelineBackend(built.pipeline, built.segmenter.name)
    store, index = built.prepared.store, built.prepared.index
    agent = make_agent(document_frequency=word_frequency(index), documents=len(index))
    make_tool(backend=backend, store=store)

    with folder.writing(make_manifest(plain(config), prints, chosen)):
        pending = folder.pending(built.benchmark.topics)
        session = partial(make_tool, backend=backend, store=store)
        asyncio.run(answer(agent, pending, session, folder, config.concurrency))
        cell = evaluate(folder, built.benchmark, judge, list(config.measures))
    console = Console(stderr=True)
    if failed := cell.counts.get("failed", 0):
        asked = cell.counts["questions"]
        console.print(f"{failed} of {asked} questions failed; the same command tries them again")
    console.print(f"{folder.path}/metrics.json", highlight=False, soft_wrap=True)


async def answer(
    agent: Agent,
    topics: Sequence[Topic],
    session: Callable[[], SearchTool],
    folder: RunFolder,
    concurrency: int,
) -> None:
    """Let the agent answer each question in its own session, at most `concurrency` at a time;
    each trajectory is written as soon as it ends."""
    places = asyncio.Semaphore(concurrency)

    async def one(topic: Topic, done: Callable[[str], None]) -> None:
        async with places:
            trajectory = await agent.run(topic, session())
            folder.write(trajectory)
            done(trajectory.status)

    failed = 0
    with bar() as progress:
        task = progress.add_task(f"Answering ({folder.name})", total=len(topics), note="")

        def done(status: str) -> None:
            nonlocal failed
            failed += status == "failed"
            progress.update(task, advance=1, note=f"{failed} failed" if failed else "")

        await asyncio.gather(*(one(topic, done) for topic in topics))


def check_concurrency(value: int) -> None:
    if value < 1:
        raise InputError(f"concurrency={value}", valid="1 or more", do="set concurrency=1")


if __name__ == "__main__":
    main(run)
