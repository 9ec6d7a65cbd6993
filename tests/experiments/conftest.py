"""Running entry points inside the test's process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import CORPUS, QRELS, QUERIES, folder
from hydra.core.global_hydra import GlobalHydra

Entry = Callable[..., int]


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Entry:
    """`entry("run", "name=x", ...)` in an empty working folder; the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("SOUNDINGLINE_DATA", str(root.parent / "shared" / "data"))

    def call(name: str, *arguments: str) -> int:
        module = importlib.import_module(f"experiments.{name}")
        task, takes_runs = TASKS[name]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        GlobalHydra.instance().clear()
        try:
            importlib.import_module("experiments.entry").main(
                getattr(module, task), takes_runs=takes_runs
            )
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return call


TASKS = {
    "run": ("run", False),
    "rank": ("rank", False),
    "index": ("index", False),
    "tune": ("tune", False),
    "caches": ("caches", False),
    "evaluate": ("evaluate_folders", True),
    "compare": ("compare_runs", True),
    "judge_agreement": ("agree", True),
}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A whole small BEIR folder; one question id wants to leave it, one judged document is gone."""
    return folder(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
