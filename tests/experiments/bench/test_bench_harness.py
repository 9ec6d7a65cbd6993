import sys
import time

import pytest

from soundingline.experiments.bench import harness
from soundingline.experiments.bench.building import OURS, ratio_rows
from soundingline.experiments.bench.harness import (
    Arguments,
    Cost,
    bandwidth,
    in_own_process,
    latencies,
    take_turns,
)
from soundingline.toolkit.errors import InputError


def use_memory(megabytes):
    memory = bytearray(megabytes << 20)
    memory[::4096] = b"x" * len(memory[::4096])
    time.sleep(0.6)


def fail():
    raise SystemExit(3)


def test_latencies_are_milliseconds_a_request(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])

    def sleep(seconds):
        clock[0] += seconds

    systems = {"none": lambda seconds: None, "sleep": sleep}
    requests = [0.001 * number for number in range(1, 102)]
    times = latencies(systems, requests, rounds=1)
    assert times["none"] == (0, 0, 0, 0)
    assert times["sleep"] == pytest.approx((51, 96, 51, 51))


def test_the_spread_of_latencies_is_that_of_the_rounds(monkeypatch):
    clock, slowdown = [0.0], iter([1] * 3 + [1] * 3 + [2] * 3 + [5] * 3)
    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])

    def sleep(seconds):
        clock[0] += seconds * next(slowdown)

    times = latencies({"sleep": sleep}, [0.001, 0.002, 0.009], rounds=3)
    assert (times["sleep"].low, times["sleep"].high) == pytest.approx((2, 10))
    assert str(times["sleep"]).endswith("(2.00–10.00)")


def test_systems_take_turns_round_by_round_and_the_first_requests_are_not_counted():
    calls = []

    def system(name):
        def answer(request):
            calls.append((name, request))
            return 10 * request

        return answer

    turns = take_turns({"a": system("a"), "b": system("b")}, [[1, 2], [3]], warm_up=[0])
    order = [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3), ("b", 3)]
    assert calls == order
    assert turns["a"].results == turns["b"].results == [10, 20, 30]
    assert len(turns["b"].seconds) == 3


@pytest.mark.parametrize("form", ["--documents=2000", "documents=2000"])
def test_arguments_are_read_in_both_forms_and_told_as_one_command(form):
    parser = Arguments("lexical", documents=(100, 10), seed=(7, 0))
    options = parser.read([form])
    assert (options.documents, options.seed, options.write) == (2000, 7, False)
    command = "python -m soundingline.experiments.bench.lexical --documents 2000 --seed 7 --write"
    assert parser.command(options) == command


def test_an_argument_below_its_least_value_is_refused():
    with pytest.raises(InputError, match=r"documents=9\. valid: 10 or more"):
        Arguments("lexical", documents=(100, 10)).read(["--documents", "9"])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_peak_memory_is_that_of_the_process_that_ran():
    small, large = in_own_process(use_memory, 1), in_own_process(use_memory, 200)
    assert large.peak_mb - small.peak_mb == pytest.approx(199, abs=30)
    assert small.seconds >= 0.6


def test_a_failure_in_the_process_is_not_taken_for_a_measurement():
    with pytest.raises(RuntimeError, match="fail failed with exit code 3"):
        in_own_process(fail)


def test_bandwidth_is_that_of_memory():
    assert 1e8 < bandwidth(16) < 1e13


def test_ratios_of_builds_are_those_of_each_round():
    def costs(*pairs):
        return [Cost(seconds, 0, processor) for seconds, processor in pairs]

    rounds = {
        OURS: costs((1, 2), (10, 2), (1, 2)),
        "other": costs((4, 6), (30, 6), (2, 2)),
    }
    assert ratio_rows(rounds) == [["other", "3.0 (2.0–4.0)", "3.0 (1.0–3.0)"]]
