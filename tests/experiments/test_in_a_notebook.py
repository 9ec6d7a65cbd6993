"""Experiments inside an event loop, which is where a notebook executes its cells."""

import ast
import asyncio
from pathlib import Path
from typing import TypeVar

import pytest
from experiment_samples import TINY
from support.commands import run_command

from soundingline.experiments import Experiment, compare
from soundingline.toolkit.runs import RunFolder

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = f"hydra.searchpath=[file://{OPTIONS}]"
AGENT = ("agent=pi_serini", "llm=scripted")
JUDGE = ("judge=llm", "llm@judge_llm=scripted")
REWRITER = ("rewriter=hyde", "llm@rewriter_llm=scripted", "rewriter_llm.says='A mill.'")


def in_a_cell(function):
    async def cell():
        return function()

    return asyncio.run(cell())


def composed(*overrides):
    return Experiment.compose(*TINY, *overrides, config_dir=OPTIONS)


@pytest.mark.usefixtures("entry")
def test_every_method_of_an_experiment_works_in_a_cell():
    """An agent, a judge and a rewriter with a language model, each of which needs a loop."""

    def cell():
        experiment = composed(*AGENT, *JUDGE, *REWRITER, "name=k", "concurrency=3")
        answered = experiment.run()
        assert answered.counts["completed"] == 6
        assert answered.counts["without_verdict"] == 0
        verdicts = Path("runs/k/evaluation").glob("verdicts-llm-*.jsonl")
        assert len(next(verdicts).read_text().splitlines()) == 7
        for path in Path("runs/k/evaluation").glob("verdicts-llm-*.jsonl"):
            path.unlink()
        assert experiment.evaluate().metrics == answered.metrics
        assert experiment.run().metrics == answered.metrics
        assert composed(*REWRITER, "name=r").rank().counts["questions"] == 6
        assert len(composed().pipeline().search("mill")) > 0

    in_a_cell(cell)


@pytest.mark.usefixtures("entry")
def test_an_experiment_prints_what_it_is_asked_to_print_alone(capfd):
    tuned = Experiment.compose(*TINY, "retriever=bm25_tuned", "name=tuned").rank()
    ranked = [tuned, Experiment.compose(*TINY, "name=default").rank()]
    answering = Experiment.compose(*TINY, "name=answered")
    assert answering.run().counts["failed"] == 0 and answering.evaluate().counts["failed"] == 0
    compared = compare(ranked)
    assert [(row.measure, row.a, row.b, row.n) for row in compared] == [
        (name, "default", "tuned", 6) for name in ("nDCG@10", "AP")
    ]
    assert capfd.readouterr() == ("", "")
    assert "AP" in ranked[0]._repr_html_() and "<td>default</td>" in compared._repr_html_()
    Experiment.compose(*TINY, "name=default", verbose=True).rank()
    assert "nDCG@10" in capfd.readouterr().out
    with pytest.raises(TypeError, match=r"no argument 'conf_dir'.*did you mean config_dir"):
        Experiment.compose(*TINY, conf_dir="x")


INTERRUPTED = """
import asyncio, os, signal, sys, threading
from pathlib import Path
# A job that a shell started in the background inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from soundingline.experiments import Experiment

tiny, config_dir = sys.argv[2:], sys.argv[1]
experiment = Experiment.compose(
    *tiny, "agent=pi_serini", "llm=scripted", "llm.gate=gate", "llm.gate_after=4", "name=k",
    config_dir=config_dir,
)

def interrupt_after_a_question():
    while not list(Path("runs/k/queries").glob("[!.]*.json")):
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)

async def notebook():
    threading.Thread(target=interrupt_after_a_question).start()
    try:
        experiment.run()
    except KeyboardInterrupt:
        print("interrupted with", len(list(Path("runs/k/queries").glob("[!.]*.json"))))
    Path("gate").touch()
    print("completed", experiment.run().counts["completed"])

asyncio.run(notebook())
"""


def test_an_interrupted_cell_keeps_what_it_has_and_goes_on(tmp_path):
    done = run_command("-c", INTERRUPTED, str(OPTIONS), *TINY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # Three requests a question: the gate is shut for the second one.
    lines = [line for line in done.stdout.splitlines() if line.startswith(("inter", "comp"))]
    assert lines == ["interrupted with 1", "completed 6"]
    folder = RunFolder(tmp_path / "runs" / "k")
    assert all(folder.attempts(qid) == 1 for qid in folder.statuses())


def test_a_server_in_a_cell_ends_at_an_interrupt(tmp_path):
    program = """
import asyncio, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from soundingline.experiments import cli
from soundingline.experiments.serve import server

def interrupt(line):
    if "serving at" in line:
        os.kill(os.getpid(), signal.SIGINT)

server.notify = interrupt

async def notebook():
    try:
        cli.main(["serve", *sys.argv[1:]])
    except SystemExit as end:
        print("code", end.code, threading.active_count())

asyncio.run(notebook())
"""
    done = run_command("-c", program, *TINY, "port=0", "name=x", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "code 0 1\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_only_one_function_of_the_product_starts_event_loops():
    """`asyncio.run` and its kin fail inside a running loop, which `run_coroutine` does not."""
    starting = {"run", "Runner", "new_event_loop", "run_until_complete", "run_forever"}
    found = set()
    for package in ("agents", "experiments", "pipelines", "toolkit"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Attribute) or node.attr not in starting:
                    continue
                module = node.value.id if isinstance(node.value, ast.Name) else ""
                if module in ("asyncio", "anyio") or node.attr.startswith("run_"):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == {"toolkit/llm/blocking.py"}
