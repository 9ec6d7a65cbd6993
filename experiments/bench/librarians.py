"""`python -m soundingline.experiments.bench.librarians`: our own time a scored document, with a
model that answers at once, and the memory that many questions leave.

The navigator of rules with `scorer=chat` on the fictional sets: retrieval, evidence, prompts,
reading answers, the caches of replies and of scores, and the record; 100 librarians at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.literature import Navigator
from soundingline.experiments.build import make_interface
from soundingline.experiments.experiment import Experiment
from soundingline.experiments.pipeline import statistics, with_literature_tools
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.chat_scorer import ChatScorer
from soundingline.toolkit.console import Console
from soundingline.toolkit.data import Topic
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import Message, SamplingParams, Turn, Usage
from soundingline.toolkit.search import Literature
from soundingline.toolkit.search.scoring import ScorerResources

TARGET_MS, AT_ONCE, PARTS = 5.0, 20, 4
_NUMBERED = re.compile(r"^\d+\. ", re.MULTILINE)


class AtOnce:
    """A model that answers every prompt with as many scores as it has requirements."""

    name = "at once"

    def ready(self) -> None:
        """Nothing is needed."""

    async def respond(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        settings: SamplingParams | None = None,
    ) -> Turn:
        """Scores, without a wait."""
        prompt = str(messages[-1]["content"]).split("=====")[0]
        count = len(_NUMBERED.findall(prompt))
        rows = [
            {"number": n, "verdict": "unknown", "score": 0.5, "passage": "", "rationale": "None."}
            for n in range(1, count + 1)
        ]
        answer = {"requirements": rows, "relevant": False, "probability": 0.5}
        return Turn(json.dumps(answer), usage=Usage(input=800, output=40 * count))

    async def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    """Answer the questions and print CPU and wall time a scored document, and the memory held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--pool", type=int, default=40, help="new documents scored in a round")
    parser.add_argument("--librarians", type=int, default=100, help="at work at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.compose(
            "benchmark=fictional",
            f"benchmark.documents={arguments.documents}",
            "benchmark.questions=sets:50",
            "agent=navigator",
            f"paths.indexes={folder}/indexes",
        )
        run(
            experiment,
            Path(folder) / "caches",
            arguments.questions,
            arguments.pool,
            arguments.librarians,
        )


def run(experiment: Experiment, caches: Path, questions: int, pool: int, librarians: int) -> None:
    """The questions of the benchmark again and again, each time as new ones."""
    config, built = experiment.settings.config, experiment.collection
    interface, _ = with_literature_tools(make_interface(config.tool), built, config)
    assert isinstance(interface, Literature)
    blocking, ledger = BlockingModel("at once", role="librarian"), Ledger()
    scorer = ChatScorer().bind(ScorerResources(caches=caches, model=blocking))
    interface = interface.bind(replace(interface.operators, scorer=scorer))
    backend = PipelineBackend(built.pipeline, built.segmenter.name)
    agent = Navigator(librarians=librarians, pool=pool).bind(
        RunResources(Budget(), ledger=ledger, **statistics(built))
    )
    topics = list(built.benchmark.topics)

    async def answer(number: int, slots: asyncio.Semaphore) -> None:
        topic = topics[number % len(topics)]
        # Another question in the eyes of the caches: nothing is found there.
        question = Topic(f"q{number}", f"{topic.text} ({number})")
        async with slots:
            session = interface.open(backend.asked_by(question.qid), built.prepared.store)
            trajectory = await agent.run(question, session)
        assert trajectory.status == "completed", trajectory.traceback

    async def run_rollouts(first: int, last: int) -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(answer(number, slots) for number in range(first, last)))

    with blocking.started(AtOnce(), ledger):
        asyncio.run(run_rollouts(0, AT_ONCE))  # what is loaded and compiled once
        for part in range(PARTS):
            before, cpu, wall = scorer.counts["documents"], time.process_time(), time.perf_counter()
            first = AT_ONCE + part * (questions // PARTS)
            asyncio.run(run_rollouts(first, first + questions // PARTS))
            scored = scorer.counts["documents"] - before
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            held, files = process_bytes() / 2**20, len(list(Path("/proc/self/fd").iterdir()))
            Console(soft_wrap=True).print(
                f"{questions // PARTS:,} questions, {scored:,.0f} documents scored by {librarians} "
                f"librarians: {1000 * cpu / scored:.2f} ms CPU and {1000 * wall / scored:.2f} ms a "
                f"document (target {TARGET_MS:.0f}); {held:,.0f} MiB of memory, {files} files open",
                highlight=False,
            )


def process_bytes() -> int:
    """Bytes of memory that this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
