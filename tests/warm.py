"""What the server behind `processes` has done before it forks: imports, and a sweep with its
report, so that a command finds parsers, compiled functions and compositions in memory."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import tempfile
from pathlib import Path

import composition_memo
import openai.resources.chat  # noqa: F401
import scipy.stats  # noqa: F401
from entry_points import run_entry
from tqdm import tqdm

import experiments.enrich
import experiments.evaluate
import experiments.run
import experiments.serve  # noqa: F401

SWEEP = (
    *("-m", "name=warm", "unit=document,passage", "benchmark.documents=64"),
    *("benchmark.questions=6", "benchmark.hops=1"),
)

tqdm.monitor_interval = 0  # its thread would not survive a fork
composition_memo.install()
before = Path.cwd()
output = io.StringIO()
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = run_entry("rank", *SWEEP)
    os.chdir(before)
assert code == 0, output.getvalue()
gc.collect()
gc.freeze()
