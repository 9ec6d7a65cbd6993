"""The terminal: texts that cannot control it, progress bars, and errors in a user's code."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from operator import length_hint
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import rich.console
from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.text import Text

LINE_SECONDS = 60.0  # between two lines about progress where there is no terminal
# Each character has one replacement, so that widths and styled spans do not change. Control
# characters of ASCII become Unicode's pictures of them. Those of Latin-1, the embeddings, overrides
# and isolates that reorder a line (Unicode Standard Annex 9), and halves of surrogate pairs, which
# UTF-8 cannot represent, become U+FFFD.
_REPLACED = ((0x80, 0xA0), (0x202A, 0x202F), (0x2066, 0x206A), (0xD800, 0xE000))
_VISIBLE = {code: 0xFFFD for first, end in _REPLACED for code in range(first, end)}
_VISIBLE |= {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE[0x7F] = 0x2421
_silent: ContextVar[bool] = ContextVar("whether consoles print nothing", default=False)


def escape_control(text: str) -> str:
    """A text of the same length without control characters other than tabs and line breaks. ESC,
    for example, becomes `␛`."""
    return text.translate(_VISIBLE)


def notify(line: str) -> None:
    """Print a line for the user on standard error."""
    sys.stderr.write(f"soundingline: {escape_control(line)}\n")


def print_next(line: str) -> None:
    """Print on standard error what the user can open or do after a command, unless `silent`."""
    if not _silent.get():
        sys.stderr.write(f"Next: {escape_control(line)}\n")


def print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback on standard error without control characters (an error may quote any text)
    and, if it passed through the user's own code, the place there. Replaces `sys.excepthook`."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(escape_control(text))
    if users_frame(text):
        notify(in_one_line(text))


class EscapingFormatter(logging.Formatter):
    """The standard formatter of log lines, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control(super().format(record))


@contextmanager
def silent() -> Iterator[None]:
    """No `Console` that is made in this block prints, and no progress bar or next step is shown.
    Warnings by `notify` are."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


class Console(rich.console.Console):
    """Rich's console without markup and emoji codes in strings, and with control characters
    escaped. Pass a `rich.text.Text` for styled text. A character that is missing from the encoding
    of the stream becomes `?`. The arguments are those of Rich."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("quiet", _silent.get())
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        if getattr(self.file, "errors", "") == "strict" and hasattr(self.file, "reconfigure"):
            self.file.reconfigure(errors="replace")

    def render_str(self, text: str, **options: Any) -> Text:
        """See Rich, which measures and prints every string by this method."""
        return super().render_str(escape_control(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Rich, which lays out every `Text` by this method."""
        if isinstance(renderable, Text) and escape_control(renderable.plain) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = escape_control(renderable.plain)
        return super().render(renderable, options)


T = TypeVar("T")


class _PlainColumn(TextColumn):
    """A column of text without markup and with control characters escaped."""

    def render(self, task: Task) -> Text:
        return Text(escape_control(self.text_format.format(task=task)))


class _NameColumn(_PlainColumn):
    """A description, cut in its middle to the `columns` that counts, times and a note leave."""

    def __init__(self, columns: int) -> None:
        super().__init__("{task.description}")
        self._columns = columns

    def render(self, task: Task) -> Text:
        text = super().render(task).plain
        columns = max(self._columns - (16 if task.fields["note"] else 0), 20)
        if cell_len(text) > columns:
            text = f"{text[: columns // 3]}…{text[len(text) - columns + columns // 3 + 1 :]}"
        return Text(text)


class LiveNote:
    """A note of a progress bar that calls `read` whenever the bar is drawn."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def __str__(self) -> str:
        return self._read()


class TimeLeft:
    """The time that is left of `total` questions, `concurrency` of which run at once: one that
    waits takes the mean of those that are done, and one that runs the rest of this. One that has
    run for longer counts in the mean."""

    def __init__(
        self, total: int, concurrency: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._begun = [clock()] * min(total, concurrency)  # the earliest is taken to end first
        self._waiting = total - len(self._begun)
        self._done, self._seconds = 0, 0.0

    def end_one(self) -> None:
        """One of the questions is done, and the next one begins."""
        now = self._clock()
        self._done += 1
        self._seconds += now - self._begun[0]
        self._begun = [*self._begun[1:], *([now] if self._waiting else [])]
        self._waiting -= self._waiting > 0

    def seconds(self) -> float | None:
        """None before the first is done."""
        if not self._done:
            return None
        ages = [self._clock() - begun for begun in self._begun]
        long = [age for age in ages if age > self._seconds / self._done]
        mean = (self._seconds + sum(long)) / (self._done + len(long))
        rest = sum(max(mean - age, 0) for age in ages)
        return (self._waiting * mean + rest) / max(1, len(ages))


def _time_left(task: Task) -> float | None:
    left = task.fields.get("left")
    return left.seconds() if left else task.time_remaining


class _TimeLeftColumn(ProgressColumn):
    max_refresh = 0.5  # per second, as that of Rich

    def render(self, task: Task) -> Text:
        left = _time_left(task)
        known = "-:--:--" if left is None else str(timedelta(seconds=int(left)))
        return Text("" if task.total is None else known, "progress.remaining")


class _ProgressLines(Progress):
    """The state of a progress bar in one plain line a minute, for a log."""

    def start(self) -> None:
        """See Rich. A thread prints the lines, because a single step may take an hour."""
        self._ended = threading.Event()

        def print_lines() -> None:
            while not self._ended.wait(LINE_SECONDS):
                self.print_state()

        self._thread = threading.Thread(target=print_lines, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See Rich."""
        self._ended.set()
        self._thread.join()

    def print_state(self) -> None:
        """Print one line for each task."""
        for task in self.tasks:
            total = "" if task.total is None else f" of {task.total:,.0f}"
            times = [(task.elapsed, "elapsed"), (_time_left(task), "remaining")]
            parts = [f"{task.completed:,.0f}{total}" if task.total or task.completed else ""]
            parts += [f"{timedelta(seconds=int(each))} {word}" for each, word in times if each]
            shown = ", ".join(filter(None, [*parts, str(task.fields["note"])]))
            self.console.print(f"{task.description}: {shown}", soft_wrap=True)


def progress_bar(*, transient: bool = False) -> Progress:
    """A progress bar on standard error with a description, counts, elapsed and remaining time. A
    `transient` bar disappears when it ends. If standard error is not a terminal, or belongs to one
    of several processes of a sweep, which would overwrite each other's bars, one line a minute."""
    console = Console(stderr=True)
    if not console.is_terminal or multiprocessing.current_process().name != "MainProcess":
        return _ProgressLines(console=console, disable=True)
    bar = 28 if console.width >= 120 else 10
    return Progress(
        SpinnerColumn(),
        _NameColumn(console.width - bar - 34),
        BarColumn(bar_width=bar),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _TimeLeftColumn(),
        _PlainColumn("{task.fields[note]}"),
        console=console,
        transient=transient,
    )


def counted_questions(
    progress: Progress, description: str, total: int, concurrency: int, note: object = ""
) -> Callable[[], None]:
    """Add a task of `total` questions, `concurrency` of which run at once, to a `progress_bar`.
    Returns what is to be called when one of them is done."""
    left = TimeLeft(total, concurrency)
    task = progress.add_task(description, total=total, note=note, left=left)

    def advance() -> None:
        left.end_one()
        progress.advance(task)

    return advance


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items while a progress bar counts them. `total` is their number; None for their
    length, if it is known."""
    progress = progress_bar()
    # A consumer that fails leaves this generator unfinished, and a thread would go on printing.
    lines = progress if isinstance(progress, _ProgressLines) else None
    due = time.monotonic() + LINE_SECONDS
    with nullcontext() if lines else progress:
        task = progress.add_task(description, total=total or length_hint(items) or None, note="")
        for item in items:
            yield item
            progress.advance(task)
            if lines and time.monotonic() >= due:
                lines.print_state()
                due = time.monotonic() + LINE_SECONDS


_FRAME = re.compile(r'^ +File "(?P<path>.+)", line (?P<line>\d+).*$', re.MULTILINE)
_CHAINED = re.compile(
    r"^\n(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)\n$",
    re.MULTILINE,
)
_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(
    f"{_ROOT / name}{os.sep}" for name in ("agents", "experiments", "pipelines", "toolkit")
)
_STANDARD = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "scripts")
)
_MODULE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")
_LONGEST = 300


def users_frame(traceback: str) -> str:
    """The innermost line of the user's own code, as `path:line`; empty if the traceback has
    none."""
    return _blame(traceback)[0]


def in_one_line(traceback: str) -> str:
    """A traceback in one line, such as `agent.py:12 raised ValueError: bad value`. The place is the
    innermost line of the user's code, or of ours without any. If our code raised the error, our
    line comes first. Of chained exceptions, the last one that passed through the user's code
    counts."""
    users, own, error = _blame(traceback)
    called = f", called from {users}," if users and users != own else ""
    return f"{own}{called} raised {error}" if own else error


def exception_of(traceback: str) -> str:
    """The class and the first line of the last exception of a traceback, shortened."""
    return _exception(_CHAINED.split(traceback)[-1])


def _blame(traceback: str) -> tuple[str, str, str]:
    """The innermost line of the user's code, the innermost line outside libraries (empty if there
    is none), and the exception."""
    blame = "", "", ""
    for block in _CHAINED.split(traceback):
        own = [frame for frame in _FRAME.finditer(block) if not _in_library(frame["path"])]
        users = [frame for frame in own if not _is_ours(frame["path"])]
        if users or not blame[0]:
            blame = _place(users), _place(own), _exception(block)
    return blame


def _is_ours(path: str) -> bool:
    return os.path.realpath(path).startswith(_OURS)


def _in_library(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package other than ours."""
    installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
    generated = path.startswith("<") and path != "<stdin>"
    standard = os.path.realpath(path).startswith(_STANDARD)
    return (installed or generated or standard) and not _is_ours(path)


def _place(frames: list[re.Match[str]]) -> str:
    """`path:line` of the last frame, relative to the working folder or to that of this package
    where possible; empty without frames."""
    if not frames:
        return ""
    path = Path(os.path.realpath(frames[-1]["path"]))
    roots = [root for root in (Path.cwd(), _ROOT) if path.is_relative_to(root)]
    shown = path.relative_to(roots[0]) if roots else frames[-1]["path"]
    return f"{shown}:{frames[-1]['line']}"


def _exception(block: str) -> str:
    """The first line of the exception, which is the first line without indentation after the last
    frame, without the module of its class."""
    *_, last = [0, *(match.end() for match in _FRAME.finditer(block))]
    lines = [line for line in block[last:].splitlines() if line and not line[0].isspace()]
    line = _MODULE.sub("", lines[0]) if lines else ""
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
