"""Which line of whose code a traceback comes down to."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest

from soundingline.toolkit.console import exception_of, in_one_line, print_traceback, users_frame
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs.run_folder import escape_qid

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
    try:
        function()
    except BaseException as error:
        assert error.__traceback__
        inwards = error.with_traceback(error.__traceback__.tb_next)
        return "".join(traceback.format_exception(inwards))
    raise AssertionError("nothing was raised")


def test_the_users_line_is_named_also_below_and_above_a_library(stranger):
    assert in_one_line(raised_by(stranger.fail)) == "stranger.py:4 raised ValueError: it broke"
    text = raised_by(stranger.parse)
    assert in_one_line(text).startswith("stranger.py:6 raised JSONDecodeError: Expecting")
    assert str(users_frame(text)) == "stranger.py:6"


def test_a_line_of_ours_below_the_users_is_named_first(stranger):
    line = in_one_line(raised_by(stranger.misuse))
    own, called, error = line.split(", ", 2)
    assert own.startswith("toolkit/runs/run_folder.py:") and called == "called from stranger.py:8"
    assert error.startswith("raised TypeError: ")


def test_a_defect_of_ours_names_no_line_of_the_users():
    text = raised_by(partial(escape_qid, 3))  # type: ignore[arg-type]
    assert users_frame(text) is None
    assert in_one_line(text).startswith("toolkit/runs/run_folder.py:")
    assert " raised TypeError: " in in_one_line(text)


def test_of_a_chain_the_last_exception_from_the_users_code_is_told(stranger):
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
    "path",
    [
        json.__file__,
        "/anywhere/lib/python3.11/site-packages/pyterrier/apply.py",
        "<frozen importlib._bootstrap>",
        "<string>",
    ],
)
def test_code_of_libraries_is_nobodys(path):
    assert users_frame(f'  File "{path}", line 3, in f\n    code\nValueError: x\n') is None


@pytest.mark.parametrize("path", ["/home/me/mine.py", "/tmp/ipykernel_7/1234.py", "<stdin>"])
def test_code_from_anywhere_else_is_the_users(path):
    text = f'Traceback (most recent call last):\n  File "{path}", line 3, in f\nValueError\n'
    assert in_one_line(text) == f"{path}:3 raised ValueError"


def test_a_text_without_frames_and_a_long_message_stay_one_line():
    assert in_one_line("") == exception_of("") == ""
    assert in_one_line("a.b.ServerGone: gone\n") == "ServerGone: gone"
    assert len(in_one_line("ValueError: " + "x" * 10_000)) < 400


def test_only_an_error_in_the_users_code_has_a_line_behind_its_traceback(stranger, capsys):
    for function, last in (
        (stranger.fail, "soundingline: stranger.py:4 raised ValueError: it broke\n"),
        (partial(escape_qid, 3), ""),  # type: ignore[arg-type]
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            function()
        inwards = caught.tb.tb_next
        print_traceback(caught.type, caught.value.with_traceback(inwards), inwards)
        text = "".join(traceback.format_exception(caught.value))
        assert capsys.readouterr().err == text + last
