"""What others wrote reaches the terminal as text: no control character and no markup is obeyed."""

from __future__ import annotations

import io
import logging
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from soundingline.toolkit import console
from soundingline.toolkit.console import (
    Console,
    EscapingFormatter,
    escape_control,
    notify,
    print_traceback,
)

WINDOW_NAME, CLEAR, C1, OVERRIDE = "\x1b]0;owned\x07", "\x1b[2J", "\x9b2J", "\u202e"
ATTACKS = [WINDOW_NAME, CLEAR, C1, OVERRIDE, "\x7f", "\r", "\ud83d", "[/red]", "[red]", ":smile:"]


def obeyed(text):
    """Characters that a terminal would obey, or that cannot be written to it."""
    return [
        char for char in text if unicodedata.category(char) in ("Cc", "Cs") and char not in "\t\n"
    ]


def in_table(text):
    table = Table(text, title=text, caption=text)
    table.add_column(Text(text))
    table.add_row(text, escape_control(text))
    table.add_row("wide enough for the title " * 20, "wide enough " * 20)
    return table


PLACES = {
    "alone": lambda text: text,
    "styled": lambda text: Text(text, style="bold"),
    "table": in_table,
}


def printed(renderable):
    stream = io.StringIO()
    Console(file=stream, width=1000).print(renderable)
    return stream.getvalue()


@pytest.mark.parametrize("place", PLACES)
@given(text=st.text())
@example(text="".join(ATTACKS))
def test_whatever_is_printed_nothing_of_it_is_obeyed(place, text):
    output = printed(PLACES[place](text))
    assert not obeyed(output)
    assert not {"\u202e", "\u2066"} & set(output)
    output.encode()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("attack", ["[/red]", "[red]x[/red]", "[link=x]", ":smile:", "\x1b[31m"])
def test_it_is_shown_as_it_was_written(place, attack):
    assert f"say {escape_control(attack)} twice" in printed(PLACES[place](f"say {attack} twice"))


@given(st.text())
def test_visible_keeps_the_length_and_ordinary_text(text):
    shown = escape_control(text)
    assert len(shown) == len(text) and not obeyed(shown)
    assert escape_control(shown) == shown
    for before, after in zip(text, shown, strict=True):
        if unicodedata.category(before) not in ("Cc", "Cs", "Cf"):
            assert before == after


def test_escape_is_shown_by_its_picture():
    assert escape_control("a\x1b[2J\x00\x7f\n\tb") == "a␛[2J␀␡\n\tb"


def test_joiners_of_scripts_and_emoji_stay():
    # Persian with a zero-width non-joiner, and a family joined by zero-width joiners.
    text = "می\u200cخواهم 👨\u200d👩\u200d👧"
    assert escape_control(text) == text


def test_styles_stay_where_they_were():
    stream = io.StringIO()
    text = Text("a\x1b[2Jb")
    text.stylize("bold", 5, 6)
    Console(file=stream, force_terminal=True, color_system="standard").print(text)
    assert stream.getvalue() == "a␛[2J\x1b[1mb\x1b[0m\n"


@pytest.mark.parametrize("attack", ATTACKS)
def test_descriptions_and_notes_of_bars_are_shown(attack, terminal):
    with console.progress_bar() as bar:
        task = bar.add_task(f"Answering <{attack}>", total=2, note="")
        bar.update(task, advance=1, note=f"note <{attack}>")
        bar.refresh()
        bar.console.print(f"line <{attack}>")
    output = terminal.getvalue()
    if escape_control(attack) != attack:
        assert f"<{attack}>" not in output
    for word in ("Answering", "note", "line"):
        assert f"{word} <{escape_control(attack)}>" in output
    assert list(console.track([1, 2], f"Storing {attack}")) == [1, 2]


def test_a_live_note_is_read_whenever_the_bar_is_drawn(terminal):
    notes = iter(f"note {number} <{CLEAR}>" for number in range(10_000))
    with console.progress_bar() as bar:
        bar.add_task("Ranking", total=None, note=console.LiveNote(lambda: next(notes)))
        bar.refresh()
        bar.refresh()
    output = terminal.getvalue()
    assert f"<{CLEAR}>" not in output
    assert all(f"note {number} <{escape_control(CLEAR)}>" in output for number in (0, 1, 2))


def test_lines_tracebacks_and_logs_are_shown(capsys):
    notify(f"the server said {CLEAR}")
    assert capsys.readouterr().err == "soundingline: the server said ␛[2J\n"
    try:
        raise ValueError(f"document {WINDOW_NAME}")
    except ValueError as error:
        print_traceback(type(error), error, error.__traceback__)
    written = capsys.readouterr().err
    assert "Traceback" in written and "document ␛]0;owned␇" in written and not obeyed(written)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (CLEAR,), None)
    assert EscapingFormatter("%(message)s").format(record) == "␛[2J"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "????0.5 - A?"), ("utf-8", "≈–…─0.5 - Aß")]
)
def test_characters_that_a_stream_lacks_do_not_end_a_command(encoding, shown):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream).print("≈–…─0.5 - Aß")
    stream.flush()
    assert stream.buffer.getvalue().decode(encoding) == f"{shown}\n"  # type: ignore[attr-defined]
