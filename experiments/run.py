"""An agent answers the questions of a benchmark through a pipeline."""

from __future__ import annotations

from collections import Counter
from functools import partial

from soundingline.experiments.build import declares
from soundingline.experiments.components import Components, make_components
from soundingline.experiments.config import NO_OPTION, Settings, key_of
from soundingline.experiments.evaluate import evaluated
from soundingline.experiments.naming import cell_name, factors, run_folder
from soundingline.experiments.pipeline import PipelineOpener, statistics
from soundingline.experiments.rank import corpus_costs
from soundingline.experiments.rollouts import (
    Progress,
    Rollout,
    RolloutRunner,
    a_failure,
    fallbacks,
    listed,
    resources,
)
from soundingline.experiments.run_context import RunContext, open_run, running
from soundingline.toolkit.console import Console, LiveNote, print_next, progress_bar
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.retrieval import parse_measures
from soundingline.toolkit.llm.blocking import run_coroutine, version_of_server
from soundingline.toolkit.report.traces import PAGE
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import RoundsFile, question_of
from soundingline.toolkit.search import Literature
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Trajectory


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
        shared = {**index, "resolver": this.built.collection.resolver, **served, "ledger": ledger}
        shared |= {"simulated_reader": this.simulated_reader, "stages": tuple(this.built.parts)}

        def rounds(repeat: int, name: str) -> RoundsFile:
            return folder.repeat(repeat).rounds(question_of(name, repeat))

        agents = []
        for repeat, agent in enumerate(this.agents, start=1):
            own = {**shared, "rounds": partial(rounds, repeat)}
            agents.append(agent.bind(resources(this.llm, this.budget, repeat=repeat, **own)))
        tally = Progress(ledger, benchmark.answers, lambda line: progress.advance(task))
        # A question may take minutes, and its tokens are counted with each of its replies.
        note = LiveNote(tally.line)
        task = progress.add_task(f"Answering ({folder.name})", total=len(pending), note=note)
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
