"""What a run has done so far, for its progress bar and its estimate."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from toolkit.contracts import Trajectory
from toolkit.evaluation import ExactAnswerJudge
from toolkit.llm.estimate import estimate
from toolkit.llm.ledger import Ledger

_MOST_WARNINGS = 3
_MOST_COSTS = 100
_NO_QUESTION = ("copied", "prose", "errors")  # as the rewriters' stages count them


class RunProgress:
    """Counts trajectories as they end. `accepted` are the answers by question, for the accuracy by
    the exact rule; `changed` is called with a line for the bar. Safe for many threads."""

    def __init__(
        self,
        ledger: Ledger,
        accepted: Mapping[str, Sequence[str]],
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trajectories = 0
        # Of the first questions only: what is kept must not grow with the run.
        self.costs: list[Mapping[str, float]] = []
        self._warned: list[str] = []
        self._warnings = 0
        self._failed = self._judged = self._right = 0
        self._calls = Counter[str]()  # by the code of the refusal, which is empty for the others
        self._ledger = ledger
        self._accepted = accepted
        self._changed = changed
        self._judge = ExactAnswerJudge()
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()

    def add(self, trajectory: Trajectory) -> None:
        """One more question has ended. Judging takes time in proportion to the answer."""
        right = self._is_right(trajectory)
        with self._lock:
            self._count(trajectory, right)
            self._changed(self.line())

    def _is_right(self, trajectory: Trajectory) -> bool:
        accepted = self._accepted.get(trajectory.qid)
        if not accepted or trajectory.status == "failed":
            return False
        return self._judge.verdict(trajectory.qid, trajectory.answer, accepted).correct

    def _count(self, trajectory: Trajectory, right: bool) -> None:
        self.trajectories += 1
        self._failed += trajectory.status == "failed"
        self._calls.update(call.error for call in trajectory.calls)
        self._warnings += len(trajectory.warnings)
        if len(self._warned) < _MOST_WARNINGS:
            self._warned += [f"question {trajectory.qid}: {line}" for line in trajectory.warnings]
        if trajectory.usage and len(self.costs) < _MOST_COSTS:
            self.costs.append(trajectory.usage)
        self._judged += bool(self._accepted.get(trajectory.qid))
        self._right += right

    def usage(self, qid: str) -> dict[str, float]:
        """What the question has taken so far, the stages of its pipeline included."""
        return self._ledger.usage(qid)

    def line(self) -> str:
        """`2 failed · accuracy 0.61 · $1.20 · 340 tokens/s`; what is unknown is left out."""
        total = self._ledger.total
        seconds = self._clock() - self._began
        parts = [f"{self._failed} failed"] if self._failed else []
        if self._judged:
            parts.append(f"accuracy {self._right / self._judged:.2f}")
        if total.calls and not total.unpriced and total.dollars:
            parts.append(f"${total.dollars:.2f}")
        if total.output_tokens and seconds > 0:
            parts.append(f"{total.output_tokens / seconds:.0f} tokens/s")
        return " · ".join(parts)

    def closing(self) -> list[str]:
        """Lines for the end: the share of input that a prefix cache answered, the calls that were
        refused, and the warnings."""
        lines = []
        share = self._ledger.total.cached_share
        if share is not None:
            lines.append(f"{share:.1%} of the input tokens came from the prefix cache")
        refused = Counter({code: count for code, count in self._calls.items() if code})
        if refused:
            calls = self._calls.total()
            lines.append(
                f"{refused.total()} of {calls} tool calls were refused ({listed(refused)})"
            )
        lines += self._warned[:_MOST_WARNINGS]
        if (more := self._warnings - _MOST_WARNINGS) > 0:
            lines.append(f"and {more} more warnings; each trajectory holds its own")
        return lines


def listed(codes: Counter[str]) -> str:
    """`missing_argument 3, unknown_tool 1`, the most frequent first."""
    return ", ".join(f"{code} {count}" for code, count in codes.most_common())


def fallbacks(counted: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line on the queries that were searched as typed, by what the stages counted; none where
    every query was rewritten."""
    counts = {name: int(number) for name, number in counted.get("rewriter", {}).items()}
    if not counts.get("fell_back"):
        return []
    reasons = Counter({name: counts[name] for name in _NO_QUESTION if counts.get(name)})
    return [
        f"{counts['fell_back']} of {counts['queries']} queries were searched as they were, because "
        f"the rewriter brought nothing of use ({listed(reasons) or 'empty'})"
    ]


def expected(costs: Sequence[Mapping[str, float]], questions: int) -> str:
    """What `questions` will take, judged by the first of them: money, input and output tokens."""
    parts = []
    for name, sign in (("dollars", "$"), ("input_tokens", ""), ("output_tokens", "")):
        values = [cost[name] for cost in costs if name in cost]
        if not values or len(values) < len(costs) or not any(values):
            continue
        guess = estimate(values, questions)
        form = ",.2f" if sign else ",.0f"
        spread = ""
        if guess.low is not None and guess.high is not None:
            spread = f" ({sign}{guess.low:{form}} to {sign}{guess.high:{form}})"
        unit = "" if sign else f" {name.replace('_', ' ')}"
        parts.append(f"{sign}{guess.total:{form}}{spread}{unit}")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """`12.5 minutes`, or `3.0 hours`."""
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.1f} minutes"
