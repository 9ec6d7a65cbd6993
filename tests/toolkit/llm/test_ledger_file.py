"""A run's ledger on disk: rows of starts, lines of requests, and what must never be overwritten."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.errors import InputError
from toolkit.llm.errors import OutOfMoney, ServerGone, Truncated
from toolkit.llm.ledger import Ledger
from toolkit.llm.ledger_file import last_cap, ledger_on_record
from toolkit.llm.prices import Price
from toolkit.llm.protocol import Turn, Usage

DOLLAR = Price(input=0.0, output=1_000_000.0)  # An output token costs a dollar.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def spend(ledger: Ledger, dollars: int | None, role: str = "agent", qid: str = "q") -> None:
    """A reply that costs so much; None: one without usage."""
    with ledger.request(role, qid, DOLLAR) as entry:
        entry.reply(Turn(usage=Usage() if dollars is None else Usage(input=0, output=dollars)))


def rows(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["starts"])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]


def test_a_run_without_requests_leaves_no_file(path: Path) -> None:
    with ledger_on_record(path, cap=1.0):
        pass
    assert list(path.parent.iterdir()) == []


def test_a_request_is_on_disk_as_soon_as_it_has_ended(path: Path) -> None:
    with ledger_on_record(path, cap=9.0) as ledger:
        spend(ledger, 3, qid="q1")
        assert lines(path)[0]["cap"] == 9.0
        assert lines(path)[1]["dollars"] == 3.0 and lines(path)[1]["qid"] == "q1"
        with pytest.raises(ServerGone), ledger.request("agent", "q2", DOLLAR):
            raise ServerGone("gone")
        assert lines(path)[2]["failed"] == 1
        with pytest.raises(Truncated), ledger.request("judge", "q3", DOLLAR):
            raise Truncated("cut", turn=Turn(usage=Usage(input=0, output=2)))
        assert lines(path)[3]["dollars"] == 2.0 and lines(path)[3]["failed"] == 1
        assert not path.exists()
    (row,) = rows(path)
    assert (row["calls"], row["failed"], row["dollars"]) == (3, 2, 5.0)
    assert row["known_dollars"] == {"agent": 3.0, "judge": 2.0}
    assert not path.with_suffix(".jsonl").exists()


def test_what_earlier_starts_have_spent_counts_towards_the_cap(path: Path) -> None:
    for dollars in (1, 3):
        with ledger_on_record(path) as ledger:
            spend(ledger, dollars)
    with ledger_on_record(path, cap=7.0) as ledger:
        assert ledger.spent_before == 4.0
        spend(ledger, 3)
        with pytest.raises(OutOfMoney):
            spend(ledger, 1)
    assert [row["dollars"] for row in rows(path)] == [1.0, 3.0, 3.0]


def test_one_reply_without_usage_does_not_make_the_known_money_forgotten(path: Path) -> None:
    with ledger_on_record(path) as ledger:
        spend(ledger, 4)
        spend(ledger, None)
    (row,) = rows(path)
    # All of it is not known, and what is known is told apart.
    assert "dollars" not in row and row["unpriced"] == 1
    assert row["known_dollars"] == {"agent": 4.0}
    with ledger_on_record(path, cap=5.0) as ledger:
        assert (ledger.spent_before, ledger.unpriced_before) == (4.0, 1)
        with pytest.raises(OutOfMoney):
            spend(ledger, 1)


def test_the_dearest_request_of_an_earlier_start_is_expected_again(path: Path) -> None:
    with ledger_on_record(path) as ledger:
        spend(ledger, 1)
        spend(ledger, 4)
        spend(ledger, 2, role="judge")
    with ledger_on_record(path) as ledger:
        spend(ledger, 1)
        assert ledger.dearest == {"agent": 4.0, "judge": 2.0}


def test_the_newest_starts_cap_is_told(path: Path) -> None:
    assert last_cap(path) is None
    for cap in (9.0, None, 7.0):
        with ledger_on_record(path, cap=cap) as ledger:
            spend(ledger, 1)
        assert last_cap(path) == cap


# Killed processes.

SPENDER = """
import sys
from pathlib import Path
from toolkit.llm.ledger_file import ledger_on_record
from toolkit.llm.prices import Price
from toolkit.llm.protocol import Turn, Usage

with ledger_on_record(Path(sys.argv[1]), cap=100_000.0) as ledger:
    while True:
        with ledger.request("agent", "q", Price(input=0.0, output=1_000_000.0)) as entry:
            entry.reply(Turn(usage=Usage(input=0, output=2)))
        print("spent", flush=True)
"""


def test_kill_9_loses_no_request_that_had_ended(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SPENDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = 50 + len(process.stdout.readlines())
    with ledger_on_record(path, cap=100_000.0) as ledger:
        # One more may have ended that the process could not tell of any more.
        assert 2 * told <= ledger.spent_before <= 2 * (told + 1)
        assert ledger.dearest == {"agent": 2.0}
        spend(ledger, 1)
    assert [row["calls"] for row in rows(path)] == [ledger.spent_before / 2, 1]
    assert not path.with_suffix(".jsonl").exists()


def killed(path: Path, *amounts: int | None) -> bytes:
    """The lines of a start that has spent the amounts and was killed."""
    with ledger_on_record(path) as ledger:
        for amount in amounts:
            spend(ledger, amount)
        content = path.with_suffix(".jsonl").read_bytes()
    path.unlink()
    path.with_suffix(".jsonl").write_bytes(content)
    return content


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_a_line_cut_short_by_kill_9_costs_no_whole_one(path: Path, cut: int) -> None:
    content = killed(path, 3, None, 4, 5)
    path.with_suffix(".jsonl").write_bytes(content[:-cut])
    with ledger_on_record(path, cap=8.0) as ledger:
        assert (ledger.spent_before, ledger.unpriced_before) == (7.0, 1)


def test_a_start_that_became_a_row_before_its_lines_were_gone_counts_once(path: Path) -> None:
    content = killed(path, 3)
    for _ in range(2):
        with ledger_on_record(path) as ledger:
            assert ledger.spent_before == 3.0
        path.with_suffix(".jsonl").write_bytes(content)
    assert len(rows(path)) == 1


# Files of earlier versions, and damaged ones.


def test_rows_of_an_earlier_version_are_read(path: Path) -> None:
    starts = [
        {"started": "2026-01-01T00:00:00+00:00", "calls": 2, "dollars": 1.5, "agent_calls": 2},
        # The judge's replies had no price at all, the agent's all had one.
        {
            "started": "2026-01-02T00:00:00+00:00",
            "calls": 5,
            "unpriced": 3,
            "agent_calls": 2,
            "agent_dollars": 0.5,
            "agent_unpriced": 0,
            "judge_calls": 3,
            "judge_failed": 0,
            "judge_unpriced": 3,
        },
    ]
    path.write_text(json.dumps({"starts": starts}))
    with ledger_on_record(path, cap=3.0) as ledger:
        assert ledger.spent_before == 2.0
        spend(ledger, 1)
    assert rows(path)[:2] == starts and len(rows(path)) == 3


def test_money_that_an_earlier_version_did_not_keep_refuses_a_cap(path: Path) -> None:
    row = {
        "started": "2026-01-02T00:00:00+00:00",
        "calls": 9,
        "agent_calls": 9,
        "agent_failed": 1,
        "agent_unpriced": 1,
    }
    path.write_text(json.dumps({"starts": [row]}))
    with (
        pytest.raises(InputError, match=r"known_dollars.*remove the cap"),
        ledger_on_record(path, cap=3.0),
    ):
        pass
    with ledger_on_record(path):
        pass
    path.write_text(json.dumps({"starts": [{**row, "known_dollars": {"agent": 2.5}}]}))
    with ledger_on_record(path, cap=3.0) as ledger:
        assert ledger.spent_before == 2.5


STARTED = '"started": "2026-01-01T00:00:00+00:00"'
DAMAGED = {
    "nothing": "",
    "half": '{"starts": [{',
    "no starts": "{}",
    "a list": "[]",
    "starts that are a number": '{"starts": 3}',
    "a start that is a number": '{"starts": [3]}',
    "a start without anything": '{"starts": [{}]}',
    "dollars as text": f'{{"starts": [{{{STARTED}, "calls": 1, "dollars": "3"}}]}}',
    "dollars below zero": f'{{"starts": [{{{STARTED}, "calls": 1, "dollars": -3}}]}}',
    "dollars that are no number": f'{{"starts": [{{{STARTED}, "calls": 1, "dollars": NaN}}]}}',
    "dollars without end": f'{{"starts": [{{{STARTED}, "calls": 1, "dollars": 1{"0" * 400}}}]}}',
    "true for a count": f'{{"starts": [{{{STARTED}, "calls": true}}]}}',
    "no time": '{"starts": [{"calls": 1, "dollars": 3}]}',
    "known dollars of nobody": (
        f'{{"starts": [{{{STARTED}, "calls": 1, "known_dollars": {{"cook": 1}}}}]}}'
    ),
    "known dollars as text": (
        f'{{"starts": [{{{STARTED}, "calls": 1, "known_dollars": {{"agent": "1"}}}}]}}'
    ),
    "a cap as text": f'{{"starts": [{{{STARTED}, "calls": 1, "cap": "5"}}]}}',
    "no text at all": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_ledger_stops_the_run_and_stays_as_it_is(
    path: Path, content: str | bytes
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"ledger\.json") as raised, ledger_on_record(path):
        pass
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == data
    assert [item.name for item in path.parent.iterdir()] == ["ledger.json"]


@pytest.mark.parametrize(
    "line",
    [
        '{"role":"agent","qid":"q","calls":1,"dollars":"3"}',
        '{"role":"agent","qid":"q","calls":1,"dollars":-3}',
        '{"role":"cook","qid":"q","calls":1}',
        '{"role":"agent","calls":1}',
        '{"role":"agent","qid":"q"}',
        '{"role":"agent","qid":"q","calls":1,"euros":3}',
        "\x00\x00\x00",
        '{"role":"agent","qid":',
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_damaged_lines_stop_the_run_and_stay_as_they_are(path: Path, line: str, place: str) -> None:
    content = killed(path, 3, 4).decode().splitlines()
    content.insert({"first": 0, "middle": 2, "last": 3}[place], line)
    journal = path.with_suffix(".jsonl")
    journal.write_text("\n".join(content) + "\n")
    before = journal.read_bytes()
    with pytest.raises(InputError, match=r"ledger\.jsonl.*line"), ledger_on_record(path):
        pass
    assert journal.read_bytes() == before and not path.exists()


def test_a_ledger_that_may_not_be_read_stops_the_run(path: Path) -> None:
    path.mkdir()
    told = pytest.raises(InputError, match=r"cannot read the ledger.*ledger\.json")
    with told, ledger_on_record(path):
        pass
