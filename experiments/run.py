"""`python -m experiments.run`: an agent answers a benchmark's questions through a pipeline.

One cell, or with `-m` a sweep of cells, each in its own run folder. The same command goes on where
an interrupted one stopped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from agents.base import BaseAgent
from agents.budget import Budget
from experiments.answering import (
    Answering,
    Asking,
    answer_all,
    check_agent,
    repeat_agents,
    resources,
    within_window,
)
from experiments.build import language_model, make, make_interface
from experiments.costs import corpus_costs
from experiments.entry import main
from experiments.judging import asks_model, check_judge, evaluated
from experiments.models import running, servers_of_run
from experiments.naming import cell_name, factors, fingerprints, run_folder
from experiments.operators import (
    asks_pipeline,
    parts_of,
    passages_of,
    statistics,
    with_operators,
)
from experiments.pipeline import PipelineOpener, PreparedPipeline, Stages, ranking, stage_counts
from experiments.recorded import recorded_option
from experiments.run_progress import RunProgress, fallbacks, listed
from experiments.settings import Settings, plain_values
from experiments.sweep import seal_cells
from pipelines.backend import PipelineBackend
from toolkit.console import Console
from toolkit.contracts import (
    RUN_OUT_OF_MONEY,
    Agent,
    Benchmark,
    SearchTool,
    ToolInterface,
    Trajectory,
)
from toolkit.errors import InputError
from toolkit.evaluation import Cell
from toolkit.evaluation.retrieval import parse_measures
from toolkit.llm.blocking import content_of
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.ledger import Ledger
from toolkit.llm.ledger_file import ledger_on_record
from toolkit.llm.server import Servers
from toolkit.progress import LiveNote, bar
from toolkit.runs import RunFolder, make_manifest
from toolkit.runs.names import question_of
from toolkit.runs.rounds import RoundsFile
from toolkit.tokens import tokens_of


def run(settings: Settings, prepared: PipelineOpener | None = None) -> Cell:
    """Answer what is pending, then evaluate the whole run. `prepared` gives the pipeline where it
    has been opened already."""
    config = settings.config
    check_concurrency(config.concurrency)
    parse_measures(list(config.measures))
    check_judge(config)
    folder = run_folder(settings, cell_name(settings))
    agent_of_repeat, interface = repeat_agents(config, config.repeats), make_interface(config.tool)
    uses_model = getattr(agent_of_repeat[0], "uses_model", False)
    llm = language_model(config, "llm") if uses_model else None
    budget = within_window(make(config.budget), llm)
    agent_prints = check_agent(agent_of_repeat[0], llm, budget)
    calls_tools = getattr(agent_of_repeat[0], "calls_tools", True)
    searched = calls_tools and asks_pipeline(interface)
    built = prepared() if prepared and searched else ranking(config, searched=searched)
    if built.sealed:
        seal_cells(settings)
    operator_prints: dict[str, str] = {}
    if calls_tools:
        interface, operator_prints = with_operators(interface, built, config)
    else:
        built = replace(built, stages=Stages({}))
    prints = {
        **fingerprints(settings, built),
        **agent_prints,
        **({"llm.content": content_of(llm)} if content_of(llm) else {}),
        **counted_by(interface),
        **operator_prints,
    }
    backend = PipelineBackend(built.pipeline, built.segmenter.name)

    def session(qid: str) -> SearchTool:
        return interface.session(backend.asked_by(qid), built.prepared.store)

    # An interface that cannot make one, or none for this agent, fails before anything is written.
    first_session = session("")
    if isinstance(agent_of_repeat[0], BaseAgent):
        agent_of_repeat[0].check_tool(first_session)
    manifest = make_manifest(
        plain_values(config),
        prints,
        factors(settings),
        recorded_option(settings),
    )
    with (
        folder.writing(manifest),
        ledger_on_record(
            folder.ledger_path, cap=budget.run_dollars, question_cap=budget.dollars
        ) as ledger,
        servers_of_run(settings.multirun) as servers,
    ):
        parts = parts_of(interface, built)
        last = answer(
            config, folder, built, parts, agent_of_repeat, llm, budget, session, ledger, servers
        )
        if last and asks_model(config):
            # Judging costs money, and whoever mends the run may have its answers change.
            raise stopped(last, folder, built.benchmark, ledger, config.repeats)
        if once := corpus_costs(built.parts):
            folder.note_costs({"once": once})
        cell = evaluated(folder, built.benchmark, config, ledger, servers, passages_of(interface))
    console = Console(stderr=True, soft_wrap=True)
    failures = Counter[str]()
    for repeat in range(1, config.repeats + 1):
        failures += folder.repeat(repeat).failures()
    questions = cell.counts["questions"] * cell.counts.get("repeats", 1)
    all_failed = bool(failures) and failures.total() == questions
    if failures and not all_failed:
        console.print(
            f"{failures.total()} of {questions} questions failed ({listed(failures)}); the same "
            "command tries them again"
        )
    console.print(f"{folder.path}/metrics.json", highlight=False)
    if last:
        raise stopped(last, folder, built.benchmark, ledger, config.repeats)
    if all_failed:
        raise InputError(
            f"all {questions} questions of the run {folder.path} failed ({listed(failures)})",
            do="mend what `traceback` in their trajectories tells; the same command tries them "
            "again",
        )
    return cell


def counted_by(interface: ToolInterface) -> dict[str, str]:
    """What counts the tokens of the tool's outputs, where it names a tokenizer."""
    named = getattr(interface, "tokenizer", None)
    return {"tool.tokenizer": tokens_of(named).fingerprint} if named else {}


def answer(
    config: DictConfig,
    folder: RunFolder,
    built: PreparedPipeline,
    parts: Mapping[str, Any],
    agent_of_repeat: Sequence[Agent],
    llm: LanguageModel | None,
    budget: Budget,
    session: Callable[[str], SearchTool],
    ledger: Ledger,
    servers: Servers,
) -> Trajectory | None:
    """Let the agent answer what is pending; the trajectory that stopped the run, if one did.
    `parts` are what counts in the run."""
    pending = [
        Asking(topic, repeat)
        for repeat in range(1, len(agent_of_repeat) + 1)
        for topic in folder.repeat(repeat).pending(built.benchmark.topics)
    ]
    if not pending:
        return None
    if ledger.cap is not None and ledger.unpriced_before:
        Console(stderr=True, soft_wrap=True).print(
            f"{ledger.unpriced_before} replies of earlier starts reported no usage: their cost is "
            f"not in the ${ledger.spent_before:.4f} that count towards budget.run_dollars"
        )
    before = stage_counts(parts)
    with (
        running(llm, folder.path / "server.log", servers) as served,
        built.stages.asking(ledger, folder.path, servers),
        bar() as progress,
    ):
        reads_index = getattr(agent_of_repeat[0], "reads_frequencies", False)
        of_index = statistics(built) if reads_index else {}
        known = {**of_index, "resolver": built.prepared.resolver}
        shared = {**known, **served, "ledger": ledger}
        bound_agents = [
            agent.bind(
                resources(llm, budget, repeat=repeat, rounds=rounds_of(folder, repeat), **shared)
            )
            if isinstance(agent, BaseAgent)
            else agent
            for repeat, agent in enumerate(agent_of_repeat, start=1)
        ]
        tally = RunProgress(ledger, built.benchmark.answers, lambda line: progress.advance(task))
        # A question may take minutes, and its tokens are there with each of its replies.
        note = LiveNote(tally.line)
        task = progress.add_task(f"Answering ({folder.name})", total=len(pending), note=note)
        answering = Answering(bound_agents, session, folder, tally, config.concurrency)
        first = config.preflight if llm or built.stages.models else 0
        estimated = partial(progress.console.print, highlight=False, soft_wrap=True)
        try:
            asyncio.run(answer_all(answering, pending, first, estimated, served.get("model")))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            counted = stage_counts(parts, before)
            folder.add_counts(counted)
    for line in (*tally.closing(), *fallbacks(counted)):
        Console(stderr=True, soft_wrap=True).print(line)
    return answering.stopped


def rounds_of(folder: RunFolder, repeat: int) -> Callable[[str], RoundsFile]:
    """Where whole rounds of a question are kept, by what it is called in its repeat."""
    return lambda name: folder.repeat(repeat).rounds(question_of(name, repeat))


def stopped(
    last: Trajectory, folder: RunFolder, benchmark: Benchmark, ledger: Ledger, repeats: int
) -> InputError:
    """Why the run went no further."""
    if last.reason == RUN_OUT_OF_MONEY and ledger.unpriced:
        return InputError(
            f"the run {folder.path} stopped: the server reported no usage for {ledger.unpriced} "
            "replies, so that budget.run_dollars cannot be kept",
            do="choose a server that tells the usage of every reply, or set no cap",
        )
    if last.reason == RUN_OUT_OF_MONEY:
        questions = len(benchmark.topics) * repeats
        missing = questions - sum(len(folder.repeat(n).statuses()) for n in range(1, repeats + 1))
        return InputError(
            f"the run {folder.path} has used up budget.run_dollars; {missing} questions were not "
            "asked",
            do="raise it and run the same command, which goes on where this stopped",
        )
    error = last.traceback.strip().rpartition("\n")[2]
    return InputError(
        f"the run {folder.path} stopped, because other questions would fail as well: {error}",
        do="mend it and run the same command, which goes on where this stopped",
    )


def check_concurrency(value: int) -> None:
    if value < 1:
        raise InputError(f"concurrency={value}", valid="1 or more", do="set concurrency=1")


if __name__ == "__main__":
    main(run)
