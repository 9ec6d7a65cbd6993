import sys
import time

import pytest

from experiments.bench.measure import bandwidth, in_own_process, medians


def use_memory(megabytes: int) -> None:
    kept = bytearray(megabytes << 20)
    kept[::4096] = b"x" * len(kept[::4096])
    time.sleep(0.6)


def fail() -> None:
    raise SystemExit(3)


def test_medians_are_milliseconds_a_query() -> None:
    times = medians({"fast": lambda q: None, "slow": time.sleep}, [0.002, 0.02, 0.004], rounds=1)
    assert times["fast"] < 2 <= 4 <= times["slow"] < 20


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_peak_memory_is_that_of_the_process_that_ran() -> None:
    small, large = in_own_process(use_memory, 1), in_own_process(use_memory, 200)
    assert large.peak_mb - small.peak_mb == pytest.approx(199, abs=30)
    assert small.seconds >= 0.6


def test_a_failure_in_the_process_is_not_taken_for_a_measurement() -> None:
    with pytest.raises(RuntimeError, match="fail failed with exit code 3"):
        in_own_process(fail)


def test_bandwidth_is_that_of_memory() -> None:
    assert 1e8 < bandwidth(16) < 1e13
