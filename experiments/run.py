"""An agent answers the questions of a benchmark through a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from soundingline.agents.base import Agent, Budget
from soundingline.agents.keyword import SimulatedReader
from soundingline.experiments.build import declares, language_model, make, make_search_tool
from soundingline.experiments.collection import texts_in
from soundingline.experiments.config import NO_OPTION, Settings, key_of
from soundingline.experiments.evaluate import check_judge, evaluated, judges_by_model
from soundingline.experiments.naming import cell_name, factors, fingerprints, run_folder
from soundingline.experiments.pipeline import (
    BoundPipeline,
    PipelineOpener,
    Stages,
    build_pipeline,
    parts_of,
    statistics,
    with_literature_tools,
)
from soundingline.experiments.rank import corpus_costs
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
    simulated_reader,
)
from soundingline.experiments.run_context import RunContext, open_run, running
from soundingline.experiments.sweep import obfuscate_cells
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.stage import matching_of
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, LiveNote, TimeLeft, print_next, progress_bar
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.retrieval import parse_measures
from soundingline.toolkit.llm.blocking import (
    run_coroutine,
    version_of_server,
    weights_fingerprint,
)
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.report.traces import PAGE
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import RoundsFile, question_of
from soundingline.toolkit.search import Literature
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.tokens import load_tokenizer
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Trajectory


@dataclass(frozen=True)
class Components:
    """What answers the questions: one agent for each repeat, its language model and budget, the
    pipeline, and the search tool with what counts in it."""

    agents: Sequence[Agent]
    llm: LanguageModel | None
    budget: Budget
    built: BoundPipeline
    search_tool: SearchTool
    backend: PipelineBackend
    parts: Mapping[str, Any]
    simulated_reader: SimulatedReader | None = None

    def session(self, qid: str) -> SearchTool:
        """The search tool for one question."""
        backend, store = self.backend.for_question(qid), self.built.prepared.store
        matching = matching_of(self.built.parts.get("retriever"))
        return self.search_tool.open(backend, store, matching=matching)


def check_removal(benchmark: Benchmark, search_tool: SearchTool) -> None:
    """`InputError` for `benchmark.remove_evidence` with a tool that finds documents by other means
    than the pipeline's rankings."""
    if benchmark.remove_evidence and isinstance(search_tool, Literature):
        raise InputError(
            f"benchmark.remove_evidence=true, and {type(search_tool).__name__} finds documents "
            "without the pipeline",
            valid="a tool that shows rankings alone, such as tool=ranked_browsing or tool=top_k",
            do="choose one, or set benchmark.remove_evidence=false",
        )


def run(settings: Settings, opened: PipelineOpener | None = None) -> EvaluatedRun:
    """Answer the questions of a benchmark with an agent that searches through a pipeline, and
    evaluate the run.

    One cell, or with `-m` a sweep of cells, each in its own run folder. The same command continues
    an interrupted run.
    """
    # `opened` gives the pipeline if it has been opened already.
    config = settings.config
    check_int("concurrency", config.concurrency)
    parse_measures(list(config.measures))
    check_judge(config)
    check_stand_in(settings)
    folder = run_folder(settings, cell_name(settings))
    this, prints = components(settings, opened)
    with open_run(settings, folder, prints, factors(settings), question_cap=True) as context:
        folder = context.folder
        last = answer(this, context, settings)
        if last and judges_by_model(config):
            # Judging costs money, and the answers may change once the fault is corrected.
            raise stopped(last, context, this)
        cell = evaluate_answers(this, context, settings)
    report(cell, folder, config.repeats)
    if opened is None and not settings.multirun:  # neither in Python nor in a sweep
        page = folder.path / PAGE
        view = f"open {page}, or " if page.is_file() else ""
        print_next(f"{view}soundingline compare {folder.path} ANOTHER_RUN")
    if last:
        raise stopped(last, context, this)
    return cell


def components(
    settings: Settings, opened: PipelineOpener | None = None
) -> tuple[Components, dict[str, str]]:
    """What answers the questions of a run, and the fingerprints of all that must be equal when the
    run is resumed. `InputError` for parts that do not fit together; nothing is written before."""
    config = settings.config
    agents, search_tool = repeat_agents(config, config.repeats), make_search_tool(config.tool)
    agent = agents[0]
    llm = language_model(config, "llm") if agent.accepts_llm else None
    budget = make(config.budget)
    if llm is not None:
        budget = replace(budget, context_window=llm.context_window)
    agent = check_agent(agent, llm, budget)
    searched = agent.calls_tools
    built = opened() if opened and searched else build_pipeline(config, searched=searched)
    if built.obfuscated:
        obfuscate_cells(settings)
    check_removal(built.benchmark, search_tool)
    reader = simulated_reader(agent, built.benchmark, partial(texts_in, built.prepared.store))
    tool_fingerprints: dict[str, str] = {}
    if agent.calls_tools:
        search_tool, tool_fingerprints = with_literature_tools(search_tool, built, config)
    else:
        built = replace(built, stages=Stages({}))
    backend = PipelineBackend(built.pipeline, built.segmenter.name)
    parts = parts_of(search_tool, built)
    this = Components(agents, llm, budget, built, search_tool, backend, parts, reader)
    # A tool that cannot make a session, or none for this agent, fails before anything is written.
    session = this.session("")
    agent.check_tool(session)
    prints = {**fingerprints(settings, built), **agent.fingerprints, **tool_fingerprints}
    if search_tool.tokenizer is not None:
        prints["tool.tokenizer"] = load_tokenizer(search_tool.tokenizer).fingerprint
    if weights := weights_fingerprint(llm):
        prints["llm.content"] = weights
    return this, {**prints, **agent.tool_fingerprints(session)}


def evaluate_answers(this: Components, context: RunContext, settings: Settings) -> EvaluatedRun:
    """Evaluate the answers of a run, and note what does not depend on their number."""
    built, tool = this.built, this.search_tool
    costs = {"once": corpus_costs(built.parts), "index_seconds": built.prepared.build_seconds()}
    context.folder.note_costs({when: numbers for when, numbers in costs.items() if numbers})
    return evaluated(
        context.folder,
        built.benchmark,
        settings.config,
        context.ledger,
        context.servers,
        tool.operators.passages if isinstance(tool, Literature) else None,
    )


def check_stand_in(settings: Settings) -> None:
    """`InputError` where `scale=laptop` runs its own agent, which searches, in the place of an
    agent that does not search or that needs no language model. A cell that names an agent runs
    that one."""
    experiment = settings.choices.get("experiment", "null")
    named = any(key_of(override) == "agent" for override in settings.overrides)
    if not settings.config.laptop or named or experiment in NO_OPTION:
        return
    paper = Settings.compose([f"experiment={experiment}"], settings.search_path)
    option = paper.config.agent
    searches = declares(option, "requires_llm") and declares(option, "calls_tools")
    if searches or option["_target_"] == settings.config.agent["_target_"]:
        return
    raise InputError(
        f"experiment={experiment} has the agent {paper.choices['agent']}, and scale=laptop would "
        f"run {settings.choices['agent']}, which is another",
        valid="an experiment with a language model that searches, or with an agent for laptops",
        do="name one: agent=..., or in the experiment hydra.sweeper.laptop.params.agent",
    )


def answer(this: Components, context: RunContext, settings: Settings) -> Trajectory | None:
    """Let the agent answer what is pending; the trajectory that stopped the run, if one did."""
    config, folder, ledger = settings.config, context.folder, context.ledger
    benchmark = this.built.benchmark
    pending = [
        Rollout(topic, repeat)
        for repeat in range(1, len(this.agents) + 1)
        for topic in folder.repeat(repeat).pending(benchmark.topics)
    ]
    console = Console(stderr=True, soft_wrap=True)
    total = len(benchmark.topics) * len(this.agents)
    if len(pending) < total:
        console.print(f"kept {total - len(pending):,} of {total:,}")
    if not pending:
        return None
    if ledger.cap is not None and ledger.unpriced_before:
        console.print(
            f"the cost of {ledger.unpriced_before} replies of earlier starts is unknown; towards "
            "budget.run_dollars each counts as the most expensive one of its role"
        )
    with (
        context.running(this.built.stages, this.parts, this.llm) as counted,
        running(this.llm, folder.path / "server.log", context.servers) as served,
        progress_bar() as progress,
    ):
        folder.note_servers({"llm": version_of_server(served.get("model"))})
        index = statistics(this.built) if this.agents[0].reads_document_frequencies else {}
        shared = {**index, "resolver": this.built.prepared.resolver, **served, "ledger": ledger}
        shared |= {"simulated_reader": this.simulated_reader, "stages": tuple(this.built.parts)}

        def rounds(repeat: int, name: str) -> RoundsFile:
            return folder.repeat(repeat).rounds(question_of(name, repeat))

        agents = []
        for repeat, agent in enumerate(this.agents, start=1):
            own = {**shared, "rounds": partial(rounds, repeat)}
            agents.append(agent.bind(resources(this.llm, this.budget, repeat=repeat, **own)))
        left = TimeLeft(len(pending), config.concurrency)

        def advance(line: str) -> None:
            left.end_one()
            progress.advance(task)

        tally = Progress(ledger, benchmark.answers, advance)
        # A question may take minutes, and its tokens are counted with each of its replies.
        note = LiveNote(tally.line)
        name = f"Answering ({folder.name})"
        task = progress.add_task(name, total=len(pending), note=note, left=left)
        show = partial(progress.console.print, soft_wrap=True)
        runner = RolloutRunner(agents, this.session, folder, tally, config.concurrency, show)
        first = config.preflight if this.llm or this.built.stages.models else 0
        try:
            run_coroutine(runner.answer_all(pending, first, served.get("model")))
        except KeyboardInterrupt:
            done = total - len(pending) + tally.trajectories
            raise KeyboardInterrupt(f"{done:,} of {total:,} questions are done") from None
    for line in (*tally.closing(), *fallbacks(counted)):
        console.print(line)
    return runner.stopped


def report(cell: EvaluatedRun, folder: RunFolder, repeats: int) -> None:
    """Print where the measures are and how many questions failed. `InputError` if all did."""
    console = Console(stderr=True, soft_wrap=True)
    parts = [folder.repeat(repeat) for repeat in range(1, repeats + 1)]
    failures = sum((part.failures() for part in parts), Counter[str]())
    questions = cell.counts["questions"] * cell.counts.get("repeats", 1)
    all_failed = bool(failures) and failures.total() == questions
    if failures and not all_failed:
        console.print(
            f"{failures.total()} of {questions} questions failed ({listed(failures)}); the same "
            f"command tries them again. For example, {a_failure(parts)}"
        )
    console.print(f"{folder.path}/metrics.json")
    if all_failed:
        raise InputError(
            f"all {questions} questions of the run {folder.path} failed ({listed(failures)}), for "
            f"example {a_failure(parts)}",
            do="correct the error; its traceback is in that file. Then repeat the command",
        )


def stopped(last: Trajectory, context: RunContext, this: Components) -> InputError:
    """Why the run went no further."""
    folder, ledger = context.folder, context.ledger
    do = "correct it and repeat the command, which continues where this stopped"
    if last.reason != RUN_OUT_OF_MONEY:
        error = last.traceback.strip().rpartition("\n")[2]
        fault = f"stopped, because other questions would fail as well: {error}"
    elif ledger.unpriced:
        fault = (
            f"stopped: the server reported no usage for {ledger.unpriced} replies, so that "
            "budget.run_dollars cannot be enforced"
        )
        do = (
            "set no cap, or choose a server that reports the usage of every reply and move "
            f"{folder.ledger_path} away"
        )
    else:
        repeats = range(1, len(this.agents) + 1)
        asked = sum(len(folder.repeat(number).statuses()) for number in repeats)
        missing = len(this.built.benchmark.topics) * len(this.agents) - asked
        fault = f"has used up budget.run_dollars; {missing} questions were not run"
        do = "raise it and repeat the command, which continues where this stopped"
    return InputError(f"the run {folder.path} {fault}", do=do)
