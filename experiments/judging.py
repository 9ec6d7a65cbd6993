"""The judge of a run: by rule, or a language model whose verdicts are recorded first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from omegaconf import DictConfig

from experiments.build import make
from experiments.models import language_model, running
from toolkit.console import Console
from toolkit.contracts import Benchmark
from toolkit.evaluation import Judge
from toolkit.evaluation.judge_llm import Case, LlmJudge, LlmVerdict, RecordedVerdicts, case_of
from toolkit.evaluation.verdict_files import VerdictFile, judge_cases
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.ledger import Ledger, Metered
from toolkit.llm.protocol import ChatModel
from toolkit.progress import bar
from toolkit.runs import RunFolder
from toolkit.supply import supply


def check_judge(config: DictConfig) -> None:
    """`InputError` where the judge's settings are not possible."""
    _judge(config)


def judge_run(config: DictConfig, folder: RunFolder, benchmark: Benchmark) -> Judge:
    """The judge for an evaluation of this run. One with a language model judges first whatever has
    no verdict of its own yet; no agent runs."""
    judge, llm = _judge(config)
    if not isinstance(judge, LlmJudge) or llm is None:
        return judge
    answers = benchmark.answers
    cases = [
        case_of(trajectory, answers.get(trajectory.qid, ()))
        for trajectory in folder.trajectories()
        if trajectory.status != "failed" and (answers.get(trajectory.qid) or not judge.reference)
    ]
    record = VerdictFile(folder.path, judge)
    if left := record.left(cases):
        with running(llm, folder.path / "judge-server.log") as served:
            asyncio.run(_ask(judge, llm, served["model"], left, record, config.concurrency))
    verdicts = record.read()
    if said := without_verdict(verdicts):
        Console(stderr=True, soft_wrap=True).print(said)
    return RecordedVerdicts(judge, verdicts)


def without_verdict(verdicts: Mapping[str, LlmVerdict]) -> str:
    """A line on answers that the judge gave no verdict on; empty where there are none."""
    counts = Counter(verdict.error for verdict in verdicts.values() if verdict.error)
    told = [f"{count} {error}" for error, count in sorted(counts.items())]
    if not told:
        return ""
    return (
        f"{sum(counts.values())} of {len(verdicts)} answers have no verdict ({', '.join(told)}) "
        "and count as wrong; evaluating again asks the failed ones again"
    )


def _judge(config: DictConfig) -> tuple[Any, LanguageModel | None]:
    made = make(config.judge)
    llm = language_model(config.judge_llm, "judge_llm")
    if not isinstance(made, partial):
        return made, llm
    return supply(made, {"model": llm} if llm else {}, what="the judge"), llm


async def _ask(
    judge: LlmJudge,
    llm: LanguageModel,
    model: ChatModel,
    cases: list[Case],
    record: VerdictFile,
    concurrency: int,
) -> None:
    """Judge the cases; what has been judged is written, however this ends."""
    ledger, verdicts = Ledger(), record.read()

    async def ask(case: Case) -> LlmVerdict:
        metered = Metered(model, ledger, role="judge", qid=case.qid, price=llm.price)
        return await judge.judge(metered, case)

    with bar() as progress:
        task = progress.add_task(f"Judging ({judge.model})", total=len(cases), note="")

        def done(verdict: LlmVerdict) -> None:
            verdicts[verdict.qid] = verdict
            progress.advance(task)

        try:
            await judge_cases(cases, ask, concurrency=concurrency, done=done)
        finally:
            record.write(verdicts, ledger.total.flat())
            await model.close()
