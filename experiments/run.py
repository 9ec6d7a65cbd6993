"""An agent answers the questions of a benchmark through a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from soundingline.agents.base import Agent, Budget
from soundingline.experiments.build import declares, language_model, make, make_search_tool
from soundingline.experiments.collection import texts_in
from soundingline.experiments.config import NO_OPTION, Settings, key_of
from soundingline.experiments.evaluate import evaluated, make_judge
from soundingline.experiments.naming import cell_name, factors, fingerprints, run_folder
from soundingline.experiments.pipeline import (
    BoundPipeline,
    PipelineOpener,
    Stages,
    build_pipeline,
    corpus_costs,
    index_statistics,
    parts_of,
    with_literature_tools,
)
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
from soundingline.experiments.run_context import (
    Components,
    RunContext,
    end_servers,
    open_run,
    running,
)
from soundingline.experiments.sweep import cells_folder, obfuscate_cells
from soundingline.pipelines.backend import PipelineBackend
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import (
    Console,
    LiveNote,
    counted_questions,
    print_next,
    progress_bar,
)
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.retrieval import parse_measures
from soundingline.toolkit.llm.blocking import run_coroutine
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.report.traces import PAGE
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import RoundsFile, question_of
from soundingline.toolkit.search import Literature
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.tokens import load_tokenizer
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Trajectory

if TYPE_CHECKING:
    from soundingline.experiments.preflight.findings import CheckReport


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
    check_stand_in(settings)
    folder = run_folder(settings, cell_name(settings))
    this, prints = make_components(settings, opened)
    chosen = factors(settings)
    with open_run(settings, folder, prints, chosen, this.budget, question_cap=True) as context:
        folder = context.folder
        last = answer(this, context, settings)
        if last and this.judge.llm:
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


def preflight(cells: Sequence[Settings]) -> None:
    """Check what a run with the same arguments would use, before it spends money: the servers of
    language models, prompt and tools, the judge, the collection, and the machine.

    It takes at most 60 seconds and 20 requests, and writes nothing. Of the cells of a sweep, each
    server, judge and collection is checked once. `soundingline run` makes the same checks by itself
    (`preflight.check`).
    """
    try:
        with TemporaryDirectory() as scratch:
            done = [
                _checked(settings, Path(scratch), number, sweep=len(cells) > 1)
                for number, settings in enumerate(cells)
            ]
    finally:
        end_servers()
    checks, requests, seconds, dollars = (
        sum(getattr(each, name) for each in done)
        for name in ("checks", "requests", "seconds", "dollars")
    )
    took = f"{checks} checks, {seconds:.1f} seconds, {requests} requests, ${dollars:.4f}"
    Console().print(f"preflight passed: {took}", highlight=False)


def _checked(settings: Settings, scratch: Path, number: int, *, sweep: bool) -> CheckReport:
    """The check of one cell, in a folder of its own. Those of a sweep share servers and results."""
    settings = replace(settings, multirun=sweep)
    this, prints = make_components(settings)
    settings.config.logger = None
    folder, chosen = RunFolder(scratch / f"cell-{number}"), factors(settings)
    made = open_run(settings, folder, prints, chosen, this.budget, question_cap=True)
    with (
        made as context,
        context.running(this.built.stages, this.parts, this.llm),
        running(this.llm, context.folder.path / "server.log", context.servers) as served,
    ):
        from soundingline.experiments.preflight import check_before

        memory = scratch if sweep else None
        return check_before(this, context, settings, served.get("model"), memory)


def make_components(
    settings: Settings, opened: PipelineOpener | None = None
) -> tuple[Components, dict[str, str]]:
    """What answers the questions of a run, and its fingerprints. `InputError` for parts that do not
    fit together, after which nothing was written. `opened` gives the pipeline if it has been opened
    already."""
    config = settings.config
    budget: Budget = make(config.budget)
    judge = make_judge(config, budget)
    agents, search_tool = repeat_agents(config, budget), make_search_tool(config.tool)
    llm = language_model(config, "llm") if agents[0].accepts_llm else None
    if llm is not None:
        budget = replace(budget, context_window=llm.context_window)
    agent = check_agent(agents[0], llm, budget)
    built = _pipeline(settings, budget, opened, searched=agent.calls_tools)
    check_removal(built.benchmark, search_tool)
    reader = simulated_reader(agent, built.benchmark, partial(texts_in, built.collection.store))
    of_tool: dict[str, str] = {}
    if agent.calls_tools:
        search_tool, of_tool = with_literature_tools(search_tool, built, config)
    else:
        built = replace(built, stages=Stages({}))
    backend = PipelineBackend(built.pipeline)
    parts = parts_of(search_tool, built)
    this = Components(agents, llm, budget, built, search_tool, backend, parts, judge, reader)
    return this, _fingerprints(this, agent, settings, of_tool)


def _fingerprints(
    this: Components, agent: Agent, settings: Settings, of_tool: Mapping[str, str]
) -> dict[str, str]:
    """The fingerprints of all that must be equal when the run is resumed, with those of the tool's
    operators. `InputError` for a tool that cannot make a session, or none for this agent."""
    session = this.session("")
    agent.check_tool(session)
    prints = {**fingerprints(settings, this.built), **agent.fingerprints, **of_tool}
    if this.search_tool.tokenizer is not None:
        prints["tool.tokenizer"] = load_tokenizer(this.search_tool.tokenizer).fingerprint
    if this.llm and this.llm.weights_fingerprint:
        prints["llm.content"] = this.llm.weights_fingerprint
    return {**prints, **agent.tool_fingerprints(session)}


def _pipeline(
    settings: Settings, budget: Budget, opened: PipelineOpener | None, *, searched: bool
) -> BoundPipeline:
    """The pipeline that was opened, or that of the configuration."""
    if opened and searched:
        built = opened()
    else:
        built = build_pipeline(settings.config, budget, searched=searched)
    if built.obfuscated:
        obfuscate_cells(settings)
    return built


def evaluate_answers(this: Components, context: RunContext, settings: Settings) -> EvaluatedRun:
    """Evaluate the answers of a run, and note what does not depend on their number."""
    built, tool = this.built, this.search_tool
    costs = {"once": corpus_costs(built.parts), "index_seconds": built.collection.build_seconds()}
    context.folder.note_costs({when: numbers for when, numbers in costs.items() if numbers})
    return evaluated(
        context.folder,
        built.benchmark,
        settings.config,
        this.judge,
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
    if settings.config.scale != "laptop" or named or experiment in NO_OPTION:
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
    config, ledger = settings.config, context.ledger
    console = Console(stderr=True, soft_wrap=True)
    pending = pending_rollouts(this, context.folder)
    answered = this.rollouts - len(pending)
    if answered:
        console.print(f"kept {answered:,} of {this.rollouts:,}")
    if not pending:
        return None
    if ledger.cap is not None and ledger.unpriced_before:
        console.print(
            f"the cost of {ledger.unpriced_before} replies of earlier starts is unknown; towards "
            "budget.run_dollars each counts as the most expensive one of its role"
        )
    with (
        context.running(this.built.stages, this.parts, this.llm) as counted,
        running(this.llm, context.folder.path / "server.log", context.servers) as served,
        progress_bar() as progress,
    ):
        model = served.get("model")
        if model:
            context.folder.note_servers({"llm": model.server_version()})
        if config.preflight.check and this.asks_model:
            # Here, so that a command starts without the kernels of our index.
            from soundingline.experiments.preflight import check_before

            memory = cells_folder(settings) if settings.multirun else None
            check_before(this, context, settings, model, memory)
        tally = Progress(ledger, this.built.benchmark.answers)
        # A question may take minutes, and its tokens are counted with each of its replies.
        note, name = LiveNote(tally.line), f"Answering ({context.folder.name})"
        runner = RolloutRunner(
            bound_agents(this, context, model),
            this.session,
            context.folder,
            tally,
            config.concurrency,
            tell=partial(progress.console.print, soft_wrap=True),
            advance=counted_questions(progress, name, len(pending), config.concurrency, note),
        )
        first = config.preflight.questions if this.asks_model else 0
        check = partial(check_first, this, context, config.preflight.stop)
        try:
            run_coroutine(runner.answer_all(pending, first, model, check))
        except KeyboardInterrupt:
            done = f"{answered + tally.trajectories:,} of {this.rollouts:,} questions are done"
            raise KeyboardInterrupt(done) from None
    for line in (*tally.closing(), *fallbacks(counted)):
        console.print(line)
    return runner.stopped


def pending_rollouts(this: Components, folder: RunFolder) -> list[Rollout]:
    """The questions of each repeat that are not finished."""
    topics = this.built.benchmark.topics
    return [
        Rollout(topic, repeat)
        for repeat in range(1, len(this.agents) + 1)
        for topic in folder.repeat(repeat).pending(topics)
    ]


def bound_agents(this: Components, context: RunContext, model: ChatModel | None) -> list[Agent]:
    """The agent of each repeat, with what it works with in this run."""
    index = index_statistics(this.built) if this.agents[0].reads_document_frequencies else {}
    shared = {
        **index,
        "model": model,
        "ledger": context.ledger,
        "resolver": this.built.collection.resolver,
        "reader": this.reader,
        "stages": tuple(this.built.parts),
    }

    def rounds(repeat: int, name: str) -> RoundsFile:
        return context.folder.repeat(repeat).rounds(question_of(name, repeat))

    return [
        agent.bind(
            resources(
                this.llm, this.budget, repeat=repeat, rounds=partial(rounds, repeat), **shared
            )
        )
        for repeat, agent in enumerate(this.agents, start=1)
    ]


def check_first(
    this: Components, context: RunContext, stop: bool, trajectories: Sequence[Trajectory]
) -> None:
    """Print what the first questions show. `InputError` for a fault if nobody watches the run (its
    standard error is not a terminal) and it costs money."""
    calls = bool(this.llm) and this.agents[0].calls_tools and bool(this.session("").specs())
    answers = this.built.benchmark.answers
    # Here, because few runs ask a model.
    from soundingline.experiments.preflight.agent import check_first_questions
    from soundingline.experiments.preflight.findings import print_findings, stop_at
    from soundingline.experiments.published_figures import published_accuracy

    expected = published_accuracy(context.manifest)
    found = check_first_questions(trajectories, answers, calls_tools=calls, expected=expected)
    unattended = not Console(stderr=True).is_terminal
    paid = context.ledger.total.dollars > 0
    print_findings(found)
    stop_at(found, f"the run {context.folder.path}", stop=stop and unattended and paid)


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
        missing = this.rollouts - asked
        fault = f"has used up budget.run_dollars; {missing} questions were not run"
        do = "raise it and repeat the command, which continues where this stopped"
    return InputError(f"the run {folder.path} {fault}", do=do)
