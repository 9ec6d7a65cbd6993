"""Whole rounds of a question under way: on disk, sealed where the run is, gone at its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolkit.contracts import Trajectory
from toolkit.llm.accounts import Account
from toolkit.llm.errors import OutOfMoney
from toolkit.llm.ledger import Ledger
from toolkit.llm.prices import Price
from toolkit.runs import RunFolder
from toolkit.runs.names import question_of, repeat_id
from toolkit.sealing import VARIABLE

ROUND = {"row": {"checklist": ["a mill by the Wey"]}}
ENDED = Trajectory("Q/1", "?", "completed")


def manifest(**others: Any) -> dict[str, Any]:
    return {"fingerprints": {}, **others}


@pytest.mark.parametrize("sealed", [False, True])
def test_rounds_are_kept_in_the_form_of_their_run(
    sealed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a canary")
    folder = RunFolder(tmp_path / "run")
    with folder.writing(manifest(sealed=sealed)):
        folder.rounds("Q/1").append(ROUND)
        folder.rounds("Q/1").append(ROUND)
    content = folder.rounds("Q/1").path.read_bytes()
    assert (b"a mill by the Wey" in content) is not sealed
    assert folder.rounds("Q/1").read() == [ROUND, ROUND]
    assert folder.rounds("q/1").read() == [], "another question"
    assert not list(folder.trajectories()) and not folder.done()


@pytest.mark.parametrize(
    ("trajectory", "stays"),
    [
        (ENDED, False),
        (replace(ENDED, status="out_of_money", reason="dollars"), False),
        (replace(ENDED, status="failed"), True),
        (replace(ENDED, status="out_of_money", reason="run_out_of_money"), True),
    ],
)
def test_rounds_go_with_a_trajectory_that_ended_well(
    trajectory: Trajectory, stays: bool, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.writing(manifest()):
        folder.rounds("Q/1").append(ROUND)
        folder.repeat(2).rounds("Q/1").append(ROUND)
        folder.write(trajectory)
    assert folder.rounds("Q/1").path.exists() is stays
    assert folder.repeat(2).rounds("Q/1").path.exists(), "another time that it was asked"


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    rounds = RunFolder(tmp_path / "run").rounds("q")
    rounds.append(ROUND)
    rounds.path.write_bytes(b"not JSON\n" + rounds.path.read_bytes())
    assert rounds.read() == []
    rounds.append(ROUND)
    assert rounds.read() == [ROUND]


@pytest.mark.parametrize("repeat", [1, 2, 12])
def test_a_repeat_tells_its_question(repeat: int) -> None:
    for qid in ("q1", "q#repeat2", ""):
        assert question_of(repeat_id(qid, repeat), repeat) == qid


def test_what_a_question_spent_before_counts_towards_its_cap_and_not_the_runs() -> None:
    ledger = Ledger(cap=1.0, question_cap=0.5, spent_before=0.4)
    ledger.restore("q", {"librarian": Account(calls=3, input_tokens=7, dollars=0.5)})
    usage = ledger.usage("q")
    assert usage["librarian_calls"] == 3 and usage["dollars"] == pytest.approx(0.5)
    assert ledger.total.dollars == 0
    price = Price(input=1.0, output=1.0)
    with pytest.raises(OutOfMoney), ledger.request("librarian", "q", price):
        raise AssertionError("it was let through")
    with ledger.request("librarian", "another", price):
        pass
