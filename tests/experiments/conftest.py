"""Running entry points inside the test's process."""

import os
from pathlib import Path

import pytest
from support.benchmarks import CORPUS, QRELS, QUERIES, write_beir
from support.commands import run_entry
from support.llm_server import running_peer


@pytest.fixture
def entry(monkeypatch, tmp_path):
    """`entry("run", "name=x", ...)` in an empty working folder; the exit code."""
    monkeypatch.chdir(tmp_path)
    if not os.environ.get("SOUNDINGLINE_DATA"):  # which is relative to the working folder then
        root = Path(__file__).resolve().parents[2]
        monkeypatch.setenv("SOUNDINGLINE_DATA", str(root.parent / "shared" / "data"))

    return run_entry


@pytest.fixture
def peer():
    """A server of language models."""
    with running_peer() as server:
        yield server


@pytest.fixture
def beir(tmp_path):
    """A whole small BEIR folder; one question id wants to leave it, one judged document is gone."""
    return write_beir(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
