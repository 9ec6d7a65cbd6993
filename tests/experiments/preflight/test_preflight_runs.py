"""The check before a run as a command and by `run` itself: where its report and its cost are, what
it stops, and what it does once for all cells of a sweep."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.assertions import told
from support.benchmarks import TINY
from support.checked_server import as_text, changed, healthy, plain
from support.llm_server import Fail, Say, running_peer
from support.runs import starts

from soundingline.experiments.config import Settings
from soundingline.experiments.published_figures import published_accuracy
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.json_lines import read_json_lines
from soundingline.toolkit.runs import RunFolder

OPTIONS = Path(__file__).resolve().parents[1] / "options"
CHECKED = (*TINY, "preflight.check=true", "traces=false")
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "agent=pi_serini", "llm=scripted")
PASSED = re.compile(r"preflight passed: (\d+) checks, [\d.]+ seconds, (\d+) requests, \$[\d.]+$")


@pytest.fixture
def peer():
    with running_peer() as running:
        running.default = healthy
        yield running


def served(peer, *words):
    at = (f"llm.base_url={peer.openai_url}", "llm.context_window=32000", "llm.attempts=1")
    return (*CHECKED, "agent=pi_serini", "llm=openai_compatible", "llm.model=m", *at, *words)


def manifest(run):
    return json.loads(Path(run, "manifest.json").read_text())


def test_the_command_checks_and_writes_nothing(entry, capsys):
    assert entry("preflight", *CHECKED, *MODEL, "name=m") == 0
    told = capsys.readouterr().out.strip().splitlines()[-1]
    checks, requests = PASSED.match(told).groups()
    assert (int(checks), int(requests)) == (5, 4)
    assert not Path("runs").exists()


def test_a_run_checks_by_itself_and_accounts_for_it(entry, capsys):
    run = ("run", *TINY, *MODEL, "traces=false")
    assert entry(*run, "name=plain") == 0 and entry(*run, "preflight.check=true", "name=m") == 0
    report = manifest("runs/m")["preflight"]
    assert report["requests"] == 4 and report["checks"] == 5 and report["findings"] == []
    rows = [row for row in read_json_lines(Path("runs/m/ledger.jsonl")) if "role" in row]
    checked = [row for row in rows if row["role"] == "preflight"]
    assert len(checked) == 4 and rows[:4] == checked
    assert report["dollars"] == pytest.approx(sum(row["dollars"] for row in checked))
    # The figures of the questions do not hold it, and no name or fingerprint changes.
    figures = {name: json.loads(Path(f"runs/{name}/metrics.json").read_text()) for name in "m"}
    plain_run = json.loads(Path("runs/plain/metrics.json").read_text())
    same = {name for name in plain_run if "seconds" not in name}
    assert {name: figures["m"][name] for name in same} == {name: plain_run[name] for name in same}
    assert manifest("runs/m")["fingerprints"] == manifest("runs/plain")["fingerprints"]
    assert "preflight" not in manifest("runs/plain")
    # A model that answers nothing right goes on, which a note says with its probability: 0.8^5.
    assert "none of the first 5 answers is right" in (told := capsys.readouterr().err)
    assert "a probability of 0.33 at an accuracy of 0.2" in told


def test_a_fault_ends_the_run_before_the_first_question(entry, capsys, peer):
    peer.default = changed(as_text, plain)
    run = ("run", *served(peer, "name=r"))
    assert entry(*run) == 2
    line = told(capsys)
    assert "the check before the run found a fault: server: the first call of a tool" in line
    assert line.endswith("(--tool-call-parser of vLLM).") and "set llm.calls=schema" in line
    assert not list(Path("runs/r").rglob("queries/*.json")) and starts("runs/r")[0]["calls"] == 3
    # What is to be done changes the run, which the folder without a question takes.
    assert entry(*run, "llm.calls=schema") == 0
    assert manifest("runs/r")["preflight"]["findings"] == []
    assert [start["preflight_calls"] for start in starts("runs/r")] == [3, 4]
    assert len(RunFolder("runs/r").statuses()) == 6
    # With a question, it does not.
    assert entry(*run) == 2 and "made with another" in told(capsys)


def test_faults_are_printed_alone_where_they_stop_nothing(entry, capsys, peer):
    peer.default = changed(as_text, plain)
    assert entry("run", *served(peer, "name=r", "preflight.stop=false")) == 0
    told = capsys.readouterr().err.splitlines()
    (line,) = [line for line in told if line.startswith("fault (server): ")]
    assert "arrived as text" in line and "set llm.calls=schema" in line
    assert [each["level"] for each in manifest("runs/r")["preflight"]["findings"]] == ["fault"]
    assert entry("run", *served(peer, "name=plain", "preflight.check=false")) == 0
    assert "fault (server)" not in capsys.readouterr().err


def test_several_faults_are_listed_in_one_line(entry, capsys, peer):
    peer.models, peer.window = ["m"], 16_000
    peer.default = changed(lambda said: replace(said, text="<|channel|>x"))
    assert entry("preflight", *served(peer)) == 2
    line = told(capsys)
    assert "found 2 faults: server: the context window of m has 16,000" in line
    assert "server: m writes <|channel|>" in line


@pytest.mark.parametrize(
    ("words", "rule", "models", "message", "do"),
    [
        (
            ("llm.base_url=http://127.0.0.1:9/v1",),
            healthy,
            None,
            "no connection to the server of m",
            "start the server",
        ),
        ((), lambda r: Fail(404, "no model m"), ["n"], "m at 127.0.0.1", "set base_url"),
        (
            ("llm.calls=schema",),
            lambda r: changed(lambda said: replace(said, text="Hello!"))(r),
            None,
            "does not constrain replies by a JSON schema",
            "llm.calls=native",
        ),
        (("budget.run_dollars=1",), healthy, None, "the price of the agent's model", "llm.price"),
    ],
    ids=["no server", "no such model", "no schema", "no price"],
)
@pytest.mark.parametrize("command", ["preflight", "run"])
def test_what_the_client_refuses_is_one_line_too(
    entry, capsys, peer, command, words, rule, models, message, do
):
    peer.default, peer.models = rule, models
    assert entry(command, *served(peer, *words), "name=r") == 2
    line = told(capsys)
    assert message in line and do in line
    assert not list(Path().rglob("queries/*.json"))


def test_a_run_that_continues_on_another_version_of_its_server_is_refused(entry, capsys, peer):
    vllm = ("llm=vllm/qwen3_8b", "llm.model=m", "llm.server.options.max_model_len=null")
    vllm += ("llm.calls=native", "llm.key_env=null", f"llm.base_url={peer.openai_url}")
    run = ("run", *CHECKED, "agent=pi_serini", *vllm, "llm.attempts=1", "name=r")
    peer.version = "1"
    assert entry(*run) == 0
    next(Path("runs/r/queries").glob("*.json")).unlink()
    peer.version = "2"
    assert entry(*run) == 2
    line = told(capsys)
    assert "was made with vLLM 1 for llm, and the server is vLLM 2 now" in line


def test_a_sweep_checks_each_server_once(entry, capsys, peer):
    sweep = ("run", "-m", *served(peer, "name=s", "retriever=ql,bm25_default", "repeats=2"))
    peer.default = changed(lambda said: replace(said, finish="eos" if said.calls else said.finish))
    assert entry(*sweep) == 0
    checks = [manifest(path.parent)["preflight"] for path in Path("runs/s").glob("*/manifest.json")]
    assert sorted(each["requests"] for each in checks) == [0, 4]
    assert [len(each["findings"]) for each in checks] == [1, 1]
    told = capsys.readouterr().err
    assert told.count("finish reason eos") == 1


def test_a_fault_of_a_sweep_is_paid_and_told_once(entry, capsys, peer):
    peer.default = changed(as_text)
    sweep = ("run", "-m", *served(peer, "name=s", "retriever=ql,bm25_default", "repeats=2"))
    assert entry(*sweep) == 2
    told = capsys.readouterr().err
    assert len(peer.requests) == 3 and told.count("fault (server)") == 1
    # The next start asks the server again.
    peer.default = healthy
    assert entry(*sweep) == 0


def test_the_command_checks_each_server_of_a_sweep_once(entry, capsys, peer):
    sweep = served(peer, "retriever=ql,bm25_default")
    for words in (("-m", *sweep), sweep):
        peer.reset()
        peer.default = healthy
        assert entry("preflight", *words) == 0
        checks, requests = PASSED.match(capsys.readouterr().out.strip().splitlines()[-1]).groups()
        # Each cell has its machine and prompt, and both have one server, judge and collection.
        assert (int(checks), int(requests)) == (7, 4) and len(peer.requests) == 4
    assert not Path("runs").exists()
    peer.default = changed(as_text)
    assert entry("preflight", "-m", *sweep) == 2
    assert "the first call of a tool went wrong" in told(capsys)


def test_dollars_above_the_cap_are_a_note_of_the_command(entry, capsys, peer):
    priced = served(peer, "llm.price.input=100", "llm.price.output=100", "budget.run_dollars=9")
    assert entry("preflight", *priced) == 0
    told = capsys.readouterr().err
    (line,) = [line for line in told.splitlines() if line.startswith("note (machine)")]
    # Of each of 6 questions: 21 prompts of 1,500 tokens, 210 calls of 880, and 21 replies of 250,
    # none of which is cheaper from a cache here.
    dollars = 6 * 100e-6 * (21 * 1500 + 210 * 880 + 21 * 250)
    assert f"6 questions are expected to cost ${dollars:,.2f} (by formula)" in line
    assert "budget.run_dollars is $9.00" in line


@pytest.mark.parametrize(
    ("price", "terminal", "stop", "stops"),
    [(1000, False, True, 1), (0, False, True, 0), (1000, True, True, 0), (1000, False, False, 0)],
    ids=["paid", "free", "watched", "printed alone"],
)
def test_a_fault_of_the_first_questions_ends_a_paid_run_that_nobody_watches(
    entry, capsys, peer, monkeypatch, price, terminal, stop, stops
):
    peer.default = lambda request: Say(text="", usage=healthy(request).usage)
    monkeypatch.setattr(Console, "is_terminal", terminal)
    words = ("preflight.check=false", f"preflight.stop={str(stop).lower()}", "name=r")
    words += ("preflight.questions=3", "concurrency=1", "budget.seconds=null")
    prices = (f"llm.price.input={price}", f"llm.price.output={price}")
    assert entry("run", *served(peer, *words, *prices)) == 2  # all answers are empty
    told = capsys.readouterr().err
    assert "fault (first_questions): none of the first 3 questions has a tool call" in told
    stopped = [line for line in told.splitlines() if line.startswith("soundingline: the run")]
    assert len(stopped) == stops, told
    assert len(RunFolder("runs/r").statuses()) == (3 if stops else 6)


@pytest.mark.parametrize(("llm", "accuracy"), [("gpt-5.5", 0.831), ("gpt-5", None)])
def test_the_accuracy_that_a_paper_states_is_that_of_its_row(llm, accuracy):
    """Pi-Serini (arXiv 2605.10848), main table: 83.1 % with gpt-5.5, no row of gpt-5."""
    manifest = {"factors": {"llm": llm, "agent": "pi_serini"}}
    manifest["config"] = {"comparison": {"published": "pi_serini/main"}}
    assert published_accuracy(manifest) == accuracy
    # Table 3 of arXiv 2602.21456 has rows of three factors.
    manifest["config"]["comparison"]["published"] = "text_ranking/table3"
    manifest["factors"] = {"retriever": "splade", "unit": "document", "tool.get_document": "False"}
    assert published_accuracy(manifest) == 0.476
    manifest["config"]["comparison"]["published"] = None
    assert published_accuracy(manifest) is None


@pytest.mark.parametrize("agent", ["closed_book", "rag", "navigator", "search_r1", "one_shot"])
def test_an_agent_of_each_kind_starts_without_a_fault(entry, capsys, peer, agent):
    assert entry("preflight", *served(peer), f"agent={agent}") == 0
    assert "fault (" not in capsys.readouterr().err


def test_a_number_in_the_place_of_the_group_is_one_line(entry, capsys):
    assert entry("run", *CHECKED, "preflight=5") == 2
    line = told(capsys)
    assert "preflight=5, and preflight is a group of settings" in line
    assert "write preflight.questions=5" in line
    with pytest.raises(InputError, match=r"write preflight\.questions=0"):
        Settings.compose(["preflight=0"])


def test_a_run_without_a_model_is_not_checked(entry):
    assert entry("run", *CHECKED, "name=k") == 0
    assert "preflight" not in manifest("runs/k")
