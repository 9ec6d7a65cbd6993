"""The benchmarks' harness, and benchmarks at tiny sizes."""

import json
import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from io import BytesIO
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import harness
from support.llm_server import running_peer

from soundingline.toolkit.errors import InputError


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "DATA", tmp_path / "data")
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "PAGE", tmp_path / "results.md")
    (tmp_path / "results.md").write_text("# Results\n")


def test_systems_answer_in_turns():
    order, clock = [], iter(range(100))
    systems = {name: lambda request, name=name: order.append((name, request)) for name in "ab"}
    seconds, _ = harness.interleaved(systems, [[1, 2], [3]], [0], lambda: next(clock))
    assert order[:2] == [("a", 0), ("b", 0)]
    assert order[2:] == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3), ("b", 3)]
    assert seconds == {"a": [1, 1, 1], "b": [1, 1, 1]}


def test_a_median_has_its_range():
    assert harness.median_range([3.0, 1.0, 2.0]) == "2.0 (1.0 to 3.0)"


def test_the_cost_of_a_process_is_its_own():
    cost = harness.in_own_process(bytearray, 200 << 20)
    assert cost.seconds >= 0 and cost.processor >= 0


def test_a_process_in_the_background_sends_and_ends():
    with harness.background(Connection.send, "ready") as (process, sent):
        assert sent == "ready" and process.pid != os.getpid()
    assert not process.is_running()


def count_to(last):
    yield from range(last)


def count_and(fail):
    yield 1
    fail()
    yield 2


def fail():
    raise ValueError("no room\nfor it")


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "end", "message"),
    [
        (60, fail, "ValueError: no room"),
        (60, kill_oneself, "exit code -9"),
        (15, partial(time.sleep, 600), "longer than 15 s"),
    ],
)
def test_what_a_process_has_yielded_outlives_its_end(seconds, end, message):
    values = harness.streamed(seconds, count_and, end)
    assert next(values) == 1
    with pytest.raises(RuntimeError, match=f"{message}$"):
        next(values)
    assert list(harness.streamed(60, count_to, 3)) == [0, 1, 2]


def test_rows_are_recorded_before_the_next_one_is_measured(tmp_path, monkeypatch):
    @harness.benchmark("Falling")
    def falling():
        yield "Begun."
        yield harness.Table(["number"], [[1]])
        yield harness.Table(["number"], [[2]])
        raise MemoryError

    monkeypatch.setitem(harness.BENCHMARKS, "falling", harness.BENCHMARKS["falling"])
    with pytest.raises(MemoryError):
        harness.run("falling", ["--write"])
    result = json.loads((tmp_path / "results" / "falling.json").read_text())
    assert result["parts"][1:] == [{"head": ["number"], "rows": [[1], [2]]}]


def test_results_are_recorded_as_json_and_in_the_page(tmp_path, capsys, monkeypatch):
    @harness.benchmark("Counting", small={"to": 3}, packages=("numpy", "absent"))
    def counting(to=10, how=""):
        """Counts."""
        yield f"Counted to {to}."
        yield harness.Table(["number"], [[number] for number in range(to)])

    monkeypatch.setitem(harness.BENCHMARKS, "counting", harness.BENCHMARKS["counting"])
    for _ in "ab":  # a second run replaces the first
        harness.run("counting", ["--small", "--write"])
    assert "Counted to 3." in capsys.readouterr().out
    result = json.loads((tmp_path / "results" / "counting.json").read_text())
    assert result["command"] == "python tests/bench counting --to 3"
    assert set(result["versions"]) == {"numpy"}
    assert result["parts"][1] == {"head": ["number"], "rows": [[0], [1], [2]]}
    page = (tmp_path / "results.md").read_text()
    assert page.count("<!-- bench:counting -->") == 1 and "| number |" in page
    with pytest.raises(InputError, match="0 or more"):
        harness.run("counting", ["--to", "-1"])


METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="model"} 3.0
vllm:num_requests_running{engine="1",model_name="model"} 4.0
vllm:num_requests_waiting{engine="0",model_name="model"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="model"} 1.5e+06
vllm:request_queue_time_seconds_bucket{le="0.3"} 9.0
vllm:request_queue_time_seconds_sum{engine="0"} 12.5
"""


def test_the_numbers_of_a_server_are_summed_over_its_engines(monkeypatch):
    chat, asked = import_module("chat"), []

    def urlopen(url, timeout):
        asked.append(url)
        return BytesIO(METRICS.encode())

    monkeypatch.setattr(chat.urllib.request, "urlopen", urlopen)
    values = chat._metrics("http://127.0.0.1:8000/v1/")
    assert asked == ["http://127.0.0.1:8000/metrics"]
    assert [values[name] for name in chat.NOW] == [7.0, 2.0]
    assert values["vllm:prompt_tokens_total"] == 1_500_000
    assert values["vllm:request_queue_time_seconds_sum"] == 12.5
    assert values["vllm:generation_tokens_total"] == 0


@pytest.mark.slow
def test_an_agent_on_a_server_is_measured_by_what_its_run_records(capsys):
    """A server that asks for two searches and answers, whose cache has all but the newest 1,000
    tokens of a prompt: 0, 1,000 and 2,000 of 1,000, 2,000 and 3,000, which is 1 - 2 / (3 + 1)."""
    agents, _ = map(import_module, ("agents", "chat"))
    with running_peer() as peer:
        peer.default = partial(agents.reply, turns=2, answer=agents.ANSWER)
        harness.run("chat", ["--small", "--calls", "native", "--address", peer.openai_url])
    shown = re.sub(r"[^\w.,]+", " ", capsys.readouterr().out)
    assert "3 of 3 questions of wikidemo by model" in shown
    for line in ("requests 9", "with an error 6, 0", "the prefix cache 0.500", "from it 0.500"):
        assert line in shown, shown


@contextmanager
def in_a_thread(serve, *arguments):
    ours, theirs = Pipe()
    thread = Thread(target=serve, args=(theirs, *arguments))
    thread.start()
    try:
        yield None, ours.recv()
    finally:
        ours.close()
        thread.join()


def streamed_here(seconds, function, *arguments):
    return function(*arguments)


def in_this_process(function, *arguments):
    function(*arguments)
    return harness.Cost(1.5, 1.5, 100.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("tools", "comparison", ["--questions", "5", "--repeats", "2"]),
        ("tools", "evidence", ["--documents", "100", "--runs", "1"]),
        ("lexical", "frame", ["--documents", "1000", "--queries", "3"]),
        ("lexical", "scale", ["--documents", "1000", "--anserini", "0"]),
        ("learned", "vectors", ["--documents", "1000", "--dimensions", "8", "--rounds", "1"]),
        ("late", "late", ["--passages", "200", "--dimensions", "16", "--rivals", "0"]),
        ("agents", "agent", ["--questions", "10", "--turns", "2", "--flight", "2"]),
        ("agents", "enrich", ["--documents", "100", "--queries", "5"]),
        ("gpu", "gpu", ["--small", "--device", "cpu", "--only", "ColBERT re-ranking,exact,turns"]),
        ("tools", "replay", ["--documents", "200", "--questions", "1"]),
    ],
)
def test_benchmarks_run_at_tiny_sizes(module, name, arguments, capsys, monkeypatch, tmp_path):
    """In this process, which has imported everything, with few words and few measured parts."""
    pytest.importorskip("psutil")
    imported = import_module(module)
    for each in (imported, import_module("data")):
        monkeypatch.setattr(each, "DATA", tmp_path / "data", raising=False)
    monkeypatch.setattr(imported, "in_own_process", in_this_process, raising=False)
    monkeypatch.setattr(imported, "background", in_a_thread, raising=False)
    monkeypatch.setattr(imported, "streamed", streamed_here, raising=False)
    monkeypatch.setattr(imported, "VOCABULARY", 5000, raising=False)
    monkeypatch.setattr(imported, "PARTS", 2, raising=False)
    sizes = {"BATCHES": (64,), "LARGE": (4,), "CANDIDATES": (3, 5), "AGENTS": 3}
    for constant, few in sizes.items() if module == "gpu" else ():
        monkeypatch.setattr(imported, constant, few, raising=False)
    harness.run(name, arguments)
    assert capsys.readouterr().out.strip()
