"""Workers wait for each other's kernels."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import numba
import numpy as np


def twice(number):
    return 2 * number


def test_a_kernel_that_another_process_compiles_is_waited_for():
    kernel = numba.njit(twice)
    lock = Path(os.environ["SOUNDINGLINE_TEST_KERNELS"], f"{__name__}.twice")
    results = []
    thread = threading.Thread(target=lambda: results.append(kernel(21)))
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as the other process does
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not kernel.signatures
    thread.join()
    assert results == [42]


def test_a_kernel_that_calls_itself_and_others_compiles():
    single = numba.njit(twice)

    @numba.njit
    def total(numbers):
        if len(numbers) == 0:
            return 0
        return single(numbers[0]) + total(numbers[1:])

    assert total(np.arange(4)) == 12
