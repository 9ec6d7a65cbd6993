"""The parts of a check before a run, what each finds, and the report of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError


class Finding(NamedTuple):
    """One line of the report of a check.

    - `check`: the part that was checked: server, prompt, judge, collection, machine,
      first_questions.
    - `level`: a `fault` stops the run, a `note` is printed alone.
    - `message`: what was found; `do`: what to do about it.
    """

    check: str
    level: Literal["fault", "note"]
    message: str
    do: str = ""


class Check(NamedTuple):
    """A part to check: its name in the report, what identifies it (empty: it is checked in each
    cell of a sweep), and what checks it in so many seconds."""

    name: str
    key: str
    find: Callable[[float], list[Finding]]


class CheckReport(NamedTuple):
    """What the checks found, how many parts were checked, and what that took."""

    findings: Sequence[Finding]
    checks: int
    seconds: float
    requests: int
    dollars: float

    def as_dict(self) -> dict[str, Any]:
        """For a manifest."""
        found = [finding._asdict() for finding in self.findings]
        return {**self._asdict(), "findings": found, "seconds": round(self.seconds, 3)}


def print_findings(findings: Iterable[Finding]) -> None:
    """Print one line for each finding: `fault (server): what was found. What to do.`"""
    console = Console(stderr=True, soft_wrap=True)
    for each in findings:
        line = f"{each.level} ({each.check}): {InputError(each.message, do=each.do)}"
        console.print(line, highlight=False, markup=False)


def stop_at(findings: Sequence[Finding], what: str, *, stop: bool) -> None:
    """`InputError` if there is a fault among the findings and it stops the run; `what` found it."""
    faults = [finding for finding in findings if finding.level == "fault"]
    if faults and stop:
        listed = "; ".join(f"{each.check}: {each.message}" for each in faults)
        number = f"{len(faults)} faults" if len(faults) > 1 else "a fault"
        raise InputError(
            f"{what} found {number}: {listed}",
            do=faults[0].do if len(faults) == 1 else "each line above says what to do",
        )
