"""What reaches a terminal: the texts of others are shown there and never obeyed.

Titles, question ids, answers, servers' errors and lines of logs may hold escape sequences, which
move the cursor, rename the window or fill the clipboard, and brackets that Rich takes for markup.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_LINES = "\t\n"
_REPLACEMENT = 0xFFFD
# One character for one, so that widths and styled spans stay: Unicode's pictures of the control
# characters of ASCII, and U+FFFD for those of Latin-1, for the embeddings, overrides and isolates
# that reorder a line (Unicode Standard Annex 9), and for halves of surrogate pairs, which UTF-8
# cannot hold.
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in _LINES},
    0x7F: 0x2421,
    **dict.fromkeys(
        (
            *range(0x80, 0xA0),
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
            *range(0xD800, 0xE000),
        ),
        _REPLACEMENT,
    ),
}


def visible(text: str) -> str:
    """`text` without control characters but tabs and line breaks, of the same length: ESC becomes
    `␛`."""
    return text.translate(_VISIBLE)


def tell(line: str) -> None:
    """One line for the user on standard error."""
    sys.stderr.write(f"soundingline: {visible(line)}\n")


def tell_defect(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A traceback on standard error, in place of `sys.excepthook`: an error may quote anything."""
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


class VisibleFormatter(logging.Formatter):
    """The standard formatter of log lines, its lines made `visible`."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class Console(rich.console.Console):
    """Rich's console, which takes neither markup nor emoji codes from strings and shows every text
    `visible`. What is to be styled is a `rich.text.Text`. The arguments are Rich's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """See Rich. Strings come here to be measured and to be printed."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Rich. Every `Text`, in a table, a bar or alone, comes here before it is laid out."""
        if isinstance(renderable, Text) and visible(renderable.plain) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = visible(renderable.plain)
        return super().render(renderable, options)
