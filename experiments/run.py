"""`soundingline run`: an agent answers a benchmark's questions through a pipeline.

One cell, or with `-m` a sweep of cells, each in its own run folder. The same command goes on where
an interrupted one stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from soundingline.agents.base import Agent, Budget
from soundingline.experiments.build import (
    language_model,
    make,
    make_interface,
    running,
    servers_of_run,
)
from soundingline.experiments.cli import main
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.evaluate import check_judge, evaluated, needs_llm
from soundingline.experiments.naming import cell_name, factors, fingerprints, run_folder
from soundingline.experiments.pipeline import (
    BoundPipeline,
    PipelineOpener,
    Stages,
    build_pipeline,
    parts_of,
    passages_of,
    stage_counts,
    statistics,
    with_literature_tools,
)
from soundingline.experiments.rank import corpus_costs
from soundingline.experiments.recorded import recorded_option
from soundingline.experiments.rollouts import (
    Progress,
    Rollout,
    RolloutRunner,
    a_failure,
    check_agent,
    fallbacks,
    listed,
    repeat_agents,
    resources,
    run_rollouts,
    within_window,
)
from soundingline.experiments.sweep import obfuscate_cells
from soundingline.pipelines.backend import PipelineBackend
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, LiveNote, progress_bar
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.retrieval import parse_measures
from soundingline.toolkit.llm.blocking import run_coroutine, weights_fingerprint
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import Ledger, open_ledger
from soundingline.toolkit.llm.server import Servers
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.runs.run_folder import RoundsFile, question_of
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.tokens import load_tokenizer
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Trajectory


def run(settings: Settings, prepared: PipelineOpener | None = None) -> EvaluatedRun:
    """Answer what is pending, then evaluate the whole run. `prepared` gives the pipeline where it
    has been opened already."""
    config = settings.config
    check_concurrency(config.concurrency)
    parse_measures(list(config.measures))
    check_judge(config)
    folder = run_folder(settings, cell_name(settings))
    agent_of_repeat, interface = repeat_agents(config, config.repeats), make_interface(config.tool)
    agent = agent_of_repeat[0]
    llm = language_model(config, "llm") if agent.accepts_llm else None
    budget = within_window(make(config.budget), llm)
    agent_prints = check_agent(agent, llm, budget)
    searched = agent.calls_tools and interface.uses_pipeline
    built = prepared() if prepared and searched else build_pipeline(config, searched=searched)
    if built.obfuscated:
        obfuscate_cells(settings)
    operator_prints: dict[str, str] = {}
    if agent.calls_tools:
        interface, operator_prints = with_literature_tools(interface, built, config)
    else:
        built = replace(built, stages=Stages({}))
    prints = {
        **fingerprints(settings, built),
        **agent_prints,
        **({"llm.content": weights_fingerprint(llm)} if weights_fingerprint(llm) else {}),
        **counted_by(interface),
        **operator_prints,
    }
    backend = PipelineBackend(built.pipeline, built.segmenter.name)

    def session(qid: str) -> SearchTool:
        return interface.open(backend.asked_by(qid), built.prepared.store)

    # An interface that cannot make one, or none for this agent, fails before anything is written.
    first_session = session("")
    agent.check_tool(first_session)
    manifest = make_manifest(
        plain_values(config),
        prints,
        factors(settings),
        recorded_option(settings),
    )
    with (
        folder.writing(manifest),
        open_ledger(
            folder.ledger_path, cap=budget.run_dollars, question_cap=budget.dollars
        ) as ledger,
        servers_of_run(settings.multirun) as servers,
    ):
        parts = parts_of(interface, built)
        last = answer(
            config, folder, built, parts, agent_of_repeat, llm, budget, session, ledger, servers
        )
        if last and needs_llm(config):
            # Judging costs money, and whoever mends the run may have its answers change.
            raise stopped(last, folder, built.benchmark, ledger, config.repeats)
        if once := corpus_costs(built.parts):
            folder.note_costs({"once": once})
        cell = evaluated(folder, built.benchmark, config, ledger, servers, passages_of(interface))
    console = Console(stderr=True, soft_wrap=True)
    parts_of_run = [folder.repeat(repeat) for repeat in range(1, config.repeats + 1)]
    failures = sum((part.failures() for part in parts_of_run), Counter[str]())
    questions = cell.counts["questions"] * cell.counts.get("repeats", 1)
    all_failed = bool(failures) and failures.total() == questions
    if failures and not all_failed:
        console.print(
            f"{failures.total()} of {questions} questions failed ({listed(failures)}); the same "
            f"command tries them again. For example, {a_failure(parts_of_run)}"
        )
    console.print(f"{folder.path}/metrics.json", highlight=False)
    if last:
        raise stopped(last, folder, built.benchmark, ledger, config.repeats)
    if all_failed:
        raise InputError(
            f"all {questions} questions of the run {folder.path} failed ({listed(failures)}), for "
            f"example {a_failure(parts_of_run)}",
            do="mend what the `traceback` in that file tells; the same command tries them again",
        )
    return cell


def counted_by(interface: SearchTool) -> dict[str, str]:
    """What counts the tokens of the tool's outputs, where it names a tokenizer."""
    if interface.tokenizer is None:
        return {}
    return {"tool.tokenizer": load_tokenizer(interface.tokenizer).fingerprint}


def answer(
    config: DictConfig,
    folder: RunFolder,
    built: BoundPipeline,
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
        Rollout(topic, repeat)
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
        progress_bar() as progress,
    ):
        reads_index = agent_of_repeat[0].reads_document_frequencies
        of_index = statistics(built) if reads_index else {}
        known = {**of_index, "resolver": built.prepared.resolver}
        shared = {**known, **served, "ledger": ledger}
        bound_agents = [
            agent.bind(
                resources(llm, budget, repeat=repeat, rounds=rounds_of(folder, repeat), **shared)
            )
            for repeat, agent in enumerate(agent_of_repeat, start=1)
        ]
        tally = Progress(ledger, built.benchmark.answers, lambda line: progress.advance(task))
        # A question may take minutes, and its tokens are there with each of its replies.
        note = LiveNote(tally.line)
        task = progress.add_task(f"Answering ({folder.name})", total=len(pending), note=note)
        tell = partial(progress.console.print, highlight=False, soft_wrap=True)
        answering = RolloutRunner(bound_agents, session, folder, tally, config.concurrency, tell)
        first = config.preflight if llm or built.stages.models else 0
        try:
            run_coroutine(run_rollouts(answering, pending, first, tell, served.get("model")))
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


start = partial(main, run)
