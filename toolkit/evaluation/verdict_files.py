"""Files of verdicts in a run folder: each answer is judged once, its verdict read many times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.evaluation.judge_llm import FAILED, UNREADABLE, Case, LlmJudge, LlmVerdict
from toolkit.journal import Journal, read_journal
from toolkit.sealing import read_text

FORMAT = 2
# Called with each verdict and the flat numbers of what its request took.
Write = Callable[[LlmVerdict, Mapping[str, float]], None]


class VerdictFile:
    """`evaluation/verdicts-<judge>-<fingerprint>.jsonl` below a run folder.

    The first line tells of the judge. Each further line is one verdict with its `usage`, written
    when the verdict is given, so that kill -9 loses no other verdict than those under way. A
    question that is judged again gets another line; the last one counts.
    """

    def __init__(self, folder: Path, judge: LlmJudge) -> None:
        self.path = folder / "evaluation" / f"verdicts-{judge.name}-{judge.fingerprint}.jsonl"
        self._head = {"format": FORMAT, **judge.record()}

    def read(self) -> dict[str, LlmVerdict]:
        """The verdicts by question; empty where there are none yet."""
        return verdicts_in(self.path) if self.path.exists() else {}

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """A function that appends one verdict. The caller holds the run's lock."""
        journal = Journal(self.path, head=self._head)

        def write(verdict: LlmVerdict, usage: Mapping[str, float]) -> None:
            journal.append({**verdict._asdict(), "usage": dict(usage)})

        try:
            yield write
        finally:
            journal.close()

    def left(self, cases: Iterable[Case]) -> list[Case]:
        """The cases without a verdict on just this response, or whose request failed."""
        known = self.read()
        return [
            case
            for case in cases
            if (row := known.get(case.qid)) is None
            or row.case != case.fingerprint
            or row.error == FAILED
        ]


def verdicts_in(path: Path) -> dict[str, LlmVerdict]:
    """The verdicts in a file, by question in the order of their ids; `InputError` where it is no
    file of verdicts. Reads the `.json` files of earlier versions too. An unfinished last line,
    which a killed judging leaves, is left out."""
    try:
        rows = _lines(path) if path.suffix == ".jsonl" else _whole(path)
        verdicts = [_verdict(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is no file of verdicts: {error}", do="move it away and judge again"
        ) from error
    by_question = {verdict.qid: verdict for verdict in verdicts}
    return {qid: by_question[qid] for qid in sorted(by_question)}


async def judge_cases(
    cases: Sequence[Case],
    ask: Callable[[Case], Awaitable[LlmVerdict]],
    *,
    concurrency: int,
    done: Callable[[LlmVerdict], Any],
) -> None:
    """Judge the cases, at most `concurrency` at a time; each verdict goes to `done`. After an
    exception no further case is begun, those under way end, and the exception is raised."""
    waiting = iter(cases)
    errors: list[Exception] = []

    async def work() -> None:
        for case in waiting:
            if errors:
                return
            try:
                done(await ask(case))
            except Exception as error:
                errors.append(error)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(cases)))))
    if errors:
        raise errors[0]


def _lines(path: Path) -> list[dict[str, Any]]:
    head, *rows = read_journal(path) or [{"format": FORMAT}]
    if head.get("format") != FORMAT:
        raise ValueError(f"its first line has no format {FORMAT}")
    return rows


def _whole(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(read_text(path))["verdicts"])


def _verdict(row: dict[str, Any]) -> LlmVerdict:
    verdict = LlmVerdict(**{name: value for name, value in row.items() if name != "usage"})
    texts = (verdict.qid, verdict.extracted, verdict.reasoning, verdict.error, verdict.case)
    number = isinstance(verdict.confidence, (int, float)) or verdict.confidence is None
    right = isinstance(verdict.correct, bool) and number and all(isinstance(t, str) for t in texts)
    if not right or verdict.error not in ("", FAILED, UNREADABLE):
        raise ValueError(f"the verdict on question {verdict.qid!r} has an impossible value")
    return verdict
