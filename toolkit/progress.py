"""One look for every progress bar: shown on a terminal only, silent in logs and in tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")


def bar(*, transient: bool = False) -> Progress:
    """A bar with description, count, elapsed and remaining time, on standard error."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items while a bar counts them; `total` defaults to their length, if known."""
    if total is None:
        total = length_hint(items) or None
    with bar() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)
