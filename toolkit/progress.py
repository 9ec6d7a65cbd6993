"""One look for every progress bar: shown on a terminal only, silent in logs and in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from toolkit.console import Console, visible

T = TypeVar("T")


class _Words(TextColumn):
    """A column of text that may quote others: without markup, and measured as it is shown."""

    def render(self, task: Task) -> Text:
        return Text(visible(self.text_format.format(task=task)))


class LiveNote:
    """A note of a bar that is read anew whenever the bar is drawn."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __str__(self) -> str:
        return self._read()


def bar(*, transient: bool = False) -> Progress:
    """A bar with description, count, elapsed and remaining time, on standard error."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        _Words("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        _Words("{task.fields[note]}"),
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
