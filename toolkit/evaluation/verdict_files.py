"""Files of verdicts in a run folder: judged once, read as often as one likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.evaluation.judge_llm import FAILED, Case, LlmJudge, LlmVerdict
from toolkit.files import write_json

FORMAT = 1


class VerdictFile:
    """`evaluation/verdicts-<judge>-<fingerprint>.json` below a run folder."""

    def __init__(self, folder: Path, judge: LlmJudge) -> None:
        self.path = folder / "evaluation" / f"verdicts-{judge.name}-{judge.fingerprint}.json"
        self._judge = judge

    def read(self) -> dict[str, LlmVerdict]:
        """The verdicts by question; empty where there are none yet."""
        return verdicts_in(self.path) if self.path.exists() else {}

    def write(self, verdicts: Mapping[str, LlmVerdict], usage: Mapping[str, float]) -> None:
        """Write the verdicts in the order of their questions. `usage` is what this judging took;
        the file holds what all of them took."""
        earlier = self._usage()
        names = dict.fromkeys([*earlier, *usage])
        spent = {name: earlier.get(name, 0.0) + usage.get(name, 0.0) for name in names}
        rows = [verdicts[qid]._asdict() for qid in sorted(verdicts)]
        record = {"format": FORMAT, **self._judge.record(), "usage": spent, "verdicts": rows}
        write_json(self.path, record)

    def _usage(self) -> dict[str, float]:
        if not self.path.exists():
            return {}
        return dict(json.loads(self.path.read_text(encoding="utf-8")).get("usage", {}))

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
    """The verdicts in a file, by question; `InputError` where it holds none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = [LlmVerdict(**row) for row in record["verdicts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no file of verdicts: {error}", do="delete it and judge again"
        ) from error
    return {row.qid: row for row in rows}


async def judge_cases(
    cases: Sequence[Case],
    ask: Callable[[Case], Awaitable[LlmVerdict]],
    *,
    concurrency: int,
    done: Callable[[LlmVerdict], Any],
) -> None:
    """Judge the cases, at most `concurrency` at a time; each verdict goes to `done`."""
    waiting = iter(cases)

    async def work() -> None:
        for case in waiting:
            done(await ask(case))

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(cases)))))
