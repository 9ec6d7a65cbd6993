"""The file of a run's ledger: starts, their attempts, and what must never be overwritten."""

import json
import signal
import subprocess
import sys

import pytest
from support.runs import starts

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import OutOfMoney, ServerGone, Truncated
from soundingline.toolkit.llm.ledger import last_cap, open_ledger
from soundingline.toolkit.llm.messages import Turn, Usage
from soundingline.toolkit.llm.prices import Price

DOLLAR = Price(input=0.0, output=1_000_000.0)  # An output token costs a dollar.


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def spend(ledger, dollars, role="agent", qid="q"):
    """A reply that costs so much; None: one without usage."""
    with ledger.request(role, qid, DOLLAR) as entry:
        entry.reply(Turn(usage=Usage() if dollars is None else Usage(input=0, output=dollars)))


def rows(path):
    return starts(path.parent)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_without_requests_leaves_no_file(path):
    with open_ledger(path, cap=1.0):
        pass
    assert list(path.parent.iterdir()) == []


def test_a_request_is_on_disk_as_soon_as_it_has_ended(path):
    with open_ledger(path, cap=9.0) as ledger:
        spend(ledger, 3, qid="q1")
        assert lines(path)[0]["cap"] == 9.0
        assert lines(path)[1]["dollars"] == 3.0 and lines(path)[1]["qid"] == "q1"
        with pytest.raises(ServerGone), ledger.request("agent", "q2", DOLLAR):
            raise ServerGone("gone")
        assert lines(path)[2]["failed"] == 1
        with pytest.raises(Truncated), ledger.request("judge", "q3", DOLLAR):
            raise Truncated("cut", turn=Turn(usage=Usage(input=0, output=2)))
        assert lines(path)[3]["dollars"] == 2.0 and lines(path)[3]["failed"] == 1
    (row,) = rows(path)
    assert (row["calls"], row["failed"], row["dollars"]) == (3, 2, 5.0)
    assert row["known_dollars"] == {"agent": 3.0, "judge": 2.0}


def test_what_earlier_starts_have_spent_counts_towards_the_cap(path):
    for dollars in (1, 3):
        with open_ledger(path) as ledger:
            spend(ledger, dollars)
    with open_ledger(path, cap=7.0) as ledger:
        assert ledger.spent_before == 4.0
        spend(ledger, 3)
        with pytest.raises(OutOfMoney):
            spend(ledger, 1)
    assert [row["dollars"] for row in rows(path)] == [1.0, 3.0, 3.0]


def test_one_reply_without_usage_does_not_make_the_known_money_forgotten(path):
    with open_ledger(path) as ledger:
        spend(ledger, 4)
        spend(ledger, None)
    (row,) = rows(path)
    # All of it is not known, and what is known is told apart.
    assert "dollars" not in row and row["unpriced"] == 1
    assert row["known_dollars"] == {"agent": 4.0}
    with open_ledger(path, cap=5.0) as ledger:
        assert (ledger.spent_before, ledger.unpriced_before) == (4.0, 1)
        with pytest.raises(OutOfMoney):
            spend(ledger, 1)


def test_the_dearest_request_of_an_earlier_start_is_expected_again(path):
    with open_ledger(path) as ledger:
        spend(ledger, 1)
        spend(ledger, 4)
        spend(ledger, 2, role="judge")
    with open_ledger(path) as ledger:
        spend(ledger, 1)
        assert ledger.highest_cost == {"agent": 4.0, "judge": 2.0}


def test_the_newest_starts_cap_is_told(path):
    assert last_cap(path) is None
    for cap in (9.0, None, 7.0):
        with open_ledger(path, cap=cap) as ledger:
            spend(ledger, 1)
        assert last_cap(path) == cap


# Killed processes.

SPENDER = """
import sys
from pathlib import Path
from soundingline.toolkit.llm.ledger import open_ledger
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.llm.messages import Turn, Usage

with open_ledger(Path(sys.argv[1]), cap=100_000.0) as ledger:
    while True:
        with ledger.request("agent", "q", Price(input=0.0, output=1_000_000.0)) as entry:
            entry.reply(Turn(usage=Usage(input=0, output=2)))
        print("spent", flush=True)
"""


def test_kill_9_loses_no_request_that_had_ended(path):
    with subprocess.Popen(
        [sys.executable, "-c", SPENDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = 50 + len(process.stdout.readlines())
    with open_ledger(path, cap=100_000.0) as ledger:
        # One more may have ended that the process could not tell of any more.
        assert 2 * told <= ledger.spent_before <= 2 * (told + 1)
        assert ledger.highest_cost == {"agent": 2.0}
        spend(ledger, 1)
    assert [row["calls"] for row in rows(path)] == [ledger.spent_before / 2, 1]


def killed(path, *amounts):
    """The lines of a start that has spent the amounts and was killed."""
    with open_ledger(path) as ledger:
        for amount in amounts:
            spend(ledger, amount)
        content = path.read_bytes()
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_a_line_cut_short_by_kill_9_costs_no_whole_one(path, capsys, cut):
    content = killed(path, 3, None, 4, 5)
    path.write_bytes(content[:-cut])
    with open_ledger(path, cap=8.0) as ledger:
        assert (ledger.spent_before, ledger.unpriced_before) == (7.0, 1)
    rest = content[:-cut].rpartition(b"\n")[2]
    assert path.with_name("ledger.jsonl.damaged-1").read_bytes() == rest
    assert capsys.readouterr().err.count("\n") == 1


def test_an_amount_that_another_bit_has_changed_stops_the_run(path):
    content = killed(path, 3)
    path.write_bytes(content.replace(b'"dollars":3', b'"dollars":1'))
    with pytest.raises(InputError, match="line 2 does not match its checksum"):
        open_ledger(path).__enter__()
    assert path.exists()


# Damaged files.

DAMAGED = {
    "a number": "3",
    "a list": "[]",
    "nothing in it": "{}",
    "a cap as text": '{"started": "2026-01-01T00:00:00+00:00", "cap": "5"}',
    "a negative cap": '{"started": "2026-01-01T00:00:00+00:00", "cap": -5}',
    "no time": '{"cap": 3}',
    "a time that is a number": '{"started": 3, "cap": null}',
    "a file of an unknown form": '{"starts": []}',
    "an attempt before any start": '{"role": "agent", "qid": "q", "calls": 1}',
    "no text at all": b"\xff\xfe\x00\n",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_ledger_stops_the_run_and_stays_as_it_is(path, content):
    data = content if isinstance(content, bytes) else content.encode() + b"\n"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"ledger\.jsonl") as raised, open_ledger(path):
        pass
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == data
    assert [item.name for item in path.parent.iterdir()] == ["ledger.jsonl"]


@pytest.mark.parametrize(
    "line",
    [
        '{"role":"agent","qid":"q","calls":1,"dollars":"3"}',
        '{"role":"agent","qid":"q","calls":1,"dollars":-3}',
        '{"role":"cook","qid":"q","calls":1}',
        '{"role":"agent","calls":1}',
        '{"role":"agent","qid":"q"}',
        '{"role":"agent","qid":"q","calls":1,"euros":3}',
        '{"role":"agent","qid":"q","calls":true}',
        '{"role":"agent","qid":"q","calls":1,"dollars":NaN}',
        f'{{"role":"agent","qid":"q","calls":1,"dollars":1{"0" * 400}}}',
        "\x00\x00\x00",
        '{"role":"agent","qid":',
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_damaged_lines_stop_the_run_and_stay_as_they_are(path, line, place):
    content = killed(path, 3, 4).decode().splitlines()
    content.insert({"first": 0, "middle": 2, "last": 3}[place], line)
    path.write_text("\n".join(content) + "\n")
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"ledger\.jsonl.*line"), open_ledger(path):
        pass
    assert path.read_bytes() == before


def test_a_ledger_that_may_not_be_read_stops_the_run(path):
    path.mkdir()
    told = pytest.raises(InputError, match=r"cannot read the ledger.*ledger\.jsonl")
    with told, open_ledger(path):
        pass
