"""The tuning benchmark on a corpus of its own."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from soundingline.experiments.bench import tuning
from soundingline.toolkit.errors import InputError


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(300)]
    path = tmp_path / "world" / "corpus.jsonl"
    path.parent.mkdir()
    with path.open("w", encoding="utf-8") as stream:
        for number in range(150):
            text = " ".join(rng.choice(words, 20 if number % 3 == 0 else 150).tolist())
            stream.write(json.dumps({"docno": f"d{number}", "title": "", "text": text}) + "\n")
    return path


def options(**more):
    return argparse.Namespace(
        **{"questions": 4, "rounds": 2, "cells": 3, "threads": 2, "seed": 1, **more}
    )


def test_grid_and_single_runs_are_timed_and_checked(corpus, monkeypatch):
    monkeypatch.setattr(tuning, "anserini", lambda *_: lambda cells: None)
    monkeypatch.setattr(tuning, "BROWSECOMP", 9)
    index, rows, seconds = tuning.measure(corpus, options())
    assert len(index) == 150
    assert [row[1] for row in rows] == ["363", "363", "3", "3"]
    assert [row[0].split(",")[0] for row in rows[2:]] == ["ours", "Anserini"]
    assert rows[0][5] == "1.0 (1.0–1.0)"
    assert seconds > 0


def test_cells_measured_one_by_one_are_scaled_to_the_whole_grid():
    # Beside the grid's 10 and 20 seconds, 2 and 3 seconds for 3 cells and 4 questions.
    seconds = {"grid": [10.0, 20.0], "system": [2.0, 3.0]}
    _, row = tuning.rows_of(seconds, {"grid": 363, "system": 3}, 4)
    assert row == [
        "system",
        "3",
        "302.5 (242.0–363.0)",
        "75,625.0 (60,500.0–90,750.0)",
        "208.33 (166.67–250.00)",
        "21.2 (18.1–24.2)",
    ]


def test_a_grid_that_disagrees_is_not_timed(corpus, monkeypatch):
    honest = tuning.whole_grid

    def wrong(*given):
        rank = honest(*given)

        def ranks(cells):
            return {qid: np.where(row == 1, 2, row) for qid, row in rank(cells).items()}

        return ranks

    monkeypatch.setattr(tuning, "whole_grid", wrong)
    with pytest.raises(RuntimeError, match="differs between grid and single run"):
        tuning.measure(corpus, options())


def test_questions_need_documents_that_are_long_enough(corpus):
    with pytest.raises(InputError, match="documents are long enough"):
        tuning.measure(corpus, options(questions=140))


def test_bad_arguments_are_refused():
    for name in ("documents", "questions", "rounds", "cells", "threads"):
        with pytest.raises(InputError, match="or more"):
            tuning.main([f"--{name}=0"])
    with pytest.raises(InputError, match="363 cells at most"):
        tuning.main(["--rounds=10", "--cells=40"])
