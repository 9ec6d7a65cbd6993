"""Benchmarks, servers and errors cannot control the terminal that a command is run in."""

import json
import logging
import sys
import unicodedata
from pathlib import Path

import pytest
from experiment_samples import CORPUS, TINY, folder
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.evaluate import agreement_table
from soundingline.toolkit.console import Console, print_traceback
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.statistics import agreement
from soundingline.toolkit.llm.errors import AuthenticationFailed, ModelError

ATTACK = "\x1b]0;owned\x07\x1b[2J[/red]"
SHOWN = "␛]0;owned␇␛[2J[/red]"


def output(capsys):
    """All that was written, which holds nothing that a terminal obeys."""
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert not [char for char in text if unicodedata.category(char) == "Cc" and char not in "\t\n"]
    return text


@pytest.mark.parametrize(
    "error",
    [
        InputError(f"question {ATTACK}"),
        ModelError(f"m at host: HTTP 500, {ATTACK}"),
        OSError(5, f"no {ATTACK}", ATTACK),
        OmegaConfBaseException(f"value {ATTACK}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_told_in_a_line_that_the_terminal_does_not_obey(
    error,
    entry,
    monkeypatch,
    capsys,
):
    def fail(config):
        logging.getLogger("some.library").error("log of %s", ATTACK)
        raise error

    monkeypatch.setattr("soundingline.experiments.run.run", fail)
    assert entry("run", *TINY, "name=x") == 2
    text = output(capsys)
    assert f"log of {SHOWN}" in text and text.count(SHOWN) >= 2
    assert sys.excepthook is print_traceback  # and so is a defect's traceback


def test_ids_titles_and_names_of_a_benchmark_are_shown(entry, tmp_path, capsys):
    qids = [f"q{number}{ATTACK}" for number in range(3)]
    queries = [{"_id": qid, "text": f"{ATTACK} tide?", "answers": [ATTACK]} for qid in qids]
    evil = {"_id": "d9", "title": f"Tides {ATTACK}", "text": f"{ATTACK} The tide."}
    path = folder(
        tmp_path / f"tides{ATTACK.replace('/', '')}",
        corpus=CORPUS + json.dumps(evil) + "\n",
        queries="".join(f"{json.dumps(query)}\n" for query in queries),
        qrels=f"query-id\tcorpus-id\tscore\n{qids[0]}\tgone\t1\n{qids[1]}\td9\t1\n",
    )
    given = ("benchmark=beir", f"benchmark.path='{path}'")
    assert entry("index", *given) == 0
    assert entry("run", *given, "name=a") == 0
    assert entry("run", *given, "name=b", "tool=top_k") == 0
    assert entry("evaluate", "runs/a") == 0
    assert entry("compare", "runs/a", "runs/b", "name=c") == 0
    text = output(capsys)
    assert f"1 judged documents of {path.name}".translate({0x1B: "␛", 0x07: "␇"}) in text
    report = Path("runs/c/report.md").read_text()
    assert "\x1b" not in report


def test_a_servers_words_are_shown(entry, monkeypatch, capsys):
    def refuse(self, *_):
        raise AuthenticationFailed(f"the key is wrong {ATTACK}")

    monkeypatch.setattr("support.llm_model.ScriptedLanguageModel._choose", refuse)
    options = f"hydra.searchpath=[file://{Path(__file__).with_name('options')}]"
    assert entry("run", *TINY, options, "agent=pi_serini", "llm=scripted", "name=m") == 2
    assert f"the key is wrong {SHOWN}" in output(capsys)


def test_the_questions_that_judges_differ_on_are_shown(capsys):
    one, other = {ATTACK: True, "2": True}, {ATTACK: False, "2": True}
    Console(width=200).print(
        agreement_table(ATTACK, {("exact", f"llm {ATTACK}"): agreement(one, other)})
    )
    assert output(capsys).count(SHOWN) == 3


def test_each_command_ends_with_what_to_open_or_do_next(entry, capfd):
    for command, next_step in {
        "run": "open runs/run/traces/index.html, or soundingline compare runs/run ANOTHER_RUN",
        "rank": "soundingline compare runs/rank ANOTHER_RUN",
        "tune": "rank or run with retriever=bm25_from_tuning retriever.source=runs/tune",
        "index": "soundingline rank, or run, with the same options",
        "describe": f"soundingline run {' '.join(TINY)} name=describe",
    }.items():
        more = ("tuning.select=null", "tuning.report=test") if command == "tune" else ()
        named = () if command == "index" else (f"name={command}",)
        assert entry(command, *TINY, *more, *named) == 0, capfd.readouterr().err
        assert capfd.readouterr().err.splitlines()[-1] == f"Next: {next_step}"
    exported = ("runs/run", "format=browsecomp_plus", "out=exported")
    for command, words, next_step in (
        ("evaluate", ["runs/run"], "soundingline compare runs/run ANOTHER_RUN"),
        ("export", exported, "open exported, or soundingline lint exported"),
        ("lint", ["exported"], "soundingline lint exported benchmark=NAME also checks answers and"),
        ("import", ["exported", *exported[1:2], *TINY, "name=i"], "soundingline compare runs/i"),
        ("list", ["retriever"], "soundingline run --help retriever shows the arguments of each"),
        ("caches", ["caches"], "soundingline caches caches keep_gb=5 keeps the 5 GB that were"),
    ):
        Path("caches").mkdir(exist_ok=True)
        entry(command, *words)
        assert capfd.readouterr().err.splitlines()[-1].startswith(f"Next: {next_step}"), command
    # A sweep ends with the path of its report, once.
    assert entry("rank", "-m", *TINY, "name=s", "unit=document,passage") == 0
    captured = capfd.readouterr()
    assert captured.out.endswith("Report: runs/s/report.html\n") and "Next" not in captured.err
