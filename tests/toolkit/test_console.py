"""Texts cannot control the terminal, and a traceback has a summary in one line."""

import importlib
import io
import json
import logging
import sys
import threading
import time
import traceback
import unicodedata
from functools import partial
from pathlib import Path
from types import SimpleNamespace

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
    exception_of,
    in_one_line,
    notify,
    print_traceback,
    users_frame,
)
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs.run_folder import escape_qid

WINDOW_NAME, CLEAR, C1, OVERRIDE = "\x1b]0;owned\x07", "\x1b[2J", "\x9b2J", "\u202e"
ATTACKS = [WINDOW_NAME, CLEAR, C1, OVERRIDE, "\x7f", "\r", "\ud83d", "[/red]", "[red]", ":smile:"]


def obeyed(text):
    """Characters that a terminal would obey, or that cannot be written to it."""
    return [it for it in text if unicodedata.category(it) in ("Cc", "Cs") and it not in "\t\n"]


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
def test_escaping_preserves_the_length_and_ordinary_text(text):
    shown = escape_control(text)
    assert len(shown) == len(text) and not obeyed(shown) and escape_control(shown) == shown
    for before, after in zip(text, shown, strict=True):
        assert before == after or unicodedata.category(before) in ("Cc", "Cs", "Cf")


def test_escape_is_shown_by_its_picture_and_joiners_stay():
    assert escape_control("a\x1b[2J\x00\x7f\n\tb") == "a␛[2J␀␡\n\tb"
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


def test_without_a_terminal_progress_is_a_plain_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0.02)
    with console.progress_bar() as bar:
        task = bar.add_task(f"Answering {CLEAR}", total=2_000, note=console.LiveNote(lambda: "$1"))
        bar.update(task, advance=1_000)
        first = ""
        until = time.monotonic() + 10
        while first.count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
            first += capsys.readouterr().err
    lines = first.splitlines()
    assert len(lines) >= 2
    for line in lines:
        assert line.startswith(f"Answering {escape_control(CLEAR)}: 1,000 of 2,000")
        assert line.endswith(", $1") and not obeyed(line)
    capsys.readouterr()
    time.sleep(0.06)
    assert capsys.readouterr().err == ""  # no line after its end


def test_items_that_are_tracked_without_a_terminal_leave_no_thread(capsys, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    threads = threading.active_count()
    items = console.track("abc", "Storing")
    next(items), next(items)  # A consumer that fails takes no further item.
    assert threading.active_count() == threads
    assert capsys.readouterr().err.startswith("Storing: 1 of 3")


def test_processes_of_a_sweep_draw_no_bars_over_each_other(terminal, monkeypatch):
    monkeypatch.setattr("multiprocessing.current_process", lambda: SimpleNamespace(name="Loky-1"))
    assert list(console.track([1, 2], "Storing")) == [1, 2]
    assert terminal.getvalue() == ""


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
    assert stream.buffer.getvalue().decode(encoding) == f"{shown}\n"


STRANGER = """\
import json
from soundingline.toolkit.runs.run_folder import escape_qid
def fail():
    raise ValueError("it broke\\nin two lines")
def parse():
    return json.loads("{")
def misuse():
    return escape_qid(3)
def call(function):
    return function()
def wrap():
    try:
        fail()
    except ValueError as error:
        raise KeyError("wrapped") from error
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A module of the user's in the working folder, which is forgotten afterwards."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("stranger")
    del sys.modules["stranger"]


def raised_by(function):
    """The traceback from `function` inwards, without the line below that calls it."""
    with pytest.raises(BaseException) as caught:
        function()
    return "".join(traceback.format_exception(caught.value.with_traceback(caught.tb.tb_next)))


def test_the_users_line_is_named_also_below_and_above_ours_and_a_library(stranger):
    assert in_one_line(raised_by(stranger.fail)) == "stranger.py:4 raised ValueError: it broke"
    text = raised_by(stranger.parse)
    assert in_one_line(text).startswith("stranger.py:6 raised JSONDecodeError: Expecting")
    assert users_frame(text) == "stranger.py:6"
    own, called, error = in_one_line(raised_by(stranger.misuse)).split(", ", 2)
    assert own.startswith("toolkit/runs/run_folder.py:") and called == "called from stranger.py:8"
    assert error.startswith("raised TypeError: ")
    text = raised_by(partial(escape_qid, 3))
    assert users_frame(text) == ""
    assert in_one_line(text).startswith("toolkit/runs/run_folder.py:")
    assert " raised TypeError: " in in_one_line(text)


def test_of_a_chain_the_last_exception_from_the_users_code_counts(stranger):
    assert in_one_line(raised_by(stranger.wrap)) == "stranger.py:15 raised KeyError: 'wrapped'"

    def ours():
        try:
            stranger.fail()
        except ValueError as error:
            raise InputError("refused") from error

    text = raised_by(ours).replace(str(Path(__file__)), escape_qid.__code__.co_filename)
    assert in_one_line(text) == "stranger.py:4 raised ValueError: it broke"
    assert exception_of(text) == "InputError: refused."


def test_a_module_of_the_users_that_does_not_compile_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("x = (1,\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = raised_by(lambda: importlib.import_module("broken"))
    assert in_one_line(text) == "broken.py:1 raised SyntaxError: '(' was never closed"


@pytest.mark.parametrize(
    ("path", "users"),
    [
        (json.__file__, False),
        ("/anywhere/lib/python3.11/site-packages/pyterrier/apply.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("/home/me/mine.py", True),
        ("/tmp/ipykernel_7/1234.py", True),
        ("<stdin>", True),
    ],
)
def test_code_outside_libraries_is_the_users(path, users):
    text = f'  File "{path}", line 3, in f\n    code\nValueError: x\n'
    assert users_frame(text) == (f"{path}:3" if users else "")


def test_a_text_without_frames_and_a_long_message_stay_one_line():
    assert in_one_line("") == exception_of("") == ""
    assert in_one_line("a.b.ServerGone: gone\n") == "ServerGone: gone"
    assert len(in_one_line("ValueError: " + "x" * 10_000)) < 400


def test_only_an_error_in_the_users_code_has_a_line_behind_its_traceback(stranger, capsys):
    for function, last in (
        (stranger.fail, "soundingline: stranger.py:4 raised ValueError: it broke\n"),
        (partial(escape_qid, 3), ""),
    ):
        text = raised_by(function)
        with pytest.raises((ValueError, TypeError)) as caught:
            function()
        inwards = caught.tb.tb_next
        print_traceback(caught.type, caught.value.with_traceback(inwards), inwards)
        assert capsys.readouterr().err == text + last


@pytest.mark.parametrize("width", [80, 140])
def test_a_long_name_is_cut_before_counts_and_times_are(width, monkeypatch):
    stream = io.StringIO()
    options = {"file": stream, "force_terminal": True, "width": width, "color_system": None}
    monkeypatch.setattr(console, "Console", lambda **_: Console(**options))
    with console.progress_bar() as bar:
        name = f"Answering ({'long-' * 30}c89a770d)"
        bar.add_task(name, total=1_000, completed=999, note="accuracy 0.06")
        bar.refresh()
    text = stream.getvalue()
    assert "c89a770d) ━" in text
    assert " 999/1000 0:00:00 " in text and " accuracy 0.06" in text
