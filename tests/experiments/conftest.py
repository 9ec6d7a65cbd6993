"""Running entry points inside the test's process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import CORPUS, QRELS, QUERIES, folder
from hydra.core.global_hydra import GlobalHydra

Entry = Callable[..., int]


@pytest.fixture
def entry(monkeypatch, tmp_path):
    """`entry("run", "name=x", ...)` in an empty working folder; the exit code."""
    monkeypatch.chdir(tmp_path)
    if not os.environ.get("SOUNDINGLINE_DATA"):  # which is relative to the working folder then
        root = Path(__file__).resolve().parents[2]
        monkeypatch.setenv("SOUNDINGLINE_DATA", str(root.parent / "shared" / "data"))

    def call(name, *arguments):
        module = importlib.import_module(f"soundingline.experiments.{name}")
        entry = importlib.import_module("soundingline.experiments.cli")
        GlobalHydra.instance().clear()
        try:
            if name in COMMANDS:
                entry.run_command(getattr(module, COMMANDS[name]), module.PARSER, arguments)
            else:
                entry.main(getattr(module, name), arguments)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return call


# Those that Hydra does not compose, and what they call.
COMMANDS = {
    "caches": "caches",
    "evaluate": "evaluate",
    "compare": "compare",
    "judge_agreement": "agree",
    "calibrate": "calibrate",
    "train_reranker": "train_reranker",
}


@pytest.fixture
def beir(tmp_path):
    """A whole small BEIR folder; one question id wants to leave it, one judged document is gone."""
    return folder(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
