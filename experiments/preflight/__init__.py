"""What is checked before a run spends money, each part once and in 60 seconds and 20 requests at
most, and what is checked after its first questions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from soundingline.agents.chat import ChatAgent
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.preflight.agent import check_prompt
from soundingline.experiments.preflight.collection import check_collection
from soundingline.experiments.preflight.findings import (
    Check,
    CheckReport,
    Finding,
    print_findings,
    stop_at,
)
from soundingline.experiments.preflight.judge import check_judge
from soundingline.experiments.preflight.machine import (
    check_machine,
    disk_uses,
    expected,
    loaded_models,
    this_machine,
)
from soundingline.experiments.preflight.server import check_server, check_text_model, server_key
from soundingline.experiments.run_context import Components, RunContext
from soundingline.toolkit.files import fingerprint, read_json, write_json
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.llm.openai import RecordedChat

__all__ = ["check_before"]

SECONDS, REQUESTS = 60.0, 20  # of all checks together


def check_before(
    this: Components,
    context: RunContext,
    settings: Settings,
    model: ChatModel | None = None,
    memory: Path | None = None,
) -> CheckReport:
    """Check what a run is about to use, print one line for each finding, and write the report into
    the manifest.

    Args:
        model: the running model of the agent; the models of the stages must run too.
        memory: a folder that is shared by the cells of a sweep, so that each server, judge and
            collection is checked once. None: everything is checked.

    Raises:
        InputError: if there is a fault and `preflight.stop` is set.
    """
    done = run_checks(checks_of(this, context, settings, model), context.ledger, memory)
    context.folder.note("preflight", done.as_dict())
    stop_at(done.findings, "the check before the run", stop=settings.config.preflight.stop)
    return done


def checks_of(
    this: Components, context: RunContext, settings: Settings, model: ChatModel | None
) -> Iterator[Check]:
    """The parts of a run that are checked, those that cost nothing first. A model of recorded
    replies has none for the requests of a check."""
    yield Check("machine", "", lambda seconds: machine_findings(this, settings))
    built, config = this.built, settings.config
    retriever = getattr(built.parts.get("retriever"), "fingerprint", "")
    key = fingerprint(built.collection.fingerprint, built.benchmark.fingerprint, retriever)
    yield Check("collection", key, lambda seconds: check_collection(built))
    key = repr([plain_values(config.judge), plain_values(config.judge_llm)])
    judge = Check("judge", key, lambda seconds: judge_findings(this, context))
    if not (asks_model := this.judge.llm is not None):
        yield judge
    agent, topics = this.agents[0], this.built.benchmark.topics
    specs: Sequence[Any] = ()
    opening: Sequence[Any] = ()
    if isinstance(agent, ChatAgent) and topics:
        longest = max(topics, key=lambda topic: len(topic.text))
        episode = agent.open(longest, this.session(""))
        specs, opening = episode.specs(), episode.messages
        check = partial(check_prompt, agent.texts, specs, opening)
        yield Check("prompt", "", lambda seconds: check())
    if model is not None and this.llm is not None and not isinstance(this.llm, RecordedChat):
        tools = bool(specs)
        forced = bool(getattr(agent, "first_call", None)) or getattr(agent, "query", "") == "model"
        probe = partial(check_server, model, this.llm, context.ledger, budget=this.budget)
        probe = partial(probe, opening=[*opening, *specs], tools=tools, forced=forced)
        key = server_key(this.llm, tools, forced, this.budget, len(str(opening)))
        yield Check("server", key, lambda seconds: probe(seconds=seconds))
    for group, (blocking, llm) in this.built.stages.models.items():
        if isinstance(llm, RecordedChat):
            continue
        yield Check("server", server_key(llm, group), partial(check_text_model, blocking, group))
    if asks_model and not isinstance(this.judge.llm, RecordedChat):
        yield judge


def machine_findings(this: Components, settings: Settings) -> list[Finding]:
    """What is missing on the machine for a run."""
    paths, built, values = settings.config.paths, this.built, plain_values(settings.config)
    caches = Path(paths.caches) if paths.caches else None
    disk = disk_uses(built, this.rollouts, Path(paths.runs), caches, paths.caches_gb)
    return check_machine(
        this_machine(),
        disk=disk,
        models=loaded_models(values),
        estimate=expected(values, settings.choices, len(built.benchmark.topics)),
        cap=this.budget.run_dollars,
    )


def judge_findings(this: Components, context: RunContext) -> list[Finding]:
    """What is wrong with the judge's verdicts. A server of its own starts after the questions, and
    is not started before them."""
    judge, llm, _ = this.judge
    own = getattr(llm, "own_server", None)
    if llm is not None and own and (this.llm is None or llm.name != this.llm.name):
        message = f"the server of the judge {llm.name} starts after the questions"
        return [Finding("judge", "note", f"{message}, so that its verdicts were not checked")]
    log = context.folder.path / "judge-server.log"
    return check_judge(judge, llm, context.ledger, log, context.servers)


def run_checks(checks: Iterable[Check], ledger: Ledger, memory: Path | None = None) -> CheckReport:
    """Make the checks, one after the other. What does not fit into the time and the number of
    requests is left out, which a note says."""
    began, before = time.monotonic(), ledger.total
    findings: list[Finding] = []
    made = 0
    for check in checks:
        left = SECONDS - (time.monotonic() - began)
        file = memory / f"preflight-{fingerprint(check.key)}" if memory and check.key else None
        if file and file.is_file():
            findings += [Finding(**each) for each in read_json(file, list[dict[str, str]])]
            continue
        if left <= 0 or ledger.total.calls - before.calls >= REQUESTS:
            limits = f"{SECONDS:.0f} seconds and {REQUESTS} requests"
            found = [Finding(check.name, "note", f"it was not checked: {limits} are used up")]
        else:
            found = check.find(left)
            made += 1
        if file:
            write_json(file, [finding._asdict() for finding in found])
        print_findings(found)
        findings += found
    seconds, total = time.monotonic() - began, ledger.total
    dollars = total.dollars - before.dollars
    return CheckReport(findings, made, seconds, total.calls - before.calls, dollars)
