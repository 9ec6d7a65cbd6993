"""What a user reads: texts cannot control the terminal, what is wrong with data and settings is
said in one line, and secrets are masked."""

import heapq
import importlib
import io
import json
import logging
import math
import subprocess
import sys
import threading
import time
import traceback
import unicodedata
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from rich.table import Table
from rich.text import Text
from support.assertions import refused
from support.benchmarks import CANARY, VARIABLE, obfuscated
from typing_extensions import NotRequired, TypedDict

from soundingline.pipelines.cache import ResultCache
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
from soundingline.toolkit.errors import InputError, check_int, check_number, did_you_mean, parse
from soundingline.toolkit.files import dump_json, mark_obfuscated, write_quoting, write_text
from soundingline.toolkit.json_lines import JsonLinesLog, read_json_lines
from soundingline.toolkit.obfuscation import (
    MARKER,
    Canary,
    NotObfuscated,
    decrypt_lines,
    encrypt_lines,
    is_obfuscated,
    read_text,
)
from soundingline.toolkit.redaction import REDACTED, find_secrets, is_secret_key, redact
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import escape_qid
from soundingline.toolkit.trajectory import (
    RecordedCall,
    Trajectory,
    dump_trajectory,
    read_outcome,
    read_trajectory,
)

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
    assert (f"<{attack}>" in output) == (escape_control(attack) == attack)
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


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("durations", [[60.0] * 20, [45.0, 75.0, 60.0, 50.0, 70.0] * 4])
def test_the_time_that_remains_is_that_of_questions_that_wait_and_run(durations, concurrency):
    """A pool of workers is simulated with 20 questions of about a minute."""
    free, ends = [0.0] * concurrency, []
    for duration in durations:
        ends.append(free[0] + duration)
        heapq.heapreplace(free, ends[-1])
    ends.sort()
    now = 0.0
    left = console.TimeLeft(len(durations), concurrency, lambda: now)
    assert left.seconds() is None
    shown, truths = [], []
    for end in ends:
        while now < end:  # a bar is drawn between two ends as well
            now = min(now + 10, end)
            shown.append(left.seconds())
            truths.append(ends[-1] - now)
        left.end_one()
    assert left.seconds() == 0
    after_three = sum(truth > ends[-1] - ends[2] for truth in truths) + 1
    assert len(shown) > 2 * after_three
    assert shown[after_three:] == pytest.approx(truths[after_three:], rel=0.25, abs=30)


def test_a_bar_shows_the_time_that_remains(terminal):
    clock = iter([0.0, *[60.0] * 4, *[120.0] * 100])
    left = console.TimeLeft(20, 4, lambda: next(clock))
    with console.progress_bar() as bar:
        task = bar.add_task("Answering", total=20, note="", left=left)
        for _ in range(7):
            left.end_one()
            bar.advance(task)
        bar.refresh()
    assert "0:03:00" in terminal.getvalue()  # 12 of a minute, 4 at once


# Data and settings from outside: what passes, and the one line about what does not.


ROOT = Path(__file__).resolve().parents[2]


class Call(BaseModel):
    tool_name: str
    seconds: float = 0.0


class Run(BaseModel):
    query_id: str = Field(alias="query-id")
    result: list[Call] = []


@dataclass(frozen=True)
class Exposure:
    call: int
    docid: str


class Point(NamedTuple):
    call: int
    score: float


class Points(TypedDict):
    name: str
    points: list[Point]
    shown: NotRequired[Point]


def test_data_become_models_dataclasses_and_whatever_an_adapter_makes():
    run = parse(Run, {"query-id": "7", "result": [{"tool_name": "search"}]}, where="a.json")
    assert run.query_id == "7" and run.result == [Call(tool_name="search")]
    assert parse(Exposure, {"call": 1, "docid": "d"}, where="a.json") == Exposure(1, "d")
    assert parse(TypeAdapter(tuple[int, str]), [1, "d"], where="a.json") == (1, "d")
    half = json.loads('{"tool_name": "\\ud83d"}')
    assert parse(Call, half, where="a.json").tool_name == "\ud83d"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, " has no field 'query-id'."),
        ({"id": 7}, " has no field 'query-id'. valid: its fields: id."),
        ({"query-id": 7}, ": query-id is 7. valid: a valid string."),
        (
            {"query-id": "7", "result": [{"tool_name": "a"}, {"tool_name": ["secret"]}]},
            ": result.1.tool_name is a value of type list. valid: a valid string.",
        ),
        (
            {"query-id": None, "result": {}},
            ": query-id is null (and 1 more). valid: a valid string.",
        ),
        (["secret"], ": a value of type list. valid: a valid dictionary or instance of Run."),
    ],
)
def test_a_misfit_is_one_line_with_its_place_and_without_texts(data, message):
    with pytest.raises(InputError) as raised:
        parse(Run, data, where="a.json:3", do="Run it again")
    assert str(raised.value) == f"a.json:3{message} Run it again."


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({}, ""),
        ({"points": [[1, 2]], "other": 1}, ""),
        ({"shown": {"call": 1, "score": 2.0}}, ""),
        ({"name": 7}, "name is 7"),
        ({"points": [["1", 2.0]]}, "points.0.0 is a value of type string"),
        ({"points": [[1.0, 2.0]]}, "points.0.0 is 1.0"),
        ({"points": [[True, 2.0]]}, "points.0.0 is true"),
        ({"points": [[1, math.inf]]}, "points.0.1 is Infinity"),
        ({"points": [[1, 10**400]]}, "points.0.1 is 1000"),
        ({"points": [[1]]}, "no field 'points.0.1'"),
        ({"shown": {"call": "1", "score": 2.0}}, "shown.call is a value of type string"),
    ],
)
def test_strict_checks_convert_no_single_value(change, place):
    data = {"name": "a", "points": [[1, 2.5]], **change}
    if place:
        with pytest.raises(InputError) as raised:
            parse(Points, data, where="a.json", strict=True)
        assert place in str(raised.value) and len(str(raised.value)) < 200
    else:
        assert parse(Points, data, where="a.json", strict=True)["points"][0][0] == 1


def test_checks_are_imported_only_where_data_are_read():
    program = "import sys, soundingline.toolkit.errors; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None, math.nan, 10**30, np.float32(2)])
def test_what_is_no_integer_in_the_bounds_is_refused(value):
    with pytest.raises(InputError, match=r"^depth=.*valid: a whole number, 1 to 1000\. try 10\."):
        check_int("depth", value, le=1000, do="try 10")


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "0.5", None, math.nan, math.inf, 1j, 10**400])
def test_what_is_no_number_in_the_bounds_is_refused(value):
    refused(r"^b=.*valid: 0 or more, at most 1", check_number, "b", value, le=1)


def test_numbers_in_the_bounds_pass():
    for integer in (1, 1000, np.int64(7), np.uint8(255)):
        check_int("depth", integer, le=1000)
    for number in (0, 1, 0.5, np.float32(0.25), np.int64(1)):
        check_number("b", number, le=1)
    check_number("mu", 1e-9, gt=0)
    refused(r"mu=0\. valid: above 0, finite\.", check_number, "mu", 0, gt=0)


def test_the_line_ends_each_part():
    line = str(InputError("a=1. ", valid="b, c, ...", do="did you mean b?"))
    assert line == "a=1. valid: b, c, ... did you mean b?"


SENSIBLE = """
dept depth, retreiver retriever, benchmrk benchmark, rerankr reranker, tol tool, agnt agent,
llms llm, bm25_tune bm25_tuned, monoT5 monot5, top-k top_k, topk top_k, browsecomp
browsecomp_plus, splde splade, concurency concurrency, prefligth preflight, measure measures,
compar compare, evalute evaluate, rnk rank, tuen tune, jugde judge, max_seaches max_searches,
limits limit, retrievers retriever, num_results depth
"""
SENSELESS = """
BM25 bm25_rm3, contents concurrency, controls comparison, num_results measures, hits limits,
search enrich, search benchmark, query qrels, docno documents, metrics measures, run rank, train
rank, topics tool, k k1, device judge, hello help, pipeline engine, start task, fields files,
dataset data
"""


@pytest.mark.parametrize("words", [SENSIBLE, SENSELESS], ids=["sensible", "senseless"])
def test_a_name_is_offered_for_one_that_is_mistyped_or_means_the_same(words):
    for pair in words.split(","):
        name, known = pair.split()
        offered = f"did you mean {known}?" if words is SENSIBLE else ""
        assert did_you_mean(name, [known, "unlike"]) == offered, pair


# Secrets are recognised by their names, and obfuscated lines follow the published scheme.


CONF = Path(__file__).resolve().parents[2] / "conf"
SECRET = [
    *("api_key", "apikey", "apiKey", "APIKey", "api-key", "x-api-key", "openai_api_key"),
    *("api_keys", "OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "hf-token", "token"),
    *("auth_token", "access_token", "Authorization", "extra_headers.Authorization"),
    *("Proxy-Authorization", "Cookie", "password", "clientSecret", "client_secret"),
    *("aws_secret_access_key", "private_key", "db_passwd", "key", "llm.settings.extra.api_key"),
    *("api_key.value", "passphrase", "credentials", "API_KEY_2"),
]
PLAIN = [
    *("max_output_tokens", "batch_tokens", "max_tokens", "prompt_token_details", "output_tokens"),
    *("key_env", "token_env", "tokenizer", "pad_token", "eos_token", "mask_token", "true_token"),
    *("keyword", "keys", "tokens", "monkey", "author", "key_field", "secret_name", "password_file"),
    *("usage_input_tokens", "k1", "ssl-keyfile", "", ".", "base_url", "tokens_per_second"),
]


def test_names_of_secrets_are_recognised_and_no_others():
    assert [name for name in SECRET if not is_secret_key(name)] == []
    assert [name for name in PLAIN if is_secret_key(name)] == []
    options = {path: yaml.safe_load(path.read_text("utf-8")) for path in CONF.rglob("*.yaml")}
    assert len(options) > 50
    assert [path for path, option in options.items() if redact(option) != option] == []


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("+llm.settings.extra.api_key=sk-1,sk-2", "+llm.settings.extra.api_key=***"),
        ("the key hf_abcdefgh12345678 was", "the key *** was"),
        ("the model hf_abcdefgh-abcdefgh was", "the model hf_abcdefgh-abcdefgh was"),
        ("Authorization: Bearer sk-1", "Authorization: ***"),
        ("Bearer 0123456789abcdef", "Bearer ***"),
        ("https://user:pass@host/v1?api_key=sk-1&n=2", "https://user:***@host/v1?api_key=***&n=2"),
        ("--api-key=sk-1", "--api-key=***"),
        *(({"key_env": value}, {"key_env": "***"}) for value in ("sk-live-1", "lower_case", 7)),
        *(
            (value, value)
            for value in (
                "api_key=${oc.env:MY_KEY}",
                "llm.key_env=OPENAI_API_KEY",
                "llm.settings.max_output_tokens=8192",
                "http://127.0.0.1:8000/v1?n=2",
                "Basic search, explained",
                "retriever.k1=0.9",
                {"key_env": "MY_KEY"},
                {"api_key": None, "auth": False, "password": "", "token": "${oc.env:MY_TOKEN}"},
            )
        ),
    ],
)
def test_secrets_are_masked_and_the_rest_stays(value, wanted):
    assert redact(value) == wanted


leaves = st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "b c", "0.9", "/x/y"])
plain_names = st.sampled_from([name for name in PLAIN if name and not name.endswith("_env")])
plain = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(plain_names, inner), max_leaves=10
)
PLANTED = "planted-0123456789abcdef"


@given(
    value=plain,
    path=st.lists(st.sampled_from(["list", *PLAIN[:5]]), max_size=4),
    name=st.sampled_from(SECRET),
    form=st.sampled_from(["{}", "Bearer {}", "x {} y"]),
)
def test_a_secret_is_masked_at_any_depth_and_nothing_around_it(value, path, name, form):
    assert redact(value) == value and not list(find_secrets(value))
    planted = {name: form.format(PLANTED), "beside": value}
    for step in path:
        planted = [value, planted] if step == "list" else {step: planted}
    safe = redact(planted)
    assert PLANTED not in json.dumps(safe) and REDACTED in json.dumps(safe)
    assert redact(safe) == safe
    ((where, secret),) = find_secrets(planted)
    assert PLANTED in secret and where.endswith(name)


# Obfuscated lines: the published scheme, marked folders, and an absent or wrong canary.


TEXT = "The keeper of the light at Brel carved oak benches."
CALL = RecordedCall("search", {"query": TEXT}, output=TEXT * 50, ranking=("d1",))
TRAJECTORY = Trajectory("q1", TEXT, "completed", calls=(CALL,))


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)


@pytest.fixture
def sealed(tmp_path):
    mark_obfuscated(tmp_path / "sealed")
    return tmp_path / "sealed"


@given(st.text())
def test_the_scheme_is_the_published_one_and_texts_come_back(text):
    content = text.encode("utf-8", "replace")
    text = content.decode()
    assert Canary(CANARY).encrypt(text) == obfuscated(text)
    assert Canary(CANARY).decrypt(obfuscated(text)) == text
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, CANARY)
        assert decrypt_lines(encrypt_lines(content), Path("x")) == content


@pytest.mark.parametrize("broken", ["no base64!", obfuscated(TEXT)[:-1], obfuscated(TEXT, "other")])
def test_damaged_texts_and_those_of_another_canary_are_refused(broken):
    with pytest.raises(NotObfuscated):
        Canary(CANARY).decrypt(broken)


def test_a_marked_folder_obfuscates_what_quotes_the_benchmark_in_it_and_below(sealed):
    deep, outside = sealed / "a" / "b.json", sealed.parent / "outside.txt"
    write_quoting(deep, dump_json({"question": TEXT}))
    write_text(sealed / "clear.txt", TEXT)
    write_quoting(outside, TEXT)
    assert TEXT.encode() not in deep.read_bytes()
    assert json.loads(read_text(deep)) == {"question": TEXT}
    assert (sealed / "clear.txt").read_text() == TEXT == outside.read_text()
    assert is_obfuscated(deep) and not is_obfuscated(outside)


def test_a_folder_is_obfuscated_with_one_canary(sealed, monkeypatch):
    mark_obfuscated(sealed)
    assert CANARY not in (sealed / MARKER).read_text()
    monkeypatch.setenv(VARIABLE, "another canary")
    refused("cannot be decrypted with the canary", mark_obfuscated, sealed)
    monkeypatch.delenv(VARIABLE)
    refused(f"{VARIABLE} is not set", mark_obfuscated, sealed / "new")
    assert not (sealed / "new").exists()


def test_a_log_and_a_cache_in_an_obfuscated_folder_hold_no_text(sealed):
    path = sealed / "verdicts.jsonl"
    for number in range(2):
        log = JsonLinesLog(path, head={"head": TEXT}, quoting=True)
        log.append({"reason": f"{TEXT} {number}"})
        log.close()
    with path.open("ab") as stream:
        stream.write(b"~sealed:AAAA")  # what a killed process leaves
    rows = [{"head": TEXT}, {"reason": f"{TEXT} 0"}, {"reason": f"{TEXT} 1"}]
    assert read_json_lines(path) == rows
    cache = ResultCache(sealed / "q2q.sqlite")
    cache.put([(("prompt", TEXT), {"text": TEXT}), (("pair",), -2.25)])
    again = ResultCache(sealed / "q2q.sqlite")
    assert again.get([("prompt", TEXT), ("pair",)]) == [{"text": TEXT}, -2.25]
    assert TEXT.encode() not in b"".join(path.read_bytes() for path in sealed.iterdir())


def test_a_trajectory_and_its_outcome_are_read(sealed):
    path = sealed / "q1.json"
    write_quoting(path, dump_trajectory(TRAJECTORY))
    assert TEXT.encode() not in path.read_bytes()
    assert read_trajectory(path) == TRAJECTORY
    assert read_outcome(path).status == "completed"
    path.write_bytes(path.read_bytes().rpartition(b"\n~sealed:")[0])
    refused("is damaged", read_outcome, path)


@pytest.mark.parametrize("value", ["", "another canary"])
def test_an_obfuscated_run_is_not_read_without_its_canary(tmp_path, monkeypatch, value):
    folder = RunFolder(tmp_path / "run")
    with folder.writing({"sealed": True, "fingerprints": {}}):
        folder.write(TRAJECTORY)
        folder.rounds("q2").append({"question": TEXT})
    assert folder.manifest()["sealed"] is True
    assert folder.rounds("q2").read() == [{"question": TEXT}]
    assert not any(TEXT.encode() in path.read_bytes() for path in folder.queries.iterdir())
    monkeypatch.setenv(VARIABLE, value)
    for reading in (folder.statuses, lambda: folder.read("q1"), lambda: [*folder.trajectories()]):
        with pytest.raises(InputError, match=VARIABLE) as caught:
            reading()
        assert "delete" not in str(caught.value), "the file is not damaged"
        assert CANARY not in str(caught.value)
