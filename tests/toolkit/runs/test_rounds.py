"""Whole rounds of a question under way: on disk, sealed where the run is, gone at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soundingline.toolkit.llm.errors import OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price, UsageTotals
from soundingline.toolkit.obfuscation import VARIABLE
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import question_of, repeat_id
from soundingline.toolkit.trajectory import Trajectory

ROUND = {"row": {"checklist": ["a mill by the Wey"]}}
ENDED = Trajectory("Q/1", "?", "completed")


def manifest(**others):
    return {"fingerprints": {}, **others}


@pytest.mark.parametrize("sealed", [False, True])
def test_rounds_are_kept_in_the_form_of_their_run(sealed, tmp_path, monkeypatch):
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
def test_rounds_go_with_a_trajectory_that_ended_well(trajectory, stays, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.writing(manifest()):
        folder.rounds("Q/1").append(ROUND)
        folder.repeat(2).rounds("Q/1").append(ROUND)
        folder.write(trajectory)
    assert folder.rounds("Q/1").path.exists() is stays
    assert folder.repeat(2).rounds("Q/1").path.exists(), "another time that it was asked"


def test_a_damaged_file_goes_on_from_the_rounds_before_the_damage(tmp_path, capsys):
    folder = RunFolder(tmp_path / "run")
    rounds = folder.rounds("q")
    numbered = [{"row": {"round": number}} for number in range(1, 5)]
    with folder.writing(manifest()):
        for record in numbered:
            rounds.append(record)
        for times, number in enumerate((3, 1), start=1):
            damaged = rounds.path.read_bytes().replace(b'"round":%d' % number, b'"round":9')
            rounds.path.write_bytes(damaged)
            assert rounds.read() == numbered[: number - 1]
            told = capsys.readouterr().err
            kept = f"q.rounds.jsonl.damaged-{times}"
            assert f"line {number} does not match its checksum; it is kept as {kept}" in told
            assert told.count("\n") == 1
            assert (rounds.path.parent / kept).read_bytes() == damaged
        rounds.append(numbered[0])
        folder.write(replace(ENDED, qid="q"))
    names = sorted(path.name for path in folder.queries.iterdir())
    assert names == ["q.json", "q.rounds.jsonl.damaged-1", "q.rounds.jsonl.damaged-2"]
    assert folder.done() == {"q"} and len(list(folder.trajectories())) == 1


@pytest.mark.parametrize("repeat", [1, 2, 12])
def test_a_repeat_tells_its_question(repeat):
    for qid in ("q1", "q#repeat2", ""):
        assert question_of(repeat_id(qid, repeat), repeat) == qid


def test_what_a_question_spent_before_counts_towards_its_cap_and_not_the_runs():
    ledger = Ledger(cap=1.0, question_cap=0.5, spent_before=0.4)
    ledger.add_prior_usage("q", {"librarian": UsageTotals(calls=3, input_tokens=7, dollars=0.5)})
    usage = ledger.usage("q")
    assert usage["librarian_calls"] == 3 and usage["dollars"] == pytest.approx(0.5)
    assert ledger.total.dollars == 0
    price = Price(input=1.0, output=1.0)
    with pytest.raises(OutOfMoney), ledger.request("librarian", "q", price):
        raise AssertionError("it was let through")
    with ledger.request("librarian", "another", price):
        pass
